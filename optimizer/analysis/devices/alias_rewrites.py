"""What becomes of the ``Tensor`` alias and of everything made with it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ...rewriting.edits import FileEdit, RemoveStatement, ReplaceExpression, ReplaceStatement
from ..autograd.gradients import Gradients
from ..calls.signatures import call_argument
from ..editing.imports import orphaned_imports
from ..editing.references import quoted, reference
from ..editing.splice import Piece, spliced, without_method
from ..facts import Fact
from ..networks.networks import Networks
from ..program.sharing import may_take
from ..program.syntax import Module
from ..program.trees import walk
from ..values.resolver import Resolver
from .construction import VARIABLE, ConstructionFinder
from .device_choices import condition, visible_devices
from .device_code import DeviceCode, NewCode
from .legacy_tensors import DEFAULT_DTYPE, is_cuda_type
from .tensor_aliases import AliasUse, TensorAlias, UseKind

_DROPPED_IMPORTS = frozenset({"torch.autograd.Variable", "numpy"})
_DROPPED_NAMES = ("Variable", "np", "numpy")
_NEW_NAME = "device"
_FLOAT_FACTORIES = frozenset(
    f"torch.{name}" for name in ("rand", "randn", "zeros", "ones", "empty")
)


@dataclass(frozen=True, eq=False)
class AliasRewrite(Fact):
    """The aliases of one scope, replaced together with all their uses, or left with a ``refusal``.

    ``node`` is the first alias's assignment, ``device`` the code that names the device now.
    """

    names: tuple[str, ...]
    device: str
    edits: tuple[FileEdit, ...]
    replaced: frozenset[ast.AST]
    refusal: str | None


@dataclass(frozen=True)
class _Device:
    """``code`` names the device at every use; ``statements`` take the place of the first alias's assignments."""

    code: str
    statements: tuple[str, ...] = ()
    refusal: str | None = None


@dataclass
class _Replacement:
    edits: list[FileEdit] = field(default_factory=list[FileEdit])
    replaced: set[ast.AST] = field(default_factory=set[ast.AST])
    dropped: list[ast.AST] = field(default_factory=list[ast.AST])


def rewrite_aliases(resolver: Resolver, aliases: Sequence[TensorAlias]) -> tuple[AliasRewrite, ...]:
    """One rewrite per scope that has aliases."""
    writer = _Writer(resolver)
    groups: dict[tuple[Module, ast.AST], list[TensorAlias]] = {}
    for alias in aliases:
        if alias.refusal is not None:
            continue
        scope = alias.module.scope(alias.node)
        groups.setdefault((alias.module, scope.node), []).append(alias)
    return tuple(writer.rewrite(group) for group in groups.values())


