"""Where a value comes from through operations that keep its digits: sums and multiples, shapes, variables, attributes and calls."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence

from ..calls.signatures import argument_for
from ..networks.called_layers import called_layers, library_layer
from ..networks.layer_sequences import LayerSequences, Untold
from ..networks.models import instances
from ..program.classes import class_attribute, kept_as
from ..program.reaching import bindings_of
from ..program.scopes import Assigned, Binding, Iterated, Parameter, Path, Untraceable
from ..program.syntax import FunctionNode, Module, last_identifier
from ..tensors.returned_values import returned_by
from ..values.composition import call_arguments
from ..values.resolver import Resolver
from ..values.unpacking import unpacked_element
from ..values.values import Class, Function, Made

SAME_VALUES = frozenset(
    "view reshape unsqueeze squeeze flatten t transpose permute swapaxes movedim expand expand_as repeat tile "
    "repeat_interleave broadcast_to float double to type type_as contiguous clone detach requires_grad_ chunk split unbind "
    "select narrow index_select gather cpu cuda roll flip unflatten rearrange".split()
)
"""Methods and functions that leave the numbers of a tensor as they are, but for their type."""
_ARITHMETIC = frozenset(
    "add sub mul div multiply divide subtract true_divide remainder fmod outer ger matmul mm bmm mv addmm addbmm baddbmm "
    "addmv einsum linear".split()
)
_JOINED = frozenset({"cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack"})
_VIEWS = frozenset({"T", "mT", "data"})

Origin = tuple[ast.expr, Module]
_Place = tuple[ast.expr, Module, Path]
_Key = tuple[ast.expr, Path]


class LinearOrigins:
    """Follows values back to where ``is_origin`` is true, or to a layer of the library's classes ``layers``."""

    def __init__(
        self,
        resolver: Resolver,
        is_origin: Callable[[ast.expr, Module], bool],
        layers: frozenset[str] = frozenset(),
    ) -> None:
        self._resolver = resolver
        self._is_origin = is_origin
        self._layers = layers
        self._sequences = LayerSequences(resolver)
        self._without: set[_Key] = set()
        self._seen: set[_Key] = set()

    def of(self, node: ast.expr, module: Module) -> Origin | None:
        """The first origin of ``node`` that is found; None where it has none."""
        self._seen = set()
        found = self._origin(node, module, ())
        if found is None:
            self._without |= self._seen
        return found

    def _origin(self, node: ast.expr, module: Module, path: Path) -> Origin | None:
        key = (node, path)
        if key in self._seen or key in self._without:
            return None
        self._seen.add(key)
        if self._is_origin(node, module):
            return node, module
        match node:
            case ast.Name():
                bindings = bindings_of(module, node)
                return _first(self._bound(binding, module, path) for binding in bindings)
            case ast.Attribute():
                return self._attribute(node, module, path)
            case ast.Call():
                return self._call(node, module, path)
            case _:
                return self._of_any((part, module, ()) for part in _parts(node))

    def _of_any(self, places: Iterable[_Place]) -> Origin | None:
        return _first(self._origin(*_element(*place)) for place in places)

    def _bound(self, binding: Binding, module: Module, path: Path) -> Origin | None:
        match binding.source:
            case Assigned(value, part):
                return self._of_any([(value, module, (*part, *path))])
            case Iterated(iterable):
                return self._origin(iterable, module, ())
            case Parameter(ast.FunctionDef() | ast.AsyncFunctionDef() as function, "plain"):
                return self._passed(function, binding.name, module, path)
            case Untraceable():
                changed = module.parents.get(binding.node)
                if not isinstance(changed, ast.AugAssign):
                    return None
                return self._of_any([(changed.value, module, ()), (changed.target, module, ())])
            case _:
                return None

    def _passed(
        self, function: FunctionNode, name: str, module: Module, path: Path
    ) -> Origin | None:
        sites = self._resolver.call_sites(function)
        if not sites and function.name == "forward":
            return self._handed_on(function, module)
        passed = [
            (argument_for(function, name, site.call, site.bound), site.module) for site in sites
        ]
        return self._of_any(
            (one.given, where, path) for one, where in passed if one and one.given is not None
        )

    def _handed_on(self, forward: FunctionNode, module: Module) -> Origin | None:
        """The origin of what ``forward`` is given in the sequences that its own layers are in."""
        cls = module.parents[forward]
        if not isinstance(cls, ast.ClassDef):
            return None
        for made in instances(self._resolver, Class(cls, module)):
            try:
                before = self._sequences.before(made.call, made.module)
            except Untold:
                continue
            found = _first(self._run(layer, where) for layer, where in before)
            if found is not None:
                return found
        return None

    def _run(self, layer: ast.expr, module: Module) -> Origin | None:
        """The origin of what ``layer`` returns."""
        values = called_layers(self._resolver, layer, module)
        if any(library_layer(self._resolver, value) in self._layers for value in values):
            return layer, module
        classes = [v.maker for v in values if isinstance(v, Made) and isinstance(v.maker, Class)]
        runs = (run for cls in classes for run in class_attribute(self._resolver, cls, "forward"))
        return self._of_any(_results([run for run in runs if isinstance(run, Function)], ()))

    def _attribute(self, node: ast.Attribute, module: Module, path: Path) -> Origin | None:
        if node.attr in _VIEWS:
            return self._origin(node.value, module, ())
        cls = module.enclosing_class(node)
        if cls is None or not isinstance(node.value, ast.Name):
            return None
        kept = kept_as(self._resolver, cls, module, node.attr)
        return self._of_any((value, where, (*part, *path)) for value, part, where in kept)

    def _call(self, call: ast.Call, module: Module, path: Path) -> Origin | None:
        functions = self._resolver.callees(call, module)
        if functions:
            return self._of_any(_results(functions, path))
        name = last_identifier(call.func)
        operands = tensor_operands(self._resolver, call, module)
        if name in SAME_VALUES | _JOINED:
            operands = operands[:1]
        elif name not in _ARITHMETIC:
            return None
        return self._of_any((operand, module, ()) for operand in operands)


def tensor_operands(resolver: Resolver, call: ast.Call, module: Module) -> list[ast.expr]:
    """What ``torch.f(x, y)`` and ``x.f(y)`` are about, in this order."""
    given = call_arguments(call)
    if isinstance(call.func, ast.Attribute) and not resolver.names(call.func, module):
        return [call.func.value, *given]
    return given


def _first(found: Iterable[Origin | None]) -> Origin | None:
    return next((place for place in found if place is not None), None)


def _results(functions: Sequence[Function], path: Path) -> Iterable[_Place]:
    """What ``functions`` return, and the part of it that ``path`` leads to."""
    for function in functions:
        for returned in returned_by(function):
            if returned is not None:
                yield returned, function.module, path


def _element(value: ast.expr, module: Module, path: Path) -> _Place:
    """The element of ``value`` that ``path`` leads to, as far as it is written out, and the rest of the path."""
    while path:
        inner = unpacked_element(value, path[:1])
        if inner is value:
            break
        value, path = inner, path[1:]
    return value, module, path


def _parts(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.BinOp(left, operator, right):
            return [] if isinstance(operator, ast.Pow | ast.FloorDiv) else [left, right]
        case ast.UnaryOp(operand=inner):
            return [inner]
        case ast.Subscript() | ast.Starred() | ast.NamedExpr():
            return [node.value]
        case ast.IfExp(body=body, orelse=orelse):
            return [body, orelse]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return elements
        case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element):
            return [element]
        case _:
            return []
