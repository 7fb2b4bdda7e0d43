"""Loops over the parameters of networks that do one elementwise thing to each."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..autograd.gradient_graphs import gradient_graphs
from ..facts import Fact
from ..obstacles import Obstacle
from ..program.name_uses import NameUses
from ..program.syntax import Module, last_identifier
from ..program.trees import walk
from ..values.resolver import Resolver
from .parameter_updates import Clamp, Operand, Update, average, clamp


@dataclass(frozen=True, eq=False)
class ParameterLoop(Fact):
    """A ``for`` over the parameters of networks with an ``update`` in its body.

    ``iterables`` are what each variable of ``update`` goes over; ``rest`` says what else the body does, None where it does
    nothing else.
    """

    node: ast.For
    iterables: dict[str, ast.expr]
    update: Update
    rest: str | None

    def owner(self, operand: Operand) -> ast.expr | None:
        """The network in ``network.parameters()`` that ``operand`` goes over; None where something else gives them."""
        match self.iterables[operand.name]:
            case ast.Call(ast.Attribute(owner, "parameters" | "named_parameters"), [], []):
                return owner
            case _:
                return None

    def is_named(self, operand: Operand) -> bool:
        """Whether the loop goes over names, too: a network may have ``named_parameters`` and not ``parameters`` of its own."""
        match self.iterables[operand.name]:
            case ast.Call(ast.Attribute(attr="named_parameters")):
                return True
            case _:
                return False


def find_parameter_loops(resolver: Resolver) -> tuple[ParameterLoop, ...]:
    """The loops over parameters with such an update, in source order per module."""
    found: list[ParameterLoop] = []
    for module in resolver.project.modules:
        loops = (_loop(node, module, resolver) for node in module.nodes_of(ast.For))
        found += sorted((loop for loop in loops if loop), key=lambda loop: loop.span)
    return tuple(found)


def find_state_dict_loops(resolver: Resolver) -> tuple[Fact, ...]:
    """The loops over the tensors of a ``state_dict()`` that average them one by one."""
    return tuple(
        Fact(module, node)
        for module in resolver.project.modules
        if "state_dict" in module.source.text
        for node in module.nodes_of(ast.For)
        if any(_gives_state(inner) for inner in walk(node.iter))
        and any(_averages(inner) for statement in node.body for inner in walk(statement))
    )


def _gives_state(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_identifier(node.func) == "state_dict"


def _averages(node: ast.AST) -> bool:
    match node:
        case ast.Call(ast.Attribute(attr="mul_" | "lerp_")) | ast.AugAssign(op=ast.Mult()):
            return True
        case ast.Call(ast.Attribute(attr="copy_"), [ast.BinOp()], _):
            return True
        case _:
            return False


def _loop(node: ast.For, module: Module, resolver: Resolver) -> ParameterLoop | None:
    iterables = _pair(node) or _single(node)
    if iterables is None or (len(iterables) == 2 and not _is_zip(node.iter, module, resolver)):
        return None
    update, rest = _in_body(node.body, tuple(iterables))
    if update is None:
        return None
    used = {update.weights.name} if isinstance(update, Clamp) else set(iterables)
    if node.orelse:
        rest = "an `else`"
    return ParameterLoop(module, node, {n: iterables[n] for n in used}, update, rest)


def _is_zip(node: ast.expr, module: Module, resolver: Resolver) -> bool:
    return isinstance(node, ast.Call) and resolver.names(node.func, module) == frozenset(
        {"builtins.zip"}
    )


def _single(node: ast.For) -> dict[str, ast.expr] | None:
    match node.target, node.iter:
        case ast.Name(name), ast.Call(ast.Attribute(attr="parameters")):
            return {name: node.iter}
        case ast.Name(name), ast.Subscript(ast.Name(), ast.Constant("params")):
            return {name: node.iter}
        case (
            ast.Tuple([ast.Name(), ast.Name(name)]),
            ast.Call(ast.Attribute(attr="named_parameters"), [], []),
        ):
            return {name: node.iter}
        case _:
            return None


def _pair(node: ast.For) -> dict[str, ast.expr] | None:
    match node.target, node.iter:
        case (
            ast.Tuple([first, second]),
            ast.Call(ast.Name("zip"), [one, other], [] | [ast.keyword("strict")]),
        ):
            pair = (_named(first, one), _named(second, other))
        case _:
            return None
    if pair[0] is None or pair[1] is None or pair[0] == pair[1]:
        return None
    return {pair[0]: one, pair[1]: other}


def _named(target: ast.expr, iterable: ast.expr) -> str | None:
    """The variable of ``target`` that is a parameter where it goes over ``iterable``."""
    match target, iterable:
        case ast.Name(name), ast.Call(ast.Attribute(attr="parameters"), [], []):
            return name
        case (
            ast.Tuple([ast.Name(), ast.Name(name)]),
            ast.Call(ast.Attribute(attr="named_parameters"), [], []),
        ):
            return name
        case _:
            return None


def _in_body(body: list[ast.stmt], names: tuple[str, ...]) -> tuple[Update | None, str | None]:
    """The update in ``body``, and what else it does."""
    for start in range(len(body)):
        for length in (2, 1):
            part = body[start : start + length]
            update = average(part, names) if len(names) == 2 else clamp(part, names[0])
            if update is not None:
                others = [s for s in body if s not in part]
                return update, f"`{ast.unparse(others[0]).splitlines()[0]}`" if others else None
    for statement in body:
        if isinstance(statement, ast.If):
            update, _ = _in_body(statement.body, names)
            if update is not None:
                return update, f"`if {ast.unparse(statement.test)}`"
    return None, None


def read_later(loop: ParameterLoop) -> ast.Name | None:
    """Where a variable of ``loop`` is read that still has the value of its last pass."""
    uses = NameUses()
    inside = set(walk(loop.node))
    scope = loop.module.scope(loop.node)
    for target in walk(loop.node.target):
        if isinstance(target, ast.Name):
            found = scope.lookup(target.id)
            for binding in found[1] if found else ():
                if binding.node is target:
                    for use in uses.of(binding, loop.module):
                        if use not in inside and isinstance(use.ctx, ast.Load):
                            return use
    return None


def kept_gradient_graph(resolver: Resolver) -> Obstacle | None:
    """Where gradients that parameters get may be part of a graph, which does not let them be changed in place."""
    for graph in gradient_graphs(resolver):
        if graph.name == "backward" or _sets_gradients(resolver):
            return Obstacle(graph.module, graph.node, "gradients are part of a graph")
    return None


def _sets_gradients(resolver: Resolver) -> bool:
    return any(
        isinstance(node.ctx, ast.Store)
        for module in resolver.project.modules
        for node in module.attributes_of("grad")
    )
