"""Where a loader's batches go: which expressions are (parts of) a batch, and which calls copy them to a device."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ..calls.signatures import argument_for, call_argument
from ..devices.placement import move_target
from ..facts import DataLoader, DeviceKind, Fact
from ..program.classes import kept_as
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned, Binding, BindingSource, Iterated, Parameter, Path
from ..program.syntax import Module
from ..program.trees import walk
from ..training.loops import gone_over, iterated_loaders
from ..values.questions import Answers, Questions
from ..values.resolver import Resolver
from ..values.unpacking import element_at, unpacked_element
from ..values.values import Instance

_VIEW_METHODS = frozenset(
    "view reshape flatten squeeze unsqueeze permute transpose t narrow select expand detach chunk split unbind "
    "view_as expand_as movedim swapaxes numpy".split()
)
"""Tensor methods whose result shares the memory of a contiguous tensor, as those of a collated batch are."""
_VIEW_FUNCTIONS = frozenset(f"torch.{method}" for method in _VIEW_METHODS - {"numpy"})
_CONTAINER_METHODS = frozenset({"items", "values", "get", "pop", "copy"})
_SAME_ARGUMENT = frozenset(
    {
        "torch.autograd.Variable",
        "numpy.asarray",
        "builtins.tuple",
        "builtins.list",
        "builtins.dict",
        "builtins.enumerate",
        "builtins.iter",
        "builtins.zip",
        "builtins.reversed",
    }
)
_NOT_DATA = frozenset(
    "shape size dim device dtype ndim ndimension numel nelement is_cuda requires_grad keys element_size stride "
    "storage_offset data_ptr get_device is_contiguous is_floating_point is_complex is_pinned".split()
)
_ABOUT_OBJECTS = frozenset(
    f"builtins.{name}"
    for name in "range isinstance issubclass hasattr callable len type id".split()
)
"""Functions that give nothing of what a batch holds."""


class Place(Enum):
    """``LOADED``: the loader's own memory (pinned if the loader pins). ``DERIVED``: new host memory. ``DEVICE``: copied."""

    LOADED = "loaded"
    DERIVED = "derived"
    DEVICE = "device"


@dataclass(frozen=True)
class BatchPart:
    """A batch of ``loader``, or a part of one, and where it lies."""

    loader: DataLoader
    place: Place


Parts = frozenset[BatchPart | None]
"""What an expression may be; None stands for anything that is no batch."""
_OTHER: Parts = frozenset([None])


@dataclass(frozen=True, eq=False)
class BatchCopy(Fact):
    """A call that copies (a part of) a batch from the host to a device: ``x.to(device)``, ``x.cuda()``.

    ``source`` is what is copied; ``parts`` what it may be. ``method`` is ``"to"``, ``"cuda"`` or ``"type"``.
    """

    node: ast.Call
    source: ast.expr
    method: str
    device: DeviceKind
    parts: Parts

    @property
    def loaders(self) -> tuple[DataLoader, ...]:
        """The loaders whose batches may be copied here, in source order."""
        found = {part.loader: None for part in self.parts if part is not None}
        return tuple(sorted(found, key=lambda loader: (str(loader.path), loader.span)))

    @property
    def copies_loaded_memory(self) -> bool:
        """Whether nothing but memory that a loader filled is copied."""
        return all(part is not None and part.place is Place.LOADED for part in self.parts)


def find_batch_copies(resolver: Resolver, loaders: tuple[DataLoader, ...]) -> tuple[BatchCopy, ...]:
    """The copies of batches to a device that is, or may be, a GPU, in source order per module."""
    trace = BatchTrace(resolver, loaders)
    found: list[BatchCopy] = []
    for module in resolver.project.modules:
        for call in module.calls:
            device = move_target(resolver, call, module)
            if device is not DeviceKind.CUDA and device is not DeviceKind.CHOSEN:
                continue
            if isinstance(call.func, ast.Attribute):
                parts = trace.parts(call.func.value, module)
                if any(p is not None and p.place is not Place.DEVICE for p in parts):
                    found.append(
                        BatchCopy(module, call, call.func.value, call.func.attr, device, parts)
                    )
    return tuple(found)


