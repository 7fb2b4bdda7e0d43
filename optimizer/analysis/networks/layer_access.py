"""Code that looks inside a network: at results between its layers, or at single layers of a sequence.

A layer that overwrites its input changes what such code sees.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.reach import lexical_nodes, never_runs
from ..facts import Fact
from ..program.scopes import Assigned, Iterated
from ..program.syntax import Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import (
    Attribute,
    Element,
    External,
    FirstPartyModule,
    Function,
    Instance,
    Literal,
    Made,
    Unknown,
    Value,
)
from .layer_sequences import SEQUENTIAL, loop_targets
from .models import is_module_value

_HOOKS = frozenset(
    f"register_{kind}hook"
    for kind in (
        "forward_",
        "forward_pre_",
        "backward_",
        "full_backward_",
        "full_backward_pre_",
        "module_forward_",
        "module_forward_pre_",
        "module_full_backward_",
    )
)
_PACKAGES = (
    "captum.",
    "pytorch_grad_cam.",
    "torchcam.",
    "opacus.",
    "deepspeed.",
    "fairscale.",
    "apex.",
    "functorch.",
    "torch.func.",
    "torch.fx.",
    "torch.ao.",
    "torch.quantization.",
    "torch.distributed.fsdp.",
    "torch.distributed.tensor.",
    "torch.distributed.pipelining.",
    "torch.utils.checkpoint.",
    "torchvision.models.feature_extraction.",
    "torchvision.models._utils.",
    "transformers.Trainer",
)
_HOOKING = (
    "captum.",
    "pytorch_grad_cam.",
    "torchcam.",
    "torchsummary.",
    "torchinfo.",
    "thop.",
    "ptflops.",
    "fvcore.nn.",
)
_MAPPERS = (
    "functorch.",
    "torch.func.",
    "torch.vmap",
    "torch.autograd.forward_ad.",
    "torch.autograd.functional.",
    "opacus.",
)
_COMPILES = ("torch.compile", "torch.jit.script", "torch.jit.trace", "torch.jit.script_method")
_LOOKUPS = frozenset({"_modules", "get_submodule", "__getattr__"})
_REARRANGEMENTS = frozenset({"insert", "pop", "add_module", "register_module", "__setitem__"})
_LISTINGS = frozenset({"children", "named_children", "modules", "named_modules"})
_INSPECTED = frozenset(
    "weight bias in_features out_features in_channels out_channels kernel_size stride padding p eps momentum "
    "running_mean running_var weight_ih_l0 parameters named_parameters named_children reset_parameters requires_grad_ "
    "eval train training __class__".split()
)
_ASKS = frozenset(
    f"builtins.{name}" for name in ("isinstance", "hasattr", "type", "print", "id", "getattr")
)


def compiling_call(resolver: Resolver) -> Fact | None:
    """Where something is compiled, so that the compiler decides what is overwritten."""
    for module in resolver.project.modules:
        for call in module.calls:
            is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "compile"
            compiles = (
                is_method and not _is_of_package(resolver, call.func, module)
            ) or resolver.names(call.func, module) & set(_COMPILES)
            if compiles and not never_runs(resolver, call, module):
                return Fact(module, call)
        for node in module.nodes_of(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
            for decorator in node.decorator_list:
                if resolver.names(decorator, module) & set(_COMPILES):
                    return Fact(module, decorator)
    return None


def _is_of_package(resolver: Resolver, method: ast.expr, module: Module) -> bool:
    """Whether ``x.compile`` is a function of another library, such as ``re.compile``."""
    assert isinstance(method, ast.Attribute)
    values = resolver.values(method.value, module)
    return all(isinstance(v, External) and v.name.partition(".")[0] != "torch" for v in values)


def hooking_call(resolver: Resolver) -> Fact | None:
    """The first place of the project that registers a hook, or has a tool do so that lists or explains layers."""
    for module in resolver.project.modules:
        for node in module.nodes_of(ast.Attribute):
            if node.attr in _HOOKS and not never_runs(resolver, node, module):
                return Fact(module, node)
        for call in module.calls:
            hooks = any(name.startswith(_HOOKING) for name in resolver.names(call.func, module))
            if hooks and not never_runs(resolver, call, module):
                return Fact(module, call)
    return None


def mapping_call(resolver: Resolver) -> Fact | None:
    """The first call that maps or differentiates functions (``torch.func.vmap``), or a tool does that computes with each sample's gradients."""
    for module in resolver.project.modules:
        for call in module.calls:
            maps = any(n.startswith(_MAPPERS) for n in resolver.names(call.func, module))
            if maps and not never_runs(resolver, call, module):
                return Fact(module, call)
    return None


def look_inside(resolver: Resolver) -> Fact | None:
    """The first place of the project that may see what a layer computed before the next one ran."""
    for module in resolver.project.modules:
        for node in module.nodes:
            if _looks_inside(resolver, node, module) and not never_runs(resolver, node, module):
                return Fact(module, node.iter if isinstance(node, ast.comprehension) else node)
    return None


