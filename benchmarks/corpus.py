"""Every corpus script: the original against torchopt's version and against the expert's.

``python -m benchmarks.corpus [--device cpu|cuda] [SCRIPT...]`` verifies and times both pairs for each script with the
arguments of its manifest, prints a table and writes it, with what it ran on, to ``benchmarks/results/<device>.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
CORPUS = ROOT / "corpus"
RESULTS = Path(__file__).parent / "results"


def verify(script: str, expert: bool, device: str, repeats: int, data: Path) -> dict[str, Any]:
    """The JSON report of one ``torchopt verify``, with the seconds it took left to it."""
    folder = CORPUS / script
    manifest = tomllib.loads((folder / "manifest.toml").read_text())
    arguments = [*manifest["gpu" if device == "cuda" else "cpu"]["args"], "--data", str(data)]
    prepare = [sys.executable, str(folder / "train.py"), *arguments]
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(prepare, cwd=scratch, check=True, capture_output=True)
        versions = [str(folder / "train.py")]
        if expert:
            versions += [str(folder / "expert.py"), "--tier", manifest["tier"]]
        command = [sys.executable, "-m", "torchopt_cli.optimizer.cli", "verify", *versions]
        command += [
            "--python",
            sys.executable,
            "--repeats",
            str(repeats),
            "--format",
            "json",
            "--",
            *arguments,
        ]
        result = subprocess.run(
            command, cwd=scratch, check=False, stdout=subprocess.PIPE, text=True
        )
    if not result.stdout.startswith("{"):
        return {
            "outcome": result.stdout.strip() or f"exit status {result.returncode}",
            "speed": None,
        }
    return json.loads(result.stdout)


def speed(report: dict[str, Any]) -> str:
    """The speedup of a report as the table shows it."""
    found = report["speed"]
    if not found or found["factor"] is None:
        return "-"
    text = f"{found['factor']:.2f}x [{found['low']:.2f}, {found['high']:.2f}]"
    return text if found["verdict"] in {"faster", "slower"} else f"{text}, too noisy to tell"


def table(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The results as a markdown table."""
    rows = ["| script | torchopt | speedup | expert | speedup |", "| --- | --- | --- | --- | --- |"]
    for script, pair in results.items():
        ours, expert = pair["torchopt"], pair["expert"]
        cells = [script, ours["outcome"], speed(ours), expert["outcome"], speed(expert)]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", help="folders of corpus/ (default: all)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each version")
    options = parser.parse_args()
    scripts = options.scripts or sorted(p.parent.name for p in CORPUS.glob("*/manifest.toml"))
    results: dict[str, dict[str, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as data:
        for script in scripts:
            place = Path(data) / script
            results[script] = {
                name: verify(script, name == "expert", options.device, options.repeats, place)
                for name in ("torchopt", "expert")
            }
            print(table({script: results[script]}).splitlines()[-1], flush=True)
    print("\n" + table(results))
    if not options.scripts:
        RESULTS.mkdir(exist_ok=True)
        machine = {
            "date": date.today().isoformat(),
            "cores": os.cpu_count(),
            "cpu": platform.machine(),
        }
        document = {"machine": machine, "results": results}
        (RESULTS / f"{options.device}.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
