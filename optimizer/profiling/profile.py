"""Run a script under the profiler and say what it measured.

Two runs: one in which the step is timed, then its phases, then its operators; and one in which every loader gives the
same batch, already on the device, again and again. The second is the speed of light of whatever could be done about the
data. Both draw their random numbers as the script does, and neither touches the user's files.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import TorchoptError
from ..execution.limits import Bound
from ..execution.observations import (
    ENDED_WELL,
    STEPPED_ELSEWHERE,
    Observations,
    Timing,
    Versions,
)
from ..execution.profile_record import LoaderAlone, Operator, Phase, RunProfile, SyncPoint
from ..execution.runner import Mode, RunSettings, ScriptVersion, run
from ..measuring.interludes import stretch
from ..measuring.measurement import settled_rounds
from ..terminal import counted

FEWEST_ROUNDS = 10
"""Rounds of which each stretch of a profiled run still has two."""


@dataclass(frozen=True)
class ProfileSettings:
    """How to profile: ``steps`` are rounds per run, ``timeout_s`` seconds per run.

    ``trace`` is where to put a Chrome trace of the last rounds, ``nvtx`` marks phases for Nsight.
    ``resident`` asks for the second run.
    """

    python: Path
    cwd: Path
    steps: int = 50
    seed: int = 0
    timeout_s: float = 600.0
    trace: Path | None = None
    nvtx: bool = False
    resident: bool = True
    env: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class PhaseTime:
    """One phase: mean seconds per step, its share of all phases, CPU seconds of the main process, peak bytes."""

    phase: Phase
    seconds: float
    share: float
    processor_seconds: float
    memory: int | None


@dataclass(frozen=True)
class StepProfile:
    """Where the step of one version of a script goes. Times are in seconds, memory in bytes.

    ``step_seconds`` is the median step, undisturbed; the ``phases`` were measured one by one, waiting for the device
    after each, so on a GPU they add up to more than a step whose parts overlap. On a CPU nothing overlaps: there they are
    given as parts of that median step, without what measuring them took and what disturbed it. ``resident_step_seconds`` is the median
    step on a batch that is there already, None where that was not or could not be run. ``between_steps`` is the part of the time, 0 to 1,
    that evaluations and starts of epochs take beyond a step.
    """

    versions: Versions | None
    steps: int
    step_seconds: float
    batch_samples: float | None
    phases: tuple[PhaseTime, ...]
    operators: tuple[Operator, ...]
    syncs: tuple[SyncPoint, ...]
    loader: LoaderAlone | None
    device_busy_share: float | None
    resident_step_seconds: float | None
    device_memory: int | None
    host_memory: int | None
    between_steps: float = 0.0

    def seconds(self, *phases: Phase) -> float:
        """What ``phases`` take together per step."""
        return sum(part.seconds for part in self.phases if part.phase in phases)

    def share(self, *phases: Phase) -> float:
        """The part of the step that ``phases`` take, 0 to 1."""
        return sum(part.share for part in self.phases if part.phase in phases)

    @property
    def round_seconds(self) -> float:
        """A step with its part of what lies between steps now and then."""
        return self.step_seconds / (1 - self.between_steps)

    @property
    def on_cpu(self) -> bool:
        """Whether the script ran without a GPU."""
        return self.versions is None or self.versions.device == "cpu"


def profile(
    version: ScriptVersion,
    settings: ProfileSettings,
    progress: Callable[[int, int, str], None] | None = None,
) -> StepProfile:
    """Run ``version`` under the profiler.

    A script that ends before ``settings.steps`` rounds is run again for as many as it has. Raises TorchoptError
    when it takes too few steps or too much time, ScriptFailed when it fails by itself.
    """
    told = progress or _untold
    if settings.trace is not None:
        _refuse_unwritable(settings.trace)
    with tempfile.TemporaryDirectory(prefix="torchopt-") as folder:
        told(0, 2, "profiled run")
        seen = _checked(version, settings, _run(version, settings, Path(folder) / "profiled"))
        if seen.rounds < settings.steps:
            fewer = replace(settings, steps=seen.rounds)
            seen = _checked(version, fewer, _run(version, fewer, Path(folder) / "again"))
        resident = None
        if settings.resident:
            told(1, 2, "a run on one batch that stays on the device")
            resident = _resident(version, settings, seen.rounds, Path(folder) / "resident")
        assert seen.profile is not None
        if settings.trace is not None and seen.profile.trace_file is not None:
            _copy_trace(seen.folder / seen.profile.trace_file, settings.trace)
        return summarise(seen, seen.profile, resident)


def _refuse_unwritable(trace: Path) -> None:
    """Raises TorchoptError where no file ``trace`` can be made: before the runs, which take a minute."""
    reason = None
    if trace.is_dir():
        reason = errno.EISDIR
    elif not trace.parent.is_dir():
        reason = errno.ENOENT
    elif not os.access(trace if trace.exists() else trace.parent, os.W_OK):
        reason = errno.EACCES
    if reason is not None:
        raise TorchoptError(f"cannot be written: {os.strerror(reason)}", trace)


def _copy_trace(made: Path, trace: Path) -> None:
    try:
        shutil.copyfile(made, trace)
    except OSError as error:
        raise TorchoptError(f"cannot be written: {error.strerror or error}", trace) from None


def _untold(done: int, total: int, description: str) -> None:
    """Nobody watches."""


def _run(version: ScriptVersion, settings: ProfileSettings, folder: Path) -> Observations:
    how = RunSettings(
        python=settings.python,
        cwd=settings.cwd,
        steps=settings.steps,
        seed=settings.seed,
        mode=Mode.PROFILE,
        timeout_s=settings.timeout_s,
        env=settings.env,
        trace=settings.trace is not None,
        nvtx=settings.nvtx,
    )
    return run(version, how, folder)


class ScriptFailed(Exception):
    """The user's script failed by itself; ``details`` is its traceback."""

    def __init__(self, seen: Observations) -> None:
        self.details = seen.failure_details
        super().__init__(self.details)


