"""Where the time of a step went, as a profiled run wrote it down. All times are seconds per round, sizes bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Phase(str, Enum):
    """A part of a training step. What lies inside of another phase is taken out of that."""

    DATA = "data"
    """Waiting for a ``DataLoader``: without workers this is making the batch."""
    COPY = "copy"
    """Copies from the host to the device."""
    FORWARD = "forward"
    """Models called in training mode with gradients."""
    BACKWARD = "backward"
    CLEAR = "clear"
    """``zero_grad``."""
    OPTIMIZER = "optimizer"
    """``optimizer.step()``, and a ``GradScaler``'s part in it."""
    EVALUATION = "evaluation"
    """Models called in eval mode or without gradients."""
    SYNC = "sync"
    """Waiting for a value that the host wants (``.item()``, ``.cpu()``)."""
    OTHER = "other"
    """The rest of the script: the loss outside of a module, printing, logging."""


@dataclass(frozen=True)
class SyncPoint:
    """A line of the script that waits for the device, and how often and how long it does so per round.

    On a CPU, where there is nothing to wait for, these are the lines that would wait if the script ran on a GPU.
    """

    path: str
    line: int
    call: str
    calls: float
    seconds: float


@dataclass(frozen=True)
class Operator:
    """A torch operator: calls per round, seconds per round on the CPU (without the operators it calls) and device."""

    name: str
    calls: float
    self_seconds: float
    device_seconds: float


@dataclass(frozen=True)
class LoaderAlone:
    """The training loader, read by a script that does nothing else.

    ``processor_seconds`` is the CPU time that a batch takes in the main process.
    """

    workers: int
    batch_samples: float
    batch_seconds: float
    processor_seconds: float


@dataclass(frozen=True)
class RunProfile:
    """What a profiled run measured.

    ``plain_rounds`` is the range (start, end) of ``Timing.round_seconds`` in which only the step was timed; ``phases``
    and ``processor`` (CPU time of the main process) hold one mapping per round of a later stretch, in which the device
    was waited for after each phase, and of rounds before it with an evaluation or the start of an epoch; ``phase_rounds`` says which
    those are. ``memory`` is the largest size per phase: allocated on the device, without one
    resident in the process. ``device_busy_share`` is the part of the time in which the device had work, None without.
    """

    plain_rounds: tuple[int, int]
    phase_rounds: tuple[int, ...]
    phases: tuple[Mapping[Phase, float], ...]
    processor: tuple[Mapping[Phase, float], ...]
    memory: Mapping[Phase, int]
    operators: tuple[Operator, ...]
    syncs: tuple[SyncPoint, ...]
    device_busy_share: float | None
    loader: LoaderAlone | None
    trace_file: str | None

    @classmethod
    def read(cls, record: dict[str, Any]) -> RunProfile:
        """The profile in a run's record."""
        start, end = record["plain_rounds"]
        return cls(
            plain_rounds=(start, end),
            phase_rounds=tuple(record["phase_rounds"]),
            phases=tuple(_by_phase(one) for one in record["phases"]),
            processor=tuple(_by_phase(one) for one in record["processor"]),
            memory=_by_phase(record["memory"]),
            operators=tuple(Operator(**one) for one in record["operators"]),
            syncs=tuple(SyncPoint(**one) for one in record["syncs"]),
            device_busy_share=record["device_busy_share"],
            loader=LoaderAlone(**record["loader"]) if record["loader"] else None,
            trace_file=record["trace_file"],
        )


def _by_phase(values: Mapping[str, Any]) -> dict[Phase, Any]:
    return {Phase(name): value for name, value in values.items()}
