"""Tell what tuning came to: what each change bought, what was kept, and what the whole is worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..terminal import counted, plain_table, print_table
from ..verifying.verified_rewrite import Ending
from ..verifying.verified_rewrite_report import to_json as verified_json
from .search import Outcome, Trial
from .tune import Tuned

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {Outcome.ADOPTED: "green", Outcome.MORE_SAMPLES: "green", Outcome.FAILED: "red"}


def render_text(tuned: Tuned, console: Console) -> None:
    """Print what was tried, what won, and by how much."""
    titles = ("Each change against the best before it:", "Batch sizes, by samples per second:")
    for title, trials in zip(titles, (tuned.trials, tuned.batch_sizes), strict=True):
        if not trials:
            continue
        table = plain_table()
        table.add_column("change")
        table.add_column("speedup", justify="right")
        table.add_column("pairs", justify="right")
        table.add_column("")
        for trial in trials:
            speed = str(trial.speedup) if trial.speedup else "-"
            told = f"{trial.outcome.value}: {trial.reason}" if trial.reason else trial.outcome.value
            style = _STYLES.get(trial.outcome)
            table.add_row(trial.change, speed, str(trial.pairs), told, style=style)
        print_table(console, title, table)
    if tuned.trials or tuned.batch_sizes:
        console.print()
    for line in summary(tuned):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def summary(tuned: Tuned) -> list[str]:
    """The outcome in a few lines."""
    return [*_of_changes(tuned), *_of_batch_sizes(tuned)]


def _of_changes(tuned: Tuned) -> list[str]:
    if tuned.winner is None and not tuned.trials:
        return ["torchopt rewrite would change nothing here."]
    took = f"{tuned.seconds / 60:.1f} min"
    resumed = f", {counted(tuned.resumed, 'measurement')} taken over" if tuned.resumed else ""
    if tuned.winner is None:
        why = "nothing that was tried is faster"
        if any(trial.outcome is Outcome.NO_TIME for trial in tuned.trials):
            why += ", and not everything was: give it more time with --budget"
        if tuned.verified is not None:
            why = "what was fastest was not shown to be equivalent and faster than the original"
        return [f"The script is best left as it is: {why} ({took}{resumed})."]
    lines = [f"Best: {tuned.winner.label} ({took}{resumed})."]
    for report in tuned.verified.reports if tuned.verified else ():
        assert report.verdict is not None
        verdict = report.verdict
        speed = f"; {report.measurement.speedup} against the original" if report.measurement else ""
        lines.append(
            f"{verdict.outcome.value.capitalize()} ({verdict.tier.label}): {verdict.reason}{speed}."
        )
    return lines


def _of_batch_sizes(tuned: Tuned) -> list[str]:
    better = [t for t in tuned.batch_sizes if t.outcome is Outcome.MORE_SAMPLES and t.speedup]
    if not tuned.batch_sizes:
        return []
    if not better:
        left = any(trial.outcome is Outcome.NO_TIME for trial in tuned.batch_sizes)
        more = ", and not every one was measured: give it more time with --budget" if left else ""
        return [f"No batch size was shown to make more samples a second{more}."]
    best = max(better, key=lambda trial: trial.speedup.factor if trial.speedup else 0.0)
    size = best.candidate.batch_size
    is_written = tuned.winner is not None and tuned.winner.batch_size == size
    told = "it is written" if is_written else "it is not written (`--tier semantic`)"
    return [
        f"A batch size of {size} makes {best.speedup} as many samples a second. It changes the training, at the same learning "
        f"rate, and nothing verified that it learns as well; {told}."
    ]


def _trial_json(trial: Trial) -> dict[str, object]:
    return {
        "change": trial.change,
        "best": trial.best.label,
        "candidate": trial.candidate.label,
        "outcome": trial.outcome.value,
        "reason": trial.reason,
        "pairs": trial.pairs,
        "speedup": None
        if trial.speedup is None
        else [trial.speedup.factor, trial.speedup.low, trial.speedup.high],
    }


def to_json(script: Path, tuned: Tuned, written: Path | None) -> str:
    """The report as a JSON document, a newline at its end."""
    verified = tuned.verified
    document = {
        "schema": 1,
        "script": str(script),
        "written": str(written) if written else None,
        "winner": None
        if tuned.winner is None
        else {
            "transforms": sorted(tuned.winner.transforms),
            "workers": tuned.winner.workers,
            "prefetch": tuned.winner.prefetch,
            "amp": tuned.winner.amp.value if tuned.winner.amp else None,
            "compile_mode": tuned.winner.compile_mode.value if tuned.winner.compile_mode else None,
            "batch_size": tuned.winner.batch_size,
        },
        "seconds": tuned.seconds,
        "resumed": tuned.resumed,
        "trials": [_trial_json(trial) for trial in tuned.trials],
        "batch_sizes": [_trial_json(trial) for trial in tuned.batch_sizes],
        "verified": verified is not None and verified.ending is Ending.VERIFIED,
        "verification": None if verified is None else verified_json(verified),
    }
    return json.dumps(document, indent=2) + "\n"