def _checked(version: ScriptVersion, settings: ProfileSettings, seen: Observations) -> Observations:
    if seen.exceeded is not None and seen.exceeded.bound is not Bound.WATCH:
        told = f"not done after {seen.rounds} of {settings.steps} steps, {seen.exceeded}"
        raise TorchoptError(told, version.entry)
    if seen.status not in ENDED_WELL:
        raise ScriptFailed(seen)
    if seen.rounds < FEWEST_ROUNDS or seen.profile is None:
        steps = (
            f"only {counted(seen.rounds, 'optimizer step')}" if seen.rounds else "no optimizer step"
        )
        told = f"{steps} to profile, {FEWEST_ROUNDS} are needed"
        if not seen.rounds and STEPPED_ELSEWHERE in seen.unobserved:
            told = f"nothing to profile: {STEPPED_ELSEWHERE} are not observed"
        raise TorchoptError(told, version.entry)
    return seen


def _resident(
    version: ScriptVersion, settings: ProfileSettings, rounds: int, folder: Path
) -> float | None:
    """The median step on one batch; None when the script does not get that far with it."""
    how = RunSettings(
        python=settings.python,
        cwd=settings.cwd,
        steps=rounds,
        seed=settings.seed,
        mode=Mode.TIME,
        timeout_s=settings.timeout_s,
        env=settings.env,
        block_steps=1,
        device_block_steps=1,
        resident_batch=True,
    )
    seen = run(version, how, folder)
    settled = settled_rounds(seen.timing)
    return statistics.median(settled) if seen.status in ENDED_WELL and settled else None


def summarise(seen: Observations, profile: RunProfile, resident: float | None) -> StepProfile:
    """The profile of a run, without what was measured per round."""
    start, end = profile.plain_rounds
    plain = seen.timing.round_seconds[start:end] or seen.timing.round_seconds
    weights = _weights(profile.phase_rounds, seen.timing)
    found = StepProfile(
        versions=seen.versions,
        steps=seen.rounds,
        step_seconds=statistics.median(plain),
        batch_samples=profile.loader.batch_samples if profile.loader else None,
        phases=tuple(_phases(profile, weights)),
        operators=profile.operators,
        syncs=profile.syncs,
        loader=profile.loader,
        device_busy_share=profile.device_busy_share,
        resident_step_seconds=resident,
        device_memory=seen.memory.device,
        host_memory=seen.memory.host,
        between_steps=_between_steps(profile, weights, seen.timing.interludes),
    )
    return _adding_up(found) if found.on_cpu else found


def _adding_up(profile: StepProfile) -> StepProfile:
    """``profile`` with phases that are together as long as a step."""
    whole = profile.round_seconds
    phases = (replace(part, seconds=part.share * whole) for part in profile.phases)
    return replace(profile, phases=tuple(phases))


def _phases(profile: RunProfile, weights: Sequence[float]) -> Iterable[PhaseTime]:
    seconds, processor = (
        {
            phase: sum(w * r.get(phase, 0.0) for w, r in zip(weights, rounds, strict=True))
            for phase in Phase
        }
        for rounds in (profile.phases, profile.processor)
    )
    total = sum(seconds.values())
    for phase in Phase:
        if seconds[phase] > 0.0:
            yield PhaseTime(
                phase,
                seconds[phase],
                seconds[phase] / total,
                processor[phase],
                profile.memory.get(phase),
            )


def _weights(rounds: Sequence[int], timing: Timing) -> list[float]:
    """How much each of ``rounds`` counts in a mean, so that interludes do as often as they come in the run."""
    having = [number in timing.interludes for number in rounds]
    if all(having) or not any(having):
        return [1 / len(rounds)] * len(rounds)
    whole = stretch(timing, 0)
    share = whole.share if whole else len(timing.interludes) / len(timing.round_seconds)
    return [
        share / sum(having) if one else (1 - share) / (len(rounds) - sum(having)) for one in having
    ]


def _between_steps(
    profile: RunProfile, weights: Sequence[float], interludes: Collection[int]
) -> float:
    seconds = [math.fsum(phases.values()) for phases in profile.phases]
    steps = [
        one
        for one, number in zip(seconds, profile.phase_rounds, strict=True)
        if number not in interludes
    ]
    mean = math.fsum(w * one for w, one in zip(weights, seconds, strict=True))
    return max(0.0, 1 - statistics.fmean(steps) / mean) if steps and mean else 0.0
