"""Runs that can only be compared under other draws: dropout of batches that are padded otherwise, samples made without gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from torchopt_cli.optimizer.comparison.masks import resized
from torchopt_cli.optimizer.comparison.stages import judge_in_stages
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict
from torchopt_cli.optimizer.execution.observations import (
    LayerOutput,
    Loss,
    Observations,
    TensorSummary,
    TrainingCalls,
    WrittenFile,
)

Run = Callable[..., Observations]


def _embedded(length: int) -> LayerOutput:
    summary = TensorSummary((8, length, 32), "float32", 1, 0.0, 1.0, 1.0, True)
    return LayerOutput("Net.embed", "Embedding", summary)


def _dropping(run: Observations, length: int, *shapes: tuple[int, ...]) -> Observations:
    """``run`` with dropout of embedded sentences and of attention weights, unless of other ``shapes``."""
    drawn = tuple((0.1, shape) for shape in shapes or ((8, length, 32), (8, 2, length, length)))
    return replace(
        run,
        layer_outputs=(_embedded(length),),
        dropouts=(("dropout", 0.1, 2 * len(run.steps)),),
        first_dropouts=drawn,
    )


def _other_loss(run: Observations, step: int = 0) -> Observations:
    steps = list(run.steps)
    steps[step] = replace(steps[step], losses=(Loss(9.0, "float32"),))
    return replace(run, steps=tuple(steps))


def test_only_padding_explains_other_sizes(run: Run) -> None:
    original = _dropping(run(), 17)
    assert resized(original, _dropping(run(), 24)) == {17: 24}
    assert resized(original, original) == {}
    # moved behind a pooling, on inputs of the same size; and in a padded batch
    for length in (17, 24):
        moved = _dropping(run(), length, (8, length, 32), (8, 32))
        assert resized(original, moved) == {}
        pooled = _dropping(run(), length, (8, length, 32), (8, 2, 1, 1))
        assert resized(original, pooled) == {}
    more = replace(_dropping(run(), 24), dropouts=(("dropout", 0.1, 99),))
    stronger = replace(_dropping(run(), 24), dropouts=(("dropout", 0.2, 16),))
    other_layer = replace(
        _dropping(run(), 24), layer_outputs=(replace(_embedded(24), layer="Net.lm"),)
    )
    for other in (more, stronger, other_layer):
        assert resized(original, other) == {}


class _Runs:
    """Observes two versions, which give ``ours`` and ``theirs`` without dropout."""

    def __init__(self, plain: Observations, ours: Observations, theirs: Observations) -> None:
        self.asked: list[tuple[bool, bool]] = []
        self._plain, self._ours, self._theirs = plain, ours, theirs

    def __call__(
        self,
        description: str,
        *,
        original: bool,
        without_dropout: bool = False,
        training_draws: bool = False,
        **_: Any,
    ) -> Observations:
        otherwise = without_dropout or training_draws
        self.asked.append((original, otherwise))
        if not otherwise:
            return self._plain
        return self._ours if original else self._theirs

    def judge(self, other: Observations) -> Verdict:
        return judge_in_stages(
            self._plain, other, self, tier=None, precision=None, perturbed_runs=3
        ).verdict


@pytest.mark.parametrize("wrong", [False, True])
def test_batches_padded_otherwise_are_judged_without_dropout(run: Run, wrong: bool) -> None:
    original = _dropping(run(), 17)
    padded = _dropping(_other_loss(run()), 24)
    runs = _Runs(original, original, _other_loss(run(), 1) if wrong else _dropping(run(), 24))
    verdict = runs.judge(padded)
    if wrong:
        assert verdict.outcome is Outcome.NOT_EQUIVALENT
        assert verdict.reason.startswith("without dropout, too: loss at step 2: loss 9, not")
    else:
        assert verdict.outcome is Outcome.EQUIVALENT
        assert verdict.reason == (
            "bit for bit the same over 8 steps without dropout; its masks are of other sizes in the rewrite "
            "(24 for 17 in the first call)"
        )
        assert runs.asked == [(True, False), (True, True), (True, True), (False, True)]


def test_elsewhere_dropout_stays_on(run: Run) -> None:
    original = _dropping(run(), 17)
    runs = _Runs(original, original, original)
    verdict = runs.judge(_dropping(_other_loss(run()), 17))
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert not any(without for _, without in runs.asked)


def test_a_loss_that_is_lost_with_dropout_is_told(run: Run) -> None:
    original = _dropping(run(), 17)
    lost = _dropping(run(mistakes={"NaN"}), 24)
    verdict = _Runs(original, original, original).judge(lost)
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert "without" not in verdict.reason


@pytest.mark.parametrize("wrong", [False, True])
def test_samples_made_without_gradients_do_not_change_what_is_drawn_behind_them(
    run: Run, wrong: bool
) -> None:
    original = run()
    calls = (TrainingCalls("Net", 0, 8, 8),)
    frozen = replace(original, training_calls=calls)
    runs = _Runs(original, original, _other_loss(frozen, 1) if wrong else frozen)
    verdict = runs.judge(_other_loss(frozen))
    assert runs.asked.count((False, True)) == 1
    assert verdict.outcome is (Outcome.NOT_EQUIVALENT if wrong else Outcome.EQUIVALENT)
    assert not wrong or verdict.reason.startswith("loss at step 1")
    runs = _Runs(original, original, original)
    assert runs.judge(_other_loss(original)).outcome is Outcome.NOT_EQUIVALENT
    assert (False, True) not in runs.asked


def test_files_are_then_those_of_the_runs_that_were_judged(run: Run) -> None:
    def holding(digest: str, one: Observations) -> Observations:
        return replace(one, files=(WrittenFile("samples.bin", 1, digest=digest),))

    original = holding("a", run())
    frozen = replace(original, training_calls=(TrainingCalls("Net", 0, 8, 8),))
    drawn_otherwise = holding("b", _other_loss(frozen))
    verdict = _Runs(original, original, frozen).judge(drawn_otherwise)
    assert verdict.outcome is Outcome.EQUIVALENT
    verdict = _Runs(original, original, holding("c", frozen)).judge(drawn_otherwise)
    assert verdict.outcome is Outcome.INCONCLUSIVE
