"""Gradients that a loss is made of: those of what a network is given, as a penalty on a discriminator's wants them."""

from __future__ import annotations

import ast

from ..calls.signatures import call_argument
from ..program.syntax import Module
from ..values.resolver import Resolver
from .loops import is_forward

GRAD = frozenset({"torch.autograd.grad"})


def takes_gradients(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` calls ``torch.autograd.grad``, which leaves none in parameters, and has none exchanged."""
    return isinstance(node, ast.Call) and bool(resolver.names(node.func, module) & GRAD)


def is_of_inputs(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` asks for the gradients of what a network is given beside it, to go on with their graph."""
    inputs, builds = call_argument(call, "inputs", 1), call_argument(call, "create_graph", 4)
    if not isinstance(inputs, ast.Name):
        return False
    is_built = isinstance(builds, ast.Constant) and builds.value is True
    return is_built and any(
        is_forward(resolver, other, module)
        for other in module.calls
        if module.function(other) is module.function(call)
        and any(isinstance(given, ast.Name) and given.id == inputs.id for given in other.args)
    )
