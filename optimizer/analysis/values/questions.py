"""Asks recursive questions once each, and settles together what cycles lead back to.

What an expression may be depends on what other expressions may be, and these on each other: scripts are full of cycles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

MOST_NESTED = 1_000
"""Of the 10,000 frames that Python is allowed (see :mod:`.analysis`), a question takes 7.5, measured in 236 files of timm."""
MOST_ROUNDS = 70
"""Three times the 23 that the costliest question takes in 236 files of timm; 10 in scripts of 240 other public repositories."""
_Key = TypeVar("_Key")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Answers(Generic[_Key, _T]):
    """The answers to questions of one kind.

    ``nothing`` answers a question that leads back to itself at first. ``incomplete`` makes of an answer one that says it may
    not be all; None where no answer can say so. ``without_rounds`` leaves out of a new answer what comes of the former one by
    going around a cycle once more, which would never end. ``changed`` is told each answer that is another than before,
    ``settled`` what is answered for good.
    """

    nothing: _T
    incomplete: Callable[[_T], _T] | None
    without_rounds: Callable[[_T, _T], _T] | None = None
    changed: Callable[[_Key, _T], None] | None = None
    settled: Callable[[_Key], None] | None = None
    final: dict[_Key, _T] = field(default_factory=dict[_Key, _T])


class _Question:
    """A question that is being answered, or waits for those that it leads to and that lead back to it.

    ``number`` is its place in the order in which questions are first asked.
    """

    __slots__ = (
        "answer",
        "answers",
        "found",
        "is_stale",
        "kept_back",
        "key",
        "leans",
        "lowest",
        "number",
        "stand_ins",
        "users",
    )

    def __init__(
        self, key: object, answers: Answers[Any, Any], answer: Callable[[], Any], number: int
    ) -> None:
        self.key = key
        self.answers = answers
        self.answer = answer
        self.number = number
        self.found: Any = answers.nothing
        self.lowest = number
        """The number of the first question that this one is known to lead to, of those that are not settled."""
        self.users: dict[_Question, None] = {}
        """The questions whose answers were made of this one's."""
        self.is_stale = False
        """Whether an answer that this one is made of has changed."""
        self.leans = False
        """Whether the answer is made of one that is not final."""
        self.kept_back: set[object] = set()
        self.stand_ins: set[object] = set()
        """What stands for there being nothing, while something may yet be found, and once all else is."""


