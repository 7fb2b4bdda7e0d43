"""What a report says of numbers that only the first process tells, though each process has its own."""

from __future__ import annotations

import ast
from collections.abc import Collection

from ..calls.reach import lexical_nodes
from ..syncs.telling import Telling
from ..values.resolver import Resolver
from ..wording import listed
from .divergence import Divergence
from .rank_zero import RankZeroAction
from .told_figures import ToldFigures


def share_notes(
    resolver: Resolver,
    actions: Collection[RankZeroAction],
    divergence: Divergence,
    told: ToldFigures | None,
) -> list[str]:
    """The notes on what ``actions`` tell besides what ``told`` makes common to all processes."""
    divergence = divergence.agreeing(told.settled) if told is not None else divergence
    shares, bars = False, False
    for action in actions:
        telling = Telling(resolver, action.module)
        for node in lexical_nodes(action.statements):
            call = node.value if isinstance(node, ast.Expr) else None
            if isinstance(call, ast.Call) and any(
                divergence.of(argument, action.module)
                for argument in [*call.args, *(keyword.value for keyword in call.keywords)]
            ):
                bars = bars or telling.is_bar(call)
                shares = shares or not telling.is_bar(call)
    notes: list[str] = []
    if told is not None and told.given:
        notes.append(f"what is given to {_meters(told)} is exchanged each time")
    if shares:
        notes.append("where it is not added up, the first process tells its own share")
    elif bars:
        notes.append("progress bars show the first process's share")
    return notes


def _meters(told: ToldFigures) -> str:
    codes = [
        told.module.code(statement.value.func.value)
        for statement in told.given
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Attribute)
    ]
    return listed(f"`{code}`" for code in codes)
