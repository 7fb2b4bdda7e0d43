"""How fast: two versions of a script timed side by side, and what may be said about their speeds.

A pair of runs takes turns (:mod:`..execution.turn_taking`), the original first in one pair and the rewrite first in the next. What is
compared is the steady state:

- **Warm-up** is found in each run's step times by the marginal standard error rule (MSER: White, "An effective
  truncation heuristic for bias reduction in simulation output", Simulation 69, 1997): drop the first steps whose
  removal makes the standard error of the rest smallest, at most half of them. A running median of three first takes
  out single spikes. The first round, in which compilation happens, and the start-up are apart from the beginning.
  Where a run shows more than one epoch the first is warm-up as a whole: its last, smaller batch and the evaluation behind
  it come for the first time, and are compiled, tried out by cuDNN, or given workers. So are the rounds, at most half, for which workers
  made the batches ahead, while the first round was compiled.
- **Evaluation and the start of an epoch** count as often as they come between steps, where the runs are long enough to show it
  (:mod:`.interludes`).
- **Waiting for data**, beside workers the whole step, is averaged over neighbouring steps: worker processes hand over their batches in bursts, so that most
  steps may wait for nothing while every few wait long, and a median would see only one of the two.
- **Step time** of a version: the median of each run's steady steps, their geometric mean over the runs.
- **Speed-up**: original over rewritten, so 1.00x is no change and 2.00x half the time. Each pair of runs gives one
  (:mod:`.turn_ratios`; of runs that could not take turns, the ratio of their step times), and the speed-up is their geometric mean. A process
  has its own luck, which all of its steps share and which another start would change: where its memory lies, say. So the pairs, and
  not the steps, are what the 95 % interval counts, by Student's t on the logarithms.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

from ..execution.observations import Timing
from ..terminal import counted
from .interludes import Stretch, log_stretch_ratio, stretch
from .turn_ratios import centre, spread, steady_waits, turn_ratios

STILL_CHANGING = 0.05
"""Relative change of the step time within the last half of a run that is no steady state."""

SETTLED = 5
"""The first fifth of a run's rounds does not count where its warm-up is not looked for."""

_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
"""97.5 % points of Student's t for 1 to 20 degrees of freedom."""
_Z = 1.960


@dataclass(frozen=True)
class Steps:
    """The step times of one run that can be told apart: seconds per round and, of that, waiting for data.

    On a GPU each is the mean over the rounds between two waits for the device; ``rounds`` says how many.
    """

    seconds: tuple[float, ...]
    waits: tuple[float, ...]
    rounds: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """One timed run: start-up and first round in seconds, its steps, and how many of them are warm-up.

    ``stretch`` is None where no evaluation and no start of an epoch was timed twice.
    """

    startup_seconds: float
    first_round_seconds: float
    steps: Steps
    warm_up: int
    settled: bool
    stretch: Stretch | None = None

    @property
    def round_seconds(self) -> float:
        """A mean round, with its part of evaluation and the start of an epoch where that was timed."""
        return self.stretch.round_seconds if self.stretch else self.median_seconds

    @property
    def steady(self) -> tuple[float, ...]:
        return self.steps.seconds[self.warm_up :]

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.steady)

    @property
    def data_wait_share(self) -> float:
        """Waiting for data as a part of the steady steps' time, 0 to 1."""
        total = sum(self.steady)
        return sum(self.steps.waits[self.warm_up :]) / total if total else 0.0

    @property
    def overhead_seconds(self) -> float:
        """What the run spends before it is steady, beyond what its steps would take when steady."""
        warm = zip(self.steps.seconds, self.steps.rounds, strict=True)
        slow = sum((s - self.median_seconds) * n for s, n in list(warm)[: self.warm_up])
        return self.startup_seconds + self.first_round_seconds - self.median_seconds + slow


@dataclass(frozen=True)
class VersionSpeed:
    """The speed of one version over its runs.

    ``first_round_seconds`` is the first run's, with a cold compile cache; ``warm_first_round_seconds`` the median of
    the later ones. ``warm_up_rounds`` is the largest of any run. ``round_seconds`` is a step with its part of ``interlude_seconds``, which
    is what an evaluation or the start of an epoch takes beyond a step, and comes every ``interlude_rounds``, both None where the runs
    are too short to tell. Memory peaks are in bytes.
    """

    runs: tuple[Run, ...]
    step_seconds: float
    round_seconds: float
    interlude_seconds: float | None
    interlude_rounds: float | None
    samples_per_second: float | None
    startup_seconds: float
    first_round_seconds: float
    warm_first_round_seconds: float | None
    warm_up_rounds: int
    settled: bool
    data_wait_share: float
    device_memory: int | None
    host_memory: int | None


class SpeedVerdict(str, Enum):
    """What the interval lets one say."""

    FASTER = "faster"
    SLOWER = "slower"
    TOO_NOISY = "too noisy to tell"


