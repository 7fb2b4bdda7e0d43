from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.clipped_norms import compare_clipped_norms
from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.comparison.verdict import Outcome, judge_exact, judge_numeric
from torchopt_cli.optimizer.execution.observations import Clip, Observations

Run = Callable[..., Observations]
NORMS = (4.0, 3.0, 2.0, 1.5)
AS_ROUNDED = (4.00002, 3.00002, 2.00001, 1.500005)


def clipped(run: Run, sizes: Sequence[float], *, limit: float = 0.5, **how: object) -> Observations:
    """A run whose gradients were as long as ``sizes`` before they were clipped to ``limit``, as all runs' are."""
    clips = [
        replace(Clip("norm", limit, 2.0, begun, acts=True, elements=9, size=size), **how)
        for begun, size in enumerate(sizes)
    ]
    return replace(run(steps=4), clips=tuple(clips))


def test_a_loss_that_is_divided_twice(run: Run) -> None:
    original, halved = clipped(run, NORMS), clipped(run, [size / 2 for size in NORMS])
    for verdict in (
        judge_exact(original, [original], halved),
        judge_numeric(
            original, [original], [clipped(run, AS_ROUNDED)] * 3, halved, Precision.FLOAT32
        ),
    ):
        assert verdict.outcome is Outcome.NOT_EQUIVALENT
        (finding,) = verdict.failures
        assert (finding.kind, finding.step) == (Kind.GRADIENT, 1)
        assert "gradient norm before it is clipped to 0.5: 2, not 4 (allowed" in finding.message


def test_a_later_step_alone(run: Run) -> None:
    other = clipped(run, (*NORMS[:2], 1.0, 1.5))
    (finding,) = compare_clipped_norms(clipped(run, NORMS), other, (), Precision.FLOAT32)
    assert (finding.step, finding.original, finding.rewritten) == (3, 2.0, 1.0)
    assert finding.beyond == pytest.approx(1.0 / (2.0 * Precision.FLOAT32.relative_error))


def test_what_rounding_does_to_the_original_is_allowed(run: Run) -> None:
    original = clipped(run, NORMS)
    other = clipped(run, (4.0, 3.0, 2.02, 1.5))
    near = [clipped(run, (4.0, 3.0, 2.01, 1.5))]
    assert list(compare_clipped_norms(original, other, (), Precision.FLOAT32))
    assert not list(compare_clipped_norms(original, other, near, Precision.FLOAT32))
    assert not list(compare_clipped_norms(original, other, (), Precision.BFLOAT16))
    # nothing of the first step hangs on what was made of the ones before
    first = clipped(run, (4.02, 3.0, 2.0, 1.5))
    assert list(compare_clipped_norms(original, first, near, Precision.FLOAT32))


@pytest.mark.parametrize(
    "how",
    [
        {"acts": False},
        {"elements": 7},
        {"limit": 0.4},
        {"norm_type": math.inf},
        {"by": "value"},
        {"size": math.inf},
        {"size": None},
    ],
    ids=str,
)
def test_nothing_is_held_against_another_clipping(run: Run, how: dict[str, object]) -> None:
    other = clipped(run, [size / 2 for size in NORMS], **how)
    assert not list(compare_clipped_norms(clipped(run, NORMS), other, (), Precision.FLOAT32))


def test_several_calls_of_a_step_come_in_any_order(run: Run) -> None:
    one = clipped(run, NORMS)
    larger = tuple(replace(clip, size=clip.size * 3) for clip in one.clips if clip.size)
    ours = replace(one, clips=(*one.clips, *larger))
    theirs = replace(one, clips=(*larger, *one.clips))
    assert not list(compare_clipped_norms(ours, theirs, (), Precision.FLOAT32))
    assert not list(compare_clipped_norms(ours, one, (), Precision.FLOAT32))