class Questions:
    """Asks questions that lead to each other.

    Questions on cycles (strongly connected components, found as in Tarjan, "Depth-first search and linear graph algorithms",
    1972) are answered over and over, each when one that it leads to has changed, until all stay as they are: this is the least
    fixed point where answers only grow. After :data:`MOST_ROUNDS` turns they are remembered as incomplete.

    A question that would be asked within :data:`MOST_NESTED` others, or more than Python can take, is put off: it is answered as
    one of those that the outermost question is on a cycle with.
    """

    def __init__(self) -> None:
        self._open: list[_Question] = []
        self._unsettled: dict[object, _Question] = {}
        self._closed: list[_Question] = []
        """The unsettled questions that are not open, in the order in which they were closed."""
        self._asked = 0
        self.answered = 0
        """How many questions that were not asked for the sake of another are answered."""
        self._most_nested = MOST_NESTED

    @property
    def open(self) -> bool:
        """Whether a question is being answered."""
        return bool(self._open)

    def or_else(self, found: frozenset[_T], stand_in: frozenset[_T]) -> frozenset[_T]:
        """``found``, a part of the answer being found, or what stands for there being nothing.

        Where answers that it leans on may yet grow, it is nothing at first, and what stands for that comes last, to stay.
        """
        question = self._open[-1] if self._open else None
        if question is None or not question.leans or (found and not question.stand_ins):
            return found or stand_in
        if stand_in in question.stand_ins:
            return found | stand_in
        if not found:
            question.kept_back.add(stand_in)
        return found

    def ask(self, key: _Key, answers: Answers[_Key, _T], answer: Callable[[], _T]) -> _T:
        """The answer to the question ``key``, found by ``answer`` unless it is known."""
        if key in answers.final:
            return answers.final[key]
        question = self._unsettled.get(key)
        if question is None:
            self._asked += 1
            question = self._unsettled[key] = _Question(key, answers, answer, self._asked)
            self._begin(question)
        if self._open and key in self._unsettled:
            asker = self._open[-1]
            question.users[asker] = None
            asker.leans = True
            asker.lowest = min(asker.lowest, question.lowest)
        found: _T = question.found
        return answers.final.get(key, found)

    def lean_on_outermost(self) -> None:
        """Tell that the answer being found may change until all that is asked about is answered: see :meth:`ask_again`."""
        question, outermost = self._open[-1], self._open[0]
        question.leans = True
        question.lowest = min(question.lowest, outermost.number)

    def ask_again(self, key: object) -> None:
        """Tell that what the answer to ``key`` is made of has changed, where no question has told."""
        question = self._unsettled.get(key)
        if question is not None:
            question.is_stale = True

    def _begin(self, question: _Question) -> None:
        before = len(self._closed)
        if len(self._open) < self._most_nested:
            self._answer(question)
        else:
            self._put_off(question)
        self._closed.append(question)
        if question.lowest >= question.number:
            self._settle(before, question.number)
        if not self._open:
            self.answered += 1
            self._most_nested = MOST_NESTED

    def _put_off(self, question: _Question) -> None:
        question.is_stale = True
        question.lowest = self._open[0].number if self._open else question.number

    def _answer(self, question: _Question) -> None:
        question.is_stale = question.leans = False
        question.kept_back.clear()
        self._open.append(question)
        try:
            found = question.answer()
        except RecursionError:
            # Python 3.12 has a limit of its own for calls through C, 1,500 at first.
            self._most_nested = max(len(self._open) // 2, 1)
            self._put_off(question)
            return
        except BaseException:
            self._forget(question)
            raise
        finally:
            self._open.pop()
        if question.answers.without_rounds is not None:
            found = question.answers.without_rounds(question.found, found)
        if found != question.found:
            question.found = found
            for user in question.users:
                user.is_stale = True
            if question.answers.changed is not None:
                question.answers.changed(question.key, found)

    def _forget(self, failed: _Question) -> None:
        """Leave nothing behind of a question that has failed, nor of what was asked for the sake of the outermost one."""
        self._unsettled.pop(failed.key, None)
        if len(self._open) == 1:
            self._unsettled.clear()
            self._closed.clear()
            self.answered += 1
            self._most_nested = MOST_NESTED

    def _settle(self, first: int, number: int) -> None:
        """Answer what was closed from ``first`` on until nothing changes, and remember it.

        Where an answer turns out to lead to a question asked before ``number``, this is left to that one.
        """
        rounds = 0
        while rounds < MOST_ROUNDS and (changed := self._go_round(first, number)):
            rounds += 1
            if changed.lowest < number:
                for question in self._closed[first:]:
                    question.lowest = min(question.lowest, changed.lowest)
                return
        settled = self._closed[first:]
        del self._closed[first:]
        for question in settled:
            if self._unsettled.pop(question.key, None) is not question:
                continue  # It has failed.
            answers = question.answers
            if rounds < MOST_ROUNDS:
                answers.final[question.key] = question.found
            elif answers.incomplete is not None:
                answers.final[question.key] = answers.incomplete(question.found)
        for question in settled:
            if question.answers.settled is not None and question.key in question.answers.final:
                question.answers.settled(question.key)

    def _go_round(self, first: int, number: int) -> _Question | None:
        """Answer what is stale among the questions closed from ``first`` on, up to one that leads to a question before ``number``.

        Returns the last one answered, None when there was none.
        """
        last, at = None, first
        while at < len(self._closed):  # which questions asked for the first time are added to
            question = self._closed[at]
            at += 1
            if question.is_stale:
                last, question.lowest = question, number
                self._answer(question)
                if question.lowest < number:
                    return question
        for question in () if last else self._closed[first:]:
            if question.kept_back:
                last, question.is_stale = question, True
                question.stand_ins |= question.kept_back
        return last
