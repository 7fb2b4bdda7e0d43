"""Gradients that one version clips and the other does not, or to another limit, where none is so large: nothing shows what it does."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ..execution.observations import Clip, Observations
from .tolerance import Precision

_LEAST_SCALE = 4
"""The least power of two that is taken for a GradScaler's factor, which starts at the sixteenth."""
_OF_A_POWER = 1e-3


def unseen_clipping(
    original: Observations, other: Observations, precision: Precision = Precision.FLOAT32
) -> str | None:
    """What the versions do not have in common there, None where there is nothing, or where it changed gradients.

    Then the gradients are compared themselves, and a version may well clip by its own code.
    """
    rounds = min(original.rounds, other.rounds)
    slack = _negligible((original, other), precision)
    ours, theirs = (_Clips(run, slack, precision) for run in (original, other))
    lost = [c for c in _finite(original) if c.rounds <= rounds and not theirs.has(c, ours)]
    added = [c for c in _finite(other) if c.rounds <= rounds and not ours.has(c, theirs)]
    apart = (*lost, *added)
    if not apart or any(clip.acts for clip in apart):
        return None
    first = min(apart, key=lambda clip: clip.rounds)
    behind = "no gradient is that large here, so nothing shows what it would do to one"
    if ours.alike(first) and theirs.alike(first):
        told = _of_others(first, ours, theirs)
    else:
        told = _told(lost, added)
    return f"from step {first.rounds + 1} on {told}; {behind}"


class _Clips:
    """What a run clips, by the round of the step that it is clipped for.

    ``slack``: how many elements of gradients may be nothing but rounding, by round.
    """

    def __init__(self, run: Observations, slack: Mapping[int, int], precision: Precision) -> None:
        self._slack, self._precision = slack, precision
        self._losses = {step.round: len(step.losses) for step in run.steps}
        self._steps: dict[int, list[int]] = defaultdict(list)
        for step in run.steps:
            self._steps[step.round].append(step.optimizer)
        self._elements = sum(math.prod(one.shape) for one in run.parameters.values())
        self._there: dict[int, list[Clip]] = defaultdict(list)
        for clip in run.clips:
            self._there[clip.rounds].append(clip)

    def has(self, clip: Clip, others: _Clips) -> bool:
        """Whether something like ``clip``, which is one of the ``others``, is among these: at the same time, of as many elements."""
        alike = [one for one in self.alike(clip) if self._early(one) == others._early(clip)]
        slack = self._slack.get(clip.rounds, 0)
        if clip.by == "value":  # each element by itself, in one call or in several
            wanted = others.elements_by_value(clip, early=others._early(clip))
            return bool(alike) and sum(one.elements for one in alike) >= wanted - slack
        return any(abs(one.elements - clip.elements) <= slack for one in alike)

    def _early(self, clip: Clip) -> bool:
        """Whether further losses are backpropagated behind it, before the step: of a single optimizer, or nothing is known."""
        return self._alone(clip.rounds) and 0 < clip.losses < self._losses.get(clip.rounds, 0)

    def _alone(self, round_: int) -> bool:
        """Whether one optimizer makes the step of a round, and those beside it: where training is resumed, it is another in the end."""
        near = [
            self._steps[place] for place in range(round_ - 1, round_ + 2) if place in self._steps
        ]
        return all(len(one) == 1 for one in near) and len({one[0] for one in near}) == 1

    def elements_by_value(self, clip: Clip, *, early: bool | None = None) -> int:
        """How many elements are clipped like that in that round, no more than there are; ``early``: only there."""
        sizes = [one.elements for one in self.alike(clip) if early in (None, self._early(one))]
        return min(sum(sizes), self._elements) if self._elements else sum(sizes)

    def clipped(self, clip: Clip) -> int:
        """How many elements are clipped like that, there."""
        if clip.by == "value":
            return self.elements_by_value(clip)
        return max((one.elements for one in self.alike(clip)), default=0)

    def alike(self, clip: Clip) -> list[Clip]:
        """What is clipped to the same limit there."""
        return [
            one
            for one in self._there.get(clip.rounds, ())
            if one.by == clip.by
            and (one.norm_type == clip.norm_type or None in (one.norm_type, clip.norm_type))
            and math.isclose(one.limit, clip.limit, rel_tol=self._precision.relative_error)
        ]


def _of_others(clip: Clip, ours: _Clips, theirs: _Clips) -> str:
    """What is told where both versions clip to the limit of ``clip`` there."""
    before, after = ours.clipped(clip), theirs.clipped(clip)
    told = f"the rewrite clips other gradients to {_limit(clip)} than the original"
    if before != after:
        return f"{told}: {after} elements, not {before}"
    return f"{told}: also before all losses of a step are backpropagated, in one version only"


def _negligible(runs: Sequence[Observations], precision: Precision) -> Mapping[int, int]:
    """By round, the elements of gradients that one version need not have: they are nothing but rounding in the other."""
    found: dict[int, int] = defaultdict(int)
    for run in runs:
        for step in run.steps:
            floor = precision.relative_error * step.grad_norm
            for name, update in step.parameters.items():
                if (update.grad_norm or 0.0) <= floor and name in run.parameters:
                    found[step.round] += math.prod(run.parameters[name].shape)
    return found


def clipped_while_scaled(norm: float, other: Observations) -> str:
    """What is to be told of the first gradient's ``norm`` where it is a limit that was divided by a GradScaler's factor."""
    limits = {c.limit for c in _finite(other) if c.acts and not c.rounds and c.by == "norm"}
    for limit in sorted(limits):
        power = math.log2(limit / norm) if norm > 0 and limit > 0 else 0.0
        if power >= _LEAST_SCALE and abs(power - round(power)) < _OF_A_POWER:
            return f"; that is {limit:g} / {2 ** round(power)}: is it clipped before scaler.unscale_()?"
    return ""


def _finite(run: Observations) -> Iterator[Clip]:
    """Without those that only ask for a norm."""
    return (clip for clip in run.clips if math.isfinite(clip.limit))


def _limit(clip: Clip) -> str:
    return f"a {clip.by} of {clip.limit:g}"


def _told(lost: Sequence[Clip], added: Sequence[Clip]) -> str:
    if lost and added:
        before, after = _limits(lost), _limits(added)
        if before == after:
            return f"the rewrite clips gradients to {after} for other steps than the original"
        return f"the original clips gradients to {before} and the rewrite to {after}"
    which, clips = ("original", lost) if lost else ("rewrite", added)
    return f"only the {which} is seen to clip gradients to {_limits(clips)}"


def _limits(clips: Sequence[Clip]) -> str:
    return " or ".join(dict.fromkeys(map(_limit, clips)))
