"""Gradients that a step takes of its input, to attack a network or to explain it, and not of weights."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..calls.reach import Reached, lexical_nodes
from ..calls.signatures import call_argument
from ..facts import Fact
from ..program.reaching import bindings_of
from ..program.scopes import Iterated
from ..program.syntax import Module, last_identifier
from ..program.trees import walk
from ..training.steps import StepCode
from ..values.resolver import Resolver

_FACTORIES = frozenset("zeros ones full empty rand randn tensor Parameter".split())
_PARAMETERS = frozenset({"parameters", "named_parameters", "param_groups", "children", "modules"})


ATTACKED = "gradients of the input are taken, as an attack does, whose signs rounding changes"
"""Why a step with such gradients keeps its precision."""


def input_gradient(resolver: Resolver, step: StepCode) -> Fact | None:
    """Where ``step``, which steps no optimizer, reads the gradient of a tensor that it makes require one; None elsewhere."""
    if step.updates:
        return None
    nodes = list(step.nodes(resolver))
    function = step.module.function(step.node)
    above = [] if function is None else _above(lexical_nodes(function.body), step.module)
    inputs: dict[Module, set[str]] = {}
    for reached in (*nodes, *above):
        for tensor in _made_to_require(reached.node, reached.module):
            if not _is_weight(tensor, reached.module):
                inputs.setdefault(reached.module, set()).add(ast.unparse(tensor))
    for reached in nodes:
        match reached.node:
            case ast.Attribute(value=value, attr="grad", ctx=ast.Load()) if ast.unparse(
                value
            ) in inputs.get(reached.module, ()):
                return Fact(reached.module, reached.node)
            case _:
                pass
    return None


def _above(nodes: Iterable[ast.AST], module: Module) -> list[Reached]:
    """What a function does before its loop, but for tensors of a given size, which may be weights."""
    return [
        Reached(node, module, True)
        for node in nodes
        if not (isinstance(node, ast.Call) and last_identifier(node.func) in _FACTORIES)
    ]


def _made_to_require(node: ast.AST, module: Module) -> Iterator[ast.expr]:
    """The tensors that ``node`` makes require gradients, as they are called afterwards."""
    match node:
        case ast.Assign(targets=targets, value=value) if not _is_false(value):
            yield from (
                target.value
                for target in targets
                if isinstance(target, ast.Attribute) and target.attr == "requires_grad"
            )
        case ast.Call(func=ast.Attribute(value=receiver, attr="requires_grad_")) if not any(
            map(_is_false, node.args)
        ):
            yield from (receiver, *_targets(module.statement(node)))
        case ast.Call(func=ast.Attribute(value=receiver, attr="retain_grad")):
            yield receiver
        case ast.Call() if (
            (given := call_argument(node, "requires_grad")) is not None
            and not _is_false(given)
            and last_identifier(node.func) != "Parameter"
        ):
            yield from _targets(module.statement(node))
        case _:
            pass


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _targets(statement: ast.stmt) -> Iterable[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else ()


def _is_weight(tensor: ast.expr, module: Module) -> bool:
    """Whether ``tensor`` is gone over as one of a network's parameters."""
    return isinstance(tensor, ast.Name) and any(
        isinstance(binding.source, Iterated)
        and any(
            isinstance(node, ast.Attribute) and node.attr in _PARAMETERS
            for node in walk(binding.source.iterable)
        )
        for binding in bindings_of(module, tensor)
    )
