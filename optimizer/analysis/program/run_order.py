"""Whether code has run, and does not run again, before another place is reached."""

from __future__ import annotations

import ast

from ..calls.callbacks import has_known_callers
from ..calls.reach import never_runs
from ..facts import Fact
from ..values.resolver import Resolver
from .syntax import FunctionNode, Module


def runs_before(
    resolver: Resolver,
    node: ast.AST,
    module: Module,
    place: Fact,
    within: frozenset[FunctionNode] = frozenset(),
) -> bool:
    """Whether ``node`` runs before ``place`` is reached and not again, as far as the order of the lines tells.

    ``place`` may be in a function that is called below, by way of others, too: ``settings.parse(text)`` in ``main``, above
    ``train_loader = make_loader(settings)``. So may ``node`` be, in one that is called above only.
    """
    if never_runs(resolver, node, module):
        return True
    function = module.function(node)
    if function is None and module in resolver.project.loaded_first:
        return True
    places = _places_in(resolver, function, module, place)
    if places:
        return all(_is_above(node, each, module) for each in places)
    if function is None or function in within or not has_known_callers(resolver, function, module):
        return False
    sites = resolver.call_sites(function)
    return bool(sites) and all(
        runs_before(resolver, site.call, site.module, place, within | {function}) for site in sites
    )


def _is_above(node: ast.AST, place: ast.AST, module: Module) -> bool:
    """Whether ``node`` stands above ``place``, or in it as something it is given, and no loop runs it again after it."""
    around = [*module.ancestors(place)]
    is_over = module.span(node) < module.span(place) and node not in around
    is_given = isinstance(place, ast.expr) and place in module.ancestors(node)
    return (
        isinstance(node, ast.expr | ast.AugAssign)
        and (is_over or is_given)
        and not any(loop in around for loop in module.loops(node))
    )


def _places_in(
    resolver: Resolver, function: FunctionNode | None, module: Module, place: Fact
) -> list[ast.AST]:
    """Where ``function``, or the top level of ``module``, gets to ``place``; nothing where something else gets there, too."""
    found: list[ast.AST] = []
    seen: set[FunctionNode] = set()
    pending: list[tuple[ast.AST, Module]] = [(place.node, place.module)]
    while pending:
        node, owner = pending.pop()
        around = owner.function(node)
        if owner is module and around is function:
            found.append(node)
        elif around is None:
            return []
        elif around not in seen:
            seen.add(around)
            pending += [
                (site.call, site.module)
                for site in resolver.call_sites(around)
                if not never_runs(resolver, site.call, site.module)
            ]
    return found