class _Writer:
    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._code = DeviceCode(resolver)
        self._constructions = ConstructionFinder(resolver)
        self._gradients = Gradients(resolver, Networks(resolver))

    def rewrite(self, group: list[TensorAlias]) -> AliasRewrite:
        first, module = group[0], group[0].module
        names = tuple(alias.name for alias in group)
        device = self._device(group)
        refusal = device.refusal or self._constructions.default_type(module)
        new = _Replacement()
        for use in () if refusal else _uses(group):
            if not self._replace(use, _dtype_of(use, group), device.code, new):
                refusal = f"{use.place} could not be written differently"
        if refusal is not None:
            return AliasRewrite(module, first.node, names, device.code, (), frozenset(), refusal)
        new.edits += self._statements(group, device)
        if self._keeps_imports_to_itself(module):
            new.edits += orphaned_imports(
                self._resolver.project, module, new.dropped, _DROPPED_IMPORTS
            )
        edits, replaced = tuple(dict.fromkeys(new.edits)), frozenset(new.replaced)
        return AliasRewrite(module, first.node, names, device.code, edits, replaced, None)

    def _keeps_imports_to_itself(self, module: Module) -> bool:
        """Whether no other file may take from ``module`` what it imports itself."""
        project = self._resolver.project
        if module is project.entry:
            return _is_script(module)
        return not any(may_take(project, name, module) for name in _DROPPED_NAMES)

    # The device in place of the alias

    def _device(self, group: list[TensorAlias]) -> _Device:
        alias, module = group[0], group[0].module
        if any(not _is_parallel(alias, other, self._resolver) for other in group[1:]):
            return _Device("", refusal="the aliases hang on different conditions")
        values = [assignment.value for assignment in alias.assignments]
        if len(values) > 1:
            return self._new_device(group, [self._plain(value, module) for value in values])
        (value,) = values
        if not isinstance(value, ast.IfExp):
            code = self._plain(value, module)
            return _Device(quoted(module, "cuda"), refusal=None if code else "it is no tensor type")
        return self._chosen(group, value)

    def _chosen(self, group: list[TensorAlias], value: ast.IfExp) -> _Device:
        alias, module = group[0], group[0].module
        on, off = (self._plain(part, module) for part in (value.body, value.orelse))
        if on is None or off is None or on == off:
            return _Device("", refusal="it does not choose between CUDA and the CPU")
        test = value.test
        if on == "cuda" and isinstance(test, ast.Attribute) and test.attr == "is_cuda":
            return _Device(f"{module.code(test.value)}.device")
        existing = self._existing(alias, group, test if on == "cuda" else None)
        if existing is not None:
            return _Device(existing)
        made = f"{quoted(module, on)} if {module.code(test)} else {quoted(module, off)}"
        return self._new_device(group, [made])

    def _plain(self, value: ast.expr, module: Module) -> str | None:
        """``cuda`` or ``cpu`` for a tensor type, None for anything else."""
        names = self._resolver.names(value, module)
        if len(names) != 1 or isinstance(value, ast.IfExp):
            return None
        return "cuda" if is_cuda_type(next(iter(names))) else "cpu"

    def _existing(
        self, alias: TensorAlias, group: list[TensorAlias], test: ast.expr | None
    ) -> str | None:
        """A name of the script for that very device, valid at every use."""
        if test is None:
            return None
        module = alias.module
        wanted = condition(self._resolver, test, module)
        common: list[str] | None = None
        for place in [use.node for use in _uses(group)]:
            visible = [
                name
                for name, choice in visible_devices(self._resolver, place, module)
                if choice.condition == wanted
                and (choice.cuda == "cuda" or (choice.cuda == "cuda:0" and not self._sets_device()))
            ]
            common = visible if common is None else [name for name in common if name in visible]
        return common[0] if common else None

    def _sets_device(self) -> bool:
        return any(
            isinstance(call.func, ast.Attribute) and call.func.attr == "set_device"
            for module in self._resolver.project.modules
            for call in module.calls
        )

    def _new_device(self, group: list[TensorAlias], choices: Sequence[str | None]) -> _Device:
        module = group[0].module
        places = [group[0].node, *(use.node for use in _uses(group))]
        if any(module.scope(place).lookup(_NEW_NAME) is not None for place in places):
            return _Device("", refusal=f"`{_NEW_NAME}` already names something else")
        function = reference(module, "torch.device").code
        statements: list[str] = []
        for choice in choices:
            if choice is None:
                return _Device("", refusal="it is assigned something that is no tensor type")
            code = quoted(module, choice) if choice in {"cuda", "cpu"} else choice
            statements.append(f"{_NEW_NAME} = {function}({code})")
        return _Device(_NEW_NAME, tuple(statements))

    def _statements(self, group: list[TensorAlias], device: _Device) -> Iterator[FileEdit]:
        path, module = group[0].path, group[0].module
        for alias in group:
            for index, assignment in enumerate(alias.assignments):
                span = module.span(assignment)
                if alias is group[0] and device.statements:
                    yield FileEdit(path, ReplaceStatement(span, device.statements[index]))
                else:
                    yield FileEdit(path, RemoveStatement(span))

    # The uses of the alias

    def _replace(self, use: AliasUse, dtype: str, device: str, new: _Replacement) -> bool:
        module = use.module
        made = (
            self._constructed(use, dtype, device)
            if use.kind is UseKind.CONSTRUCTOR
            else self._cast(use, dtype, device)
        )
        if made is None:
            return False
        root, code, is_fresh = made
        new.dropped += code.dropped
        wrapper = module.parents[root]
        if isinstance(wrapper, ast.Call) and self._is_superfluous(wrapper, root, is_fresh, module):
            new.dropped.append(wrapper.func)
            root = wrapper
        while (move := _move_to(device, root, module)) is not None:
            root = move
        new.edits += [
            *code.edits,
            FileEdit(use.path, ReplaceExpression(module.span(root), code.code)),
        ]
        new.replaced.update(walk(root))
        return True

    def _constructed(
        self, use: AliasUse, dtype: str, device: str
    ) -> tuple[ast.Call, NewCode, bool] | None:
        made = self._code.legacy(
            use.node, _next_call(use.node, use.module), dtype, device, use.module
        )
        return (*made, True) if made is not None else None

    def _cast(self, use: AliasUse, dtype: str, device: str) -> tuple[ast.Call, NewCode, bool]:
        """``x.type(Tensor)``; a tensor that is just being made is made on the device."""
        call, module = use.node, use.module
        assert isinstance(call.func, ast.Attribute)
        chain = self._constructions.chain(call.func.value, module)
        if chain is not None and dtype == DEFAULT_DTYPE and self._makes_floats(chain[0], module):
            factory, steps = chain
            refused = self._constructions.refusal(factory, steps, device, module)
            if refused is None and self._constructions.draws(factory, steps, module):
                refused = self._constructions.draw_refusal(call, module)
            made = self._code.constructed(call, factory, steps, device, module, call)
            if refused is None and isinstance(made, NewCode):
                return call, made, True
        kind = reference(module, f"torch.{dtype}")
        method = without_method(module, call)
        piece = Piece(method.start, method.end, f".to({device}, dtype={kind.code})")
        is_fresh = self._gradients.free(call.func.value, module) and not _asks_for_gradients(
            call, module
        )
        return call, NewCode(spliced(module, call, [piece]), kind.edits), is_fresh

    def _makes_floats(self, factory: ast.Call, module: Module) -> bool:
        names = self._resolver.names(factory.func, module)
        has_device = call_argument(factory, "device") is not None
        return (
            names <= _FLOAT_FACTORIES and call_argument(factory, "dtype") is None and not has_device
        )

    def _is_superfluous(
        self, wrapper: ast.Call, inner: ast.expr, is_fresh: bool, module: Module
    ) -> bool:
        """Whether ``Variable(inner)`` is just ``inner``: a new tensor without a graph, gradients not asked for."""
        if not is_fresh or self._resolver.names(wrapper.func, module) != VARIABLE:
            return False
        if wrapper.args != [inner]:
            return False
        return all(
            k.arg == "requires_grad" and isinstance(k.value, ast.Constant) and not k.value.value
            for k in wrapper.keywords
        )