class BatchTrace:
    """Follows expressions back to the loaders whose batches they are.

    ``after`` is a call that has run: what variables held where it has not is left out.
    """

    def __init__(
        self,
        resolver: Resolver,
        loaders: tuple[DataLoader, ...],
        after: Fact | None = None,
    ) -> None:
        self._resolver = resolver
        self._loaders = loaders
        self._after = after
        self._questions = Questions()
        self._known = Answers[ast.expr, Parts](frozenset(), lambda parts: parts | _OTHER)

    def parts(self, node: ast.expr, module: Module) -> Parts:
        """What ``node`` may be. An expression that only leads back to itself is nothing (the empty set)."""
        return self._questions.ask(node, self._known, lambda: self._parts(node, module))

    def _parts(self, node: ast.expr, module: Module) -> Parts:
        match node:
            case ast.Name():
                return self._name(node, module)
            case ast.Attribute():
                return self._attribute(node, module)
            case ast.Subscript():
                found = self.parts(node.value, module)
                basic = is_basic_index(self._resolver, node.slice, module)
                return found if basic else _moved(found, Place.DERIVED)
            case ast.Call():
                return self._call(node, module)
            case ast.Tuple() | ast.List():
                return self._union(node.elts, module)
            case ast.Dict():
                return self._union(node.values, module)
            case ast.ListComp() | ast.GeneratorExp():
                return self.parts(node.elt, module)
            case ast.DictComp() | ast.NamedExpr() | ast.Starred():
                return self.parts(node.value, module)
            case ast.IfExp():
                taken = [n for n in (node.body, node.orelse) if self._contains_after(n)]
                return self._union(taken or [node.body, node.orelse], module)
            case ast.BinOp():
                return _computed(self._union([node.left, node.right], module))
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert()):
                return _computed(self.parts(node.operand, module))
            case _:
                return _OTHER

    def _union(self, nodes: Iterable[ast.expr], module: Module) -> Parts:
        return self._questions.or_else(_joined(self.parts(node, module) for node in nodes), _OTHER)

    def _name(self, node: ast.Name, module: Module) -> Parts:
        scope = module.scope(node)
        found = scope.lookup(node.id)
        if found is None:
            return _OTHER
        owner, bindings = found
        after, ran = self._after, None
        if after is not None and (module, module.function(node)) == (after.module, after.function):
            ran = after.node
        reaching = reaching_bindings(module, owner, bindings, scope, node, ran)
        return _joined(self._binding(binding, module) for binding in reaching)

    def _contains_after(self, node: ast.expr) -> bool:
        return self._after is not None and self._after.node in walk(node)

    def _binding(self, binding: Binding, module: Module) -> Parts:
        match binding.source:
            case Assigned(value, path):
                return self._unpacked(value, path, module)
            case Iterated(iterable, path):
                return self._element(iterable, path, module)
            case Parameter(ast.Lambda() as function, "plain"):
                return self._mapped(function, module)
            case Parameter(function, "plain") if not isinstance(function, ast.Lambda):
                return self._argument(function, binding.name, module)
            case _:
                return _OTHER

    def _unpacked(self, value: ast.expr, path: Path, module: Module) -> Parts:
        return self.parts(unpacked_element(value, path), module)

    def _element(
        self,
        iterable: ast.expr,
        path: Path,
        module: Module,
        within: frozenset[ast.expr] = frozenset(),
    ) -> Parts:
        """An element of ``iterable``, or the part of it at ``path``.

        ``within`` are the progress bars that go over it: in a loop, ``bar = tqdm(bar)`` leads back to itself.
        """
        if isinstance(iterable, ast.Call) and iterable.args:
            names = self._resolver.names(iterable.func, module)
            if names == frozenset({"builtins.enumerate"}) and path:
                if path[0] == 0:
                    return _OTHER
                return self._element(iterable.args[0], path[1:], module)
            if names == frozenset({"builtins.zip"}) and path and isinstance(path[0], int):
                zipped = element_at(iterable.args, path[0])
                return self._element(zipped, path[1:], module) if zipped is not None else _OTHER
        over, batch_path = iterated_loaders(self._resolver, self._loaders, iterable, module)
        if over:
            inside = path[: len(batch_path)] == batch_path[: len(path)]
            return _loaded(over) if inside else _OTHER
        wrapped = [
            (inner, path[len(prefix) :], owner)
            for value in self._resolver.values(iterable, module)
            for inner, owner, prefix in gone_over(value)
            if path[: len(prefix)] == prefix
        ]
        if len(wrapped) == 1 and wrapped[0][0] not in within:
            return self._element(*wrapped[0], within | {wrapped[0][0]})
        return self.parts(iterable, module)

    def _mapped(self, function: ast.Lambda, module: Module) -> Parts:
        """The parameter of a lambda handed to ``map``."""
        call = module.parents[function]
        if (
            isinstance(call, ast.Call)
            and len(call.args) == 2
            and call.args[0] is function
            and self._resolver.names(call.func, module) == frozenset({"builtins.map"})
        ):
            return self._element(call.args[1], (), module)
        return _OTHER

    def _argument(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str, module: Module
    ) -> Parts:
        found: set[BatchPart | None] = set()
        sites = self._resolver.call_sites(function)
        for site in sites:
            passed = argument_for(function, name, site.call, site.bound)
            if passed is None:
                found.add(None)
            elif passed.given is not None:
                found |= self.parts(passed.given, site.module)
            elif passed.default is not None:
                found |= self.parts(passed.default, module)
        return frozenset(found) if sites else _OTHER

    def _attribute(self, node: ast.Attribute, module: Module) -> Parts:
        if node.attr in _NOT_DATA:
            return _OTHER
        cls = module.enclosing_class(node)
        if cls is not None and isinstance(node.value, ast.Name):
            owners = self._resolver.values(node.value, module)
            if any(isinstance(owner, Instance) for owner in owners):
                kept = kept_as(self._resolver, cls, module, node.attr)
                return self._questions.or_else(
                    _joined(self._unpacked(*assigned) for assigned in kept), _OTHER
                )
        return self.parts(node.value, module)

    def _call(self, node: ast.Call, module: Module) -> Parts:
        names = self._resolver.names(node.func, module)
        if "builtins.next" in names and node.args:
            return self._next(node.args[0], module)
        if names & _SAME_ARGUMENT:
            return self._union(node.args[:1], module)
        if names and names <= _VIEW_FUNCTIONS:
            viewed = call_argument(node, "input", 0)
            return _OTHER if viewed is None else self.parts(viewed, module)
        if names and names <= _ABOUT_OBJECTS:
            return _OTHER
        if names:
            return _computed(self._union([*node.args, *(k.value for k in node.keywords)], module))
        if isinstance(node.func, ast.Attribute) and not self._resolver.callees(node, module):
            return self._method(node, node.func, module)
        results = [
            self._result(inner, callee.module)
            for callee in self._resolver.callees(node, module)
            if isinstance(callee.node, ast.FunctionDef) and callee.node.name != "__init__"
            for inner in walk(callee.node)
        ]
        return self._questions.or_else(_joined(results), _OTHER)

    def _next(self, iterator: ast.expr, module: Module) -> Parts:
        over, _ = iterated_loaders(self._resolver, self._loaders, iterator, module)
        return _loaded(over) if over else self.parts(iterator, module)

    def _result(self, node: ast.AST, module: Module) -> Parts:
        """What a function gives by ``node``, a part of it: what it returns, or the elements that a generator yields."""
        match node:
            case ast.Return(value=ast.expr() as value) | ast.Yield(value=ast.expr() as value):
                return self.parts(value, module)
            case ast.YieldFrom(value=iterable):
                return self._element(iterable, (), module)
            case _:
                return frozenset()

    def _method(self, node: ast.Call, function: ast.Attribute, module: Module) -> Parts:
        method = function.attr
        if method in _NOT_DATA:
            return _OTHER
        if method in {"next", "__next__"} and not node.args:
            return self._next(function.value, module)
        receiver = self.parts(function.value, module)
        if method in _VIEW_METHODS | _CONTAINER_METHODS:
            return receiver
        target = move_target(self._resolver, node, module)
        if target in {DeviceKind.CUDA, DeviceKind.CHOSEN}:
            return _moved(receiver, Place.DEVICE)
        if method in {"cpu", "pin_memory"}:
            return _moved(receiver, Place.DERIVED)
        if method == "contiguous":  # itself as it was collated, a copy of a permuted view
            return receiver | _computed(receiver)
        return _computed(receiver)


