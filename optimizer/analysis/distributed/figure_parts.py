"""What a figure that a training loop tells is made of, and what that is to the figure of all processes."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ..facts import Loop
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned
from ..program.trees import child_nodes
from ..values.resolver import Resolver
from .batch_shares import Share, ShareOf
from .divergence import CLOCK, Divergence

_CALCULATIONS = (
    "math.",
    *("numpy.exp", "numpy.log", "numpy.sqrt", "numpy.round", "numpy.mean"),
    *("torch.exp", "torch.log", "torch.sqrt"),
    *("builtins.float", "builtins.int", "builtins.round", "builtins.str", "builtins.abs"),
    *("builtins.max", "builtins.min"),
)
_NUMBER_METHODS = frozenset("item detach cpu data numpy tolist float double exp log sqrt".split())
_PLAIN = (ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare, ast.BoolOp, ast.JoinedStr)


class Number(NamedTuple):
    """A number that is read as ``node``, from the variable ``name``."""

    node: ast.expr
    name: str
    share: Share
    is_single: bool
    is_number: bool


@dataclass
class Parts:
    """What a figure is made of; None instead where it is not understood."""

    numbers: list[Number] = field(default_factory=list[Number])
    sizes: list[ast.expr] = field(default_factory=list[ast.expr])

    def read(self) -> list[ast.expr]:
        """The expressions that become other ones."""
        return [*(number.node for number in self.numbers), *self.sizes]

    def add(self, other: Parts) -> None:
        self.numbers += other.numbers
        self.sizes += other.sizes


class FigureParts:
    """Answers for one training loop. ``carriers`` are variables that are made to hold what all processes have in common.

    ``carrying`` are the assignments to them, also those of other blocks.
    """

    def __init__(self, resolver: Resolver, loop: Loop, divergence: Divergence) -> None:
        self._resolver, self._loop, self._module = resolver, loop, loop.module
        self._divergence = divergence
        self._shares = ShareOf(resolver, [loop.node])
        self.carriers: Collection[str] = ()
        self.carrying: set[ast.stmt] = set()

    def of(self, figure: ast.expr) -> Parts | None:
        """What has to be exchanged or multiplied so that ``figure`` is that of all processes; None if not understood."""
        found = self._known(figure)
        if found is not None:
            return found
        parts = self._parts(figure)
        made_of = Parts()
        for part in parts if parts is not None else ():
            inner = self.of(part)
            if inner is None:
                return None if self._diverges(figure) else Parts()
            made_of.add(inner)
        if parts is None and self._diverges(figure):
            return None
        return made_of

    def _known(self, figure: ast.expr) -> Parts | None:
        """``figure`` as a number that is understood by itself."""
        module = self._module
        if self._is_size(figure):
            return Parts(sizes=[figure])
        if self._is_time(figure, 4):
            return Parts()
        core = _core(figure)
        if not isinstance(core, ast.Name):
            return None
        if core.id in self.carriers or self._is_carried(core):
            return Parts()
        if not self._is_inside(core) and self._divergence.has_sum(self._loop.node, core.id):
            return Parts()
        summed = self._shares.running_sum(core, module)
        if summed is not None and summed.share is not Share.SAME:
            if core is not figure:
                return None  # its parts are asked
            number = Number(core, core.id, summed.share, summed.is_single, summed.is_number)
            return Parts([number])
        if not self._diverges(core):
            is_size = figure is core and self._share(core) is Share.SUM
            return Parts(sizes=[core]) if is_size else None
        share = self._share(figure)
        if share in {Share.MEAN, Share.SUM} and self._is_one_binding(core):
            is_number = self._shares.is_number(figure, module)
            return Parts([Number(figure, core.id, share, True, is_number)])
        return None

    def can_be_carried(self, figure: ast.expr, made_of: Parts) -> bool:
        """Whether ``figure``, calculated from ``made_of``, is a number of Python's, and none to be added up once more."""
        is_number = all(number.is_number for number in made_of.numbers)
        is_number = is_number or self._shares.is_number(figure, self._module)
        return is_number and self._share(figure) is not Share.SUM

    def _is_carried(self, name: ast.Name) -> bool:
        known = self._module.scope(name).lookup(name.id)
        if known is None or not self.carrying:
            return False
        seen = reaching_bindings(self._module, *known, self._module.scope(name), name)
        return all(self._module.statement(binding.node) in self.carrying for binding in seen)

    def _share(self, value: ast.expr) -> Share | None:
        return self._shares.of(value, self._module)

    def is_in_place(self, node: ast.expr) -> bool:
        """Whether the place of ``node`` is known: before Python 3.12, it is wrong in some f-strings."""
        try:
            written = ast.parse(self._module.code(node), mode="eval").body
        except SyntaxError:
            return False
        return ast.dump(written) == ast.dump(node)

    def _is_inside(self, node: ast.AST) -> bool:
        """Whether ``node`` stands in the loop, not behind it."""
        return self._loop.node in self._module.ancestors(node)

    def _is_one_binding(self, name: ast.Name) -> bool:
        """Whether the step binds ``name`` anew before it is read here, on every way."""
        known = self._module.scope(name).lookup(name.id)
        if known is None:
            return False
        seen = reaching_bindings(self._module, *known, self._module.scope(name), name)
        return all(self._is_inside(binding.node) for binding in seen)

    def _is_size(self, figure: ast.expr) -> bool:
        match figure:
            case (
                ast.Call(func=ast.Name(id="len"), args=[given])
                | ast.Call(
                    func=ast.Attribute(value=given, attr="size"), args=[ast.Constant(value=0)]
                )
                | ast.Subscript(
                    value=ast.Attribute(value=given, attr="shape"), slice=ast.Constant(value=0)
                )
            ):
                return self._share(figure) is Share.SUM and self._diverges(given)
            case _:
                return False

    def _is_time(self, figure: ast.expr, depth: int) -> bool:
        """Whether ``figure`` is what the clock says, or the time between two readings of it."""
        match figure:
            case ast.Call(func=function):
                names = self._resolver.names(function, self._module)
                return bool(names) and all(name.startswith(CLOCK) for name in names)
            case ast.BinOp(left=left, op=ast.Sub(), right=right):
                return self._is_time(left, depth) and self._is_time(right, depth)
            case ast.Name() if depth and self._diverges(figure):
                known = self._module.scope(figure).lookup(figure.id)
                seen = (
                    reaching_bindings(self._module, *known, self._module.scope(figure), figure)
                    if known is not None
                    else []
                )
                return bool(seen) and all(
                    isinstance(b.source, Assigned)
                    and not b.source.path
                    and self._is_time(b.source.value, depth - 1)
                    for b in seen
                )
            case _:
                return False

    def _parts(self, figure: ast.expr) -> list[ast.expr] | None:
        """The expressions whose values alone ``figure`` is calculated from; None when that is not seen."""
        if isinstance(figure, _PLAIN):
            return [*_expressions_in(figure)]
        match figure:
            case ast.Constant():
                return []
            case ast.Attribute(value=value, attr=name) if name in _NUMBER_METHODS:
                return [value]
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=[], keywords=[]) if (
                name in _NUMBER_METHODS and not self._resolver.names(figure.func, self._module)
            ):
                return [value]
            case ast.Call(func=function, args=args, keywords=[]):
                names = self._resolver.names(function, self._module)
                plain = bool(names) and all(name.startswith(_CALCULATIONS) for name in names)
                return [*args] if plain else None
            case _:
                return None

    def _diverges(self, expression: ast.expr) -> bool:
        return self._divergence.of(expression, self._module)


def _core(figure: ast.expr) -> ast.expr:
    """``loss`` of ``loss.detach().item()``, ``float(loss)`` and ``loss[0]``."""
    while True:
        match figure:
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=[], keywords=[]) if (
                name in {"item", "detach", "cpu", "float", "double"}
            ):
                figure = value
            case ast.Call(func=ast.Name(id="float"), args=[value], keywords=[]):
                figure = value
            case ast.Attribute(value=value, attr="data"):
                figure = value
            case ast.Subscript(value=value, slice=ast.Constant(value=int())):
                figure = value
            case _:
                return figure


def _expressions_in(node: ast.AST) -> Iterator[ast.expr]:
    for child in child_nodes(node):
        if isinstance(child, ast.FormattedValue):
            yield child.value
        elif isinstance(child, ast.expr):
            yield child
