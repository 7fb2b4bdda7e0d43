"""Questions that lead to each other: cycles are cut, and no tangle of them takes forever."""

import sys

import pytest

from torchopt_cli.optimizer.analysis.values.questions import (
    MOST_NESTED,
    MOST_STEPS,
    Answers,
    Questions,
)


class Reachable:
    """What is reachable from a node of a graph, asked the way the resolver asks."""

    def __init__(self, edges):
        self.edges = edges
        self.questions = Questions()
        self.answers = Answers(frozenset(), lambda found: found | {"incomplete"})
        self.steps = 0

    def of(self, node):
        return self.questions.ask(node, self.answers, lambda: self.find(node))

    def find(self, node):
        self.steps += 1
        found = frozenset([node])
        for target in self.edges[node]:
            found |= self.of(target)  # no call through C: Python 3.12.1 allows 1,500 within others
        return found


def test_a_chain_is_answered_once_and_remembered():
    graph = Reachable({0: [1], 1: [2], 2: []})
    assert graph.of(0) == {0, 1, 2}
    assert graph.of(1) == {1, 2}
    assert graph.steps == 3


def test_all_of_a_cycle_see_each_other():
    graph = Reachable({0: [1], 1: [2], 2: [0]})
    assert [graph.of(node) for node in (1, 0, 2)] == [{0, 1, 2}] * 3


def test_what_leans_on_an_open_question_is_not_remembered_as_final():
    # 1 is first asked while 0 is open: what it then lacks has to be found when it is asked by itself.
    graph = Reachable({0: [1, 2], 1: [0], 2: []})
    assert graph.of(0) == {0, 1, 2}
    assert graph.of(1) == {0, 1, 2}


def test_a_tangle_is_given_up_and_says_so():
    everything = range(40)
    graph = Reachable({node: everything for node in everything})
    found = graph.of(0)
    assert "incomplete" in found
    assert graph.steps <= MOST_STEPS + len(everything)
    assert all("incomplete" in graph.of(node) for node in everything)


def test_answers_that_cannot_say_they_are_incomplete_are_asked_for_again():
    everything = range(40)
    graph = Reachable({node: everything for node in everything})
    graph.answers = Answers(frozenset(), None)
    graph.of(0)
    assert not graph.answers.final


def test_a_question_that_fails_leaves_nothing_behind():
    graph = Reachable({0: [1], 1: [0]})
    with pytest.raises(KeyError):
        Reachable.of(graph, 2)
    assert not graph.questions.open
    assert graph.of(0) == {0, 1}


def test_questions_too_deep_within_each_other_are_given_up():
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 10_000))
    try:
        deep = 3 * MOST_NESTED
        graph = Reachable({node: [node + 1] for node in range(deep)} | {deep: []})
        found = graph.of(0)
    finally:
        sys.setrecursionlimit(limit)
    assert "incomplete" in found
    assert deep not in found
    assert graph.steps == MOST_NESTED


def test_questions_too_deep_for_python_are_given_up():
    deep = MOST_NESTED - 1
    graph = Reachable({node: [node + 1] for node in range(deep)} | {deep: []})
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(MOST_NESTED)  # each question takes several calls
    try:
        found = graph.of(0)
    finally:
        sys.setrecursionlimit(limit)
    assert "incomplete" in found
    assert deep not in found
    assert not graph.questions.open
    assert graph.of(deep - 1) == {deep - 1, deep}


def test_answers_stay_the_same_in_a_tangle_and_no_longer():
    everything = range(40)
    graph = Reachable({node: everything for node in everything})
    seen = []
    find = graph.find

    def watched(node):
        found = find(node)
        seen.append((graph.questions.endless, graph.questions.stays(node, graph.answers)))
        return found

    graph.find = watched
    graph.of(0)
    assert (True, True) not in seen, "an answer that is still being found"
    assert any(endless for endless, _ in seen)
    assert not graph.questions.endless
    assert all(graph.questions.stays(node, graph.answers) for node in everything)
    assert graph.questions.answered == 1


def test_what_is_made_of_rough_answers_is_not_final():
    graph = Reachable({0: [1], 1: [2], 2: []})
    find = graph.find

    def leaning(node):
        if node == 1:
            graph.questions.lean_on_outermost()
        return find(node)

    graph.find = leaning
    graph.of(0)
    assert set(graph.answers.final) == {0, 2}
