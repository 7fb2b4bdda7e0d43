"""Through which calls a trace of tensors came into a function, and so where it goes on behind them.

A function is read once for each call that leads into it, however many ways lead to that call. What comes back out of the
call goes on along all of them: also along those that are found after it has come back.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace

from ..program.syntax import Module

Context = ast.Call | None
"""The call through which the trace came into a function; None where it began there."""

CALLED_BY_REGION = ast.Call(ast.Name("region"), [], [])
"""The context of functions that the region calls: what they return is followed where the region calls them."""


@dataclass(frozen=True)
class Place:
    """An expression that holds the tensor; ``certain`` when it is a tensor for sure."""

    node: ast.expr
    module: Module
    context: Context
    certain: bool


@dataclass
class _Ways:
    """The contexts from which the trace came to a call in ``module``, and the places outside to which it came back."""

    module: Module
    contexts: set[Context] = field(default_factory=set)
    places: set[Place] = field(default_factory=set)


class CallContexts:
    """The calls that one trace went into."""

    def __init__(self) -> None:
        self._ways: dict[ast.Call, _Ways] = {}

    def enter(self, call: ast.Call, place: Place) -> list[Place]:
        """The trace goes from ``place`` into ``call``; gives where it goes on of what has come back already."""
        ways = self._ways.setdefault(call, _Ways(place.module))
        if place.context in ways.contexts:
            return []
        ways.contexts.add(place.context)
        return [replace(outside, context=place.context) for outside in ways.places]

    def leave(self, call: ast.Call, node: ast.expr, certain: bool) -> list[Place]:
        """The tensor is held by ``node``, outside ``call``, once the call is over: in all contexts of the call."""
        ways = self._ways.get(call)
        if ways is None:  # the region's own: its results are followed where it calls
            return []
        outside = Place(node, ways.module, None, certain)
        ways.places.add(outside)
        return [replace(outside, context=context) for context in ways.contexts]

    def caller(self, call: ast.Call) -> ast.AST | None:
        """The function in which ``call`` stands."""
        ways = self._ways.get(call)
        return ways.module.function(call) if ways is not None else None
