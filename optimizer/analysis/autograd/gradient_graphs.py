"""Calls that build a graph of the gradients themselves, or keep that of the loss, so that something can be differentiated again."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from ..calls.signatures import call_argument
from ..facts import CallFact
from ..program.module_objects import is_module_object
from ..program.syntax import Module, last_identifier
from ..values.resolver import Resolver
from ..values.values import Attribute, External, Literal, Made, Value

_POSITIONS = {
    "create_graph": {"torch.autograd.grad": 4, "torch.autograd.backward": 3, "backward": 2},
    "retain_graph": {"torch.autograd.grad": 3, "torch.autograd.backward": 2, "backward": 1},
}
"""Where an argument stands among the positional ones of a function, or of the method
(https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad.html)."""
_CURVATURES = frozenset(f"torch.autograd.functional.{n}" for n in ("hessian", "hvp", "vhp", "jvp"))
"""What differentiates gradients by itself."""
_SECOND_ORDER = "is_second_order"
"""The mark of timm on optimizers that go by second derivatives."""
_FIRST_ORDER = ("torch.optim.", "apex.optimizers.")
"""Libraries none of whose optimizers has that mark."""


def gradient_graphs(resolver: Resolver) -> Iterator[CallFact]:
    """The calls of the project that may build a graph of gradients, in training or beside it."""
    return _calls(resolver, may_build_gradient_graph)


def kept_graphs(resolver: Resolver) -> Iterator[CallFact]:
    """The calls of the project that may go through a graph and keep it, in training or beside it."""
    return _calls(resolver, may_keep_graph)


def _calls(
    resolver: Resolver, wanted: Callable[[Resolver, ast.Call, Module], bool]
) -> Iterator[CallFact]:
    for module in resolver.project.modules:
        for call in module.calls:
            if wanted(resolver, call, module):
                yield CallFact(module, call, last_identifier(call.func))


def may_build_gradient_graph(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` is given a ``create_graph`` that is not known to be false, or works with second derivatives."""
    if not _CURVATURES.isdisjoint(resolver.names(call.func, module)):
        return True
    return _may_be_given(resolver, call, module, "create_graph")


def may_keep_graph(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` is given a ``retain_graph`` that is not known to be false."""
    return _may_be_given(resolver, call, module, "retain_graph")


def _may_be_given(resolver: Resolver, call: ast.Call, module: Module, argument: str) -> bool:
    positions = _POSITIONS[argument]
    names = resolver.names(call.func, module)
    position = next((positions[name] for name in names if name in positions), None)
    match call.func:
        case ast.Attribute(value=tensor, attr="backward") if position is None:
            if not is_module_object(tensor, module):
                position = positions["backward"]
        case _:
            pass
    given = call_argument(call, argument, position)
    if given is None:
        return position is not None and any(keyword.arg is None for keyword in call.keywords)
    return not all(_is_false(resolver, value) for value in resolver.values(given, module))


def _is_false(resolver: Resolver, value: Value) -> bool:
    """Whether ``value`` is known to be false, as ``hasattr(optimizer, "is_second_order")`` is for what PyTorch has."""
    match value:
        case Literal(constant):
            return not constant
        case Made(ast.Call(args=[owner, ast.Constant(value=str(name))]), module, External(maker)):
            owners = resolver.values(owner, module) if maker == "builtins.hasattr" else ()
            return bool(owners) and all(_is_first_order(one, name) for one in owners)
        case Attribute(owner, name):
            return _is_first_order(owner, name)
        case _:
            return False


def _is_first_order(owner: Value, name: str) -> bool:
    """Whether ``owner`` has no attribute ``name``, the mark of optimizers of another order."""
    if name != _SECOND_ORDER:
        return False
    match owner:
        case Literal(None):
            return True
        case Made(maker=External(maker)):
            return maker.startswith(_FIRST_ORDER)
        case _:
            return False
