"""Where networks are put, and how a piece of code can ask whether that is a GPU."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from ...rewriting.edits import FileEdit
from ..calls.signatures import call_argument, first_parameter
from ..editing.own_attributes import is_kept_before, is_set_below, own_name
from ..editing.references import quoted, reference
from ..facts import DeviceKind, Model
from ..loading.iterations import top_level_starts
from ..networks.forward_code import make_one_of, parts_given
from ..networks.models import models_behind
from ..program.classes import family, kept_as, kept_names
from ..program.parameters import parameter_names
from ..program.scopes import Assigned, Parameter
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..values.named_values import name_values
from ..values.object_names import holder_of
from ..values.resolver import Resolver, Values
from ..values.values import Attribute, Display, External, Literal, Made, Option, Unknown, Value
from .devices import is_below_found_gpu, is_device, is_device_text
from .placement import default_device_call, move_target

_ABOUT_CUDA = re.compile(r"cuda|gpu|device", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class NetworkDevice:
    """Where networks are trained.

    When ``kind`` is ``CHOSEN``, ``device`` is the device they are moved to, or ``test`` the condition under which they
    are moved to CUDA; both are None when it is chosen in a way that cannot be written down again.
    """

    kind: DeviceKind
    module: Module | None = None
    device: ast.expr | None = None
    test: ast.expr | None = None


_SOMEHOW = NetworkDevice(DeviceKind.CHOSEN)


def network_device(resolver: Resolver, networks: Iterable[Model]) -> NetworkDevice:
    """Where ``networks`` are moved to; ``CPU`` when nothing moves any of them."""
    wanted = tuple(networks)
    modules = resolver.project.modules
    found = [
        (module.function(call) or module, move)
        for module in modules
        for call in module.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in {"to", "cuda"}
        for move in _moves(resolver, call, module, wanted)
    ]
    moves = [move for _, move in found]
    if not moves:
        on_gpu = any(default_device_call(resolver, module) for module in modules)
        return _SOMEHOW if on_gpu else NetworkDevice(DeviceKind.CPU)
    devices = [move for move in moves if move.device is not None]
    if devices:
        return devices[0] if len({_code(move.device) for move in devices}) == 1 else _SOMEHOW
    # `if gpus > 1: model = nn.DataParallel(model).cuda()`, with `model.cuda()` beside it
    always = {place: move for place, move in found if move.kind is DeviceKind.CUDA}
    if all(place in always for place, _ in found):
        return always[found[0][0]]
    return moves[0] if len({_code(move.test) for move in moves}) == 1 else _SOMEHOW


def _code(expression: ast.expr | None) -> str | None:
    return ast.dump(expression) if expression is not None else None


def _moves(
    resolver: Resolver, call: ast.Call, module: Module, networks: tuple[Model, ...]
) -> Iterator[NetworkDevice]:
    assert isinstance(call.func, ast.Attribute)
    kind = move_target(resolver, call, module)
    if kind in (None, DeviceKind.CPU, DeviceKind.OTHER):
        return
    moved = models_behind(resolver, resolver.values(call.func.value, module))
    if not _hold(resolver, moved, networks):
        return
    if kind is DeviceKind.CHOSEN:
        yield NetworkDevice(kind, module, call_argument(call, "device", 0))
        return
    tests = list(_tests(module, call))
    if kind is DeviceKind.CUDA and not tests:
        yield NetworkDevice(kind, module)
        return
    test = tests[0] if len(tests) == 1 else None
    if test is not None and _ABOUT_CUDA.search(module.code(test)):
        yield NetworkDevice(DeviceKind.CHOSEN, module, None, test)
    else:
        yield _SOMEHOW


def _hold(resolver: Resolver, moved: tuple[Model, ...], networks: tuple[Model, ...]) -> bool:
    """Whether one of ``networks`` is among ``moved``, is handed to one of them as a part, or made by its class as one."""
    wanted = {network.node for network in networks}
    if any(part.call in wanted for model in moved for part in parts_given(resolver, model)):
        return True
    return make_one_of(resolver, moved, networks)


def _tests(module: Module, node: ast.AST) -> Iterator[ast.expr | None]:
    """The tests that must be true for ``node`` to run, as far as its function says; None for one that must not."""
    child = node
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return
        if isinstance(ancestor, ast.If) and ancestor is not module.main_guard:
            if child is not ancestor.test:
                yield ancestor.test if child in ancestor.body else None
        elif isinstance(ancestor, ast.IfExp) and child is not ancestor.test:
            yield ancestor.test if child is ancestor.body else None
        child = ancestor


def uses_cuda(
    resolver: Resolver,
    where: NetworkDevice,
    at: ast.stmt,
    module: Module,
    *,
    is_test: bool = False,
) -> str | None:
    """An expression that is true at ``at`` when the networks are on a GPU; None when they always are there.

    It gives True or False, unless it ``is_test``: then anything that an ``if`` understands will do. Where nothing more precise can be said it asks whether there is a GPU at all.
    """
    if where.kind is DeviceKind.CUDA:
        return None
    code, test = None, where.test
    if where.module is not None and where.device is not None:
        test = _test_between_devices(resolver, where.device, where.module)
    if where.module is not None and test is not None:
        code = code_at(resolver, test, where.module, at, module)
        if code is None and (kept := _option_kept_in(resolver, test, where.module)) is not None:
            test, code = kept, code_at(resolver, kept, where.module, at, module)
        if code is not None and not is_test and not _is_bool(resolver, test, where.module):
            code = f"bool({code})"
    elif where.module is not None and where.device is not None:
        device = code_at(resolver, where.device, where.module, at, module)
        if device is not None:
            values = resolver.values(where.device, where.module)
            code = cuda_test(device, _as_assigned(resolver, values), module)
    asked = reference(module, "torch.cuda.is_available").code + "()"
    if code in {None, asked} and is_below_found_gpu(resolver, at, module):
        return None
    return code or asked


def _test_between_devices(resolver: Resolver, device: ast.expr, module: Module) -> ast.expr | None:
    """What ``device``, where it is written as ``"cuda" if test else "cpu"``, or as a ``torch.device`` of that, is chosen by."""
    match device:
        case ast.IfExp(test, ast.Constant(str(chosen)), ast.Constant("cpu")):
            return test if chosen.startswith("cuda") else None
        case ast.Call(function, [argument], []) if resolver.names(function, module) == frozenset(
            {"torch.device"}
        ):
            return _test_between_devices(resolver, argument, module)
        case _:
            return None


def _option_kept_in(resolver: Resolver, name: ast.expr, module: Module) -> ast.Attribute | None:
    """``opt.cuda``, where the variable ``name`` is that and nothing else, and no one changes it."""
    found = module.scope(name).lookup(name.id) if isinstance(name, ast.Name) else None
    match [binding.source for binding in found[1]] if found is not None else []:
        case [Assigned(ast.Attribute() as option, ())]:
            is_set = any(True for _ in _assigned_to_attribute(resolver, option.attr))
            return None if is_set else option
        case _:
            return None


def _is_bool(
    resolver: Resolver, test: ast.expr, module: Module, asked: frozenset[str] = frozenset()
) -> bool:
    """Whether ``test`` is certainly True or False: autocast takes nothing else for a switch.

    ``asked`` are attributes that are if ``test`` is.
    """
    match test:
        case ast.Compare():
            return True
        case ast.UnaryOp(op=op):
            return isinstance(op, ast.Not)
        case ast.BoolOp(values=operands):
            return all(_is_bool(resolver, operand, module, asked) for operand in operands)
        case ast.Attribute(attr=name) if name not in asked:
            assigned = list(_assigned_to_attribute(resolver, name))
            if not all(
                value is not None and _is_bool(resolver, value, where, asked | {name})
                for value, where in assigned
            ):
                return False
            known = frozenset([name] if assigned else ())
        case _:
            known = asked
    values = resolver.values(test, module)
    return bool(values) and all(_is_bool_value(resolver, value, known) for value in values)


def _as_assigned(resolver: Resolver, values: Values) -> Values:
    """``values``, with what a script adds to its parsed arguments in their place: ``args.device = torch.device(..)``."""
    found: set[Value] = set()
    for value in values:
        added: list[tuple[ast.expr | None, Module]] = []
        match value:
            case Attribute(Made(_, _, External(name)), attribute) if name.endswith(_PARSED):
                added = list(_assigned_to_attribute(resolver, attribute, value.of))
            case _:
                pass
        if added and all(given is not None for given, _ in added):
            for given, where in added:
                assert given is not None
                found |= resolver.values(given, where)
        else:
            found.add(value)
    return frozenset(found)


def _assigned_to_attribute(
    resolver: Resolver, name: str, of: Value | None = None
) -> Iterator[tuple[ast.expr | None, Module]]:
    """What the project assigns to an attribute ``name`` of anything, or of ``of``; None for a part of what is unpacked."""
    for module in resolver.project.modules:
        for node in module.nodes_of(ast.Attribute):
            if node.attr == name and isinstance(node.ctx, ast.Store):
                if of is not None and of not in resolver.values(node.value, module):
                    continue
                parent = module.parents[node]
                yield parent.value if isinstance(parent, ast.Assign) else None, module


def _is_bool_value(resolver: Resolver, value: Value, known: Set[str]) -> bool:
    match value:
        case Literal(bool()):
            return True
        case Attribute(_, name):
            return name in known
        case Made(_, _, External(name)):
            return name.endswith(".is_available") or name == "builtins.bool"
        case Option(call=call):
            action = call_argument(call, "action")
            return isinstance(action, ast.Constant) and action.value in {
                "store_true",
                "store_false",
            }
        case Display(node, module) if isinstance(node, ast.Compare | ast.UnaryOp):
            return _is_bool(resolver, node, module)
        case _:
            return False


_PARSED = (".parse_args", ".parse_known_args")
_PRIMARIES = (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant)
"""What an attribute or a comparison can follow without parentheses."""
_WITH_DEVICE = ("accelerate.", "lightning.", "lightning_fabric.")
"""Packages whose objects have a ``torch.device`` as their attribute ``device``."""


def cuda_test(code: str, values: Values, module: Module) -> str:
    """The test whether the device ``code`` is CUDA, in the simplest form its type allows."""
    cuda = quoted(module, "cuda")
    is_primary = isinstance(ast.parse(code, mode="eval").body, _PRIMARIES)
    operand = code if is_primary else f"({code})"
    if values and all(_is_device_object(v) for v in values):
        return f"{operand}.type == {cuda}"
    if values and all(map(is_device_text, values)):
        texts = [v.value for v in values if isinstance(v, Literal)]
        if any(str(text).startswith("cuda:") for text in texts):
            return f"{operand}.startswith({cuda})"
        return f"{operand} == {cuda}"
    return f"{reference(module, 'torch.device').code}({code}).type == {cuda}"


def condition_imports(condition: str | None, module: Module) -> tuple[FileEdit, ...]:
    """The import of torch that ``condition``, an expression of :func:`uses_cuda` for ``module``, may need there."""
    return reference(module, "torch").edits if condition and "torch." in condition else ()


def _is_device_object(value: Value) -> bool:
    match value:
        case Attribute(of=Made(maker=External(name)), name="device"):
            return name.startswith(_WITH_DEVICE)
        case _:
            return is_device(value)


def code_at(
    resolver: Resolver, expression: ast.expr, module: Module, at: ast.stmt, at_module: Module
) -> str | None:
    """Code that stands for ``expression`` of ``module`` where ``at`` stands, None when there is none."""
    names = [n for n in walk(expression) if isinstance(n, ast.Name)]
    renamed: dict[str, str] = {}
    for name in names:
        if all(isinstance(v, External) for v in resolver.values(name, module)) and (
            at_module is module or name.id == "torch"
        ):
            renamed[name.id] = name.id
            continue
        local = _same_object(resolver, name, module, at, at_module)
        if local is None:
            return None
        renamed[name.id] = local
    code = module.code(expression)
    if all(old == new for old, new in renamed.items()):
        return " ".join(code.split())
    if isinstance(expression, ast.Name):
        return renamed[expression.id]
    if isinstance(expression, ast.Attribute) and len(names) == 1:
        return renamed[names[0].id] + code[len(names[0].id) :]
    return None


def _same_object(
    resolver: Resolver, name: ast.Name, module: Module, at: ast.stmt, at_module: Module
) -> str | None:
    """The name by which ``at`` can reach what ``name`` stands for."""
    use, receiver = module.parents[name], _receiver(module, name)
    if receiver is not None:
        own = _own_receiver(resolver, receiver, use, at, at_module)
        if own is not None or not isinstance(use, ast.Attribute):
            return own
        return holder_of(resolver, receiver, use.attr, at, at_module)
    scope = at_module.scope(at)
    here = scope.lookup(name.id)
    there = module.scope(name).lookup(name.id)
    if here and there and here[0] is there[0]:
        if is_set_below(use, at, at_module):
            return None
        if _is_set(resolver, here[0].node, here[1][0].node, at, at_module):
            return name.id
    wanted = resolver.values(name, module)
    if not wanted or any(isinstance(v, Unknown) for v in wanted):
        return None
    function = at_module.function(at)
    if function is not None:
        for parameter in parameter_names(function):
            if name_values(resolver, parameter, at, at_module) == wanted:
                return parameter
        attribute = _own_attribute(resolver, wanted, function, at, at_module)
        if attribute is not None:
            return attribute
    found = scope.lookup(name.id)
    if found and name_values(resolver, name.id, at, at_module) == wanted:
        is_set = _is_set(resolver, found[0].node, found[1][0].node, at, at_module)
        return name.id if is_set else None
    return None


def _own_attribute(
    resolver: Resolver, wanted: Values, function: FunctionNode, at: ast.stmt, module: Module
) -> str | None:
    """The attribute of ``self`` that holds ``wanted`` at ``at`` in a method of a class."""
    cls, receiver = module.parents.get(function), first_parameter(function)
    if not isinstance(cls, ast.ClassDef) or receiver is None:
        return None
    for name in kept_names(resolver, cls, module):
        if all(
            not path and resolver.values(value, where) == wanted
            for value, path, where in kept_as(resolver, cls, module, name)
        ) and is_kept_before(resolver, name, at, module):
            return f"{receiver}.{name}"
    return None


def _is_set(
    resolver: Resolver, scope: ast.AST, binding: ast.AST, at: ast.stmt, module: Module
) -> bool:
    """Whether a name bound at ``binding`` has its value when ``at`` runs."""
    function = module.function(at)
    line = getattr(binding, "lineno", 0)
    if scope is (function or module.tree):
        return line < at.lineno
    if not isinstance(scope, ast.Module):
        return True
    if module.name != "__main__" and module.main_guard:
        return binding not in set(walk(module.main_guard))
    return all(  # a function may be called above what the module sets further down
        start.lineno > line
        for start, where in top_level_starts(resolver, at, module)
        if where is module and isinstance(start, ast.expr | ast.stmt)
    )


def _receiver(module: Module, name: ast.Name) -> ast.ClassDef | None:
    """The class of whose methods ``name`` is the ``self``."""
    found = module.scope(name).lookup(name.id)
    if found is None or not isinstance(found[1][0].source, Parameter):
        return None
    return module.enclosing_class(name) if own_name(name, module) == name.id else None


def _own_receiver(
    resolver: Resolver, receiver: ast.ClassDef, use: ast.AST, at: ast.stmt, module: Module
) -> str | None:
    """The ``self`` of the method around ``at`` where it is, or may be, the one of ``receiver`` and has what ``use`` reads of it."""
    own, cls = own_name(at, module), module.enclosing_class(at)
    relatives = {relative.node for relative in family(resolver, cls, module)}
    if own is None or receiver not in relatives or not isinstance(use, ast.Attribute):
        return None
    return own if is_kept_before(resolver, use.attr, at, module) else None
