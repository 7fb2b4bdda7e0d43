"""What is drawn behind a step, however the steps and gradients of a round are arranged."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torchopt_cli.optimizer.execution.probe.randomness import States, seed_host  # noqa: E402
from torchopt_cli.optimizer.execution.probe.step_draws import StepDraws  # noqa: E402

DRAWS = (lambda: float(torch.rand(())), random.random, lambda: float(np.random.rand()))


def drawn() -> tuple[float, ...]:
    return tuple(draw() for draw in DRAWS)


def test_another_step_of_a_round_makes_no_difference_where_nothing_was_drawn_before_it() -> None:
    one, two = StepDraws(0), StepDraws(0)
    told: list[list[tuple[float, ...]]] = [[], []]
    for finished in range(3):
        one.stepped(finished, first=True)
        told[0].append(drawn())
    for finished in range(3):
        two.stepped(finished, first=True)
        two.stepped(finished, first=False)
        told[1].append(drawn())
    assert told[0] == told[1]
    assert len(set(told[0])) == 3


@pytest.mark.parametrize("draw", DRAWS, ids=("torch", "random", "numpy"))
def test_what_is_drawn_between_two_steps_of_a_round_is_not_drawn_again_behind_them(
    draw: Callable[[], float],
) -> None:
    draws = StepDraws(0)
    draws.stepped(0, first=True)
    noise = draw()
    draws.stepped(0, first=False)
    assert draw() != noise


def test_what_modules_draw_while_they_are_evaluated_counts_as_drawn() -> None:
    draws = StepDraws(0)
    first = draws.stepped(4, first=True)
    assert draws.stepped(4, first=False, evaluated=True) != first


def test_seeds_and_rounds_make_a_difference() -> None:
    keys = {(seed, finished): StepDraws(seed) for seed in (0, 1) for finished in (0, 1)}
    numbers: set[tuple[float, ...]] = set()
    for (_, finished), draws in keys.items():
        draws.stepped(finished, first=True)
        numbers.add(drawn())
    assert len(numbers) == 4


def test_states_are_equal_where_the_same_would_be_drawn() -> None:
    seed_host(3)
    before = States()
    assert before == States()
    for draw in DRAWS:
        draw()
        assert before != States()
        before.restore()
    assert before == States()
