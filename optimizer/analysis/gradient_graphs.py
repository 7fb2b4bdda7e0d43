"""Calls that build a graph of the gradients themselves, so that these can be differentiated again."""

from __future__ import annotations

import ast

from .resolver import Resolver
from .signatures import call_argument
from .syntax import Module

_POSITIONS = {"torch.autograd.grad": 4, "torch.autograd.backward": 3}
_POSITION_IN_METHOD = 2
"""Where ``create_graph`` stands among the positional arguments
(https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html)."""


def may_build_gradient_graph(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` is given a ``create_graph`` that is not known to be false."""
    names = resolver.names(call.func, module)
    position = next((_POSITIONS[name] for name in names if name in _POSITIONS), None)
    if position is None and isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
        position = _POSITION_IN_METHOD
    graph = call_argument(call, "create_graph", position)
    if graph is None:
        return position is not None and any(keyword.arg is None for keyword in call.keywords)
    return not (isinstance(graph, ast.Constant) and not graph.value)