@dataclass(frozen=True)
class Speedup:
    """Original over rewritten step time, with its 95 % interval (infinite ends when there is only one pair)."""

    factor: float
    low: float
    high: float

    @property
    def verdict(self) -> SpeedVerdict:
        if self.low > 1.0:
            return SpeedVerdict.FASTER
        return SpeedVerdict.SLOWER if self.high < 1.0 else SpeedVerdict.TOO_NOISY

    def __str__(self) -> str:
        if not math.isfinite(self.high):
            return f"{self.factor:.2f}x (one pair of runs: no interval)"
        return f"{self.factor:.2f}x [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Measurement:
    """Both versions' speeds. ``break_even_rounds``: after how many rounds the rewrite has made up for what it spends

    before it is steady; 0 when it spends no more than the original, None when it never does. ``ratios`` are the logarithms of the
    speed-ups of the pairs.
    """

    original: VersionSpeed
    rewritten: VersionSpeed
    speedup: Speedup
    break_even_rounds: int | None
    ratios: tuple[float, ...]


@dataclass(frozen=True)
class TimedRun:
    """What a timing run hands over: its times, and its peaks of memory in bytes."""

    timing: Timing
    device_memory: int | None = None
    host_memory: int | None = None


class TooShort(ValueError):
    """A run ended before its step times could be told."""


Pair = Callable[[bool], tuple[TimedRun, TimedRun]]
"""Times the original and the rewrite once each, the rewrite first if told so."""


def measure(
    pair: Pair,
    pairs: int,
    samples_per_round: tuple[float | None, float | None] = (None, None),
) -> Measurement:
    """Make ``pairs`` pairs of runs, A B, B A, ..., and compare the speeds.

    Raises :class:`TooShort` when a run shows fewer than two steps after its first round.
    """
    made = [pair(number % 2 == 1) for number in range(pairs)]
    return compare_speeds([a for a, _ in made], [b for _, b in made], samples_per_round)


def compare_speeds(
    original: Sequence[TimedRun],
    rewritten: Sequence[TimedRun],
    samples_per_round: tuple[float | None, float | None] = (None, None),
) -> Measurement:
    """The measurement that the paired runs add up to."""
    ours = _version(original, samples_per_round[0])
    theirs = _version(rewritten, samples_per_round[1])
    ratios = log_speedups(original, rewritten)
    return Measurement(
        ours,
        theirs,
        speedup(ratios),
        _break_even(ours, theirs),
        tuple(ratios),
    )


def pace(timing: Timing) -> float:
    """Seconds of a mean round, with all that lies between steps; 0 where none was timed."""
    return statistics.fmean(settled_rounds(timing) or (0.0,))


