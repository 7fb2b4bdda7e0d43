"""Yes-or-no questions that lead back to themselves, where only a source makes a no: each is answered once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_NOTHING = 1 << 30


class OptimisticAnswers(Generic[_Key]):
    """A question that leads back to itself is answered yes: only a source can make it no.

    A yes that leans on such an assumption holds until the question it leans on is answered: with a no it is asked again. Were it
    asked again at every turn, what refers to each other all over, as attributes of the same names do, would take exponential time.
    """

    def __init__(self) -> None:
        self._final: dict[_Key, bool] = {}
        self._for_now: dict[_Key, int] = {}
        """What is answered yes for as long as the open question at this depth is."""
        self._open: dict[_Key, int] = {}
        self._assumed: set[int] = set()
        """The depths of the open questions that were answered yes before their time."""
        self._leans_on = _NOTHING

    def ask(self, key: _Key, answer: Callable[[], bool]) -> bool:
        """The answer to ``key``, which ``answer`` finds."""
        if key in self._final:
            return self._final[key]
        leans_on = self._for_now.get(key, self._open.get(key))
        if leans_on is not None:
            if key in self._open:
                self._assumed.add(leans_on)
            self._leans_on = min(self._leans_on, leans_on)
            return True
        depth = self._open[key] = len(self._open)
        outside, self._leans_on = self._leans_on, _NOTHING
        try:
            found = answer()
        except BaseException:
            self._for_now.clear()
            raise
        finally:
            del self._open[key]
        self._settle(key, depth, found)
        self._leans_on = min(self._leans_on, outside)
        return found

    def _settle(self, key: _Key, depth: int, found: bool) -> None:
        """Remember the answer to a question at ``depth``, and what becomes of the answers that leaned on it."""
        leaning: list[_Key] = []
        if depth in self._assumed:
            self._assumed.discard(depth)
            if found:
                leaning = [other for other, at in self._for_now.items() if at >= depth]
            else:
                self._for_now.clear()
        if not found or self._leans_on >= depth:
            for other in leaning:
                self._final[other] = True
                del self._for_now[other]
            self._final[key] = found
            self._leans_on = _NOTHING
        else:
            self._for_now |= dict.fromkeys([*leaning, key], self._leans_on)
