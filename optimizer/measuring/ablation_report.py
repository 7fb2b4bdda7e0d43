"""Tell what each transform buys: :func:`render_text` for people, :func:`to_json` for programs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict

from ..terminal import display_path, path_from_here, plain_table
from .ablation import Ablation, Gain

if TYPE_CHECKING:
    from rich.console import Console


class GainJson(TypedDict):
    """See :class:`.ablation.Gain`; [``low``, ``high``] is the 95 % interval, null where there was one sweep only."""

    transforms: list[str]
    factor: float
    low: float | None
    high: float | None
    pays: bool


class AblationJson(TypedDict):
    """See :class:`.ablation.Ablation`."""

    script: str
    gains: list[GainJson]
    sweeps: int
    note: str | None


def to_json(ablation: Ablation) -> AblationJson:
    """The gains as plain values that ``json.dumps(..., allow_nan=False)`` takes."""
    return {
        "script": path_from_here(ablation.script),
        "gains": [_gain_json(gain) for gain in ablation.gains],
        "sweeps": ablation.sweeps,
        "note": ablation.note,
    }


def _gain_json(gain: Gain) -> GainJson:
    speedup = gain.speedup
    known = math.isfinite(speedup.high)
    return {
        "transforms": list(gain.transforms),
        "factor": speedup.factor,
        "low": speedup.low if known else None,
        "high": speedup.high if known else None,
        "pays": gain.pays,
    }


def render_text(ablation: Ablation, console: Console) -> None:
    """Print a table of the gains, and what does not pay."""
    console.print()
    title = f"What each transform buys in {display_path(ablation.script)}, added one by one:"
    console.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
    if ablation.note is not None:
        console.print(ablation.note, markup=False, highlight=False, soft_wrap=True)
        return
    table = plain_table()
    table.add_column("transform")
    table.add_column("speed-up", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("")
    for gain in ablation.gains:
        speedup = gain.speedup
        known = math.isfinite(speedup.high)
        table.add_row(
            ", ".join(gain.transforms),
            f"{speedup.factor:.2f}x",
            f"{speedup.low:.2f} to {speedup.high:.2f}" if known else "one sweep: none",
            "pays" if gain.pays else "not shown to pay",
            style="" if gain.pays else "yellow",
        )
    console.print(table)
