from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.coverage import compare_coverage
from torchopt_cli.optimizer.comparison.findings import Finding, Kind
from torchopt_cli.optimizer.execution.observations import EvalCall, LoaderPass, Observations

Run = Callable[..., Observations]

EPOCH = (LoaderPass(0, 0, 4, 128, True), LoaderPass(0, 1, 2, 64, False))


@pytest.fixture
def original(run: Run) -> Observations:
    calls = (EvalCall("Net", 4, 100, ()), EvalCall("Net", 4, 28, ()))
    return replace(run(steps=2), loader_passes=EPOCH, eval_calls=calls)


def passes(original: Observations, *changed: LoaderPass) -> list[Finding]:
    return compare_coverage(original, replace(original, loader_passes=changed))


def test_the_same_coverage_passes(original: Observations) -> None:
    assert compare_coverage(original, original) == []


@pytest.mark.parametrize(
    "changed",
    [
        (LoaderPass(0, 0, 3, 96, True), EPOCH[1]),
        (LoaderPass(0, 0, 5, 160, True), EPOCH[1]),
        (EPOCH[0], LoaderPass(0, 1, 1, 32, False)),
        (EPOCH[0], LoaderPass(0, 1, 5, 160, False)),
        (EPOCH[0],),
    ],
    ids=["last batch dropped", "batch doubled", "fewer", "far ahead", "pass missing"],
)
def test_other_samples_fail(original: Observations, changed: tuple[LoaderPass, ...]) -> None:
    assert [(f.kind, f.fails) for f in passes(original, *changed)] == [(Kind.SAMPLES, True)]


@pytest.mark.parametrize(
    "changed",
    [
        (EPOCH[0], LoaderPass(0, 1, 3, 96, False)),
        (LoaderPass(0, 0, 8, 128, True), EPOCH[1]),
        (*EPOCH, LoaderPass(1, 0, 1, 32, False)),
    ],
    ids=["read ahead", "same samples in smaller batches", "one more pass"],
)
def test_what_changes_no_training_is_told(
    original: Observations, changed: tuple[LoaderPass, ...]
) -> None:
    assert [(f.kind, f.fails) for f in passes(original, *changed)] == [(Kind.SAMPLES, False)]


@pytest.mark.parametrize(
    ("calls", "word"),
    [
        ((), "missing"),
        ((EvalCall("Net", 4, 100, ()),), "sees 100 samples, not 128"),
        ((EvalCall("Net", 4, 128, ()), EvalCall("Net", 5, 32, ())), "not in the original"),
    ],
)
def test_evaluations_missing_cut_and_added_fail(
    original: Observations, calls: tuple[EvalCall, ...], word: str
) -> None:
    (finding,) = compare_coverage(original, replace(original, eval_calls=calls))
    assert finding.kind is Kind.EVALUATION
    assert finding.fails
    assert word in finding.message


def test_an_evaluation_in_other_batches_passes(original: Observations) -> None:
    assert (
        compare_coverage(original, replace(original, eval_calls=(EvalCall("Net", 4, 128, ()),)))
        == []
    )
