"""Whether a variable certainly has a value where new code is to name it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from ..program.scopes import Imported
from ..program.statements import ends_block
from ..program.syntax import Module
from ..program.trees import walk


def is_imported(node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is a variable that only imports bind."""
    found = module.scope(node).lookup(node.id) if isinstance(node, ast.Name) else None
    sources = [binding.source for binding in found[1]] if found is not None else []
    return bool(sources) and all(isinstance(source, Imported) for source in sources)


def is_bound(
    module: Module,
    bindings: Iterable[ast.AST],
    place: ast.stmt,
    within: ast.AST | None = None,
) -> bool:
    """Whether one of ``bindings`` of a variable has certainly run above ``place``, in whichever branches.

    With ``within``, a loop or function around ``place``: in the same pass or call of it.
    """
    statements = {module.statement(binding) for binding in bindings}
    for around in [place, *module.ancestors(place)]:
        if around is within:
            return False
        if isinstance(around, ast.stmt):
            block = module.block(around)
            if binds(block[: block.index(around)], statements):
                return True
    return False


def may_read_global(module: Module, function: ast.AST, statement: ast.stmt) -> bool:
    """Whether ``function`` can read a global that ``statement`` sets, in whatever way its file is started.

    Below the main guard it is there for a script, not for whoever imports the function, unless that needs such globals already.
    """
    guard = next((g for g in module.main_guards if statement in set(walk(g))), None)
    if guard is None:
        return True
    below = set(walk(guard))
    names = [n for n in walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    found = [module.scope(name).lookup(name.id) for name in names]
    return any(
        of_name is not None
        and isinstance(of_name[0].node, ast.Module)
        and all(binding.node in below for binding in of_name[1])
        for of_name in found
    )


def may_not_run(module: Module, node: ast.AST, whole: ast.AST | None) -> bool:
    """Whether only some branches of ``whole``, a loop or function around ``node``, run it; loops have passes."""
    child = node
    for ancestor in module.ancestors(node):
        if child is whole:
            return False
        match ancestor:
            case ast.If() | ast.IfExp() if child is not ancestor.test:
                return True
            case ast.BoolOp(values=[first, *_]) if child is not first:
                return True
            case ast.ExceptHandler() | ast.Match() | ast.Lambda():
                return True
            case _:
                child = ancestor
    return False


def binds(block: Sequence[ast.stmt], bindings: set[ast.stmt]) -> bool:
    """Whether ``block`` does not run to its end without one of ``bindings``."""
    return any(
        statement in bindings or ends_block(statement) or binds_always(statement, bindings)
        for statement in block
    )


def binds_always(statement: ast.stmt, bindings: set[ast.stmt]) -> bool:
    """Whether no way through ``statement``, an ``if`` say, goes on without one of ``bindings``, its parts."""
    match statement:
        case ast.If(body=body, orelse=orelse):
            return binds(body, bindings) and binds(orelse, bindings)
        case ast.With(body=body):
            return binds(body, bindings)
        case ast.Try(body=body, handlers=handlers, orelse=orelse):
            caught = all(binds(handler.body, bindings) for handler in handlers)
            return caught and binds([*body, *orelse], bindings)
        case _:
            return False
