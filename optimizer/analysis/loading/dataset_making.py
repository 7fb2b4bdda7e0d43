"""Code that changes a dataset, or what it reads, while either is still being made: all of it is done when the loader is made."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.callbacks import has_known_callers
from ..calls.reach import never_runs
from ..facts import DataLoader
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..values.resolver import CallSite, Resolver


def is_making(
    resolver: Resolver, owner: ast.AST, node: ast.AST, module: Module, loader: DataLoader
) -> bool:
    """Whether ``node``, which changes ``owner``, runs only before ``loader`` is made of it."""
    return _is_made_beside(owner, node, module, loader) or _is_constructing(
        resolver, owner, node, module, loader
    )


def _is_made_beside(owner: ast.AST, node: ast.AST, module: Module, loader: DataLoader) -> bool:
    """Whether ``node`` fills a container in the function that makes it, which is over before the loader is made."""
    function = module.function(node)
    return function is not None and function is not loader.function and owner in walk(function)


def _constructions(
    resolver: Resolver, function: FunctionNode | None, module: Module
) -> Iterator[CallSite]:
    """The calls that make objects whose constructor is, or runs, ``function``; nothing where others may call it."""
    seen: set[FunctionNode] = set()
    pending = [(function, module)]
    found: list[CallSite] = []
    while pending:
        current, owner = pending.pop()
        if current is None:
            return
        if current in seen:
            continue
        seen.add(current)
        sites = resolver.call_sites(current)
        if current.name == "__init__":
            found += sites
        elif sites and has_known_callers(resolver, current, owner):
            pending += [(site.module.function(site.call), site.module) for site in sites]
        else:
            return
    yield from found


def _is_constructing(
    resolver: Resolver, owner: ast.AST, node: ast.AST, module: Module, loader: DataLoader
) -> bool:
    """Whether ``node`` is run by a constructor that is done with ``owner`` above the loader: ``Images(splits=["train", "val"])``."""
    home = loader.module
    beside = set(walk(loader.function or home.tree))
    sites = [
        site
        for site in _constructions(resolver, module.function(node), module)
        if not never_runs(resolver, site.call, site.module)
    ]
    # The top level of a file runs once: what is made there changes nothing of an earlier loader.
    once = loader.function is None
    return (
        bool(sites)
        and (once or owner in beside or isinstance(owner, ast.ClassDef))
        and all(
            site.call in beside
            and (
                home.span(site.call) < home.span(loader.node)
                or loader.node in home.ancestors(site.call)
            )
            and all(
                loop in home.ancestors(owner)
                for loop in home.loops(site.call)
                if loop in home.ancestors(loader.node)
            )
            for site in sites
        )
    )