def _joined(found: Iterable[Parts]) -> Parts:
    return frozenset(part for parts in found for part in parts)


def _loaded(loaders: Iterable[DataLoader]) -> Parts:
    return frozenset(BatchPart(loader, Place.LOADED) for loader in loaders)


def _moved(parts: Parts, place: Place) -> Parts:
    return frozenset(None if part is None else BatchPart(part.loader, place) for part in parts)


def _computed(parts: Parts) -> Parts:
    """What an operation on ``parts`` gives: new memory, on the device where one of them is."""
    batches = frozenset(part for part in parts if part is not None)
    if not batches:
        return _OTHER
    on_device = any(part.place is Place.DEVICE for part in batches)
    return _moved(batches, Place.DEVICE if on_device else Place.DERIVED)


def is_basic_index(resolver: Resolver, index: ast.expr, module: Module) -> bool:
    """Whether indexing by ``index`` gives a view, or an element of a container, and never a copy."""
    if isinstance(index, ast.Tuple):
        return all(is_basic_index(resolver, part, module) for part in index.elts)
    if isinstance(index, ast.Name):
        found = module.scope(index).lookup(index.id)
        sources = [binding.source for binding in found[1]] if found is not None else []
        return bool(sources) and all(_counts(resolver, source, module) for source in sources)
    return isinstance(index, ast.Constant | ast.Slice | ast.UnaryOp)


def _counts(resolver: Resolver, source: BindingSource, module: Module) -> bool:
    """Whether a variable runs over numbers or keys: ``for i in range(n)``, ``for key in batch.keys()``."""
    if not (isinstance(source, Iterated) and isinstance(source.iterable, ast.Call)):
        return False
    function = source.iterable.func
    names = resolver.names(function, module)
    return (
        names == frozenset({"builtins.range"})
        or (names == frozenset({"builtins.enumerate"}) and source.path[:1] == (0,))
        or (isinstance(function, ast.Attribute) and function.attr == "keys")
        or (
            isinstance(function, ast.Attribute) and function.attr == "items" and source.path == (0,)
        )
    )
