"""What each transform of a rewrite buys, measured: they are added one by one, in the order they are applied.

Every step, from the original to the whole rewrite, is a version of its own. All versions are timed in turn, there and
back (A B C C B A ...), so that a machine that slows down does so for all, and each is compared with the one before it in
the same sweep, by the rules of :mod:`.measurement`. A transform's speed-up is therefore the one it has on top of those
applied before it; what it would have alone is not measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .bisection import Names
from .comparison.process import ENDED_WELL
from .execution.runner import ScriptVersion, run
from .measurement import Speedup, TimedRun, TooShort, read_run, speedup
from .pipeline import Rewritten
from .verification import Progress, VerifySettings, rounds_to_time, timed_run_settings
from .verified_rewrite import Rewrite, Tell, applied, changed_version


@dataclass(frozen=True)
class Gain:
    """The speed-up by ``transforms`` over the version without them.

    Those that only do something beside the last of them are in one with it.
    """

    transforms: Names
    speedup: Speedup

    @property
    def pays(self) -> bool:
        """Whether the 95 % interval is wholly above 1.00x."""
        return self.speedup.low > 1.0


@dataclass(frozen=True)
class Ablation:
    """The gains of the transforms of ``script``, in the order they are applied; each version was timed ``sweeps`` times.

    ``note`` says why there are none.
    """

    script: Path
    gains: tuple[Gain, ...]
    sweeps: int
    note: str | None = None


@dataclass(frozen=True)
class _Step:
    transforms: Names
    version: ScriptVersion


def measure_gains(
    script: Path,
    rewrite: Rewrite,
    transforms: Sequence[str],
    settings: VerifySettings,
    step_seconds: float,
    arguments: tuple[str, ...],
    tell: Tell,
) -> Ablation:
    """Time the versions of ``script`` that lead from the original to its rewrite.

    ``rewrite`` makes the rewrite without the transforms it is given, ``transforms`` are all there are, in order.
    ``step_seconds`` is the original's pace, which decides how many steps fill ``settings.timing_seconds``; there are
    ``settings.pairs`` sweeps.
    """
    whole = rewrite(frozenset())
    steps = _steps(script, rewrite, transforms, applied(whole, transforms), arguments)
    rounds = rounds_to_time(settings, step_seconds)
    total = settings.pairs * len(steps)
    timed: list[list[TimedRun]] = [[] for _ in steps]
    with tempfile.TemporaryDirectory(prefix="torchopt-", ignore_cleanup_errors=True) as folder:
        done = 0
        for sweep in range(settings.pairs):
            order = range(len(steps))
            for index in order if sweep % 2 == 0 else reversed(order):
                added = ", ".join(steps[index].transforms)
                what = f"with {added}, timed" if added else "original, timed"
                tell("what each transform buys", Progress(done, total, what))
                try:
                    timed[index].append(
                        _timed(steps[index].version, settings, rounds, Path(folder), done)
                    )
                except _Failed as failed:
                    note = f"not measured: {what}, the script failed: {failed}"
                    return Ablation(script, (), settings.pairs, note)
                done += 1
    try:
        steady = [[read_run(one.timing).steady for one in runs] for runs in timed]
    except TooShort as error:
        return Ablation(script, (), settings.pairs, f"not measured: {error}")
    gains = tuple(
        Gain(step.transforms, speedup(steady[index], steady[index + 1]))
        for index, step in enumerate(steps[1:])
    )
    return Ablation(script, gains, settings.pairs)


def _steps(
    script: Path,
    rewrite: Rewrite,
    transforms: Sequence[str],
    names: Names,
    arguments: tuple[str, ...],
) -> list[_Step]:
    """The original, and a version for each transform that changes something once those before it have."""
    steps = [_Step((), ScriptVersion(script, args=arguments))]
    waiting: Names = ()
    for count, name in enumerate(names, 1):
        waiting += (name,)
        partial = rewrite(frozenset(transforms) - frozenset(names[:count]))
        version = _version(script, partial, arguments)
        if version.overrides != steps[-1].version.overrides:
            steps.append(_Step(waiting, version))
            waiting = ()
    return steps


def _version(script: Path, rewritten: Rewritten, arguments: tuple[str, ...]) -> ScriptVersion:
    final = {file.path: file for file in rewritten.files}
    result = next(r for r in rewritten.results if r.entry == script)
    files = [final[file.path] for file in result.files if final[file.path].changed]
    return changed_version(script, files, arguments)


class _Failed(Exception):
    pass


def _timed(
    version: ScriptVersion, settings: VerifySettings, rounds: int, folder: Path, number: int
) -> TimedRun:
    how = timed_run_settings(settings, rounds, folder / "compiled")
    observed = run(version, how, folder / f"run{number}")
    if observed.status not in ENDED_WELL:
        last = (observed.traceback or observed.stderr).strip().splitlines()[-1:]
        raise _Failed(last[0] if last else observed.status.value)
    return TimedRun(observed.timing, observed.memory.device, observed.memory.host)
