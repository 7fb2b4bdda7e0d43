"""Where a script changes a dataset after a loader was made for it: workers hold copies and may miss the change."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .classes import class_attribute
from .datasets import Dataset
from .facts import DataLoader, Fact
from .item_state import stored_changes
from .reach import reached_nodes
from .resolver import Resolver
from .syntax import Module
from .values import Attribute, Function, Made, Value


def changes_of_dataset(resolver: Resolver, loader: DataLoader, dataset: Dataset) -> Iterator[Fact]:
    """The statements and calls outside the dataset's class that change it, set-up above the loader left out."""
    for module in resolver.project.modules:
        for node in module.nodes:
            if (
                isinstance(node, ast.Attribute)
                and _may_change(resolver, node, module, dataset)
                and any(
                    _is_dataset(v, loader, dataset) for v in resolver.values(node.value, module)
                )
                and not _is_set_up(node, module, loader)
            ):
                yield Fact(module, node)


def _is_dataset(value: Value, loader: DataLoader, dataset: Dataset) -> bool:
    match value:
        case Made(call):
            return call is dataset.node
        case Attribute(Made(call), "dataset"):
            return call is loader.node
        case _:
            return False


def _may_change(resolver: Resolver, node: ast.Attribute, module: Module, dataset: Dataset) -> bool:
    """Whether ``x.name`` is assigned, or is a call of a method of the dataset's class that stores something."""
    if isinstance(node.ctx, ast.Store):
        return True
    parent = module.parents[node]
    if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store):
        return True
    if not (isinstance(parent, ast.Call) and parent.func is node) or dataset.cls is None:
        return False
    for method in class_attribute(resolver, dataset.cls, node.attr):
        if isinstance(method, Function) and isinstance(method.node, ast.FunctionDef):
            code = tuple(reached_nodes(resolver, method.node.body, method.module))
            if next(stored_changes(resolver, code), None) is not None:
                return True
    return False


def _is_set_up(node: ast.AST, module: Module, loader: DataLoader) -> bool:
    """Whether ``node`` runs once, before the loader is made, as far as the order of the lines tells."""
    return (
        module is loader.module
        and module.function(node) is loader.function
        and not module.loops(node)
        and module.span(node) < loader.span
    )
