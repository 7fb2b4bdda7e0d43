"""All that needs a GPU, in one command that may be cut into pieces: a GPU is often lent for minutes.

    python -m benchmarks.gpu [--minutes M] [--data FOLDER] [--output FOLDER]

The tests marked ``gpu`` and the verdicts on the corpus, of which several scripts are verified at the same time, for a part of the time;
the corpus timed; the bounds that ``profile`` gives beside what was saved. Results lie in ``benchmarks/results/``, and with ``--output`` copies of
what this command wrote of them in that folder. What is done is not done again: the same command goes on where time ran out, on another
machine as well where the results are there (with the same ``--data``, data is not made anew). Exits with 1 if a test failed, a
script could not be measured or something is left to do.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.verification.warm import COMPILES_BY_ITSELF
from torchopt_cli.optimizer.profiling.opportunities import usable_cores

from . import chart
from .equivalence import VERDICTS
from .machine import machine
from .results import RESULTS
from .scripts import ROOT

CORES_OF_A_VERIFICATION = 2
"""A run, and what loads its batches or compiles its kernels now and then."""
FEWEST_SECONDS = 20.0
"""Less is not enough for anything."""
GRACE_SECONDS = 15.0
"""What is told to end has this long to write what it knows."""
UNTIMED_SHARE = 0.4
"""Of the time, for the tests and the verdicts, which are made side by side: beyond that they are ended."""
TESTS_AT_ONCE = 4
RUN_SECONDS = 240.0
"""No run of a script may take longer where the time is short: one that hangs must not take all of it."""
MARK = "pytest.mark.gpu"
TESTS = "gpu-tests.json"
KEPT_VERDICTS = "gpu-verdicts.json"


class Session:
    """Commands that share the time until ``minutes`` are over, and their ``data`` and ``device``."""

    def __init__(self, minutes: float, data: Path, device: str) -> None:
        self._ends = time.monotonic() + 60.0 * minutes
        self.data, self.device = data, device

    @property
    def seconds_left(self) -> float:
        return self._ends - time.monotonic()

    @property
    def untimed_seconds(self) -> float:
        """What of them there is for what goes side by side."""
        return self.seconds_left * UNTIMED_SHARE

    def run(
        self,
        module: str,
        *arguments: str,
        seconds: float = math.inf,
        env: Mapping[str, str] | None = None,
    ) -> bool:
        """Run ``python -m module`` with ``env`` added to the environment, ``seconds`` at most; whether it ended well, and in time."""
        left = min(seconds, self.seconds_left)
        if left < FEWEST_SECONDS:
            print(f"no time left for {module}", file=sys.stderr)
            return False
        command = [sys.executable, "-m", module, *arguments]
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **(env or {})})
        try:
            return process.wait(left - GRACE_SECONDS if math.isfinite(left) else None) == 0
        except subprocess.TimeoutExpired:
            print(f"no time left: {module} is ended", file=sys.stderr)
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
            return False
        finally:
            process.kill()
            process.wait()


def tests(session: Session) -> bool:
    """Run the tests that need a GPU, unless they are known to pass; whether they do."""
    told = RESULTS / TESTS
    if told.exists() and passes(json.loads(told.read_text())):
        return True
    report = session.data / "gpu-tests.xml"
    report.unlink(missing_ok=True)
    # Only the files that have some: what others import need not be there.
    files = [str(p) for p in (ROOT / "tests").rglob("test_*.py") if MARK in p.read_text()]
    together = ["-n", str(TESTS_AT_ONCE)] if importlib.util.find_spec("xdist") else []
    arguments = ["-m", "gpu", "-q", f"--junit-xml={report}", *together, *files]
    # Beside the verifications: threads that wait for a core keep all others of their process waiting.
    few = {"OMP_NUM_THREADS": str(CORES_OF_A_VERIFICATION), **COMPILES_BY_ITSELF}
    ended_well = session.run("pytest", *arguments, seconds=session.untimed_seconds, env=few)
    outcome = outcome_of(report) | {"complete": ended_well, "machine": machine(session.device)}
    RESULTS.mkdir(exist_ok=True)
    told.write_text(json.dumps(outcome, indent=1) + "\n")
    print(f"{outcome['passed']} tests passed, {len(outcome['failed'])} failed")
    return passes(outcome)


def outcome_of(report: Path) -> dict[str, Any]:
    """How many tests of a JUnit file passed, which failed with what, and which were skipped."""
    outcome: dict[str, Any] = {"passed": 0, "failed": {}, "skipped": []}
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        name = f"{case.get('classname')}::{case.get('name')}"
        failure = next((found for found in case if found.tag in ("failure", "error")), None)
        if failure is not None:
            outcome["failed"][name] = failure.text or failure.get("message") or ""
        elif case.find("skipped") is not None:
            outcome["skipped"].append(name)
        else:
            outcome["passed"] += 1
    return outcome


def passes(outcome: dict[str, Any]) -> bool:
    """Whether all tests were run, and well."""
    return outcome["complete"] and outcome["passed"] > 0


def corpus_arguments(session: Session, scripts: Sequence[str]) -> tuple[str, ...]:
    """What every command about the corpus is given."""
    finite = math.isfinite(session.seconds_left)
    return (
        *(f"--device={session.device}", f"--data={session.data}"),
        *((f"--timeout={RUN_SECONDS}",) if finite else ()),
        *scripts,
    )


def verified(session: Session, scripts: Sequence[str], jobs: int) -> bool:
    """Verify what is made of the corpus, and make the data that it is timed on; whether there was time for that."""
    arguments = ("--verify-only", f"--jobs={jobs}", *corpus_arguments(session, scripts))
    return session.run("benchmarks.corpus", *arguments, seconds=session.untimed_seconds)


def measured(
    session: Session, scripts: Sequence[str], jobs: int, sweeps: int, together: int
) -> bool:
    """Measure the corpus, and then the estimates, as far as time goes; whether all is done."""
    minutes = (session.seconds_left - GRACE_SECONDS) / 60.0
    common = (f"--sweeps={sweeps}", *corpus_arguments(session, scripts))
    timing = ("--time-only", f"--minutes={minutes:.2f}", f"--together={together}", f"--jobs={jobs}")
    done = session.run("benchmarks.corpus", *timing, *common)
    return session.run("benchmarks.estimates", *common) and done


def bring_verdicts(data: Path) -> None:
    """Put the verdicts of the commands before beside the scripts' data, where there are none."""
    kept = RESULTS / KEPT_VERDICTS
    for name, verdicts in (json.loads(kept.read_text()) if kept.exists() else {}).items():
        place = data / name / VERDICTS
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(verdicts))


