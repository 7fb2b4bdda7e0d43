"""Tell a profile to people: the bottleneck first, then the figures, then what could be done about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..execution.profile_record import Phase
from ..terminal import counted, plain_table, print_table
from .opportunities import NOTHING_ON_A_CPU, Opportunity, bottleneck, usable_cores, workers_needed
from .profile import StepProfile

if TYPE_CHECKING:
    from rich.console import Console

_ROWS = 10
_LABELS = {
    Phase.DATA: "data wait",
    Phase.COPY: "copy to device",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.CLEAR: "zero_grad",
    Phase.OPTIMIZER: "optimizer",
    Phase.EVALUATION: "evaluation",
    Phase.SYNC: "device sync",
    Phase.OTHER: "other",
}


def phase_label(phase: Phase) -> str:
    """What a phase of a step is called: ``zero_grad``."""
    return _LABELS[phase]


def render_text(
    profile: StepProfile, found: tuple[Opportunity, ...], console: Console, *, paths: str = ""
) -> None:
    """Print the profile to ``console``; ``paths`` is a folder that is left out of the paths shown."""
    _headline(profile, console)
    _phases(profile, console)
    _loader(profile, console)
    _syncs(profile, console, paths)
    _operators(profile, console)
    _opportunities(profile, found, console, paths)


def milliseconds(seconds: float) -> str:
    """``12.3 ms``, with three significant digits."""
    return f"{seconds * 1e3:.3g} ms"


def _rate(samples: float) -> str:
    """Samples per second, without an exponent."""
    return f"{samples:,.0f} samples/s" if samples >= 100 else f"{samples:.3g} samples/s"


def _line(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def _headline(profile: StepProfile, console: Console) -> None:
    samples = profile.batch_samples
    pace = f", {_rate(samples / profile.step_seconds)}" if samples else ""
    device = profile.versions.device if profile.versions else "unknown device"
    step = milliseconds(profile.step_seconds)
    _line(console, f"Bottleneck: {bottleneck(profile).value}", "bold")
    _line(console, f"{step} per step{pace} on {device}, median of undisturbed steps.")
    if profile.between_steps:
        whole = milliseconds(profile.round_seconds)
        _line(console, f"With its part of evaluations and starts of epochs it is {whole}.")
    resident = profile.resident_step_seconds
    if resident is not None and profile.loader is not None:
        factor = profile.step_seconds / resident
        _line(
            console,
            f"On a batch that is already on the device a step takes {milliseconds(resident)}: whatever is done about "
            f"the data cannot make it more than {factor:.2f}x as fast.",
        )
    if profile.device_busy_share is not None:
        _line(
            console,
            f"The device had nothing to do for {1 - profile.device_busy_share:.0%} of the time.",
        )


def _phases(profile: StepProfile, console: Console) -> None:
    table = plain_table()
    table.add_column("phase")
    for name in ("per step", "share", "peak memory"):
        table.add_column(name, justify="right")
    for part in sorted(profile.phases, key=lambda part: -part.seconds):
        memory = f"{part.memory / 2**20:.0f} MiB" if part.memory else "-"
        label = phase_label(part.phase)
        table.add_row(label, milliseconds(part.seconds), f"{part.share:.1%}", memory)
    print_table(console, "Where a step goes:", table)
    if not profile.on_cpu:
        _line(
            console,
            "The device was waited for after each phase, so they can add up to more than a step.",
        )


def _loader(profile: StepProfile, console: Console) -> None:
    loader = profile.loader
    if loader is None:
        return
    workers = counted(loader.workers, "worker") if loader.workers else "no workers"
    pace = loader.batch_samples / loader.batch_seconds if loader.batch_seconds else 0.0
    text = f"The loader alone, with {workers}: {milliseconds(loader.batch_seconds)} per batch, {_rate(pace)}."
    if not loader.workers:
        wanted = workers_needed(profile, usable_cores())
        noun = "worker" if wanted == 1 else "workers"
        text += f" {wanted} {noun} would do." if wanted else " Workers would not help here."
    _line(console, text)


def _syncs(profile: StepProfile, console: Console, paths: str) -> None:
    if not profile.syncs:
        return
    title = "Lines that wait for the device"
    if profile.on_cpu:
        title = "Lines that would wait for the device on a GPU"
    table = plain_table()
    table.add_column("line")
    table.add_column("call")
    for name in ("times per step", "per step"):
        table.add_column(name, justify="right")
    for point in profile.syncs[:_ROWS]:
        place = f"{point.path.removeprefix(paths)}:{point.line}"
        table.add_row(place, point.call, f"{point.calls:.3g}", milliseconds(point.seconds))
    print_table(console, f"{title}:", table)


def _operators(profile: StepProfile, console: Console) -> None:
    if not profile.operators:
        return
    table = plain_table()
    table.add_column("operator")
    for name in ("calls per step", "CPU per step", "device per step")[: 2 if profile.on_cpu else 3]:
        table.add_column(name, justify="right")
    for operator in profile.operators[:_ROWS]:
        device = () if profile.on_cpu else (milliseconds(operator.device_seconds),)
        calls = f"{operator.calls:.3g}"
        table.add_row(operator.name, calls, milliseconds(operator.self_seconds), *device)
    print_table(console, "Operators:", table)


def _opportunities(
    profile: StepProfile, found: tuple[Opportunity, ...], console: Console, paths: str
) -> None:
    if not found:
        _line(console, "torchopt rewrite would change nothing here.")
        return
    table = plain_table()
    for name in ("transform", "first at"):
        table.add_column(name)
    table.add_column("of a step", justify="right")
    table.add_column("from")
    for one in found:
        place = f"{str(one.path).removeprefix(paths)}:{one.line}"
        share = "-" if one.at_most is None else f"{one.at_most / profile.round_seconds:.1%}"
        table.add_row(one.transform, place, share, one.basis)
    print_table(console, "What `torchopt rewrite` would do, and could save at most:", table)
    if any(one.basis == NOTHING_ON_A_CPU for one in found):
        _line(
            console, "`torchopt profile --target cpu` tells what a rewrite for this CPU would do."
        )
    _line(console, "These are bounds, not promises: `torchopt verify` measures what they bring.")