def _move_to(device: str, tensor: ast.expr, module: Module) -> ast.Call | None:
    """``tensor.to(device)``, which does nothing for what is there already."""
    move = _next_call(tensor, module)
    if move is None or not isinstance(move.func, ast.Attribute) or move.func.attr != "to":
        return None
    is_there = [ast.unparse(given) for given in move.args] == [device] and not move.keywords
    return move if is_there else None


def _is_script(module: Module) -> bool:
    """Whether a file does more than define things: then hardly anybody imports ``np`` from it by a star."""
    return any(
        isinstance(statement, ast.For | ast.While | ast.If | ast.With | ast.Try)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call))
        for statement in module.tree.body
    )


def _uses(group: Iterable[TensorAlias]) -> list[AliasUse]:
    return [use for alias in group for use in alias.uses]


def _dtype_of(use: AliasUse, group: Iterable[TensorAlias]) -> str:
    return next(alias.dtype for alias in group if use in alias.uses)


def _next_call(call: ast.expr, module: Module) -> ast.Call | None:
    """The method call on the result of ``call``, if there is one."""
    attribute = module.parents[call]
    outer = module.parents[attribute]
    is_method = isinstance(attribute, ast.Attribute) and isinstance(outer, ast.Call)
    return outer if is_method and isinstance(outer, ast.Call) and outer.func is attribute else None


def _asks_for_gradients(call: ast.Call, module: Module) -> bool:
    """Whether the name that gets the cast tensor is made to require gradients later."""
    statement = module.statement(call)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    for target in targets:
        for use in module.names_of(target.id) if isinstance(target, ast.Name) else []:
            parent = module.parents[use]
            if isinstance(parent, ast.Attribute) and parent.attr.startswith("requires_grad"):
                return True
    return False


def _is_parallel(first: TensorAlias, other: TensorAlias, resolver: Resolver) -> bool:
    """Whether two aliases are CUDA types under the same conditions."""
    if len(first.assignments) != len(other.assignments):
        return False
    module = first.module
    for one, two in zip(first.assignments, other.assignments, strict=True):
        if module.block(one) is not module.block(two):
            return False
        tests = [v.test if isinstance(v, ast.IfExp) else None for v in (one.value, two.value)]
        codes = {condition(resolver, t, module) if t is not None else "" for t in tests}
        if len(codes) != 1:
            return False
    return True
