"""What a report says of numbers that only the first process tells, though each process has its own."""

from __future__ import annotations

import ast
from collections.abc import Collection

from .divergence import Divergence
from .rank_zero import RankZeroAction
from .reach import lexical_nodes
from .reaching import reaching_bindings
from .resolver import Resolver
from .syntax import Module
from .telling import Telling
from .told_expressions import figures
from .told_figures import ToldFigures
from .trees import walk


def share_notes(
    resolver: Resolver,
    actions: Collection[RankZeroAction],
    divergence: Divergence,
    told: ToldFigures | None,
) -> list[str]:
    """The notes on what ``actions`` tell besides what ``told`` makes common to all processes."""
    shares, bars = False, False
    for action in actions:
        telling = Telling(resolver, action.module)
        for node in lexical_nodes(action.statements):
            call = node.value if isinstance(node, ast.Expr) else None
            if isinstance(call, ast.Call) and _tells_own(call, action.module, divergence, told):
                bars = bars or telling.is_bar(call)
                shares = shares or not telling.is_bar(call)
    if shares:
        return ["where it is not added up, the first process tells its own share"]
    return ["progress bars show the first process's share"] if bars else []


def _tells_own(
    call: ast.Call, module: Module, divergence: Divergence, told: ToldFigures | None
) -> bool:
    """Whether ``call`` is given a number that processes have not in common, also with what ``told`` makes common."""
    for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
        for figure, _ in figures(argument):
            if not divergence.of(figure, module) or (told is not None and figure in told.settled):
                continue
            names = [
                n for n in walk(figure) if isinstance(n, ast.Name) and divergence.of(n, module)
            ]
            carried = [told is not None and _is_carried(name, module, told) for name in names]
            if not carried or not all(carried):
                return True
    return False


def _is_carried(name: ast.Name, module: Module, told: ToldFigures) -> bool:
    known = module.scope(name).lookup(name.id)
    if known is None or module is not told.module:
        return False
    seen = reaching_bindings(module, *known, module.scope(name), name)
    return all(module.statement(binding.node) in told.carriers for binding in seen)
