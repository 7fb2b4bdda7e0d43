"""Questions that lead to each other: each is answered once, and anew only where what it leads to has changed."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchopt_cli.optimizer.analysis.values.questions import (
    MOST_NESTED,
    MOST_ROUNDS,
    Answers,
    Questions,
)

Graph = dict[int, list[int]]
NODES = range(7)
GRAPHS = st.fixed_dictionaries({n: st.lists(st.sampled_from(NODES), max_size=3) for n in NODES})


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


def reached(graph, start):
    found, pending = set(), [start]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += graph[node]
    return found


@settings(deadline=None)
@given(GRAPHS, st.permutations(NODES))
def test_all_that_can_be_reached_is_found(graph: Graph, order: list[int]) -> None:
    asked = Reachable(graph)
    assert {node: asked.of(node) for node in order} == {
        node: reached(graph, node) for node in order
    }
    assert set(asked.answers.final) == set(order)


@settings(deadline=None)
@given(GRAPHS, st.frozensets(st.sampled_from(NODES), max_size=3), st.permutations(NODES))
def test_yes_unless_a_source_of_no_is_reached(
    graph: Graph, sources: frozenset[int], order: list[int]
) -> None:
    questions, answers = Questions(), Answers(nothing=True, incomplete=None)

    def ask(node: int) -> bool:
        return questions.ask(node, answers, lambda: answer(node))

    def answer(node: int) -> bool:
        return node not in sources and all([ask(target) for target in graph[node]])

    expected = {node: not reached(graph, node) & sources for node in order}
    assert {node: ask(node) for node in order} == expected


def test_a_chain_is_answered_once_and_remembered():
    graph = Reachable({0: [1], 1: [2], 2: []})
    assert graph.of(0) == {0, 1, 2}
    assert graph.of(1) == {1, 2}
    assert graph.steps == 3


def test_all_of_a_cycle_see_each_other():
    graph = Reachable({0: [1], 1: [2], 2: [0]})
    assert [graph.of(node) for node in (1, 0, 2)] == [{0, 1, 2}] * 3


def test_what_leans_on_an_open_question_sees_what_that_finds_later():
    graph = Reachable({0: [1, 2], 1: [0], 2: []})
    assert graph.of(0) == {0, 1, 2}
    assert graph.answers.final[1] == {0, 1, 2}


def test_a_cycle_within_another_waits_for_it():
    # 3 is asked again, by 4, after 2, which it leads back to, has been closed, but not settled.
    graph = Reachable({0: [1], 1: [2, 4, 5], 2: [3, 0], 3: [2], 4: [3], 5: []})
    assert graph.of(0) == {0, 1, 2, 3, 4, 5}
    assert all(graph.answers.final[node] == {0, 1, 2, 3, 4, 5} for node in (1, 2, 3, 4))


def test_a_cycle_that_turns_out_to_lead_to_an_open_question_waits_for_it():
    # Only once 3 is known to reach 9, found by its partner 4, does it look at 0 as well.
    graph = Reachable({0: [1, 7], 1: [3], 3: [4], 4: [3, 9], 7: [], 9: []})
    find = graph.find

    def found_late(node):
        found = find(node)
        return found | graph.of(0) if node == 3 and 9 in graph.of(4) and 3 in graph.of(4) else found

    graph.find = found_late
    assert graph.of(0) == {0, 1, 3, 4, 7, 9}
    assert all(graph.answers.final[node] == {0, 1, 3, 4, 7, 9} for node in (1, 3, 4))


def test_a_tangle_takes_no_more_than_a_few_rounds():
    everything = range(60)
    graph = Reachable({node: everything for node in everything})
    assert graph.of(0) == set(everything)
    assert all(graph.answers.final[node] == set(everything) for node in everything)
    assert graph.steps <= 4 * len(everything)


def test_what_never_ends_is_incomplete():
    questions, answers = Questions(), Answers(frozenset(), lambda found: found | {"incomplete"})
    kept = Answers(0, None)

    def grown():
        return frozenset([questions.ask("count", kept, lambda: len(ask()))]) | ask()

    def ask():
        return questions.ask("grown", answers, grown)

    found = ask()
    assert "incomplete" in found
    assert found == answers.final["grown"]
    assert MOST_ROUNDS / 2 < len(found) <= MOST_ROUNDS + 2
    assert not kept.final, "an answer that cannot say that it is incomplete"
    assert not questions.open


def test_rounds_that_would_never_end_can_be_left_out():
    questions = Questions()
    answers = Answers(frozenset(), None, without_rounds=lambda before, now: before or now)

    def path():
        return frozenset(["", *(f"{one}.next" for one in questions.ask("path", answers, path))])

    assert questions.ask("path", answers, path) == {""}
    assert answers.final["path"] == {""}


def test_what_stands_for_nothing_waits_for_all_that_may_still_come():
    questions, answers = Questions(), Answers(frozenset(), None)

    def first():
        return questions.or_else(questions.ask("second", answers, second), frozenset(["nothing"]))

    def second():
        found = questions.ask("first", answers, first)
        return found | (frozenset(["source"]) if has_source else frozenset())

    has_source = True
    assert questions.ask("second", answers, second) == {"source"}
    assert answers.final["first"] == {"source"}
    answers.final.clear()
    has_source = False
    assert questions.ask("second", answers, second) == {"nothing"}
    assert questions.or_else(frozenset(), frozenset(["nothing"])) == {"nothing"}


def test_what_stands_for_nothing_stays_once_it_is_handed_on():
    # What 1 hands on comes back to it, changed: were it not to stay, it would come and go for ever.
    questions, answers = Questions(), Answers(frozenset(), None)

    def first():
        return questions.or_else(questions.ask(2, answers, second), frozenset(["nothing"]))

    def second():
        found = questions.ask(1, answers, first)
        return frozenset(["part of nothing"]) if "nothing" in found else frozenset()

    assert questions.ask(1, answers, first) == {"nothing", "part of nothing"}
    assert answers.final[2] == {"part of nothing"}


def test_answers_are_told_when_they_change_and_when_they_are_final():
    told, settled = [], []
    graph = Reachable({0: [1], 1: [0, 2], 2: []})
    graph.answers = Answers(
        frozenset(), None, changed=lambda *told_of: told.append(told_of), settled=settled.append
    )
    graph.of(0)
    assert told == [(2, {2}), (1, {1, 2}), (0, {0, 1, 2}), (1, {0, 1, 2})]
    assert settled == [2, 1, 0]


def test_what_is_made_of_something_else_is_asked_again_once_that_is_told():
    # 1 reads what 2 has put down, and does not ask it.
    questions, answers = Questions(), Answers(frozenset(), None)
    put_down = set()

    def reader():
        questions.lean_on_outermost()
        return frozenset(put_down)

    def writer():
        put_down.add("found")
        questions.ask_again(1)
        return frozenset()

    def outermost():
        return questions.ask(1, answers, reader) | questions.ask(2, answers, writer)

    assert questions.ask(0, answers, outermost) == {"found"}
    assert answers.final == {0: {"found"}, 1: {"found"}, 2: frozenset()}


def test_a_question_that_fails_leaves_nothing_behind():
    graph = Reachable({0: [1], 1: [0]})
    with pytest.raises(KeyError):
        graph.of(2)
    graph.edges[1] = [0, 2]
    with pytest.raises(KeyError):
        graph.of(0)
    assert not graph.questions.open
    graph.edges[2] = []
    assert graph.of(0) == {0, 1, 2}


def test_questions_too_deep_within_each_other_are_put_off():
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 10_000))
    try:
        deep = 3 * MOST_NESTED
        graph = Reachable({node: [node + 1] for node in range(deep)} | {deep: []})
        found = graph.of(0)
    finally:
        sys.setrecursionlimit(limit)
    assert found == set(range(deep + 1))


def test_questions_too_deep_for_python_are_put_off():
    deep = MOST_NESTED - 1
    graph = Reachable({node: [node + 1] for node in range(deep)} | {deep: []})
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(MOST_NESTED)  # each question takes several calls
    try:
        found = graph.of(0)
    finally:
        sys.setrecursionlimit(limit)
    assert found == set(range(deep + 1))
    assert not graph.questions.open
