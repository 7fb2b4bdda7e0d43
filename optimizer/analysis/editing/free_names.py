"""Names for new variables, and where to put them so that several places can use them."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Sequence

from ..program.syntax import Module


def free_name(module: Module, candidates: Iterable[str]) -> str | None:
    """The first of ``candidates`` that nothing but classes of ``module`` binds or reads; None when all are taken."""
    scopes = module.scopes.by_node.values()
    taken = {name for scope in scopes if not scope.is_class for name in scope.bindings}
    reads = (node for node in module.nodes if isinstance(node, ast.Name))
    taken |= {node.id for node in reads if isinstance(node.ctx, ast.Load)}
    return next(
        (name for name in candidates if name not in taken and not hasattr(builtins, name)), None
    )


def common_statement(module: Module, nodes: Sequence[ast.AST]) -> ast.stmt:
    """The statement above which a variable is seen by all of ``nodes``: the first that holds one of them.

    It stands in the innermost block around all nodes that is not a class body.
    """
    chains = [_statements_around(module, node) for node in nodes]
    innermost = chains[0][0]
    for depth in range(min(len(chain) for chain in chains)):
        level = [chain[depth] for chain in chains]
        block = module.block(level[0])
        if any(statement not in block for statement in level):
            break
        if not isinstance(module.parents[level[0]], ast.ClassDef):
            innermost = min(level, key=block.index)
        if any(statement is not level[0] for statement in level):
            break
    return innermost


def _statements_around(module: Module, node: ast.AST) -> list[ast.stmt]:
    """The statements ``node`` stands in, the outermost first."""
    around = [node, *module.ancestors(node)]
    return [ancestor for ancestor in around if isinstance(ancestor, ast.stmt)][::-1]


def assignment_beside(module: Module, name: ast.expr, statement: ast.stmt) -> ast.Assign | None:
    """The only assignment to the variable ``name``, when it stands above ``statement`` in the same block."""
    if not isinstance(name, ast.Name):
        return None
    block = module.block(statement)
    found = module.scope(name).lookup(name.id)
    if found is None or len(found[1]) != 1:
        return None
    target = found[1][0].node
    assignment = module.parents.get(target)
    if (
        isinstance(assignment, ast.Assign)
        and assignment.targets == [target]
        and assignment in block
        and block.index(assignment) < block.index(statement)
    ):
        return assignment
    return None


def names_constants_in_capitals(module: Module) -> bool:
    """Whether the file spells the constants at its top like ``BATCH_SIZE``."""
    constants = [
        target.id
        for statement in module.tree.body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        for target in statement.targets
        if isinstance(target, ast.Name)
    ]
    return bool(constants) and all(name.isupper() for name in constants)
