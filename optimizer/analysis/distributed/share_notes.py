"""What a report says of numbers that only the first process tells, though each process has its own."""

from __future__ import annotations

import ast
from collections.abc import Collection

from ..calls.reach import lexical_nodes
from ..calls.signatures import call_argument
from ..facts import excerpt
from ..networks.models import is_module_class
from ..syncs.telling import Telling
from ..training.steps import StepCode
from ..training.tensor_reductions import dimensions
from ..values.resolver import Resolver
from ..values.values import Class
from ..wording import listed
from .divergence import Divergence
from .rank_zero import RankZeroAction
from .told_figures import ToldFigures

_OVER_SAMPLES = frozenset({"mean", "std", "var"})


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


def mixing_note(resolver: Resolver, step: StepCode) -> str | None:
    """The note on a network of ``step`` that computes a number of several samples: their deviation, told to a discriminator."""
    for reached in step.nodes(resolver, into_forward=True):
        node, module = reached.node, reached.module
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        function, cls = module.function(node), module.enclosing_class(node)
        is_inside = cls is not None and is_module_class(resolver, Class(cls, module))
        if function is None or not is_inside or node.func.attr not in _OVER_SAMPLES:
            continue
        is_function = any(n.startswith("torch.") for n in resolver.names(node.func, module))
        along = call_argument(node, "dim", 1 if is_function else 0)
        if along is not None and dimensions(along) == [0]:
            code = excerpt(module, node)
            return f"`{code}` in a network may be of the samples of a batch: of each process's part"
    return None


def _meters(told: ToldFigures) -> str:
    codes = [
        told.module.code(statement.value.func.value)
        for statement in told.given
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Attribute)
    ]
    return listed(f"`{code}`" for code in codes)
