"""Two loss curves as two lines of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ..comparison.figures import StepFigures

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60


def loss_curves(steps: Sequence[StepFigures]) -> list[str]:
    """Both versions' losses drawn on one scale, two lines per optimizer; none for fewer than three steps.

    Several steps share a column of a long run, which shows their mean; ``!`` is a loss that is not finite.
    """
    lines: list[str] = []
    for optimizer in sorted({step.optimizer for step in steps}):
        own = [step for step in steps if step.optimizer == optimizer]
        both = [[step.loss for step in own], [step.rewritten_loss for step in own]]
        if len(own) < 3 or any(value is None for values in both for value in values):
            continue
        columns = [_columns([value for value in values if value is not None]) for values in both]
        finite = [value for column in columns for value in column if math.isfinite(value)]
        if not finite:
            continue
        low, high = min(finite), max(finite)
        for name, values in zip(("original ", "rewritten"), columns, strict=True):
            bars = "".join(_bar(value, low, high) for value in values)
            lines.append(f"loss, {name} {bars} {low:.4g} to {high:.4g}")
    return lines


def _columns(values: Sequence[float]) -> list[float]:
    count = min(len(values), _WIDTH)
    edges = [round(place * len(values) / count) for place in range(count + 1)]
    parts = [values[start:end] for start, end in pairwise(edges)]
    return [
        math.fsum(part) / len(part) if all(map(math.isfinite, part)) else math.nan for part in parts
    ]


def _bar(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "!"
    height = (value - low) / (high - low) if high > low else 0.0
    return _BARS[min(int(height * len(_BARS)), len(_BARS) - 1)]
