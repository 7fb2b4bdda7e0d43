from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.structure import compare_structure
from torchopt_cli.optimizer.execution.observations import LoaderPass, Observations, Status

Run = Callable[..., Observations]


def test_a_run_agrees_with_itself(run: Run) -> None:
    original = run()
    assert compare_structure(original, original) == []


def test_a_crash_is_the_only_finding(run: Run) -> None:
    original = run(steps=4)
    other = replace(run(steps=2, mistakes=["rate", "frozen"]), status=Status.FAILED, exit_code=1)
    assert [f.kind for f in compare_structure(original, other)] == [Kind.EXIT_STATUS]


@pytest.mark.parametrize(
    "lost",
    [
        {"steps": ()},
        {"gradients_file": None},
        {"eval_file": None},
        {"snapshots": ()},
    ],
)
def test_an_observation_of_one_side_only_is_a_failure(run: Run, lost: dict[str, object]) -> None:
    original = run(steps=2)
    found = compare_structure(original, replace(original, **lost))
    assert Kind.MISSING_OBSERVATION in {f.kind for f in found if f.fails}


def test_what_the_original_does_not_agree_with_itself_in_is_told(run: Run) -> None:
    original, other = run(), run(mistakes=["rate"])
    assert any(f.fails for f in compare_structure(original, other))
    (told,) = compare_structure(original, other, [run(mistakes=["rate"])])
    assert (told.kind, told.fails) == (Kind.LEARNING_RATE, False)


def test_a_run_that_goes_on_for_longer_lacks_nothing(run: Run) -> None:
    """The original's last snapshot is of its end, which the other run has elsewhere: steps differ, and nothing else."""
    original, other = run(steps=3), run(steps=5)
    at_end = original.snapshot(3)
    assert at_end is not None
    other = replace(other, snapshots=tuple(s for s in other.snapshots if s.round != 3))
    kinds = {f.kind for f in compare_structure(original, other) if f.fails}
    assert Kind.OPTIMIZER_STEPS in kinds
    assert Kind.MISSING_OBSERVATION not in kinds
    same_length = replace(original, snapshots=tuple(s for s in original.snapshots if s.round != 3))
    assert Kind.MISSING_OBSERVATION in {f.kind for f in compare_structure(original, same_length)}


def test_a_first_step_without_gradients_is_told_as_such(run: Run) -> None:
    original = run(steps=2)
    steps = tuple(
        replace(
            step, parameters={n: replace(u, grad_norm=None) for n, u in step.parameters.items()}
        )
        for step in original.steps
    )
    found = compare_structure(original, replace(original, steps=steps, gradients_file=None))
    assert (found[0].kind, found[0].step) == (Kind.FROZEN_PARAMETER, 1)
    assert Kind.MISSING_OBSERVATION not in {f.kind for f in found}


def test_a_file_that_has_the_time_in_its_name_is_missed(run: Run) -> None:
    """Its name is another in every run of the original; that it is saved is not."""

    def saving(*paths: str) -> Observations:
        saves = tuple(replace(run().checkpoints[0], path=path) for path in paths)
        return replace(run(), checkpoints=saves)

    original = saving("runs/1906-45/model.pt", "runs/1906-45/optimizer.pt")
    again = saving("runs/1906-51/model.pt", "runs/1906-51/optimizer.pt")
    assert not any(f.fails for f in compare_structure(original, again, [again]))
    found = compare_structure(original, saving("runs/1916-13/model.pt"), [again])
    (finding,) = [finding for finding in found if finding.fails]
    assert finding.kind is Kind.CHECKPOINT_FILES
    assert "optimizer.pt is saved never, not once" in finding.message


def test_what_one_loader_has_been_chosen_to_read_excuses_no_other(run: Run) -> None:
    def reading(*samples: int) -> Observations:
        passes = (
            LoaderPass(loader=number, epoch=0, rounds=2, batches=2, samples=count, finished=True)
            for number, count in enumerate(samples)
        )
        return replace(run(), loader_passes=tuple(passes))

    original, neighbour = reading(20, 12), reading(20, 13)
    assert not any(f.fails for f in compare_structure(original, reading(20, 11), [neighbour]))
    (finding,) = (f for f in compare_structure(original, reading(16, 11), [neighbour]) if f.fails)
    assert finding.message == "loader 0, epoch 0: 4 samples fewer"
