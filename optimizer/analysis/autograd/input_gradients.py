"""Gradients that a step takes of its input, to attack a network or to explain it, and not of weights."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..calls.reach import Reached, lexical_nodes
from ..calls.signatures import call_argument
from ..networks.models import is_module_class
from ..obstacles import Obstacle
from ..program.reaching import assigned_values, bindings_of
from ..program.scopes import Iterated
from ..program.syntax import Module, last_identifier
from ..program.trees import walk
from ..training.steps import StepCode
from ..values.resolver import Resolver
from ..values.values import Class, Made

_FACTORIES = frozenset("zeros ones full empty rand randn tensor Parameter".split())
_PARAMETERS = frozenset({"parameters", "named_parameters", "param_groups", "children", "modules"})


_ATTACKED = "gradients of the input are taken, as an attack does, whose signs rounding changes"
_SEARCHED = "the optimizer changes an input of the network and not weights, as an attack or a search for a latent code does, whose outcome rounding changes"


def input_gradient(resolver: Resolver, step: StepCode) -> Obstacle | None:
    """Where ``step`` takes gradients of an input, to go by their signs or to have an optimizer change it; None elsewhere."""
    if step.updates:
        return _searched(resolver, step)
    return _read(resolver, step)


def _read(resolver: Resolver, step: StepCode) -> Obstacle | None:
    """Where ``step``, which steps no optimizer, reads the gradient of a tensor that it makes require one."""
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
                return Obstacle(reached.module, reached.node, _ATTACKED)
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


def _searched(resolver: Resolver, step: StepCode) -> Obstacle | None:
    """The optimizer of a step that runs a network, where all that its optimizers change are tensors made to require gradients."""
    optimizers = _optimizers(resolver, step)
    if not optimizers or not step.loop.forwards:
        return None
    for made in optimizers:
        tensors = _optimized(made)
        if not tensors or not all(_is_input(resolver, t, made.module) for t in tensors):
            return None
    return Obstacle(optimizers[0].module, optimizers[0].call, _SEARCHED)


def _optimizers(resolver: Resolver, step: StepCode) -> list[Made]:
    """What makes the optimizers that step."""
    stepped = [(update.optimizer, update.module) for update in step.updates]
    values = [value for given, module in stepped for value in resolver.values(given, module)]
    return [value for value in values if isinstance(value, Made)]


def _optimized(made: Made) -> list[ast.expr]:
    """The tensors that an optimizer is handed one by one, and what else it is handed."""
    given = call_argument(made.call, "params", 0)
    found: list[ast.expr] = []
    pending = [] if given is None else [given]
    seen = set[ast.expr]()
    while pending:
        part = pending.pop()
        if part in seen:
            continue
        seen.add(part)
        match part:
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                pending += elements
            case ast.Dict(keys=keys, values=values):
                named = zip(keys, values, strict=True)
                pending += [
                    v for k, v in named if isinstance(k, ast.Constant) and k.value == "params"
                ]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                pending += [left, right]
            case ast.Name() if any(
                isinstance(value, ast.List | ast.Tuple) and value.elts
                for value in assigned_values(made.module, part)
            ):
                pending += assigned_values(made.module, part)
            case _:
                found.append(part)
    return found


def _is_input(resolver: Resolver, tensor: ast.expr, module: Module) -> bool:
    """Whether ``tensor`` is one that the script makes require gradients outside of a network."""
    if not isinstance(tensor, ast.Name | ast.Attribute) or _is_weight(tensor, module):
        return False
    holder = module.enclosing_class(tensor)
    if isinstance(tensor, ast.Attribute) and (
        holder is None or is_module_class(resolver, Class(holder, module))
    ):
        return False
    called = {ast.unparse(tensor), *_elements(tensor, module)}
    return any(
        ast.unparse(made) in called
        for node in module.nodes_of(ast.Assign, ast.Call)
        for made in (*_made_to_require(node, module), *_parameters_made(node))
    )


def _elements(tensors: ast.expr, module: Module) -> Iterator[str]:
    """What loops call the elements of the list ``tensors``: ``for noise in noises:``."""
    for loop in module.nodes_of(ast.For):
        if ast.unparse(loop.iter) == ast.unparse(tensors) and isinstance(loop.target, ast.Name):
            yield loop.target.id


def _parameters_made(node: ast.AST) -> Iterable[ast.expr]:
    match node:
        case ast.Assign(targets=targets, value=ast.Call(func=function)) if (
            last_identifier(function) == "Parameter"
        ):
            return targets
        case _:
            return ()
