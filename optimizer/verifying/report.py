"""Tell a verification: :func:`render_text` for people, :func:`to_json` for programs.

People read the verdict in the first line, then the figures it rests on, then what was run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..comparison.figures import StepFigures
from ..comparison.findings import Finding, Severity
from ..comparison.verdict import Outcome, Verdict
from ..measuring.measurement import Measurement, SpeedVerdict, VersionSpeed
from ..options import Tier
from ..terminal import counted, display_path, plain_table
from .curves import loss_curves
from .report_json import ORIGINAL_FAILED, original_failure, to_json
from .report_types import ReportJson
from .result import VerificationReport, exit_code

if TYPE_CHECKING:
    from rich.console import Console

    from ..execution.runner import ScriptVersion

__all__ = ["ReportJson", "exit_code", "render_text", "to_json"]

_ROWS = 12
_STYLES = {
    Outcome.EQUIVALENT: "bold green",
    Outcome.NOT_EQUIVALENT: "bold red",
    Outcome.INCONCLUSIVE: "bold yellow",
}


def render_text(report: VerificationReport, console: Console) -> None:
    """Print the report to ``console``."""
    _headline(report, console)
    failure = report.original_failure or report.rewritten_failure
    if failure is not None:
        console.print()
        console.print(failure.details.rstrip(), markup=False, highlight=False, soft_wrap=True)
    if report.verdict is not None:
        _findings(report.verdict, console)
        _step_table(report.verdict, console)
        _first_step(report.verdict, console)
        _ends(report, report.verdict, console)
    if report.measurement is not None:
        _speed_table(report.measurement, console)
        _advice(report, console)
    elif report.speed_note:
        _line(console, f"Speed: {report.speed_note}.")
    _what_was_run(report, console)


def _line(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _headline(report: VerificationReport, console: Console) -> None:
    verdict = report.verdict
    if verdict is None:
        how = " (emulated CUDA)" if _used_emulation(report) else ""
        _line(
            console, f"{ORIGINAL_FAILED.capitalize()}{how}: {original_failure(report)}", "bold red"
        )
        return
    speed = f"; {_speed_words(report.measurement)}" if report.measurement else ""
    how = ", emulated CUDA" if _used_emulation(report) else ""
    outcome = verdict.outcome.value.capitalize()
    text = f"{outcome} ({verdict.tier.label}{how}): {verdict.reason}{speed}"
    _line(console, text, _STYLES[verdict.outcome])
    if report.same_arithmetic and report.same_arithmetic.outcome is Outcome.EQUIVALENT:
        _line(console, f"With reduced precision switched off: {report.same_arithmetic.reason}.")


def _used_emulation(report: VerificationReport) -> bool:
    """Whether a script ran on emulated devices, or may have: one that fails tells no device."""
    versions = report.versions
    return bool(report.settings.emulated_gpus) and (versions is None or versions.device != "cpu")


def _speed_words(measurement: Measurement) -> str:
    speedup = measurement.speedup
    if speedup.verdict is SpeedVerdict.TOO_NOISY:
        return f"speed: {speedup}, too noisy to tell"
    return f"speed: {speedup} ({speedup.verdict.value}; 1.00x is no change)"


def _findings(verdict: Verdict, console: Console) -> None:
    told = {_finding_words(finding): finding for finding in verdict.findings}
    told.pop(f"{Severity.FAILURE.value}: {verdict.reason}", None)  # the headline says it
    if told:
        console.print()
    for words, finding in told.items():
        _line(console, words, "red" if finding.fails else "dim")


def _finding_words(finding: Finding) -> str:
    tensor = f" [{finding.tensor}]" if finding.tensor else ""
    return (
        f"{finding.severity.value}: {finding.kind.value}{finding.when}{tensor}: {finding.message}"
    )


def _step_table(verdict: Verdict, console: Console) -> None:
    if not verdict.steps:
        return
    several = len({step.optimizer for step in verdict.steps}) > 1
    table = plain_table()
    for heading in (
        "step",
        *(["optimizer"] if several else []),
        "loss",
        "rewritten",
        "difference",
        "allowed",
        "gradient norm",
        "rewritten",
    ):
        table.add_column(heading, justify="right")
    for step in _shown(verdict.steps):
        table.add_row(*_step_cells(step, several))
    console.print()
    console.print(table)


def _shown(steps: tuple[StepFigures, ...]) -> list[StepFigures]:
    """All of a short run; of a long one the first and the last few and some in between."""
    if len(steps) <= _ROWS:
        return list(steps)
    spread = {round(i * (len(steps) - 1) / (_ROWS - 1)) for i in range(_ROWS)}
    return [steps[index] for index in sorted(spread)]


def _step_cells(step: StepFigures, several: bool) -> list[str]:
    known = step.loss is not None and step.rewritten_loss is not None
    difference = abs((step.rewritten_loss or 0.0) - (step.loss or 0.0)) if known else None
    return [
        str(step.step),
        *([str(step.optimizer)] if several else []),
        _number(step.loss, ".6g"),
        _number(step.rewritten_loss, ".6g"),
        _number(difference, ".1e") if difference else ("0" if known else "-"),
        _number(step.allowed, ".1e") if step.allowed else "0",
        _number(step.grad_norm, ".5g"),
        _number(step.rewritten_grad_norm, ".5g"),
    ]


def _number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def _first_step(verdict: Verdict, console: Console) -> None:
    first: dict[str, int] = {}
    for vector in verdict.vectors:
        if vector.round > first.setdefault(vector.group, vector.round):
            continue
        near = vector.neighbour_cosine
        _line(
            console,
            f"{vector.what}, {vector.group}: cosine {vector.cosine:.5f}"
            + (f" (perturbed originals {near:.5f})" if near is not None else "")
            + f", {vector.norm_ratio:.4f} times as long, "
            f"relative distance {vector.distance:.1e} (allowed {vector.allowed:.1e})",
        )


def _ends(report: VerificationReport, verdict: Verdict, console: Console) -> None:
    """Both curves of a rewrite that changes training, and the end losses per seed."""
    changed = verdict.tier is Tier.SEMANTIC and verdict.outcome is not Outcome.EQUIVALENT
    if changed and console.encoding.startswith("utf"):
        for line in loss_curves(verdict.steps):
            _line(console, line)
    for end in report.seeds.ends if report.seeds else ():
        for name, values in (
            ("original ", [pair.original for pair in end.pairs]),
            ("rewritten", [pair.rewritten for pair in end.pairs]),
        ):
            told = "  ".join(f"{value:.5g}" for value in values)
            _line(console, f"end loss of optimizer {end.optimizer} per seed, {name} {told}")


def _speed_table(measurement: Measurement, console: Console) -> None:
    table = plain_table()
    table.add_column("")
    table.add_column("original", justify="right")
    table.add_column("rewritten", justify="right")
    ours, theirs = _speed_cells(measurement.original), _speed_cells(measurement.rewritten)
    for label, value in ours.items():
        if value != "-" or theirs[label] != "-":
            table.add_row(label, value, theirs[label])
    console.print()
    console.print(table)
    _line(console, f"Speed-up: {_speed_words(measurement).removeprefix('speed: ')}")
    if measurement.original.interlude_seconds is None:
        told = "no two evaluations or starts of an epoch were timed beside steps without one"
        _line(console, f"It is that of the steps: {told}.")
    _line(console, _break_even_words(measurement))
    unsettled = _unsettled_words(measurement)
    if unsettled is not None:
        _line(console, unsettled)


def _unsettled_words(measurement: Measurement) -> str | None:
    versions = {
        "the original": measurement.original,
        "the rewritten version": measurement.rewritten,
    }
    unsettled = [name for name, version in versions.items() if not version.settled]
    if not unsettled:
        return None
    which = "both versions" if len(unsettled) > 1 else unsettled[0]
    return f"Step times of {which} were still changing: a larger --steps times more, if the script makes them."


def _advice(report: VerificationReport, console: Console) -> None:
    """What to do about a rewrite of ours that does not pay on this machine."""
    ours = report.rewritten.overrides and report.rewritten.brought_by is None
    assert report.measurement is not None
    if ours and report.measurement.speedup.verdict is not SpeedVerdict.FASTER:
        _line(
            console,
            "`torchopt tune` keeps only what pays on this machine; --attribute measures each change.",
        )


def _speed_cells(version: VersionSpeed) -> dict[str, str]:
    rate = version.samples_per_second
    return {
        "median step": _duration(version.step_seconds),
        "evaluation, start of an epoch": _interlude(version),
        "samples per second": _number(rate, ".1f"),
        "waiting for data": f"{version.data_wait_share:.0%}",
        "start-up": _duration(version.startup_seconds),
        "first step": _duration(version.first_round_seconds),
        "first step, later runs": _duration(version.warm_first_round_seconds),
        "warm-up steps left out": str(version.warm_up_rounds),
        "peak device memory": _memory(version.device_memory),
        "peak host memory": _memory(version.host_memory),
    }


def _interlude(version: VersionSpeed) -> str:
    if version.interlude_seconds is None or version.interlude_rounds is None:
        return "-"
    # Workers that have the first batch ready make the start of an epoch shorter than a step.
    seconds = max(0.0, version.interlude_seconds)
    return f"{_duration(seconds)} every {version.interlude_rounds:.0f} steps"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _memory(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:.0f} MiB"


def _break_even_words(measurement: Measurement) -> str:
    steps = measurement.break_even_rounds
    if measurement.speedup.verdict is not SpeedVerdict.FASTER:
        return "Break-even: not told, since no gain per step was shown."
    if steps is None:
        return "Break-even: never; the steps do not win back what start-up and compilation cost."
    if steps == 0:
        return "Break-even: at once; start-up and first steps cost no more than the original's."
    noun = "step" if steps == 1 else "steps"
    return f"Break-even: after {steps} {noun}, start-up and compilation included."


def _what_was_run(report: VerificationReport, console: Console) -> None:
    versions, settings = report.versions, report.settings
    console.print()
    _line(console, f"original   {_command(report.original)}")
    _started(console, report.original)
    _line(console, f"rewritten  {_command(report.rewritten)}")
    if report.rewritten.brought_by:
        _line(console, f"           in the place of {display_path(report.rewritten.entry)}")
    elif report.rewritten.overrides:
        _line(console, "           as `torchopt rewrite` makes it")
    _started(console, report.rewritten)
    if versions is not None:
        on_cpu = versions.device == "cpu"
        device = "CPU (no GPU was used; a GPU's speeds are others)" if on_cpu else versions.device
        if settings.emulated_gpus and not on_cpu:
            device = f"{device} (computed on the CPU; a GPU of this machine would not be used)"
        _line(console, f"on         {device}, torch {versions.torch}, Python {versions.python}")
        if on_cpu and settings.emulated_gpus and report.verdict:
            told = "the emulated GPU was not used: with these arguments the script stays on the CPU"
            _line(console, f"           {told}")
        elif on_cpu and report.verdict and _is_for_a_gpu(report):
            _line(console, "           code for a GPU stayed off: --emulate-cuda compares it, too")
    _line(console, f"with       {settings.python}")
    _line(console, f"           {counted(report.runs, 'run')}, seed {settings.seed}")
    _what_was_seen(report, console)


def _started(console: Console, version: ScriptVersion) -> None:
    if version.processes:
        _line(console, f"           under torchrun, {counted(version.processes, 'process')}")


def _what_was_seen(report: VerificationReport, console: Console) -> None:
    seen = report.seen
    end = ", to the end of the script" if seen.completed else ""
    _line(
        console,
        f"seen       {counted(seen.steps, 'step')}{end}, {counted(seen.samples, 'sample')} read, "
        f"{seen.evaluated} in eval mode, {counted(seen.checkpoints, 'checkpoint')}",
    )
    if seen.completed or report.verdict is None:
        return
    beyond = [
        what
        for what, count in (
            ("evaluation in eval mode", seen.evaluated),
            ("checkpoint", seen.checkpoints),
        )
        if not count
    ]
    if seen.passes == 1:  # what would be another in every epoch has not been seen to be
        beyond.append("second epoch")
    if beyond:
        *most, last = beyond
        listed = f"{', no '.join(most)} and no {last}" if most else last
        missed = f"No {listed} within these steps, so none was compared"
        _line(console, f"{missed}: --steps N goes further.")


def _is_for_a_gpu(report: VerificationReport) -> bool:
    """Whether the rewrite speaks of CUDA in lines that the original does not have."""
    for path, text in report.rewritten.overrides.items():
        known = report.original.overrides.get(path)
        if known is None:
            known = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        lines = set(text.splitlines()) - set(known.splitlines())
        if any("cuda" in line for line in lines):
            return True
    return False


def _command(version: ScriptVersion) -> str:
    return " ".join([display_path(version.brought_by or version.entry), *version.args])
