from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.named_files import compare_file_names, under_original_names
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.comparison.verdict import Outcome, judge_numeric
from torchopt_cli.optimizer.execution.observations import Checkpoint, Observations, WrittenFile

Run = Callable[..., Observations]


def naming(
    run: Observations, *saved: str, files: Sequence[str] = (), removed: str = ""
) -> Observations:
    checkpoints = tuple(Checkpoint(path, i + 1, {}) for i, path in enumerate(saved))
    written = tuple(WrittenFile(path, 1) for path in files)
    return replace(
        run, checkpoints=checkpoints, files=written, removed=(removed,) if removed else ()
    )


def messages(original: Observations, other: Observations, *near: Observations) -> list[str]:
    found = compare_file_names(original, other, (), near, Precision.FLOAT32)
    assert all(finding.kind is Kind.FILES for finding in found)
    return [finding.message for finding in found if finding.fails]


def test_the_same_names_are_left_alone(run: Run) -> None:
    one = naming(run(), "a-0.50.pt", files=["v1.2/log.txt"])
    assert messages(one, one) == []
    assert under_original_names(one, one) is one


def test_a_last_digit_may_be_off(run: Run) -> None:
    original = naming(run(), "a-0.5012.pt", files=["of_0.5012/p.csv"], removed="a-0.5012.pt")
    other = naming(run(), "a-0.5013.pt", files=["of_0.5011/p.csv"], removed="a-0.5013.pt")
    assert messages(original, other) == []
    told = under_original_names(original, other)
    assert told.checkpoints == original.checkpoints
    assert (told.files, told.removed) == (original.files, original.removed)


def test_as_far_off_as_rounding_takes_them(run: Run) -> None:
    original, other = naming(run(), "a-0.5012.pt"), naming(run(), "a-0.5100.pt")
    (message,) = messages(original, other, naming(run(), "a-0.5013.pt"))
    assert message.startswith("line 1 of the names of files has 0.5100, not 0.5012")
    assert messages(original, other, naming(run(), "a-0.5050.pt")) == []


@pytest.mark.parametrize("other", ["a-e2-0.51.pt", "b-e1-0.51.pt", "a-e1-1.pt"])
def test_other_words_and_whole_numbers_are_another_name(run: Run, other: str) -> None:
    original, rewritten = naming(run(), "a-e1-0.50.pt"), naming(run(), other)
    assert under_original_names(original, rewritten) is rewritten


def test_one_file_more_is_not_told_apart(run: Run) -> None:
    original, other = naming(run(), "a-0.5.pt"), naming(run(), "a-0.4.pt", "a-0.5.pt")
    assert under_original_names(original, other) is other


def test_several_with_the_same_words_in_the_order_they_were_saved(run: Run) -> None:
    original, other = naming(run(), "a-0.5.pt", "a-0.4.pt"), naming(run(), "a-0.4.pt", "a-0.3.pt")
    saved = [save.path for save in under_original_names(original, other).checkpoints]
    assert saved == ["a-0.5.pt", "a-0.4.pt"]


def test_another_number_in_a_name_is_no_rounding_because_a_neighbour_has_another(run: Run) -> None:
    original, near = naming(run(), "a-0.5012.pt"), naming(run(), "a-0.5013.pt")
    for name, outcome in (("a-0.5011", Outcome.EQUIVALENT), ("a-0.9", Outcome.NOT_EQUIVALENT)):
        other = naming(run(), f"{name}.pt")
        verdict = judge_numeric(original, [original], [near, near, near], other, Precision.FLOAT32)
        assert verdict.outcome is outcome
