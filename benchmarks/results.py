"""The committed results of the corpus benchmark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
DEVICES = ("cpu", "cuda")


def read_results(device: str) -> dict[str, Any]:
    """The results by script; empty when there are none."""
    path = RESULTS / f"{device}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_results(device: str, results: Mapping[str, Any]) -> None:
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(dict(sorted(results.items())), indent=1) + "\n"
    (RESULTS / f"{device}.json").write_text(text, encoding="utf-8")


def read_failures(device: str) -> dict[str, str]:
    """Why scripts could not be measured, by script."""
    return read_results(f"failures-{device}")


def write_failures(device: str, failures: Mapping[str, str]) -> None:
    write_results(f"failures-{device}", failures)


def conditions(results: Mapping[str, Any]) -> str:
    """What the results were measured on, in a line; several machines are all named."""
    found: dict[str, None] = {}
    for result in results.values():
        one = result["machine"]
        driver = f", driver {one['driver']}" if one.get("driver") else ""
        device = f"{one['gpu']}{driver}" if one["gpu"] else f"{one['cpu']}, {one['cores']} cores"
        found[f"{device}, torch {one['torch']}, Python {one['python']}"] = None
    dates = sorted({result["machine"]["date"] for result in results.values()})
    loads = [load for result in results.values() for load in result["load"]]
    busy = f"load average {min(loads):.1f} to {max(loads):.1f}" if loads else ""
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return "; ".join([*found, busy, days])
