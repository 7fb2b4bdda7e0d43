"""Conditions under which a function trains: ``if train: loss.backward()``."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ..autograd.graph_names import BACKWARD_METHODS
from ..calls.reach import lexical_nodes, reached_nodes
from ..calls.signatures import call_argument
from ..program.scopes import Parameter, Untraceable
from ..program.syntax import FunctionNode, LoopNode, Module
from ..values.resolver import Resolver
from ..values.values import Class, Display, External, Literal, Made, Option, Value


@dataclass(frozen=True, eq=False)
class TrainingGuard:
    """A condition that never changes while its function runs, and holds whenever a backward pass runs.

    ``code`` is the condition as written; ``statements`` are those that run only when it holds.
    """

    code: str
    statements: tuple[ast.stmt, ...]

    def holds_at(self, node: ast.AST, module: Module) -> bool:
        """Whether ``node`` runs only when the condition holds."""
        around = {node, *module.ancestors(node)}
        return any(statement in around for statement in self.statements)


def training_guards(
    resolver: Resolver, owner: FunctionNode | ast.Module, module: Module
) -> tuple[TrainingGuard, ...]:
    """The conditions of ``owner`` that all its backward passes hang on."""
    found: dict[str, list[ast.stmt]] = {}
    trains: set[str] = set()
    for node in lexical_nodes(owner.body):
        if not isinstance(node, ast.If):
            continue
        negated = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
        test = node.test.operand if isinstance(node.test, ast.UnaryOp) else node.test
        if not _is_boolean(resolver, test, module):
            continue
        block = node.orelse if negated else node.body
        code = module.code(test)
        found.setdefault(code, []).extend(block)
        if _runs_backward(resolver, block, module):
            trains.add(code)
    guards = [TrainingGuard(code, tuple(found[code])) for code in found if code in trains]
    backwards = calls_to_backward(resolver, owner, module) if guards else []
    return tuple(g for g in guards if all(g.holds_at(call, module) for call in backwards))


def calls_to_backward(
    resolver: Resolver, owner: FunctionNode | LoopNode | ast.Module, module: Module
) -> list[ast.Call]:
    """The calls in ``owner`` that run a backward pass, themselves or in what they call."""
    calls = [node for node in lexical_nodes(owner.body) if isinstance(node, ast.Call)]
    return [call for call in calls if _runs_backward(resolver, [call], module)]


def _runs_backward(resolver: Resolver, block: Sequence[ast.AST], module: Module) -> bool:
    """Whether a backward pass runs in ``block`` or in what that calls."""
    return any(
        isinstance(r.node, ast.Call)
        and isinstance(r.node.func, ast.Attribute)
        and r.node.func.attr in BACKWARD_METHODS
        for r in reached_nodes(resolver, block, module)
    )


def _is_boolean(resolver: Resolver, test: ast.expr, module: Module) -> bool:
    """Whether ``test`` is a condition of constant names, True or False and nothing else, that may be False."""
    if isinstance(test, ast.Compare):
        sides = [test.left, *test.comparators]
        names = [side for side in sides if not isinstance(side, ast.Constant)]
        if not all(isinstance(n, ast.Name) and _is_constant(n, module) for n in names):
            return False
        return not (_tests_for_none(test) and _is_object(resolver, test.left, module))
    if isinstance(test, ast.Name) and not _is_constant(test, module):
        return False
    if not isinstance(test, ast.Name | ast.Attribute):
        return False
    values = resolver.values(test, module)
    literals = {v.value for v in values if isinstance(v, Literal)}
    return literals != {True} and all(
        (isinstance(v, Literal) and isinstance(v.value, bool))
        or (isinstance(v, Display) and isinstance(v.node, ast.Compare))
        or (isinstance(v, Option) and _is_switch(v))
        for v in values
    )


def _tests_for_none(test: ast.Compare) -> bool:
    """``optimizer is not None``, or the like."""
    match test:
        case ast.Compare(ops=[ast.IsNot() | ast.NotEq()], comparators=[ast.Constant(value=None)]):
            return True
        case _:
            return False


def _is_object(resolver: Resolver, name: ast.expr, module: Module) -> bool:
    """Whether every caller gives an instance of a class, never None."""
    values = resolver.values(name, module)
    return bool(values) and all(isinstance(v, Made) and makes_object(v.maker) for v in values)


def makes_object(maker: Value) -> bool:
    """Whether what makes a value is a class, so that the value is not None, of a library by its name: ``torch.optim.Adam``."""
    if isinstance(maker, External):
        return maker.name.rpartition(".")[2][:1].isupper()
    return isinstance(maker, Class)


def _is_constant(name: ast.Name, module: Module) -> bool:
    """Whether a variable has one binding: a parameter, a loop variable, or one assignment."""
    found = module.scope(name).lookup(name.id)
    if found is None or len(found[1]) != 1:
        return False
    source = found[1][0].source
    if isinstance(source, Parameter):
        return source.kind == "plain"
    return not isinstance(source, Untraceable)


def _is_switch(option: Option) -> bool:
    action = call_argument(option.call, "action")
    return isinstance(action, ast.Constant) and action.value in {"store_true", "store_false"}