def _looks_inside(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    match node:
        case ast.Attribute(_, attr) if attr in _HOOKS or attr in _LOOKUPS:
            return True
        case ast.Attribute(_, "inplace", ast.Store()):
            return True
        case ast.Attribute(base, _, ast.Store()):
            return _replaces_a_layer(resolver, node, base, module)
        case ast.Call(ast.Attribute(base, attr)) if attr in _LISTINGS:
            return not (
                _is_of_library(resolver, base, module) or _only_inspected(resolver, node, module)
            )
        case ast.Call(ast.Attribute(base, attr)) if attr in _REARRANGEMENTS:
            return _is_sequence(resolver, base, module)
        case ast.Call():
            return (
                any(n.startswith(_PACKAGES) for n in resolver.names(node.func, module))
                or _runs_an_element(resolver, node, module)
                or _fills_a_sequence(resolver, node, module)
            )
        case ast.Subscript(base):
            parent = module.parents[node]
            harmless = isinstance(parent, ast.Attribute) and parent.attr in _INSPECTED
            return not harmless and _is_sequence(resolver, base, module)
        case ast.For(_, iterable) | ast.comprehension(_, iterable):
            if not any(_is_sequence(resolver, e, module) for e in _gone_over(iterable)):
                return False
            return not _only_inspected(resolver, iterable, module)
        case _:
            return False


def _replaces_a_layer(
    resolver: Resolver, target: ast.Attribute, owner: ast.expr, module: Module
) -> bool:
    """Whether ``model.norm = nn.Identity()`` puts another layer into a network of the project, from outside."""
    assignment = module.parents[target]
    if not isinstance(assignment, ast.Assign):
        return False
    if any(isinstance(v, Instance) for v in resolver.values(owner, module)):
        return False
    return any(
        is_module_value(resolver, value) for value in resolver.values(assignment.value, module)
    ) and not _is_of_library(resolver, owner, module)


def _is_of_library(resolver: Resolver, expression: ast.expr, module: Module) -> bool:
    """Whether ``expression`` is a network that a library made whole, or a part of one."""
    return all(_is_library_value(value) for value in resolver.values(expression, module))


def _is_library_value(value: Value) -> bool:
    while isinstance(value, Attribute | Element):
        value = value.of
    if not (isinstance(value, Made) and isinstance(value.maker, External)):
        return False
    return value.maker.name.startswith(
        ("torchvision.models.", "timm.", "torch.hub.", "transformers.")
    )


def _gone_over(iterable: ast.expr) -> Iterator[ast.expr]:
    """What a loop over ``iterable`` goes over, behind ``enumerate``, ``zip`` and their like."""
    if isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Name):
        for argument in iterable.args:
            yield from _gone_over(argument)
    elif isinstance(iterable, ast.Subscript):
        yield from _gone_over(iterable.value)
    else:
        yield iterable


def _is_sequence(resolver: Resolver, expression: ast.AST, module: Module) -> bool:
    if not isinstance(expression, ast.Name | ast.Attribute):
        return False
    return bool(resolver.maker_names(expression, module) & SEQUENTIAL)


