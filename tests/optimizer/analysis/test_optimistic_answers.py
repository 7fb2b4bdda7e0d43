"""Answers to questions that lead back to themselves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchopt_cli.optimizer.analysis.values.optimistic_answers import OptimisticAnswers

Graph = dict[int, list[int]]
QUESTIONS = range(7)


class Asked:
    """Questions that are answered yes when all they lead to are, and none of them is one of ``sources``."""

    def __init__(self, graph: Graph, sources: frozenset[int] = frozenset()) -> None:
        self._graph, self._sources = graph, sources
        self._answers = OptimisticAnswers[int]()
        self.evaluated: Counter[int] = Counter()

    def ask(self, question: int) -> bool:
        return self._answers.ask(question, lambda: self._answer(question))

    def _answer(self, question: int) -> bool:
        self.evaluated[question] += 1
        return question not in self._sources and all(map(self.ask, self._graph[question]))


def reached(graph: Graph, start: int) -> set[int]:
    found, pending = set[int](), [start]
    while pending:
        question = pending.pop()
        if question not in found:
            found.add(question)
            pending += graph[question]
    return found


@settings(deadline=None)
@given(
    st.fixed_dictionaries({q: st.lists(st.sampled_from(QUESTIONS), max_size=3) for q in QUESTIONS}),
    st.frozensets(st.sampled_from(QUESTIONS), max_size=3),
    st.permutations(QUESTIONS),
)
def test_no_where_a_source_is_reached(
    graph: Graph, sources: frozenset[int], order: list[int]
) -> None:
    asked = Asked(graph, sources)
    assert {q: asked.ask(q) for q in order} == {q: not reached(graph, q) & sources for q in order}


@pytest.mark.parametrize("count", [10, 40])
def test_what_leads_to_each_other_is_answered_once(count: int) -> None:
    """Without an answer for now, each of them would be asked anew on every way that leads to it."""
    asked = Asked({q: [other for other in range(count) if other != q] for q in range(count)})
    assert asked.ask(0)
    assert all(asked.ask(q) for q in range(count))
    assert asked.evaluated == dict.fromkeys(range(count), 1)


def test_an_answer_that_fails_is_no_answer() -> None:
    answers = OptimisticAnswers[str]()

    def fail() -> bool:
        assert answers.ask("other", lambda: answers.ask("question", bool))
        raise RecursionError

    with pytest.raises(RecursionError):
        answers.ask("question", fail)
    assert not answers.ask("question", lambda: False)
    assert not answers.ask("other", lambda: answers.ask("question", bool))
