"""How far a run goes on past the rounds that were asked for, to see the end of its first epoch.

Much of what a rewrite gets wrong shows there for the first time: in an evaluation, a checkpoint, a scheduler's step, the
order and the mode in which the next epoch begins.
"""

from __future__ import annotations

import math
import time
from typing import Any

MOST_ROUNDS = 2000
"""What is recorded of each round is kept until the end of the run."""
ROUNDS_BEHIND = 2
"""Of the next epoch: the first has its order and its modes, what they did to the parameters shows in the second."""
SEARCH_SHARE = 0.25
"""The part of the time that is spent looking for an end which nothing foretells."""
LATE = 2.0
"""How many times as long as it was to take at most until a run that goes on is ended in the middle of an evaluation."""


class Extent:
    """Decides after which round a run has seen enough: it may go on for ``seconds`` (0: not at all).

    ``cut`` says that it went on and time ran out before the end was seen: where such a run ends hangs on the machine's pace.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._passes: list[tuple[dict[str, Any], int | None]] = []
        self._evaluated: int | None = None
        self._began: float | None = None
        self._goes_on_since: float | None = None
        self._decided = False
        self.cut = False

    def pass_begins(self, noted: dict[str, Any], batches: int | None) -> None:
        """A loader is iterated that gives so many batches (None: nobody knows); ``noted`` is kept up to date."""
        if self._seconds:
            self._passes.append((noted, batches))

    def evaluated(self, rounds: int) -> None:
        """A model was called in eval mode, after ``rounds`` rounds."""
        if rounds and self._evaluated is None:
            self._evaluated = rounds

    def round_begins(self) -> None:
        """A round has its first step."""
        if self._began is None:
            self._began = time.perf_counter()

    def goes_on(self, rounds: int, read_from: dict[str, Any] | None) -> bool:
        """Whether more than ``rounds`` rounds are wanted, of which the last has begun with a batch of ``read_from``."""
        if not self._seconds or self._decided:
            return False
        now = time.perf_counter()
        since = now if self._goes_on_since is None else self._goes_on_since
        if self._has_seen_enough(rounds, read_from):
            self._decided = True
        elif now - since + self._seconds_to_come(rounds, read_from, now, since) > self._seconds:
            self._decided, self.cut = True, self._goes_on_since is not None
        else:
            self._goes_on_since = since
        return not self._decided

    def is_late(self) -> bool:
        """Whether a run that went on has to be ended at once."""
        since = self._goes_on_since
        if since is None or self._decided or time.perf_counter() - since <= LATE * self._seconds:
            return False
        self._decided = self.cut = True
        return True

    def _has_seen_enough(self, rounds: int, read_from: dict[str, Any] | None) -> bool:
        if self._epoch_is_over:
            return read_from is None or rounds - read_from["rounds"] >= ROUNDS_BEHIND
        if self._batches(read_from) is not None or self._evaluated is None:
            return False
        return rounds - self._evaluated >= ROUNDS_BEHIND

    def _seconds_to_come(
        self, rounds: int, read_from: dict[str, Any] | None, now: float, since: float
    ) -> float:
        """How long it takes to the end of the epoch, at the pace until now; what cannot be foretold takes no time for a while."""
        assert self._began is not None
        batches = self._batches(read_from)
        if read_from is None or batches is None:
            return 0.0 if now - since <= SEARCH_SHARE * self._seconds else math.inf
        of_pass = rounds - read_from["rounds"]
        if self._epoch_is_over:
            to_come = ROUNDS_BEHIND - of_pass
        else:
            left = max(0, batches - read_from["batches"])
            to_come = left * of_pass / read_from["batches"] + ROUNDS_BEHIND
        if rounds + to_come > MOST_ROUNDS:
            return math.inf
        return to_come * (now - self._began) / max(1, rounds - 1)

    @property
    def _epoch_is_over(self) -> bool:
        return any(self._is_over(noted) for noted, _ in self._passes)

    def _batches(self, read_from: dict[str, Any] | None) -> int | None:
        """How many batches the pass ``read_from`` has in all."""
        return next((count for noted, count in self._passes if noted is read_from), None)

    def _is_over(self, noted: dict[str, Any]) -> bool:
        """Whether the pass ``noted`` was trained on and has ended, if only because the next one over its data has begun."""
        return noted["steps"] > 0 and (
            noted["finished"]
            or any(
                other["loader"] == noted["loader"] and other["epoch"] > noted["epoch"]
                for other, _ in self._passes
            )
        )
