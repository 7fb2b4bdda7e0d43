"""Rounds follow whoever steps."""

from __future__ import annotations

import pytest

from torchopt_cli.optimizer.execution.probe.rounds import Rounds


def play(steps: str, limit: int) -> tuple[str, int]:
    """The steps that happen, with a bar between rounds, until the run is over; and the finished rounds."""
    rounds, shown = Rounds(limit), ""
    for name in steps:
        if rounds.begins(ord(name)):
            shown += "|"
        if rounds.over:
            break
        shown += name
        if rounds.stepped(ord(name)):
            rounds.close()
            break
    return shown, rounds.finished


@pytest.mark.parametrize(
    ("steps", "limit", "expected"),
    [
        ("aaaaa", 3, "a|a|a"),
        ("dgdgdgdg", 3, "dg|dg|dg"),
        ("dddddgdddddg", 4, "d|d|d|d"),
        ("gddddd", 3, "gd|d|d"),
        ("aaabbbb", 5, "a|a|ab|b|b"),
        ("aaa", 1, "a|"),
        ("dgdg", 1, "dg|"),
        ("aba", 2, "ab|a"),
    ],
)
def test_a_round_ends_when_an_optimizer_steps_again(steps, limit, expected):
    assert play(steps, limit)[0] == expected


def test_a_round_cut_short_by_the_script_counts_when_closed():
    rounds = Rounds(10)
    rounds.begins(1)
    rounds.stepped(1)
    assert (rounds.finished, rounds.close(), rounds.finished, rounds.close()) == (0, True, 1, False)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (["+a", "a", "a", "+b", "b", "b", "+c", "c"], "a|a|b|b|c"),
        (["+d", "+g", "d", "g", "d", "g"], "dg|dg"),
        (["+d", "+g", "d", "g", "+D", "+G", "D", "G", "D", "G"], "dg|DG|DG"),
    ],
    ids=["one after the other", "from the start", "two anew"],
)
def test_an_optimizer_that_is_built_later_begins_a_round(events, expected):
    rounds, shown = Rounds(100), ""
    for event in events:
        name = ord(event[-1])
        if event.startswith("+"):
            rounds.built(name)
            continue
        shown += "|" * rounds.begins(name) + event
        rounds.stepped(name)
    assert shown == expected
