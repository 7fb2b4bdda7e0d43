"""All that needs a GPU, in one command that may be cut into pieces: a GPU is often lent for minutes.

    python -m benchmarks.gpu [--minutes M] [--data FOLDER] [--output FOLDER]

The tests marked ``gpu``; the corpus, of which several scripts are verified at the same time and each is timed alone; the bounds that
``profile`` gives beside what was saved. Results lie in ``benchmarks/results/``, and with ``--output`` copies of them in that
folder. What is done is not done again: the same command with the same ``--data`` goes on where time ran out. Exits with 1
if a test failed, a script could not be measured or something is left to do.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchopt_cli.optimizer.profiling.opportunities import usable_cores

from . import chart
from .machine import machine
from .results import RESULTS
from .scripts import ROOT

CORES_OF_A_VERIFICATION = 3
"""A run, its loading workers, and what compiles its kernels."""
FEWEST_SECONDS = 20.0
"""Less is not enough for anything."""
TESTS = RESULTS / "gpu-tests.json"


class Session:
    """Commands that share the time until ``minutes`` are over, and their ``data`` and ``device``."""

    def __init__(self, minutes: float, data: Path, device: str) -> None:
        self._ends = time.monotonic() + 60.0 * minutes
        self.data, self.device = data, device

    @property
    def seconds_left(self) -> float:
        return self._ends - time.monotonic()

    def run(self, module: str, *arguments: str) -> bool:
        """Run ``python -m module``; whether it ended well, and in time."""
        left = self.seconds_left
        if left < FEWEST_SECONDS:
            print(f"no time left for {module}", file=sys.stderr)
            return False
        command = [sys.executable, "-m", module, *arguments]
        try:
            timeout = left if math.isfinite(left) else None
            return subprocess.run(command, cwd=ROOT, check=False, timeout=timeout).returncode == 0
        except subprocess.TimeoutExpired:
            print(f"no time left: {module} was ended", file=sys.stderr)
            return False


def tests(session: Session) -> bool:
    """Run the tests that need a GPU, unless they are known to pass; whether they do."""
    if TESTS.exists() and json.loads(TESTS.read_text())["failed"] == []:
        return True
    report = session.data / "gpu-tests.xml"
    report.unlink(missing_ok=True)
    session.run("pytest", "-m", "gpu", "-q", f"--junit-xml={report}")
    if not report.exists():
        return False
    outcome = outcome_of(report) | {"machine": machine(session.device)}
    TESTS.write_text(json.dumps(outcome, indent=1) + "\n")
    print(f"{outcome['passed']} tests passed, {len(outcome['failed'])} failed")
    return outcome["passed"] > 0 and not outcome["failed"]


def outcome_of(report: Path) -> dict[str, Any]:
    """How many tests of a JUnit file passed, which failed and which were skipped."""
    outcome: dict[str, Any] = {"passed": 0, "failed": [], "skipped": []}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            outcome["failed"].append(name)
        elif case.find("skipped") is not None:
            outcome["skipped"].append(name)
        else:
            outcome["passed"] += 1
    return outcome


def measured(session: Session, scripts: Sequence[str], jobs: int, sweeps: int) -> bool:
    """Measure the corpus, and then the estimates, as far as time goes; whether all is done."""
    common = (
        *(f"--device={session.device}", f"--data={session.data}", f"--sweeps={sweeps}"),
        *scripts,
    )
    minutes = session.seconds_left / 60.0
    done = session.run("benchmarks.corpus", f"--minutes={minutes:.2f}", f"--jobs={jobs}", *common)
    return session.run("benchmarks.estimates", *common) and done


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("scripts", nargs="*", help="folders of corpus/ (default: what is left)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after that long")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "gpu", metavar="FOLDER")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="copy the results there")
    parser.add_argument("--sweeps", type=int, default=3, help="timed runs of each version")
    parser.add_argument("--jobs", type=int, help="scripts verified at the same time")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda", help="cpu: a trial")
    options = parser.parse_args(arguments)
    options.data.mkdir(parents=True, exist_ok=True)
    jobs = options.jobs or max(1, usable_cores() // CORES_OF_A_VERIFICATION)
    session = Session(options.minutes, options.data.absolute(), options.device)
    passed = options.device == "cpu" or tests(session)
    done = measured(session, options.scripts, jobs, options.sweeps)
    chart.main()
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        for path in RESULTS.iterdir():
            shutil.copy(path, options.output)
    return 0 if passed and done else 1


if __name__ == "__main__":
    sys.exit(main())
