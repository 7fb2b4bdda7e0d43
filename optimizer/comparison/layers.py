"""Which layer is the first to give something else: what turns a wrong loss into a place to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..execution.observations import LayerOutput, Observations
from .findings import Finding, Kind
from .tolerance import Precision, allowed

_EXPLAINED = frozenset({Kind.LOSS, Kind.GRADIENT, Kind.UPDATE, Kind.PARAMETER})


def explain(
    findings: Sequence[Finding],
    original: Observations,
    other: Observations,
    neighbours: Sequence[Observations] = (),
    precision: Precision | None = None,
) -> tuple[Finding, ...]:
    """``findings``, the first of which tells where it comes from, if it is about numbers of the first step."""
    if not findings or not findings[0].fails or findings[0].step != 1:
        return tuple(findings)
    first = findings[0]
    if first.kind not in _EXPLAINED:
        return tuple(findings)
    said = _told(first.kind, original, other, neighbours, precision)
    return (replace(first, message=first.message + said), *findings[1:])


def _told(
    kind: Kind,
    original: Observations,
    other: Observations,
    neighbours: Sequence[Observations],
    precision: Precision | None,
) -> str:
    theirs = _by_layer(other)
    common = [ours for ours in original.layer_outputs if ours.layer in theirs]
    if not common or 2 * len(common) < len(original.layer_outputs):
        return ""
    near = [_by_layer(run) for run in neighbours]
    for ours in common:
        spread = [one[ours.layer] for one in near if ours.layer in one]
        if _differs(ours, theirs[ours.layer], spread, precision):
            return f"; the first layer whose output differs is {ours.layer} ({ours.class_name})"
    if kind is not Kind.LOSS:
        return ""
    return "; every layer gives what it gave, so the difference is in what follows"


def _by_layer(run: Observations) -> dict[str, LayerOutput]:
    """The first output of each layer."""
    return {one.layer: one for one in reversed(run.layer_outputs)}


def _differs(
    ours: LayerOutput,
    theirs: LayerOutput,
    near: Sequence[LayerOutput],
    precision: Precision | None,
) -> bool:
    if ours.output.shape != theirs.output.shape:
        return True
    if precision is None:
        return ours.output.checksum != theirs.output.checksum
    return any(
        abs(getattr(theirs.output, figure) - before)
        > allowed((abs(getattr(one.output, figure) - before) for one in near), scale, precision)
        for figure, scale in (("norm", ours.output.norm), ("mean", ours.output.largest))
        for before in [getattr(ours.output, figure)]
    )
