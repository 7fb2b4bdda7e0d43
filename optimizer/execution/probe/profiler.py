"""A profiled run: its step alone, then the phases of the step, then the operators; then its loader by itself."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .batch_samples import count_samples
from .clock import Clock
from .operators import Operators
from .patches import Patches
from .phase_hooks import PhaseHooks
from .phases import Phases

WARM_UP_SHARE, PLAIN_SHARE, PHASED_SHARE = 0.2, 0.3, 0.3
"""Of a run's rounds: nothing is measured, the step alone is, its phases are; the rest is the operators'."""
LOADER_SECONDS, LOADER_BATCHES = 5.0, 50
"""The loader by itself is read for as long as this, or for so many batches."""


class Profiler:
    """Measures the rounds of a run, each one thing in its own stretch of them.

    Waiting for the device after every phase makes a step longer, and so does writing its operators down: the step as
    it is comes first. What evaluations and starts of epochs consist of is measured whenever one comes, since they are few.
    """

    def __init__(self, spec: dict[str, Any], patches: Patches) -> None:
        rounds = spec["steps"]
        share = WARM_UP_SHARE
        self._plain = max(1, round(share * rounds))
        share += PLAIN_SHARE
        self._phased = max(self._plain + 1, round(share * rounds))
        share += PHASED_SHARE
        self._recorded = max(self._phased + 1, round(share * rounds))
        self._phases = Phases(nvtx=spec["nvtx"])
        self._operators = Operators(Path(spec["output"]), trace=spec["trace"])
        self._hooks = PhaseHooks(self._phases, patches)
        self._edges = 0
        self._phase_rounds: list[int] = []
        self._interludes: set[int] = set()

    def install(self) -> None:
        """Hook what has a phase; before the hooks of the session, which end rounds."""
        self._hooks.install()

    def clock(self, started: float) -> Clock:
        """A clock which waits for the device at the end of each round, and tells us."""
        return _ToldClock(started, self._edge, self._interlude)

    @property
    def device_peak(self) -> int:
        """The most bytes on devices that torch no longer knows of."""
        return self._phases.device_peak

    def _edge(self) -> None:
        """A round has ended, and the next begins."""
        number, self._edges = self._edges, self._edges + 1
        self._hooks.counting = self._plain <= number < self._phased
        if self._phases.measuring:
            self._phase_rounds.append(number - 1)
        self._phases.round_ends()
        self._operators.round_ends()
        if number == self._phased:
            self._phases.start()
        elif not self._phased < number < self._recorded:
            self._phases.stop()
        if number == self._recorded:
            self._operators.start()

    def _interlude(self) -> None:
        """What comes before the next step is more than a step; where most rounds are, that is what a step is."""
        self._interludes.add(self._edges)
        rare = 2 * len(self._interludes) < self._edges
        if rare and self._plain < self._edges <= self._phased and not self._phases.measuring:
            self._phases.start()

    def finish(self) -> dict[str, Any]:
        """The fields of a ``RunProfile``. The run is over, and nothing is hooked any more."""
        counted = min(self._edges - 1, self._phased) - self._plain
        return {
            "plain_rounds": [self._plain, max(self._plain, min(self._edges - 1, self._phased))],
            "phase_rounds": self._phase_rounds,
            **self._phases.finish(),
            **self._operators.finish(),
            "syncs": self._hooks.finish(counted) if counted > 0 else [],
            "loader": _read_alone(self._hooks.training_loader),
        }


class _ToldClock(Clock):
    def __init__(
        self, started: float, edge: Callable[[], None], interlude: Callable[[], None]
    ) -> None:
        super().__init__(started, block_steps=1, device_block_steps=1)
        self._tell_edge, self._tell_interlude = edge, interlude

    def edge(self, *, last: bool) -> None:
        """A round has had its first step."""
        super().edge(last=last)
        self._tell_edge()

    def interlude(self) -> None:
        """What comes before the next step is more than a step."""
        super().interlude()
        self._tell_interlude()


def _read_alone(loader: Any) -> dict[str, Any] | None:
    """How fast ``loader`` gives batches to a script that does nothing else; None when it gives too few to tell.

    The first batch, for which its workers start, is not counted; nor is what is made ahead while it is waited for.
    """
    if loader is None:
        return None
    ahead = loader.num_workers * (loader.prefetch_factor or 0)
    iterator = iter(loader)
    batches = samples = 0
    started = ended = processor = 0.0
    for number, batch in enumerate(iterator):
        if number <= ahead:
            started, processor = time.perf_counter(), time.process_time()
            continue
        batches, samples = batches + 1, samples + count_samples(batch)
        ended = time.perf_counter()
        if batches >= LOADER_BATCHES or ended - started > LOADER_SECONDS:
            break
    return (
        {
            "workers": loader.num_workers,
            "batch_samples": samples / batches,
            "batch_seconds": (ended - started) / batches,
            "processor_seconds": (time.process_time() - processor) / batches,
        }
        if batches
        else None
    )