def keep_verdicts(data: Path) -> None:
    """Write the verdicts that lie beside the scripts' data into the results."""
    verdicts = {
        path.parent.name: json.loads(path.read_text())
        for path in sorted(data.glob(f"*/{VERDICTS}"))
    }
    if verdicts:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / KEPT_VERDICTS).write_text(json.dumps(verdicts, indent=1) + "\n")


def hand_over(output: Path | None, since: float) -> None:
    """Copy the results that were written ``since`` into ``output``."""
    if output is None or not RESULTS.exists():
        return
    output.mkdir(parents=True, exist_ok=True)
    for path in RESULTS.iterdir():
        if path.stat().st_mtime >= since:
            shutil.copy(path, output)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("scripts", nargs="*", help="folders of corpus/ (default: what is left)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after that long")
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "gpu", metavar="FOLDER")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="copy the results there")
    parser.add_argument("--sweeps", type=int, default=3, help="timed runs of each version")
    parser.add_argument("--together", type=int, default=2, help="scripts timed by turns")
    parser.add_argument("--jobs", type=int, help="scripts verified at the same time")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda", help="cpu: a trial")
    options = parser.parse_args(arguments)
    began = time.time()
    options.data.mkdir(parents=True, exist_ok=True)
    jobs = options.jobs or max(1, usable_cores() // CORES_OF_A_VERIFICATION)
    session = Session(options.minutes, options.data.absolute(), options.device)
    bring_verdicts(session.data)
    # Those that failed, or took too long, wait the next time until all else is done.
    again = (RESULTS / TESTS).exists()
    passed = options.device == "cpu"
    try:
        with ThreadPoolExecutor() as pool:
            testing = None if passed or again else pool.submit(tests, session)
            verified(session, options.scripts, jobs)
        passed = passed or (testing is not None and testing.result())
        done = measured(session, options.scripts, jobs, options.sweeps, options.together)
        passed = passed or (again and tests(session))
    finally:
        keep_verdicts(session.data)
        try:
            chart.main()
        except Exception:  # half of the results must not be lost for want of a picture
            traceback.print_exc()
        hand_over(options.output, began)
    return 0 if passed and done else 1


if __name__ == "__main__":
    sys.exit(main())
