"""Trainings as a whole, with times made up: what pays in a step need not pay in twenty."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from torchopt_cli.optimizer.execution.observations import Timing
from torchopt_cli.optimizer.tuning.configurations import Configuration
from torchopt_cli.optimizer.tuning.search import Outcome, Search
from torchopt_cli.optimizer.tuning.whole_training import log_training_speedup

ASKED = 200


def timing(first: float, step: float, rounds: int, startup: float = 2.0) -> Timing:
    return Timing(9.0, startup, first, (step,) * (rounds - 1), (0.0,) * (rounds - 1))


@pytest.mark.parametrize(
    ("rounds", "pays"), [(20, False), (100, False), (150, True), (ASKED, True)]
)
def test_compilation_pays_once_the_training_is_long_enough(rounds: int, pays: bool) -> None:
    """Ten seconds of compilation, a tenth of a second saved in each step."""
    plain, compiled = timing(0.3, 0.3, rounds), timing(10.2, 0.2, rounds)
    assert (log_training_speedup(plain, compiled, ASKED) > 0.0) is pays


def test_a_training_that_ends_is_taken_from_its_first_round_to_its_last() -> None:
    found = log_training_speedup(timing(1.3, 0.3, 20), timing(5.2, 0.2, 20), ASKED)
    assert found == pytest.approx(math.log((1.3 + 19 * 0.3) / (5.2 + 19 * 0.2)))


def test_one_that_goes_on_is_told_by_its_steps() -> None:
    found = log_training_speedup(timing(1.3, 0.3, 20), timing(5.2, 0.2, 20), asked=20)
    assert found == pytest.approx(math.log(1.5))


def test_the_start_up_does_not_count() -> None:
    slow, fast = timing(0.3, 0.3, 20, startup=9.0), timing(0.2, 0.2, 20, startup=1.0)
    assert log_training_speedup(slow, fast, ASKED) == pytest.approx(math.log(1.5))


@dataclass(frozen=True)
class Script:
    """What a training takes by its transforms: workers only cost where the data is in memory, compilation costs before it gains."""

    rounds: int

    def timing(self, one: Configuration) -> Timing:
        first, step = 0.1, 0.1
        if "dataloader-workers" in one.transforms:
            first, step = first + 0.2, step + 0.01
        if "compile" in one.transforms:
            first, step = first + 8.0, step * 0.6
        if "defer-sync" in one.transforms:
            step *= 0.9
        return timing(first, step, min(self.rounds, ASKED))

    def pair(self, best: Configuration, candidate: Configuration, number: int) -> float:
        jitter = 0.002 * (number % 3 - 1)
        return log_training_speedup(self.timing(best), self.timing(candidate), ASKED) + jitter


@pytest.mark.parametrize(
    ("rounds", "best"), [(20, {"defer-sync"}), (5000, {"defer-sync", "compile"})]
)
def test_the_search_finds_what_pays_for_this_training(rounds: int, best: set[str]) -> None:
    everything = Configuration(frozenset({"dataloader-workers", "compile", "defer-sync"}))
    search = Search(Script(rounds).pair, lambda _: None, lambda _: None)
    assert search.run(everything, lambda _: None, {}).transforms == best
    outcomes = {trial.change: trial.outcome for trial in search.trials}
    assert outcomes["+ dataloader-workers"] is Outcome.NOT_PAYING
