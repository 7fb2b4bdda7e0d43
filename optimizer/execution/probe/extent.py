"""How far a run goes on past the rounds that were asked for: to the end of its first epoch, or to its own.

Much of what a rewrite gets wrong shows there for the first time: in an evaluation, a checkpoint, a scheduler's step, the
order and the mode in which the next epoch begins; in what a script tells and saves at last.
"""

from __future__ import annotations

import math
import time
from typing import Any

from .loader_passes import length_of

MOST_ROUNDS = 2000
"""What is recorded of each round is kept until the end of the run."""
ROUNDS_BEHIND = 2
"""Of the next epoch: the first has its order and its modes, what they did to the parameters shows in the second."""
SEARCH_SHARE = 0.5
"""The part of the time that is spent on looking for an end which nothing foretells: that of the script, mostly."""
LATE = 2.0
"""How many times as long it may take, once the end of the epoch is there: nothing foretells how long an evaluation is."""


def batches_of_epoch(loader: Any) -> int | None:
    """How many batches ``loader`` gives in an epoch, None where nobody knows.

    A pass that no run comes to the end of, and that reads its samples over and over, is no epoch (``RandomSampler`` with
    replacement and ``num_samples=10**10``): where the script evaluates, and ends, it says elsewhere.
    """
    batches = length_of(loader)
    if batches is None or batches <= MOST_ROUNDS:
        return batches
    samples, read = length_of(loader.dataset), length_of(loader.sampler)
    return None if samples and read and read > samples else batches


class Extent:
    """Decides after which round a run has seen enough: it may go on for ``seconds`` (0: not at all).

    ``epoch_rounds`` are the rounds by which the end of an epoch was seen, None before; in a run that may not go on those by which it
    would be. ``cut`` says that the run went on beyond
    these, or beyond those asked for, until time ran out: where it ends hangs on the machine's pace.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._passes: list[tuple[dict[str, Any], int | None]] = []
        self._evaluated: int | None = None
        self._began: float | None = None
        self._goes_on_since: float | None = None
        self._decided = False
        self.epoch_rounds: int | None = None
        self.cut = False

    def pass_begins(self, noted: dict[str, Any], batches: int | None) -> None:
        """A loader is iterated that gives so many batches (None: nobody knows); ``noted`` is kept up to date."""
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
        if self._decided:
            return False
        if self.epoch_rounds is None and self._has_seen_an_epoch(rounds, read_from):
            self.epoch_rounds = rounds
        if not self._seconds:
            self._decided = True
            if self.epoch_rounds is None:
                self.epoch_rounds = self._foretold(rounds, read_from)
            return False
        now = time.perf_counter()
        since = now if self._goes_on_since is None else self._goes_on_since
        if self._fits(rounds, read_from, now, since):
            self._goes_on_since = since
        else:
            self._decided = True
            self.cut = self._goes_on_since is not None and self.epoch_rounds != rounds
        return not self._decided

    def is_late(self) -> bool:
        """Whether a run that went on has to be ended at once."""
        since = self._goes_on_since
        if since is None or self._decided:
            return False
        share = LATE if self.epoch_rounds is None else SEARCH_SHARE
        self._decided = self.cut = time.perf_counter() - since > share * self._seconds
        return self.cut

    def _has_seen_an_epoch(self, rounds: int, read_from: dict[str, Any] | None) -> bool:
        if self._epoch_is_over:
            return read_from is None or rounds - read_from["rounds"] >= ROUNDS_BEHIND
        if self._batches(read_from) is not None or self._evaluated is None:
            return False
        return rounds - self._evaluated >= ROUNDS_BEHIND

    def _fits(
        self, rounds: int, read_from: dict[str, Any] | None, now: float, since: float
    ) -> bool:
        """Whether there is time for what is looked for, at the pace until now."""
        to_come = self._rounds_to_come(rounds, read_from) if self.epoch_rounds is None else None
        if to_come is None:
            return rounds < MOST_ROUNDS and now - since <= SEARCH_SHARE * self._seconds
        assert self._began is not None
        pace = (now - self._began) / max(1, rounds - 1)
        seconds = (LATE if to_come <= ROUNDS_BEHIND else 1.0) * self._seconds
        return rounds + to_come <= MOST_ROUNDS and now - since + to_come * pace <= seconds

    def _foretold(self, rounds: int, read_from: dict[str, Any] | None) -> int | None:
        to_come = self._rounds_to_come(rounds, read_from)
        return None if to_come is None or rounds + to_come > MOST_ROUNDS else rounds + to_come

    def _rounds_to_come(self, rounds: int, read_from: dict[str, Any] | None) -> int | None:
        """Rounds until the end of the epoch has been seen; None where nobody knows."""
        batches = self._batches(read_from)
        if read_from is None or batches is None:
            seen = self._evaluated
            return None if seen is None else max(0, ROUNDS_BEHIND - (rounds - seen))
        of_pass = rounds - read_from["rounds"]
        if self._epoch_is_over:
            return max(0, ROUNDS_BEHIND - of_pass)
        left = max(0, batches - read_from["batches"])
        return math.ceil(left * of_pass / read_from["batches"]) + ROUNDS_BEHIND

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
