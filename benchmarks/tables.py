"""The tables of the committed results, for the terminal and for the README."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .results import DEVICES, conditions, read_results

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- benchmarks.corpus: begin -->\n", "<!-- benchmarks.corpus: end -->"
FULL = (
    *("script", "original", "torchopt", "speedup", "expert", "of what the expert saves"),
    *("of the speed of light", "CPU time", "peak memory", "TorchFix", "equivalence"),
)
SHORT = (
    *("script", "a step", "torchopt", "expert", "speed of light"),
    *("CPU time a step", "original / torchopt", "equivalence"),
)


def full_table(results: Mapping[str, Any]) -> str:
    """All there is to say about each script, as markdown."""
    tuned = _tuned_column(results)
    rows: list[tuple[str, ...]] = []
    for name, result in results.items():
        versions = result["versions"]
        original, ours, expert = (versions[v] for v in ("original", "torchopt", "expert"))
        rows.append(
            (
                f"`{name}`",
                milliseconds(original),
                milliseconds(ours),
                ratio(ours),
                *(peer(versions.get("tuned")) for _ in tuned),
                ratio(expert),
                percent(share_of_expert(ours, expert)),
                percent(share_of_light(versions)),
                ratio(ours, "processor_ratio"),
                f"{mebibytes(original)} → {mebibytes(ours)}",
                peer(versions.get("torchfix")),
                verdict(ours),
            )
        )
    return _markdown((*FULL[:4], *tuned, *FULL[4:]), rows)


def short_table(results: Mapping[str, Any]) -> str:
    """What the README shows of each script."""
    tuned = _tuned_column(results)
    rows: list[tuple[str, ...]] = []
    for name, result in results.items():
        versions = result["versions"]
        ours, expert = versions["torchopt"], versions["expert"]
        light = percent(share_of_light(versions))
        rows.append(
            (
                f"`{name}`",
                milliseconds(versions["original"]),
                ratio(ours),
                *(peer(versions.get("tuned")) for _ in tuned),
                ratio(expert),
                light,
                milliseconds(versions["original"], "processor_seconds"),
                ratio(ours, "processor_ratio"),
                verdict(ours),
            )
        )
    return _markdown((*SHORT[:3], *tuned, *SHORT[3:]), rows)


def _tuned_column(results: Mapping[str, Any]) -> tuple[str, ...]:
    """The heading of the tuned versions, where there is any."""
    return ("tuned",) if any("tuned" in r["versions"] for r in results.values()) else ()


def _markdown(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    rule = ("---", *("---:",) * (len(headings) - 2), "---")
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, rule, *rows))


def peer(version: Mapping[str, Any] | None) -> str:
    """What came of a version that not every script has: a note such as ``nothing to fix``, or its speedup."""
    if version is None:
        return "-"
    return version.get("note") or ratio(version)


def milliseconds(version: Mapping[str, Any], what: str = "round_seconds") -> str:
    if "failed" in version:
        return "fails"
    return f"{1e3 * version[what]:.3g} ms" if what in version else "-"


def ratio(version: Mapping[str, Any], what: str = "speedup") -> str:
    """``1.50x [1.40, 1.62]``."""
    if what not in version:
        return "-"
    found = version[what]
    if found["low"] is None:
        return f"{found['factor']:.2f}x"
    return f"{found['factor']:.2f}x [{found['low']:.2f}, {found['high']:.2f}]"


def share_of_expert(ours: Mapping[str, Any], expert: Mapping[str, Any]) -> float | None:
    """The part of the time the expert saved that torchopt saved; None where the expert's saving is not shown."""
    if "speedup" not in ours or "speedup" not in expert:
        return None
    if (expert["speedup"]["low"] or 0.0) <= 1.0:
        return None
    saved = (1 - 1 / version["speedup"]["factor"] for version in (ours, expert))
    mine, theirs = saved
    return mine / theirs


def share_of_light(versions: Mapping[str, Any]) -> float | None:
    """How near torchopt's version comes to the same on a batch that is there already."""
    ours, light = versions["torchopt"], versions.get("light", {})
    reads_a_loader = versions["original"]["data_wait_share"] > 0.0
    if "round_seconds" not in ours or "round_seconds" not in light or not reads_a_loader:
        return None
    return light["round_seconds"] / ours["round_seconds"]


def percent(share: float | None) -> str:
    return "-" if share is None or not math.isfinite(share) else f"{share:.0%}"


def mebibytes(version: Mapping[str, Any]) -> str:
    """The main process's peak, and the largest worker's where there is one."""
    if not version.get("host_memory"):
        return "-"
    host = f"{version['host_memory'] / 2**20:.0f}"
    worker = version.get("worker_memory")
    return f"{host} + {worker / 2**20:.0f} MiB" if worker else f"{host} MiB"


def verdict(version: Mapping[str, Any]) -> str:
    if "outcome" not in version:
        return version.get("failed", "-")
    return f"{version['outcome']} ({version['tier']})"


def readme_block() -> str:
    """What stands between the README's marks: a table for each device that was measured on."""
    parts: list[str] = []
    for device in DEVICES:
        if results := read_results(device):
            told = f"{conditions(results)}:"
            parts.append(f"{told}\n\n{short_table(results)}\n")
    return "\n".join(parts)


def write_readme() -> None:
    text = README.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    README.write_text(f"{before}{BEGIN}{readme_block()}{END}{after}", encoding="utf-8")
