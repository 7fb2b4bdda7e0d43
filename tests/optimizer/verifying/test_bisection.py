from __future__ import annotations

import itertools
import math

import pytest

from torchopt_cli.optimizer.verifying.bisection import Names, failing_set

NAMES = tuple("abcdefghijklmnop")


class Trials:
    """Fails for every set that holds all of one of ``wrong``; keeps what it was asked."""

    def __init__(self, *wrong: str) -> None:
        self.wrong = [set(names) for names in wrong]
        self.asked: list[Names] = []

    def __call__(self, names: Names) -> bool:
        self.asked.append(names)
        return any(names_wrong <= set(names) for names_wrong in self.wrong)


@pytest.mark.parametrize("guilty", NAMES)
def test_one_is_found_in_a_logarithmic_number_of_tests(guilty: str) -> None:
    tests = Trials(guilty)
    assert failing_set(NAMES, tests) == (guilty,)
    assert len(tests.asked) <= math.log2(len(NAMES)) + 1


@pytest.mark.parametrize("pair", list(itertools.combinations(NAMES[:6], 2)))
def test_two_that_are_only_wrong_together_are_found_in_order(pair: Names) -> None:
    assert failing_set(NAMES[:6], Trials("".join(pair))) == pair


def test_three_that_are_only_wrong_together() -> None:
    tests = Trials("bgm")
    assert failing_set(NAMES, tests) == ("b", "g", "m")
    assert len(tests.asked) <= 3 * (math.log2(len(NAMES)) + 1)


def test_of_several_the_one_that_is_applied_first_is_found() -> None:
    assert failing_set(NAMES, Trials("k", "d", "ao")) == ("d",)


def test_the_only_one() -> None:
    tests = Trials("a")
    assert failing_set(("a",), tests) == ("a",)
    assert tests.asked == []


def test_all_together() -> None:
    assert failing_set("abc", Trials("abc")) == ("a", "b", "c")


def test_one_that_makes_good_what_another_breaks_is_not_blamed() -> None:
    """Of a, b, c and d, b breaks the script, c repairs it, and d breaks it again."""

    def fails(names: Names) -> bool:
        return "d" in names or ("b" in names and "c" not in names)

    found = failing_set("abcd", fails)
    assert fails(found)
    assert "c" not in found


def test_asks_in_the_order_of_application() -> None:
    tests = Trials("bgm")
    failing_set(NAMES, tests)
    assert all(list(names) == sorted(names) for names in tests.asked)
    assert () not in tests.asked
