"""Tensors judged as vectors: their distance from the original's against that of the original's neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from .deviation import Deviation, together
from .figures import VectorFigures
from .findings import Finding, Kind
from .tolerance import Precision, allowed, times_beyond

_SAME_DIRECTION = 0.9995
"""A cosine that reads 1.000."""
Deviations: TypeAlias = Mapping[str, Deviation]


@dataclass(frozen=True)
class Quantity:
    """What the tensors are.

    ``group`` tells whose sums a tensor belongs with (the optimizer of a parameter). ``slack`` is added to the allowed
    distance of each tensor of a group, ``tensor_slack`` to that of one. ``ignored`` tensors hold nothing but rounding in the original and are left out.
    """

    kind: Kind
    what: str
    group: Callable[[str], str]
    step: int | None = None
    round: int = 0
    slack: Mapping[str, float] = field(default_factory=dict[str, float])
    tensor_slack: Mapping[str, float] = field(default_factory=dict[str, float])
    ignored: frozenset[str] = frozenset()

    def slack_of(self, name: str) -> float:
        """What is added to the allowed distance of the tensor ``name``."""
        return self.slack.get(self.group(name), 0.0) + self.tensor_slack.get(name, 0.0)

    def slack_together(self, group: str, names: Sequence[str]) -> float:
        """What is added to the allowed distance of these tensors of ``group`` as one vector."""
        own = math.sqrt(math.fsum(self.tensor_slack.get(name, 0.0) ** 2 for name in names))
        return self.slack.get(group, 0.0) + own


def judge(
    quantity: Quantity, other: Deviations, neighbours: Sequence[Deviations], precision: Precision
) -> tuple[list[Finding], list[VectorFigures]]:
    """Per group: no new NaN or Inf; distance, length and every single tensor within what is allowed.

    A group yields at most one finding; it names the tensor furthest beyond its limit. One that holds nothing but zeros in
    both runs, such as the way of parameters that are first stepped later, has no figures: they would say nothing.
    """
    members: dict[str, list[str]] = {}
    for name in other:
        if name not in quantity.ignored:
            members.setdefault(quantity.group(name), []).append(name)
    findings: list[Finding] = []
    figures: list[VectorFigures] = []
    for group, names in members.items():
        broken = [name for name in names if other[name].finite and not other[name].other_finite]
        if broken:
            message = f"{quantity.what} holds NaN or Inf, and not in the original"
            findings.append(Finding(Kind.NON_FINITE, message, step=quantity.step, tensor=broken[0]))
            continue
        names = [name for name in names if other[name].finite]
        near = [{n: run[n] for n in names if n in run} for run in neighbours]
        in_all = together(other[name] for name in names)
        if not (in_all.norm or in_all.other_norm):
            continue
        whole = _figures(quantity, group, names, other, near, precision)
        figures.append(whole)
        finding = _finding(quantity, group, names, other, near, precision, whole)
        if finding:
            findings.append(finding)
    return findings, figures


def _figures(
    quantity: Quantity,
    group: str,
    names: Sequence[str],
    other: Deviations,
    near: Sequence[Deviations],
    precision: Precision,
) -> VectorFigures:
    whole = together(other[name] for name in names)
    spread = [together(run.values()) for run in near]
    limit = allowed((d.distance for d in spread), whole.norm, precision) + quantity.slack_together(
        group, names
    )
    length = whole.norm or 1.0
    return VectorFigures(
        what=quantity.what,
        group=group,
        round=quantity.round,
        cosine=whole.cosine,
        neighbour_cosine=min((d.cosine for d in spread), default=None),
        norm_ratio=1.0 + whole.stretch,
        distance=whole.distance / length,
        allowed=limit / length,
        rounding=precision.relative_error if whole.norm else 0.0,
    )


def _finding(
    quantity: Quantity,
    group: str,
    names: Sequence[str],
    other: Deviations,
    near: Sequence[Deviations],
    precision: Precision,
    whole: VectorFigures,
) -> Finding | None:
    in_all = together(other[name] for name in names)
    if in_all.distance <= precision.smallest_normal:  # however large it is beside a zero
        return None
    scale = in_all.norm
    slack = quantity.slack_together(group, names)
    excess = {
        name: times_beyond(
            other[name].distance, _limit(name, scale, near, precision) + quantity.slack_of(name)
        )
        for name in names
    }
    worst = max(excess, key=lambda name: excess[name])
    spread = [abs(together(run.values()).stretch) for run in near]
    limit = allowed(spread, 1.0, precision) + slack / (scale or 1.0)
    further_off = sum(value > 1.0 for value in excess.values())
    beyond = {
        _length_told(whole.norm_ratio, limit): times_beyond(abs(whole.norm_ratio - 1.0), limit),
        _distance_told(whole): times_beyond(whole.distance, whole.allowed),
        f"{further_off} of {len(names)} tensors further off than their own limit": excess[worst],
    }
    reasons = [text for text, times in beyond.items() if times > 1.0]
    if not reasons:
        return None
    if not in_all.norm:  # nothing is a multiple of zeros
        reasons = [f"length {in_all.distance:.2g}, where the original has zeros alone"]
    return Finding(
        quantity.kind,
        f"{quantity.what} of {group}: {'; '.join(reasons)}",
        step=quantity.step,
        tensor=worst,
        original=other[worst].norm,
        rewritten=other[worst].other_norm,
        beyond=max(beyond.values()),
    )


def _length_told(ratio: float, limit: float) -> str:
    """``0.02 % longer (allowed 0.0016 %)``; from twice or half as long on, how many times."""
    if not 0.5 < ratio < 2.0:
        return f"{ratio:.3g} times as long"
    word = "longer" if ratio > 1.0 else "shorter"
    return f"{100 * abs(ratio - 1.0):.2g} % {word} (allowed {100 * limit:.2g} %)"


def _distance_told(whole: VectorFigures) -> str:
    """The relative distance, and the cosine where that is another direction to speak of."""
    told = f"relative distance {whole.distance:.2g} (allowed {whole.allowed:.2g})"
    return told if whole.cosine > _SAME_DIRECTION else f"{told}, cosine {whole.cosine:.3f}"


def _limit(name: str, scale: float, near: Sequence[Deviations], precision: Precision) -> float:
    return allowed((run[name].distance for run in near if name in run), scale, precision)
