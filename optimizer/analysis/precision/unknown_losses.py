"""Calls in the making of a loss of which nothing is known: what they compute may need float32."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..calls.reach import Reached
from ..editing.own_attributes import own_name
from ..facts import excerpt
from ..obstacles import Obstacle
from ..program.syntax import Module
from ..training.steps import StepCode
from ..values.resolver import Resolver
from ..values.values import Display, External, Literal, Made, Unknown, Value


def unknown_losses(
    resolver: Resolver, step: StepCode, nodes: Iterable[Reached]
) -> Iterator[Obstacle]:
    """The calls among ``nodes``, in the statements of ``step`` that its losses are made in, whose function is not known."""
    behind = step.behind_losses
    for node, module, is_direct in nodes:
        if (
            is_direct
            and isinstance(node, ast.Call)
            and _names_function(node, module)
            and not behind.isdisjoint([module.statement(node), *module.ancestors(node)])
            and all(_is_unknown(value) for value in resolver.values(node.func, module))
        ):
            why = f"what `{excerpt(module, node)}` computes is not known"
            yield Obstacle(module, node, why)


def _names_function(call: ast.Call, module: Module) -> bool:
    """Whether what ``call`` calls is a variable or an attribute of ``self``; methods of tensors have no names of their own."""
    match call.func:
        case ast.Name():
            return True
        case ast.Attribute(ast.Name(owner)):
            return owner == own_name(call, module)
        case _:
            return False


def _is_unknown(callee: Value) -> bool:
    """Whether nothing is known of ``callee``, which is not called where it is None."""
    match callee:
        case Unknown() | Literal(None) | Made(_, _, External("builtins.getattr")):
            return True
        case Display(ast.Call()):  # what something unknown made
            return True
        case External(name) | Made(_, _, External(name)):
            return name.endswith(".<any>")
        case _:
            return False
