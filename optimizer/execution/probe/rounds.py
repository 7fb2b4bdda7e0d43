"""Counting: what a round is, and when a run has seen enough."""

from __future__ import annotations


class StopRun(BaseException):
    """Ends the script. Not an Exception, so that ``except Exception`` lets it through."""


class Rounds:
    """Counts rounds: runs of steps in which no optimizer steps twice, and none steps that was not there at the first step.

    One optimizer: each step is a round. A GAN's two optimizers: a round is one step of each. Training in phases, or
    five critic steps per generator step: the rounds follow whoever steps. An optimizer for each client or fold: that of the
    next one begins a round, as the same one would. ``limit`` are wanted.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._open: set[int] = set()
        self._late: set[int] = set()
        self._previous_size = 0
        self.finished = 0

    def built(self, optimizer: int) -> None:
        """Tell that there is ``optimizer`` now."""
        if self._open:
            self._late.add(optimizer)

    def begins(self, optimizer: int) -> bool:
        """Tell that ``optimizer`` is about to step; whether this ended a round."""
        return (optimizer in self._open or optimizer in self._late) and self.close()

    def close(self) -> bool:
        """End the open round; whether there was one."""
        if not self._open:
            return False
        self._previous_size = len(self._open)
        self._open.clear()
        self._late.clear()
        self.finished += 1
        return True

    def stepped(self, optimizer: int) -> bool:
        """Tell that ``optimizer`` has stepped; whether the last round looks complete: as long as the one before."""
        self._open.add(optimizer)
        return self.last and len(self._open) == self._previous_size

    @property
    def begun(self) -> int:
        """Rounds that have had a step."""
        return self.finished + bool(self._open)

    @property
    def fresh(self) -> bool:
        """Whether the open round has no step yet."""
        return not self._open

    @property
    def over(self) -> bool:
        """Whether the asked-for rounds are finished."""
        return self.finished >= self.limit

    @property
    def last(self) -> bool:
        """Whether the open round, or the one about to begin, is the last that is wanted."""
        return self.finished == self.limit - 1
