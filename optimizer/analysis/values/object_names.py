"""The variables by which code reaches the object that a class calls ``self``."""

from __future__ import annotations

import ast

from ..calls.signatures import first_parameter
from ..editing.own_attributes import has_run
from ..program.scopes import Assigned
from ..program.syntax import FunctionNode, Module
from .named_values import name_values
from .resolver import Resolver
from .values import Class, Made


def holder_of(
    resolver: Resolver, cls: ast.ClassDef, attribute: str, at: ast.AST, module: Module
) -> str | None:
    """A variable that is an object of ``cls`` where ``at`` stands, if its constructor always sets ``attribute``."""
    if not any(_sets(method, attribute) for method in cls.body):
        return None
    owner = module.function(at) or module.tree
    for name, bindings in module.scopes.by_node[owner].bindings.items():
        if len(bindings) != 1 or not isinstance(bindings[0].source, Assigned):
            continue
        values = name_values(resolver, name, at, module)
        if (
            values
            and all(_is_made_of(value, cls) for value in values)
            and has_run({module.statement(bindings[0].node)}, at, module)
        ):
            return name
    return None


def _is_made_of(value: object, cls: ast.ClassDef) -> bool:
    return isinstance(value, Made) and isinstance(value.maker, Class) and value.maker.node is cls


def _sets(method: ast.stmt, attribute: str) -> bool:
    """Whether ``method`` is the constructor, and a statement of its own body sets ``self.<attribute>``."""
    if not isinstance(method, FunctionNode) or method.name != "__init__":
        return False
    wanted = f"{first_parameter(method)}.{attribute}"
    return any(
        ast.unparse(target) == wanted
        for statement in method.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
    )