def _runs_an_element(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` runs something taken out of an object that is not known, maybe a layer of a sequence."""
    func = call.func
    if isinstance(func, ast.Name):
        found = module.scope(func).lookup(func.id)
        sources = [binding.source for binding in found[1]] if found is not None else []
        taken = [
            source.value if isinstance(source, Assigned) else source.iterable
            for source in sources
            if isinstance(source, Iterated)
            or (
                isinstance(source, Assigned) and isinstance(source.value, (ast.Subscript, ast.Call))
            )
        ]
        if any(isinstance(t, ast.Call) and _looks_up(resolver, t, module) for t in taken):
            return True
        is_taken = any(not isinstance(t, ast.Call) for t in taken) or any(
            isinstance(source, Iterated) for source in sources
        )
    else:
        if isinstance(func, ast.Call) and (
            _looks_up(resolver, func, module)
            or "builtins.next" in resolver.names(func.func, module)
        ):
            return True
        is_taken = isinstance(func, ast.Subscript) and not _is_type(resolver, func, module)
    return is_taken and any(_may_hold_layers(v) for v in resolver.values(func, module))


def _is_type(resolver: Resolver, part: ast.Subscript, module: Module) -> bool:
    """Whether ``part`` is a type with its parameters, ``list[int]``."""
    names = resolver.names(part.value, module)
    return bool(names) and all(n.startswith(("builtins.", "collections.")) for n in names)


def _looks_up(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """``getattr(network, name)``; not that of a package."""
    if "builtins.getattr" not in resolver.names(call.func, module) or not call.args:
        return False
    owners = resolver.values(call.args[0], module)
    return not all(isinstance(owner, External | FirstPartyModule) for owner in owners)


def _may_hold_layers(value: Value) -> bool:
    if not isinstance(value, Element):
        return isinstance(value, Unknown)
    if isinstance(value.of, Made) and isinstance(value.of.maker, External):
        # A layer in one of these is not known to come behind another; what lies deeper may be.
        is_list = value.of.maker.name in {"torch.nn.ModuleList", "torch.nn.ModuleDict"}
        return not is_list or len(value.path) > 1
    return True


def _fills_a_sequence(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``nn.Sequential(*layers[:5])`` is made of a part of something of the project."""
    starred = [a.value for a in call.args if isinstance(a, ast.Starred)]
    if not starred or not resolver.names(call.func, module) & SEQUENTIAL:
        return False
    return any(
        isinstance(node, ast.Subscript)
        and not _is_of_library(resolver, _owner(node), module)
        and not _is_setting(resolver, node, module)
        for items in starred
        for node in walk(items)
    )


def _is_setting(resolver: Resolver, part: ast.Subscript, module: Module) -> bool:
    """Whether ``part`` is no layer but what one is made with: ``[Block(widths[i]) for i in range(4)]``."""
    call = module.parents[part]
    call = module.parents[call] if isinstance(call, ast.keyword) else call
    if not isinstance(call, ast.Call) or part is call.func:
        return False
    if resolver.names(call.func, module) == frozenset({"builtins.range"}):
        return True
    if not all(is_module_value(resolver, made) for made in resolver.values(call, module)):
        return False
    values = resolver.values(part, module)
    if any(isinstance(v, Literal) and isinstance(v.value, int | float | str) for v in values):
        return True  # an element of a list of numbers
    return not any(is_module_value(resolver, v) or _may_hold_layers(v) for v in values)


def _owner(part: ast.expr) -> ast.expr:
    """``net`` for ``list(net.children())[:5]``."""
    match part:
        case ast.Subscript(value):
            return _owner(value)
        case ast.Call(ast.Name("list"), [items]):
            return _owner(items)
        case ast.Call(ast.Attribute(owner, attr)) if attr in _LISTINGS:
            return owner
        case _:
            return part


def _only_inspected(resolver: Resolver, listing: ast.expr, module: Module) -> bool:
    """Whether a loop over layers asks for their type and parameters, and runs and keeps none of them."""
    parent = module.parents[listing]
    while isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name):
        if parent.func.id not in {"enumerate", "list", "tuple", "zip", "reversed"}:
            return False
        parent = module.parents[parent]
    if not isinstance(parent, ast.For):
        return False
    names = {name.id for name in loop_targets(parent.target)}
    return all(
        _is_inspection(resolver, use, module)
        for use in lexical_nodes(parent.body)
        if isinstance(use, ast.Name) and use.id in names
    )


def _is_inspection(resolver: Resolver, use: ast.Name, module: Module, deep: bool = True) -> bool:
    parent = module.parents[use]
    if isinstance(parent, ast.Attribute):
        above = module.parents[parent]
        of_layer = isinstance(above, ast.Attribute) and above.attr in _INSPECTED
        return of_layer or parent.attr in _INSPECTED
    if not (isinstance(parent, ast.Call) and use in parent.args):
        return isinstance(parent, ast.Compare)
    if resolver.names(parent.func, module) <= _ASKS and resolver.names(parent.func, module):
        return True
    functions = [v for v in resolver.values(parent.func, module) if isinstance(v, Function)]
    return deep and bool(functions) and all(_inspects(resolver, f) for f in functions)


def _inspects(resolver: Resolver, function: Function) -> bool:
    node = function.node
    if isinstance(node, ast.Lambda):
        return False
    names = {argument.arg for argument in node.args.args}
    return all(
        _is_inspection(resolver, use, function.module, deep=False)
        for use in lexical_nodes(node.body)
        if isinstance(use, ast.Name) and use.id in names
    )


def shown_whole(resolver: Resolver) -> Iterator[tuple[ast.expr, Fact]]:
    """What the script prints, formats or saves whole: networks among it show the settings of their layers."""
    for module in resolver.project.modules:
        for call in module.calls:
            names = resolver.names(call.func, module)
            saves = "torch.save" in names
            is_logger = isinstance(call.func, ast.Attribute) and call.func.attr in {
                "info",
                "debug",
                "warning",
                "write",
                "format",
            }
            shows = (
                saves or is_logger or names & {"builtins.print", "builtins.str", "builtins.repr"}
            )
            if shows and not never_runs(resolver, call, module):
                for argument in call.args[:1] if saves else call.args:
                    yield argument, Fact(module, call)
        for node in module.nodes:
            if isinstance(node, ast.FormattedValue) and not never_runs(resolver, node, module):
                yield node.value, Fact(module, node)
