"""Rankings of what a network returns: half precision makes ties of scores that float32 tells apart."""

from __future__ import annotations

import ast

from ..calls.reach import Reached, reached_nodes
from ..calls.signatures import call_argument
from ..networks.forward_code import called_names, method_name
from ..obstacles import Obstacle
from ..training.steps import EvaluationCode
from ..values.resolver import Resolver
from ..values.values import whole_number
from .half_trace import HalfTrace

_SORTS = frozenset({"sort", "argsort", "msort"})
_FEW = 5
"""Top-5 accuracy, among classes. Between a power of two and the next bfloat16 has 128 values: the first of many candidates are
closer to each other than that."""


def ranking(
    resolver: Resolver, code: EvaluationCode, forwards: frozenset[ast.Call]
) -> Obstacle | None:
    """A call in ``code`` that puts more than a few of what ``forwards`` return into an order."""
    trace = HalfTrace(resolver, forwards)
    for reached in reached_nodes(resolver, code.body, code.module):
        scores = _ranked(resolver, reached)
        if scores is not None and trace.may_be_half(scores, reached.module):
            return Obstacle(reached.module, reached.node, "half precision makes ties in a ranking")
    return None


def _ranked(resolver: Resolver, reached: Reached) -> ast.expr | None:
    """What the call puts into an order, None where it does not or looks at the first few only."""
    call = reached.node
    if not isinstance(call, ast.Call):
        return None
    method = method_name(resolver, reached)
    torch_name = next(
        (
            n.removeprefix("torch.")
            for n in called_names(resolver, reached)
            if n.startswith("torch.")
        ),
        None,
    )
    name = method or torch_name
    if name not in _SORTS and (name != "topk" or _takes_few(resolver, reached, call, method)):
        return None
    if method is None:
        return call_argument(call, "input", 0)
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _takes_few(resolver: Resolver, reached: Reached, call: ast.Call, method: str | None) -> bool:
    """Whether ``k`` of ``topk`` is small; it is, in accuracies, where it is not known."""
    count = call_argument(call, "k", 1 if method is None else 0)
    number = whole_number(resolver.values(count, reached.module)) if count is not None else None
    return number is None or number <= _FEW