def settled_rounds(timing: Timing) -> tuple[float, ...]:
    """The seconds of all rounds but the first fifth."""
    return timing.round_seconds[len(timing.round_seconds) // SETTLED :]


def read_run(timing: Timing) -> Run:
    """The run's steps, with its warm-up found."""
    steps = _steps(timing)
    if len(steps.seconds) < 2:
        raise TooShort(_too_short(len(timing.round_seconds)))
    dropped, settled = warm_up(steps.seconds)
    dropped = max(dropped, _first_epoch(timing, steps), _made_ahead(timing, steps))
    return Run(
        timing.startup_seconds or 0.0,
        timing.first_round_seconds or 0.0,
        steps,
        dropped,
        settled,
        stretch(timing, sum(steps.rounds[:dropped])),
    )


def _too_short(rounds: int) -> str:
    timed = (
        f"only {counted(rounds, 'step')} after the first" if rounds else "no step after the first"
    )
    return f"{timed} could be timed, too few to tell a speed: the script has to make more of them"


def _steps(timing: Timing) -> Steps:
    """Rounds between waits for the device are one step each time, of their mean; all rounds apart without waits.

    Where rounds are told apart, interludes count only for a stretch that has nothing else.
    """
    spans = timing.spans
    waits = spread(timing.wait_seconds, timing.interludes)
    seconds = steady_waits(timing)
    if not spans:
        return Steps(seconds, waits, (1,) * len(seconds))
    more = frozenset[int]() if timing.asynchronous else frozenset(timing.interludes)
    plain = [[number for number in span if number not in more] or span for span in spans]
    return Steps(
        tuple(statistics.fmean(seconds[number] for number in part) for part in plain),
        tuple(statistics.fmean(waits[number] for number in part) for part in plain),
        tuple(map(len, spans)),
    )


def _first_epoch(timing: Timing, steps: Steps) -> int:
    """How many of the first steps end with the first interlude; 0 where there is no other, or they are more than half."""
    if len(timing.interludes) < 2:
        return 0
    ends = list(accumulate(steps.rounds))
    number = bisect_right(ends, min(timing.interludes)) + 1
    return number if 2 * number <= len(ends) else 0


def _made_ahead(timing: Timing, steps: Steps) -> int:
    """How many of the first steps end with the last batch that may have been there before the first step; at most half."""
    if not timing.ahead:
        return 0
    ends = list(accumulate(steps.rounds))
    return min(bisect_left(ends, timing.ahead) + 1, len(ends) // 2)


def warm_up(seconds: Sequence[float]) -> tuple[int, bool]:
    """How many of the first steps to drop, and whether the rest is steady.

    It is not when half of the steps had to go and the median of the last quarter still is another than that of the
    quarter before it, by more than :data:`STILL_CHANGING`.
    """
    smooth = [
        seconds[0],
        *(statistics.median(seconds[i - 1 : i + 2]) for i in range(1, len(seconds) - 1)),
        *seconds[1:][-1:],
    ]
    half = len(smooth) // 2
    errors = _marginal_standard_errors(smooth)[: half + 1]
    drop = errors.index(min(errors))
    if drop < half or half == 0:
        return drop, True
    middle = half + (len(smooth) - half) // 2
    third, fourth = (
        statistics.median(part) for part in (smooth[half:middle] or smooth, smooth[middle:])
    )
    return drop, abs(fourth - third) <= STILL_CHANGING * third


def _marginal_standard_errors(values: Sequence[float]) -> list[float]:
    """That of all values, of all but the first, of all but the first two ..., by Welford's update from the end."""
    found: list[float] = []
    mean, squares = 0.0, 0.0
    for count, value in enumerate(reversed(values), 1):
        before = mean
        mean += (value - mean) / count
        squares += (value - before) * (value - mean)
        found.append(squares / count**2)
    return found[::-1]


def log_speedups(original: Sequence[TimedRun], rewritten: Sequence[TimedRun]) -> list[float]:
    """The logarithm of the speed-up that each pair of runs shows."""
    return [log_speedup(a.timing, b.timing) for a, b in zip(original, rewritten, strict=True)]


def log_speedup(original: Timing, rewritten: Timing) -> float:
    """The same of one pair: over the turns they took, or of their step times where they took none, and over what lies
    between steps.

    Raises :class:`TooShort` as :func:`read_run` does.
    """
    ours, theirs = read_run(original), read_run(rewritten)
    turns = turn_ratios(original, rewritten, max(ours.warm_up, theirs.warm_up))
    steps = centre(turns) if turns else math.log(ours.median_seconds / theirs.median_seconds)
    warm_up_rounds = max(sum(run.steps.rounds[: run.warm_up]) for run in (ours, theirs))
    return log_stretch_ratio(original, rewritten, warm_up_rounds, steps)


def speedup(ratios: Sequence[float]) -> Speedup:
    """The speed-up that pairs of runs show whose logarithms are ``ratios``, with Student's 95 % interval."""
    mean = statistics.fmean(ratios)
    if len(ratios) < 2:
        return Speedup(math.exp(mean), 0.0, math.inf)
    half = student_t(len(ratios) - 1) * statistics.stdev(ratios) / math.sqrt(len(ratios))
    return Speedup(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def student_t(degrees: int) -> float:
    """The 97.5 % point of Student's t."""
    return _T[degrees - 1] if degrees <= len(_T) else _Z * (1 + 1 / (2 * degrees))


def _version(timed: Sequence[TimedRun], samples_per_round: float | None) -> VersionSpeed:
    runs = tuple(read_run(run.timing) for run in timed)
    seconds = statistics.geometric_mean([run.median_seconds for run in runs])
    later = [run.first_round_seconds for run in runs[1:]]
    stretches = [run.stretch for run in runs if run.stretch is not None]
    whole = len(stretches) == len(runs)
    return VersionSpeed(
        runs=runs,
        step_seconds=seconds,
        round_seconds=statistics.geometric_mean([run.round_seconds for run in runs]),
        interlude_seconds=statistics.fmean(s.extra_seconds for s in stretches) if whole else None,
        interlude_rounds=statistics.fmean(s.every for s in stretches) if whole else None,
        samples_per_second=samples_per_round / seconds if samples_per_round else None,
        startup_seconds=statistics.median(run.startup_seconds for run in runs),
        first_round_seconds=runs[0].first_round_seconds,
        warm_first_round_seconds=statistics.median(later) if later else None,
        warm_up_rounds=max(1 + sum(run.steps.rounds[: run.warm_up]) for run in runs),
        settled=all(run.settled for run in runs),
        data_wait_share=statistics.fmean(run.data_wait_share for run in runs),
        device_memory=max((r.device_memory for r in timed if r.device_memory), default=None),
        host_memory=max((r.host_memory for r in timed if r.host_memory), default=None),
    )


def _break_even(ours: VersionSpeed, theirs: VersionSpeed) -> int | None:
    """Overheads of the first runs, since later ones find compiled kernels in a cache."""
    extra = theirs.runs[0].overhead_seconds - ours.runs[0].overhead_seconds
    gain = ours.round_seconds - theirs.round_seconds
    if extra <= 0:
        return 0
    return math.ceil(extra / gain * (1 - 1e-9)) if gain > 0 else None
