"""What each transform of a rewrite buys, measured: they are added one by one, in the order they are applied.

Every step, from the original to the whole rewrite, is a version of its own. A sweep is one run of each, all of which take
turns, and each version is compared with the one before it in the same sweep, by the rules of :mod:`.measurement`. A transform's speed-up is therefore the one it has on top of those
applied before it; what it would have alone is not measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..execution.observations import Observations, said_last
from ..execution.runner import RunSettings, ScriptVersion, run
from ..execution.script_versions import original_version
from ..pipeline.rewrite import Rewritten
from ..verifying.bisection import Names
from ..verifying.settings import VerifySettings
from ..verifying.verification import Progress
from ..verifying.verified_rewrite import Rewrite, Tell, applied, changed_version
from .measurement import Speedup, TimedRun, TooShort, log_speedup, speedup
from .timed_runs import RunFailed, time_side_by_side
from .timing_settings import timed_run_settings


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
    round_seconds: float,
    arguments: tuple[str, ...],
    tell: Tell,
) -> Ablation:
    """Time the versions of ``script`` that lead from the original to its rewrite.

    ``rewrite`` makes the rewrite without the transforms it is given, ``transforms`` are all there are, in order.
    ``round_seconds`` is the original's pace, which decides how many steps fill ``settings.timing_seconds``; there are
    ``settings.pairs`` sweeps.
    """
    whole = rewrite(frozenset())
    original = original_version(script, arguments, settings.processes)
    names = applied(whole, transforms)
    steps = _steps(original, rewrite, transforms, names, settings.processes)
    timed: list[list[TimedRun]] = []
    done = 0

    def start(version: ScriptVersion, how: RunSettings, place: Path) -> Observations:
        nonlocal done
        total = settings.pairs * len(steps)
        tell("what each transform buys", Progress(done, total, _what(steps, version)))
        done += 1
        return run(version, how, place)

    with tempfile.TemporaryDirectory(prefix="torchopt-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        how = timed_run_settings(settings, round_seconds, folder / "compiled")
        for sweep in range(settings.pairs):
            versions, place = [step.version for step in steps], folder / f"sweep{sweep}"
            try:
                timed.append(
                    time_side_by_side(versions, how, place, start, backwards=sweep % 2 == 1)
                )
            except RunFailed as failed:
                what = _what(steps, failed.version)
                note = f"not measured: {what}, the script failed: {_last_line(failed.seen)}"
                return Ablation(script, (), settings.pairs, note)
    try:
        gains = tuple(
            Gain(
                step.transforms,
                speedup([log_speedup(runs[i].timing, runs[i + 1].timing) for runs in timed]),
            )
            for i, step in enumerate(steps[1:])
        )
    except TooShort as error:
        return Ablation(script, (), settings.pairs, f"not measured: {error}")
    return Ablation(script, gains, settings.pairs)


def _what(steps: Sequence[_Step], version: ScriptVersion) -> str:
    added = ", ".join(next(step.transforms for step in steps if step.version is version))
    return f"with {added}, timed" if added else "original, timed"


def _last_line(seen: Observations) -> str:
    return said_last(seen.traceback or seen.stderr) or seen.status.value


def _steps(
    original: ScriptVersion,
    rewrite: Rewrite,
    transforms: Sequence[str],
    names: Names,
    processes: int | None,
) -> list[_Step]:
    """The original, and a version for each transform that changes something once those before it have."""
    steps = [_Step((), original)]
    waiting: Names = ()
    for count, name in enumerate(names, 1):
        waiting += (name,)
        partial = rewrite(frozenset(transforms) - frozenset(names[:count]))
        version = _version(original, partial, processes)
        if version.overrides != steps[-1].version.overrides:
            steps.append(_Step(waiting, version))
            waiting = ()
    return steps


def _version(original: ScriptVersion, rewritten: Rewritten, processes: int | None) -> ScriptVersion:
    final = {file.path: file for file in rewritten.files}
    result = next(r for r in rewritten.results if r.entry == original.entry)
    files = [final[file.path] for file in result.files if final[file.path].changed]
    return changed_version(original, files, processes)
