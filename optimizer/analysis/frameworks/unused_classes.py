"""Classes of a framework that the files of a script define, and that the script makes nothing of.

A file of layers may end with a LightningModule that another script trains. A script that imports the layers, and steps its own
optimizer, leaves that one alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ..program.syntax import Module


def in_unused_class(node: ast.AST, module: Module, modules: Iterable[Module]) -> bool:
    """Whether ``node`` is a base of a class that nothing in ``modules`` names, or stands in its body."""
    classes = [outer for outer in module.ancestors(node) if isinstance(outer, ast.ClassDef)]
    if not classes or classes[-1].decorator_list:
        return False
    return not any(_is_named(classes[-1], each) for each in modules)


def _is_named(cls: ast.ClassDef, module: Module) -> bool:
    mentions = [*module.names_of(cls.name), *module.attributes_of(cls.name)]
    return any(cls not in module.ancestors(mention) for mention in mentions) or any(
        alias.name == cls.name and alias.asname is not None
        for imported in module.nodes_of(ast.ImportFrom)
        for alias in imported.names
    )


def steps_by_hand(modules: Iterable[Module]) -> bool:
    """Whether code outside of classes backpropagates a loss, as the loop of a script does."""
    return any(
        module.enclosing_class(call) is None
        for module in modules
        for call in module.calls_named("backward")
    )
