"""Whether an attribute, of ``self`` for the most part, has been set where code wants to read it."""

from __future__ import annotations

import ast
from collections.abc import Set

from ..calls.signatures import first_parameter
from ..program.classes import family, kept_as
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..values.resolver import Resolver


def is_kept_before(resolver: Resolver, name: str, at: ast.AST, module: Module) -> bool:
    """Whether ``self.name`` is set when ``at`` runs, a place in a method of ``module``.

    It is where the method has set it above, or has called a method that does (``super().__init__(..)``), and where another
    method sets it, unless the constructor gets to ``at`` first. What nothing in the project sets is taken to be there.
    """
    return _is_kept(resolver, name, at, module, frozenset())


def own_name(at: ast.AST, module: Module) -> str | None:
    """What the object whose method ``at`` runs in is called there (``self``), also in functions inside that method."""
    for ancestor in module.ancestors(at):
        if isinstance(ancestor, FunctionNode) and isinstance(
            module.parents[ancestor], ast.ClassDef
        ):
            name = first_parameter(ancestor)
            found = module.scope(at).lookup(name) if name is not None else None
            return name if found is not None and found[0].node is ancestor else None
    return None


def is_set_below(use: ast.AST, at: ast.stmt, module: Module) -> bool:
    """Whether ``use`` reads an attribute of a variable, such as ``args.cuda``, that the code around ``at`` sets further down."""
    if not isinstance(use, ast.Attribute):
        return False
    read = ast.unparse(use)
    return any(
        isinstance(node.ctx, ast.Store)
        and module.function(node) is module.function(at)
        and node.lineno >= at.lineno
        and ast.unparse(node) == read
        for node in module.nodes_of(ast.Attribute)
        if node.attr == use.attr
    )


def _is_kept(
    resolver: Resolver, name: str, at: ast.AST, module: Module, callers: frozenset[FunctionNode]
) -> bool:
    cls, function = module.enclosing_class(at), module.function(at)
    kept = kept_as(resolver, cls, module, name)
    if not kept or function is None or function in callers:
        return True
    keepers = {where.function(value): where for value, _, where in kept}
    setting = {where.statement(value) for value, _, where in kept}
    setting |= _calls_of(resolver, keepers.keys(), function, module)
    if has_run(setting, at, module):
        return True
    if function.name == "__init__" or not keepers.keys() - {function}:
        return False
    relatives = {relative.node for relative in family(resolver, cls, module)}
    sites = [
        site
        for site in resolver.call_sites(function)
        if site.module.enclosing_class(site.call) in relatives
    ]
    return all(
        _is_kept(resolver, name, site.call, site.module, callers | {function}) for site in sites
    )


def _calls_of(
    resolver: Resolver,
    keepers: Set[FunctionNode | None],
    function: FunctionNode,
    module: Module,
) -> set[ast.stmt]:
    """The statements of ``function`` that call one of ``keepers``."""
    return {
        module.statement(node)
        for node in walk(function)
        if isinstance(node, ast.Call)
        and any(callee.node in keepers for callee in resolver.callees(node, module))
    }


def has_run(setting: Set[ast.stmt], at: ast.AST, module: Module) -> bool:
    """Whether one of ``setting`` has run wherever ``at`` does, as a statement above it in a block around it."""
    for ancestor in [at, *module.ancestors(at)]:
        if isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            break
        if isinstance(ancestor, ast.stmt):
            block = module.block(ancestor)
            above = block[: block.index(ancestor)]
            if any(_surely_runs(statement, setting) for statement in above):
                return True
    return False


def _surely_runs(statement: ast.stmt, setting: Set[ast.stmt]) -> bool:
    """Whether ``statement`` runs one of ``setting`` whichever way it takes."""
    if statement in setting:
        return True
    match statement:
        case ast.If(body=body, orelse=orelse):
            return all(any(_surely_runs(s, setting) for s in block) for block in (body, orelse))
        case ast.With(body=body) | ast.AsyncWith(body=body) | ast.Try(body=body):
            return any(_surely_runs(s, setting) for s in body)
        case _:
            return False
