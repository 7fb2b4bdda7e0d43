"""Tensors that an optimizer trains beside networks, or of a network that it does not train as a whole: the weights of several losses."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from ..facts import Fact, Optimizer
from ..program.syntax import Module
from ..values.composition import call_arguments
from ..values.resolver import Resolver
from ..values.values import Class, External, Made, Value
from .models import is_module_class
from .trained import PARAMETERS, given_nodes, owners

_PARAMETER = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})


def loose_parameter(
    resolver: Resolver, optimizer: Optimizer, networks: Collection[ast.Call]
) -> Fact | None:
    """A tensor that ``optimizer`` is given and that is no part of ``networks``, which these calls make."""
    for given in call_arguments(optimizer.node):
        for node, module in given_nodes(resolver, given, optimizer.module, set()):
            if isinstance(node, ast.Call):
                is_loose = _is_trained(resolver, node, module)
            elif isinstance(node, ast.Attribute):
                is_loose = _is_loose_part(resolver, node, module, networks)
            else:
                continue
            if is_loose:
                return Fact(module, node)
    return None


def _is_trained(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` makes a tensor that requires gradients."""
    if resolver.names(call.func, module) & _PARAMETER:
        return True
    if isinstance(call.func, ast.Attribute) and call.func.attr == "requires_grad_":
        return not any(isinstance(a, ast.Constant) and not a.value for a in call.args)
    return any(
        keyword.arg == "requires_grad"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is True
        for keyword in call.keywords
    )


def _is_loose_part(
    resolver: Resolver, node: ast.Attribute, module: Module, networks: Collection[ast.Call]
) -> bool:
    """Whether ``node`` is a tensor that requires gradients, of an object that is none of ``networks``."""
    if node.attr in PARAMETERS:
        return False
    made = list(_made(resolver.values(node, module)))
    if not any(_is_trained(resolver, each.call, each.module) for each in made):
        return False
    whose = {model.node for model in owners(resolver, node.value, module)}
    if whose:
        return not whose <= set(networks)
    cls = module.enclosing_class(node)
    if cls is None or not (isinstance(node.value, ast.Name) and node.value.id == "self"):
        return True
    return not is_module_class(resolver, Class(cls, module))


def _made(values: Collection[Value]) -> Iterator[Made]:
    for value in values:
        if isinstance(value, Made) and isinstance(value.maker, External):
            yield value
