"""Where the variables of a module are read from other files, and those that hold one thing wherever they are."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..values.resolver import Resolver
from ..values.values import FirstPartyModule
from .scopes import Imported
from .syntax import Module


def reads_elsewhere(
    resolver: Resolver, module: Module, name: str
) -> Iterator[tuple[ast.expr, Module]]:
    """The expressions of other first-party files that read the module-level variable ``name`` of ``module``."""
    for other in resolver.project.modules:
        if other is not module:
            yield from ((read, other) for read in _attribute_reads(resolver, module, name, other))
            yield from ((read, other) for read in _imported_reads(resolver, module, name, other))


def name_reads(target: ast.Name, module: Module) -> Iterator[ast.Name]:
    """Where ``module`` itself reads the variable ``target``."""
    owner = module.scope(target).lookup(target.id)
    for name in module.names_of(target.id):
        if isinstance(name.ctx, ast.Load) and module.scope(name).lookup(name.id) == owner:
            yield name


def reads_of(
    resolver: Resolver, target: ast.Name | ast.Attribute, module: Module
) -> Iterator[tuple[ast.expr, Module]]:
    """The expressions that read the variable ``target`` of ``module``, or an attribute of that name of whatever object."""
    if isinstance(target, ast.Name):
        yield from ((name, module) for name in name_reads(target, module))
        return
    for other in resolver.project.modules:
        for node in other.nodes_of(ast.Attribute):
            if node.attr == target.attr and isinstance(node.ctx, ast.Load):
                yield node, other


def _attribute_reads(
    resolver: Resolver, module: Module, name: str, other: Module
) -> Iterator[ast.expr]:
    for node in other.nodes:
        if isinstance(node, ast.Attribute) and node.attr == name:
            values = resolver.values(node.value, other)
            if any(isinstance(v, FirstPartyModule) and v.module is module for v in values):
                yield node


def _imported_reads(
    resolver: Resolver, module: Module, name: str, other: Module
) -> Iterator[ast.expr]:
    for scope in other.scopes.by_node.values():
        for local, bindings in scope.bindings.items():
            for binding in bindings:
                source = binding.source
                if (
                    isinstance(source, Imported)
                    and source.attribute == name
                    and resolver.project.find(other, source) is module
                ):
                    yield from (n for n in other.names_of(local) if isinstance(n.ctx, ast.Load))
        if any(resolver.project.find(other, star) is module for star in scope.star_imports):
            yield from (n for n in other.names_of(name) if other.scope(n).lookup(name) is None)
