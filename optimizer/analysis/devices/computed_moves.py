"""Finds tensors that a network or a loop computes on the host in several steps, and then moves: ``pe.to(x.device)``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..calls.signatures import call_argument
from ..facts import Fact
from ..networks.networks import Networks
from ..program.scopes import Assigned
from ..program.syntax import Module
from ..values.resolver import Resolver
from .construction import EXACT_FUNCTIONS, EXACT_METHODS, VARIABLE, ConstructionFinder
from .joined_constructions import JOINS

_MOVES = frozenset({"to", "cuda", "type_as", "type", "new_tensor"})
_LEAVES = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})
_DEFAULT_DEVICE = re.compile(r"set_default_device|set_default_tensor_type|with [\w.]*\bdevice\b")


@dataclass(frozen=True, eq=False)
class ComputedMove(Fact):
    """``node`` moves what is computed from the result of ``factory``, in each forward pass or pass of a loop.

    ``rounds`` unless that is only put together, or cut, of what factories make.
    """

    node: ast.Call
    factory: ast.Call
    rounds: bool


def find_computed_moves(resolver: Resolver) -> tuple[ComputedMove, ...]:
    """Every such move of the project, in source order per module; none where a default device may be set."""
    modules = resolver.project.modules
    if any(module.search(_DEFAULT_DEVICE) for module in modules):
        return ()
    finder = _Finder(resolver)
    return tuple(found for module in modules for found in finder.in_module(module))


class _Finder:
    def __init__(self, resolver: Resolver) -> None:
        self._networks = Networks(resolver)
        self._resolver = resolver
        self._constructions = ConstructionFinder(resolver)
        self._known: dict[ast.expr, ast.Call | None] = {}

    def in_module(self, module: Module) -> Iterator[ComputedMove]:
        for move in (*module.calls_named("to"), *module.calls_named("cuda")):
            if not isinstance(move.func, ast.Attribute) or not self._is_repeated(move, module):
                continue
            moved = move.func.value
            if self._constructions.chain(moved, module) is not None:
                continue  # one expression, or one variable made by one: see construction.py
            factory = self._factory(moved, module)
            target = self._constructions.target(move, module)
            if factory is not None and target is not None and target[2] is None:
                rounds = not self._is_exact(moved, module, frozenset())
                yield ComputedMove(module, move, factory, rounds)

    def _is_repeated(self, node: ast.AST, module: Module) -> bool:
        function = module.function(node)
        if module.loops(node):
            return True
        return (
            function is not None
            and getattr(function, "name", "__init__") != "__init__"
            and self._networks.is_part_of_network(function, module)
        )

    def _factory(self, expression: ast.expr, module: Module) -> ast.Call | None:
        """The factory on the host of which ``expression`` is computed; operands of one operation are on one device."""
        if expression in self._known:
            return self._known[expression]
        self._known[expression] = None  # as which `x = x + 1` counts where it leads back to itself
        chain = self._constructions.chain(expression, module)
        if chain is None:
            found = next(filter(None, self._of_operands(expression, module)), None)
        else:
            factory, steps = chain
            names = {getattr(step.func, "attr", "") for step in steps}
            is_host = call_argument(factory, "device") is None and not names & _MOVES
            found = factory if is_host else None
        self._known[expression] = found
        return found

    def _of_operands(self, expression: ast.expr, module: Module) -> Iterator[ast.Call | None]:
        operands: list[ast.expr] = []
        match expression:
            case ast.Name():
                yield self._of_variable(expression, module)
            case ast.BinOp(left=left, right=right):
                operands = [left, right]
            case ast.UnaryOp(operand=operand):
                operands = [operand]
            case ast.Subscript(value=value):
                operands = [value]
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                operands = elements
            case ast.Call(func=function, args=args) if call_argument(expression, "device") is None:
                names = self._resolver.names(function, module)
                if names & _LEAVES:
                    return  # a leaf before it moves: made there, it would be another one
                if names and all(name.startswith("torch.") for name in names):
                    operands = args
                elif isinstance(function, ast.Attribute) and function.attr not in _MOVES:
                    operands = [function.value]
            case _:
                pass
        for operand in operands:
            yield self._factory(operand, module)

    def _is_exact(self, expression: ast.expr, module: Module, asked: frozenset[ast.expr]) -> bool:
        """Whether nothing on the way to ``expression`` may round: its parts are made, joined, cut and cast."""
        if expression in asked:
            return True
        asked |= {expression}
        parts: list[ast.expr] = []
        match expression:
            case ast.Name():
                parts = self._values_of(expression, module)
            case ast.Subscript(value=value):
                parts = [value]
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                parts = elements
            case ast.Call(func=function, args=args):
                names = self._resolver.names(function, module)
                if self._constructions.chain(expression, module) is not None and names:
                    return True
                if names and names <= JOINS | EXACT_FUNCTIONS | VARIABLE:
                    parts = args[:1]
                elif isinstance(function, ast.Attribute) and function.attr in EXACT_METHODS:
                    parts = [function.value]
            case _:
                pass
        return bool(parts) and all(self._is_exact(part, module, asked) for part in parts)

    def _values_of(self, name: ast.Name, module: Module) -> list[ast.expr]:
        """What the local variable ``name`` is assigned; nothing where it has other values too, or is written to."""
        if any(
            isinstance(part.ctx, ast.Store) and getattr(part.value, "id", None) == name.id
            for part in module.nodes_of(ast.Subscript)
        ):
            return []
        found = module.scope(name).lookup(name.id)
        sources = [binding.source for binding in found[1]] if found is not None else []
        values = [source.value for source in sources if isinstance(source, Assigned)]
        return values if len(values) == len(sources) else []

    def _of_variable(self, name: ast.Name, module: Module) -> ast.Call | None:
        """What all values of a local variable are computed from, that of the first."""
        scope = module.scope(name)
        found = scope.lookup(name.id)
        if found is None or found[0] is not scope or module.function(name) is None:
            return None
        sources = [binding.source for binding in found[1]]
        values = [source.value for source in sources if isinstance(source, Assigned)]
        factories = [self._factory(value, module) for value in values]
        if len(values) < len(sources) or not all(factories):
            return None
        return factories[0]
