"""Other bytes in a file of a rewrite that is bit for bit the same: what they mean is shown by perturbed runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.stages import judge_in_stages
from torchopt_cli.optimizer.comparison.unknown_bytes import alike_but_for_told, with_bytes
from torchopt_cli.optimizer.comparison.verdict import Outcome, Verdict, judge_exact
from torchopt_cli.optimizer.execution.observations import Observations, TrainingCalls, WrittenFile

VALUES = 0.7 / np.arange(2, 40)
Given = tuple[Verdict, Observations, Observations, list[str]]


@pytest.fixture
def judged(run: Callable[..., Observations]) -> Callable[..., Given]:
    def go(theirs: Sequence[float], *, packed: bool = False) -> Given:
        def writing(one: Observations, values: Sequence[float]) -> Observations:
            content = np.array(values, np.float32).tobytes()
            content = repr(hash(content)).encode() if packed else content
            (one.folder / "log.bin").write_bytes(content)
            file = WrittenFile("log.bin", 1, digest=repr(content), bytes_as="log.bin")
            return replace(one, files=(file,))

        original, again, other = (writing(run(), v) for v in (VALUES, VALUES, theirs))
        made: list[str] = []

        def observe(description: str, **_: object) -> Observations:
            made.append(description)
            return writing(run(), VALUES * (1 + 1e-2 * np.sin(len(made) + np.arange(38))))

        exact = judge_exact(original, [again], other)
        assert alike_but_for_told(exact, original, other)
        return with_bytes(exact, original, [again], other, observe, 3), original, other, made

    return go


def test_numbers_that_are_summed_up_otherwise(judged: Callable[..., Given]) -> None:
    verdict, *_, made = judged(VALUES * (1 + 1e-6))
    assert verdict.outcome is Outcome.EQUIVALENT
    assert verdict.reason.startswith("bit for bit the same over")
    assert verdict.reason.endswith("printed or saved besides within float32 rounding")
    assert len(made) == 3


def test_neighbours_do_not_excuse_another_number(judged: Callable[..., Given]) -> None:
    verdict, *_ = judged(VALUES * (1 + 1e-3))
    assert verdict.outcome is Outcome.NOT_EQUIVALENT
    assert verdict.failures[0].kind is Kind.FILE_VALUE


def test_what_is_not_understood_leaves_the_verdict(judged: Callable[..., Given]) -> None:
    verdict, *_ = judged(VALUES * (1 + 1e-6), packed=True)
    assert verdict.precision is None


def test_no_further_runs_where_the_bytes_are_the_same(judged: Callable[..., Given]) -> None:
    verdict, *_, made = judged(VALUES)
    assert verdict.precision is None
    assert made == []


def test_other_draws_excuse_no_file(run: Callable[..., Observations]) -> None:
    """A rewrite that asks its network once more without gradients, and draws a picture of another's answer."""

    def writing(values: Sequence[float]) -> Observations:
        one = run()
        content = np.array(values, np.float32).tobytes()
        (one.folder / "log.bin").write_bytes(content)
        file = WrittenFile("log.bin", 1, digest=repr(content), bytes_as="log.bin")
        return replace(one, files=(file,))

    def observe(*_: object, original: bool, perturb: object = None, **__: object) -> Observations:
        off = 1e-2 * np.sin(np.arange(38)) if perturb else 0.0 if original else 1e-3
        return writing(VALUES * (1 + off))

    other = writing(VALUES * (1 + 1e-3))
    asked = TrainingCalls("Net", 1, 8, 8)
    other = replace(other, training_calls=(*other.training_calls, asked))
    judged = judge_in_stages(
        writing(VALUES), other, observe, tier=None, precision=None, perturbed_runs=3
    )
    assert judged.verdict.outcome is Outcome.NOT_EQUIVALENT
    assert judged.verdict.failures[0].kind is Kind.FILE_VALUE
