"""Asks recursive questions once each: cuts their cycles, and bounds what one of them may cost.

What an expression may be depends on what other expressions may be, and these on each other: scripts are full of cycles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

MOST_STEPS = 10_000
"""Three times the 3,550 that the costliest question took in five collections of scripts whose questions all came to an
end (pytorch/examples, PyTorch-GAN, pytorch-tutorial, pytorch-cifar100, our own corpus)."""
MOST_NESTED = 1_000
"""Of the 10,000 frames that Python is allowed (see :mod:`.analysis`), a question takes 7.5, measured in 236 files of timm."""
_Key = TypeVar("_Key")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Answers(Generic[_Key, _T]):
    """The answers to questions of one kind.

    ``when_asked_again`` answers a question that leads back to itself. ``incomplete`` makes of an answer one that says
    it may not be all; None where no answer can say so.
    """

    when_asked_again: _T
    incomplete: Callable[[_T], _T] | None
    final: dict[_Key, _T] = field(default_factory=dict[_Key, _T])


class Questions:
    """Asks questions that lead to each other.

    An answer is remembered unless a cycle led back to a question asked before it. Then it is final only as a part of
    that question's answer, and kept for as long as all such questions are still being answered.

    In code where everything leads to everything, that may take forever. After :data:`MOST_STEPS` such answers are kept
    until the outermost question is answered, and remembered as incomplete: then each takes one step at most. The same
    goes where :data:`MOST_NESTED` questions are asked within each other, or more than Python can take.
    """

    def __init__(self) -> None:
        self._asked: dict[object, int] = {}
        self.answered = 0
        """How many questions that were not asked for the sake of another are answered."""
        self._steps = 0
        self._cuts = 0
        """The depths, as bits, of the open questions that the answer being found was led back to."""
        self._kept: dict[object, tuple[Any, int, Answers[Any, Any]]] = {}
        self._leaning_on: dict[int, list[object]] = {}

    @property
    def open(self) -> bool:
        """Whether a question is being answered."""
        return bool(self._asked)

    @property
    def endless(self) -> bool:
        """Whether the outermost question takes too long."""
        return self._steps > MOST_STEPS

    def stays(self, key: _Key, answers: Answers[_Key, Any]) -> bool:
        """Whether the answer to ``key`` is the same from now on, or until the endless question is answered."""
        return key in answers.final or (self.endless and key in self._kept)

    def lean_on_outermost(self) -> None:
        """Tell that the answer being found is made of answers that may not be all."""
        self._cuts |= 1

    def ask(self, key: _Key, answers: Answers[_Key, _T], answer: Callable[[], _T]) -> _T:
        """The answer to the question ``key``, found by ``answer`` unless it is known."""
        if key in answers.final:
            return answers.final[key]
        self._steps += 1
        if key in self._asked:
            self._cuts |= 1 << self._asked[key]
            return answers.when_asked_again
        if key in self._kept:
            found, cuts, _ = self._kept[key]
            self._cuts |= cuts | self.endless
            return found
        depth = len(self._asked)
        if depth >= MOST_NESTED:
            self._steps = max(self._steps, MOST_STEPS + 1)
            self.lean_on_outermost()
            return answers.when_asked_again
        self._asked[key] = depth
        outside, self._cuts = self._cuts, 0
        try:
            found = answer()
        except RecursionError:
            # Python 3.12 has a limit of its own for calls through C, 1,500 at first. As above, but here a call may be one too many.
            self._steps, self._cuts = MOST_STEPS + 1, self._cuts | 1
            found = answers.when_asked_again
        except BaseException:
            del self._asked[key]
            if not depth:
                self._forget()
            raise
        del self._asked[key]
        if not self.endless:
            for leaning in self._leaning_on.pop(depth, ()):
                del self._kept[leaning]
        cuts = self._cuts & ~(1 << depth)
        if not cuts and not (self.endless and not depth):
            answers.final[key] = found
        else:
            self._kept[key] = found, cuts, answers
            self._leaning_on.setdefault(max(cuts.bit_length() - 1, 0), []).append(key)
        self._cuts = outside | cuts
        if not depth:
            self._close()
        return answers.final.get(key, found)

    def _close(self) -> None:
        """Remember what an endless question has led to."""
        for key, (found, _, answers) in self._kept.items():
            if answers.incomplete is not None:
                answers.final[key] = answers.incomplete(found)
        self._forget()

    def _forget(self) -> None:
        self.answered += 1
        self._kept.clear()
        self._leaning_on.clear()
        self._steps = self._cuts = 0
