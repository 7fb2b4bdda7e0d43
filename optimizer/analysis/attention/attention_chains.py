"""Attention written out: the statements that lead from ``q @ k.transpose(-2, -1)`` through a softmax to the product with the values."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TypeAlias

from ..calls.signatures import call_argument
from ..program.syntax import Module
from ..program.trees import is_name, walk
from ..values.constants import constant
from ..values.resolver import Resolver
from ..values.values import External, Made
from .attention_products import Operand, WeightedSum, scores_product, weighted_sum

_SOFTMAX = frozenset({"torch.nn.functional.softmax", "torch.softmax"})
_DROPOUT = frozenset({"torch.nn.functional.dropout", "torch.dropout"})
DROPOUT_LAYER = frozenset({"torch.nn.Dropout"})
_CASTS = frozenset({"type_as", "to", "type", "float", "half", "bfloat16"})


@dataclass(frozen=True)
class Scale:
    """The scores are multiplied by ``factor``, or divided by it."""

    factor: ast.expr
    divides: bool


@dataclass(frozen=True)
class Mask:
    """The scores are filled with ``fill`` where ``value`` holds (or does not, if ``inverted``); ``value`` is added if there is none.

    ``condition`` is that of the ``if`` around, if there is one.
    """

    value: ast.expr
    fill: ast.expr | None
    inverted: bool = False
    condition: ast.expr | None = None


Step: TypeAlias = Scale | Mask


@dataclass(frozen=True)
class Chain:
    """Attention from the scores to the weighted sum of the values.

    ``steps`` are what happens to the scores ahead of the softmax, in order. ``dropouts`` and ``layers`` are the calls of
    dropout on the weights and the calls of layers along the way. ``replaced`` are the statements that do nothing else, and the last one is
    where ``sum`` stands. ``obstacle`` says what is not as it should be.
    """

    softmax: ast.Call
    query: Operand
    key: Operand
    sum: WeightedSum
    steps: tuple[Step, ...]
    dropouts: tuple[ast.Call, ...]
    layers: tuple[ast.Call, ...]
    replaced: tuple[ast.stmt, ...]
    obstacle: str | None


@dataclass(frozen=True)
class _Scores:
    """What the softmax is taken of, read backwards."""

    query: Operand
    key: Operand
    steps: tuple[Step, ...]
    replaced: tuple[ast.stmt, ...]
    obstacle: str | None = None


@dataclass(frozen=True)
class _Weights:
    """What becomes of the result of the softmax; without a ``sum`` it is nothing that attention does."""

    sum: WeightedSum | None
    dropouts: tuple[ast.Call, ...]
    layers: tuple[ast.Call, ...]
    replaced: tuple[ast.stmt, ...]
    obstacle: str | None = None


def find_chains(resolver: Resolver, module: Module) -> list[Chain]:
    """The attention that the functions of ``module`` write out, in source order."""
    reader = _Reader(resolver, module)
    found: list[Chain] = []
    for call in module.calls:
        scores = reader.scores(call)
        if scores is None:
            continue
        weights = reader.weights(call)
        if weights.sum is None and weights.obstacle is None:
            continue
        found.append(reader.chain(call, scores, weights))
    return found


class _Reader:
    def __init__(self, resolver: Resolver, module: Module) -> None:
        self._resolver = resolver
        self._module = module

    def chain(self, softmax: ast.Call, scores: _Scores, weights: _Weights) -> Chain:
        replaced = (*reversed(scores.replaced), *weights.replaced)
        is_layer = self._softmax_layer(softmax) is not None
        layers = (softmax, *weights.layers) if is_layer else weights.layers
        return Chain(
            softmax,
            scores.query,
            scores.key,
            weights.sum or WeightedSum(softmax, Operand(softmax), softmax),
            tuple(reversed(scores.steps)),
            weights.dropouts,
            layers,
            replaced,
            scores.obstacle or weights.obstacle,
        )

    def _names(self, call: ast.Call) -> frozenset[str]:
        return self._resolver.names(call.func, self._module)

    # Backwards: the scores

    def scores(self, softmax: ast.Call) -> _Scores | None:
        """The scores that ``softmax`` is taken of over the last dimension; None where it is no softmax, or of something else."""
        given = self._softmax_of(softmax)
        if given is None:
            return None
        return self._scores(given, self._module.statement(softmax))

    def _softmax_of(self, call: ast.Call) -> ast.expr | None:
        names = self._names(call)
        if names and names <= _SOFTMAX:
            given, dim = call_argument(call, "input", 0), call_argument(call, "dim", 1)
        elif (layer := self._softmax_layer(call)) is not None:
            given, dim = call_argument(call, "input", 0), call_argument(layer, "dim", 0)
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "softmax" and not names:
            given, dim = call.func.value, call_argument(call, "dim", 0)
        else:
            return None
        if given is None:
            return None
        return given if dim is not None and constant(dim) in {-1.0, 3.0} else None

    def _softmax_layer(self, call: ast.Call) -> ast.Call | None:
        """Where the layer is made that ``call`` runs, if it is a softmax and always the same."""
        match list(self._resolver.values(call.func, self._module)):
            case [Made(made, _, External("torch.nn.Softmax"))]:
                return made
            case _:
                return None

    def _scores(self, node: ast.expr, at: ast.stmt) -> _Scores | None:
        product = scores_product(self._resolver, node, self._module)
        if product is not None:
            return _Scores(*product, (), ())
        if isinstance(node, ast.Name):
            return self._variable(node.id, at)
        for inner, step in self._undone(node):
            found = self._scores(inner, at)
            if found is not None:
                return found if step is None else replace(found, steps=(step, *found.steps))
        return None

    def _undone(self, node: ast.expr) -> list[tuple[ast.expr, Step | None]]:
        """What ``node`` may make of the scores, with the scores it makes it of."""
        match node:
            case ast.BinOp(left, ast.Mult(), right):
                return [(left, Scale(right, False)), (right, Scale(left, False))]
            case ast.BinOp(left, ast.Div(), right):
                return [(left, Scale(right, True))]
            case ast.BinOp(left, ast.Add(), right):
                return [(left, Mask(right, None)), (right, Mask(left, None))]
            case ast.Call(ast.Attribute(scores, "masked_fill"), [mask, fill]):
                if not self._names(node):
                    return [(scores, Mask(mask, fill))]
            case ast.Call(ast.Attribute(scores, "float")):
                return [(scores, None)]
            case _:
                pass
        if isinstance(node, ast.Call) and len(node.args) == 3 and not node.keywords:
            names, (first, second, third) = self._names(node), node.args
            if names == frozenset({"torch.masked_fill"}):
                return [(first, Mask(second, third))]
            if names == frozenset({"torch.where"}):
                return [(second, Mask(first, third, True)), (third, Mask(first, second))]
        return []

    def _variable(self, name: str, at: ast.stmt) -> _Scores | None:
        """The scores that the variable ``name`` holds ahead of ``at``, read from the statements above in its block."""
        block = self._module.block(at)
        steps: list[Step] = []
        replaced: list[ast.stmt] = []
        for statement in reversed(block[: block.index(at)]):
            if not _mentions(statement, name) or self._only_asks(statement, name):
                continue
            if _assigned_name(statement) == name:
                assert isinstance(statement, ast.Assign)
                found = self._scores(statement.value, statement)
                if found is None:
                    return None
                return replace(
                    found,
                    steps=(*steps, *found.steps),
                    replaced=(*replaced, statement, *found.replaced),
                )
            step = self._changed(statement, name)
            if step is None:
                return None
            steps.append(step)
            replaced.append(statement)
        return None

    def _only_asks(self, statement: ast.stmt, name: str) -> bool:
        """Whether ``statement`` only asks what type ``name`` has: ``torch.finfo(scores.dtype)``."""
        parents = self._module.parents
        return isinstance(statement, ast.Assign) and all(
            isinstance(parent := parents[node], ast.Attribute) and parent.attr == "dtype"
            for node in walk(statement)
            if isinstance(node, ast.Name) and node.id == name
        )

    def _changed(self, statement: ast.stmt, name: str) -> Step | None:
        """How ``statement`` changes the scores that ``name`` holds, in place or under a condition."""
        match statement:
            case ast.AugAssign(ast.Name(changed), ast.Mult() | ast.Div() as operator, value):
                is_theirs = changed == name and not _mentions(value, name)
                return Scale(value, isinstance(operator, ast.Div)) if is_theirs else None
            case ast.AugAssign(ast.Name(changed), ast.Add(), value):
                is_theirs = changed == name and not _mentions(value, name)
                return Mask(value, None) if is_theirs else None
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(changed), "masked_fill_"), [mask, fill])):
                return Mask(mask, fill) if changed == name and not _mentions(mask, name) else None
            case ast.If(condition, [inner], []) if not _mentions(condition, name):
                if _assigned_name(inner) == name:
                    assert isinstance(inner, ast.Assign)
                    undone = self._undone(inner.value)
                    steps = [s for i, s in undone if isinstance(i, ast.Name) and i.id == name]
                    step = steps[0] if len(steps) == 1 else None
                else:
                    step = self._changed(inner, name)
                if isinstance(step, Mask) and step.condition is None:
                    return replace(step, condition=condition)
                return None
            case _:
                return None

    # Forwards: the weights

    def weights(self, softmax: ast.Call) -> _Weights:
        """What becomes of the weights that ``softmax`` computes."""
        found = self._followed(softmax)
        if found.sum is None and found.obstacle is None:
            other = self._summed_all_the_same(softmax, found)
            if other is not None:
                return replace(found, obstacle=f"`{other}` is read again")
        return found

    def _summed_all_the_same(self, softmax: ast.Call, found: _Weights) -> str | None:
        """The variable with the weights, where they do weigh values further down, beside other things."""
        statement = self._module.statement(softmax)
        names = {_assigned_name(one) for one in (statement, *found.replaced)} - {None}
        for name in names:
            for use in self._module.names_of(name or ""):
                is_here = self._module.function(use) is self._module.function(softmax)
                is_below = is_here and use.lineno > softmax.lineno
                if is_below and weighted_sum(self._resolver, use, self._module) is not None:
                    return name
        return None

    def _followed(self, softmax: ast.Call) -> _Weights:
        """Follows the weights through the statements that read them once."""
        module = self._module
        found = _Weights(None, (), (), ())
        node: ast.expr = softmax
        while True:
            parent = module.parents[node]
            summed = weighted_sum(self._resolver, node, module)
            if summed is not None:
                return replace(found, sum=summed)
            if isinstance(parent, ast.Call) and parent.args[:1] == [node]:
                layered = self._dropped(parent, found)
                if layered is None:
                    what = f"`{module.code(parent.func)}` is not known to be dropout"
                    return replace(found, obstacle=what) if _may_drop(parent) else found
                found, node = layered, parent
                continue
            call = module.parents.get(parent)
            if isinstance(parent, ast.Attribute) and parent.attr in _CASTS:
                if not isinstance(call, ast.Call):
                    return found
                node = call
                continue
            statement = module.statement(node)
            name = _assigned_name(statement)
            if parent is not statement or name is None:
                return found
            read = self._next_read(statement, name)
            if read is None:
                return found
            found, node = replace(found, replaced=(*found.replaced, statement)), read

    def _dropped(self, call: ast.Call, found: _Weights) -> _Weights | None:
        names = self._names(call)
        if names and names <= _DROPOUT:
            return replace(found, dropouts=(*found.dropouts, call))
        if self._resolver.maker_names(call.func, self._module) == DROPOUT_LAYER:
            return replace(found, dropouts=(*found.dropouts, call), layers=(*found.layers, call))
        return None

    def _next_read(self, assignment: ast.stmt, name: str) -> ast.Name | None:
        """The only place where the next statement of the block that mentions ``name`` reads it."""
        block = self._module.block(assignment)
        for statement in block[block.index(assignment) + 1 :]:
            reads = [
                node
                for node in walk(statement)
                if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
            ]
            if not reads:
                continue
            is_simple = not isinstance(statement, ast.If | ast.For | ast.While | ast.With | ast.Try)
            return reads[0] if len(reads) == 1 and is_simple else None
        return None


def _may_drop(call: ast.Call) -> bool:
    return "drop" in ast.unparse(call.func).lower()


def _mentions(node: ast.AST, name: str) -> bool:
    return any(is_name(inner, name) for inner in walk(node))


def _assigned_name(statement: ast.stmt) -> str | None:
    """``x`` of ``x = ..``."""
    match statement:
        case ast.Assign([ast.Name(name)]):
            return name
        case _:
            return None
