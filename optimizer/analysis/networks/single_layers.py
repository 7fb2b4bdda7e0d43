"""Networks that are one linear layer, such as the classifier of a linear probe."""

from __future__ import annotations

import ast

from ..facts import Model
from ..program.classes import class_attribute
from ..values.resolver import Resolver
from ..values.values import External, Function, Made, Value

_LINEAR = frozenset({"torch.nn.Linear", "torch.nn.LazyLinear"})
_FREE = frozenset({"torch.nn.Flatten", "torch.nn.Identity"})
"""Layers that compute nothing."""


def is_single_layer(resolver: Resolver, network: Model) -> bool:
    """Whether ``network`` is a linear layer, alone or as all that a class of the script's or ``nn.Sequential`` runs."""
    if network.cls is None:
        return _is_linear(resolver, Made(network.node, network.module, _library(network)))
    functions = [*class_attribute(resolver, network.cls, "forward")]
    match functions:
        case [Function(ast.FunctionDef(body=[*before, ast.Return(ast.Call() as call)]), owner)]:
            if not all(
                isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) for s in before
            ):
                return False
        case _:
            return False
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name("self")), args=[ast.Name()], keywords=[]):
            layers = resolver.values(call.func, owner)
            return bool(layers) and all(_is_linear(resolver, layer) for layer in layers)
        case _:
            return False


def _library(network: Model) -> External:
    return External(network.library_name or "")


def _is_linear(resolver: Resolver, layer: Value) -> bool:
    match layer:
        case Made(_, _, External(name)) if name in _LINEAR:
            return True
        case Made(ast.Call(args=parts, keywords=[]), module, External("torch.nn.Sequential")):
            names = [resolver.maker_names(part, module) for part in parts]
            linear = [name for name in names if name and name <= _LINEAR]
            return len(linear) == 1 and all(name and name <= _LINEAR | _FREE for name in names)
        case _:
            return False
