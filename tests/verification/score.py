"""Who checks the checker: wrong rewrites that verify catches, correct ones that it does not alarm about.

``python -m tests.verification.score [--seeds 0 1 2] [--only PATTERN ...] [--jobs N] [--gpu] [--json FILE]`` verifies every patch of
``mutants/`` and ``controls/`` against its corpus script (see :mod:`.cases`) and prints per class **caught / mutants** and
**false alarms / controls**. A mutant is caught when the verdict is *not equivalent* and its reason is one that the
patch names; a control is a false alarm unless the verdict is *equivalent*. Exit code 1 when there is anything else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby, product
from pathlib import Path

from torchopt_cli.optimizer.comparison.verdict import Outcome
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.verifying.original_runs import OriginalRuns, original_runs
from torchopt_cli.optimizer.verifying.result import VerificationReport
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.optimizer.verifying.verification import verify_against

from .cases import HERE, Case, cases, script_folder
from .warm import warm_interpreter

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

STEPS = 80
"""More than any script takes with the arguments of scripts.toml, so that its end is seen."""
TIME_LIMIT_S = 300.0


@dataclass(frozen=True)
class Result:
    """What verify said of one case with one seed. ``right``: it caught the mutant, or did not alarm."""

    case: str
    group: str
    seed: int
    right: bool
    outcome: str
    reason: str
    complaint: str | None
    seconds: float


@dataclass(frozen=True)
class Laboratory:
    """Where scripts are run: with which interpreter, from which folder, on which data; with ``on_gpu`` no device is emulated."""

    python: Path
    folder: Path
    on_gpu: bool = False

    def arguments(self, script: str) -> tuple[str, ...]:
        """The script's arguments, its data among them."""
        known = tomllib.loads((HERE / "scripts.toml").read_text(encoding="utf-8"))
        if script not in known:  # small, with nothing to choose
            return ()
        return (*known[script]["args"], "--data", str(self.folder / "data" / script))

    def prepare(self, script: str) -> None:
        """Run the script once, so that its data are there."""
        scratch = self.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        command = [
            str(self.python),
            str(script_folder(script) / "train.py"),
            *self.arguments(script),
        ]
        done = subprocess.run(command, cwd=scratch, capture_output=True, timeout=TIME_LIMIT_S)
        if done.returncode:
            message = done.stderr.decode(errors="replace")[-2000:]
            raise RuntimeError(f"{script} fails by itself:\n{message}")

    def verify(self, case: Case, seed: int, runs: OriginalRuns) -> VerificationReport:
        """The verification of one case against the original's runs. Raises BadCase for a stale patch."""
        entry = case.folder / "train.py"
        version = ScriptVersion(entry, case.changed(), self.arguments(case.script), case.processes)
        settings = VerifySettings(
            self.python if case.processes is None else Path(sys.executable),
            self.folder,
            tier=case.tier,
            steps=STEPS,
            seed=seed,
            timeout_s=TIME_LIMIT_S,
            measure_speed=False,
            env={"OMP_NUM_THREADS": "1"},
            emulated_gpus=int(case.emulated and not self.on_gpu),
        )
        return verify_against(runs, version, settings)


@contextmanager
def laboratory(*, on_gpu: bool = False) -> Iterator[Laboratory]:
    """One with a warm interpreter and a temporary folder; without ``on_gpu`` scripts see no GPU but an emulated one."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="torchopt-"))
        python = stack.enter_context(warm_interpreter(gpus=on_gpu))
        yield Laboratory(python, Path(folder), on_gpu)


def complaint(case: Case, report: VerificationReport) -> str | None:
    """What is wrong with the verdict on ``case``, None when nothing is."""
    if report.verdict is None:
        return f"the original failed: {report.original_failure}"
    verdict = report.verdict
    if not case.wrong:
        right = verdict.outcome is Outcome.EQUIVALENT
        return None if right else f"false alarm: {verdict.outcome.value}, {verdict.reason}"
    if verdict.outcome is not Outcome.NOT_EQUIVALENT:
        return f"missed: {verdict.outcome.value}, {verdict.reason}"
    if case.unseen is not None:
        return f"is seen after all: {verdict.reason}"
    first = verdict.failures[0]
    if first.kind not in case.findings:
        return f"caught for another reason: {verdict.reason}"
    if case.step is not None and (first.step is None or first.step > case.step):
        return f"caught later than step {case.step}: {verdict.reason}"
    return None


def score_script(
    lab: Laboratory, script: str, wanted: Sequence[Case], seeds: Sequence[int]
) -> list[Result]:
    """The results of all cases of one script; the original's runs are shared by all cases of a seed."""
    results: list[Result] = []
    try:
        lab.prepare(script)
    except RuntimeError as error:
        for seed, case in product(seeds, wanted):
            told = Result(
                case.name, case.group, seed, False, "original failed", "", str(error), 0.0
            )
            print(line(told), flush=True)
            results.append(told)
        return results
    for seed in seeds:
        version = ScriptVersion(script_folder(script) / "train.py", args=lab.arguments(script))
        with original_runs(version) as runs:
            for case in wanted:
                started = time.perf_counter()
                report = lab.verify(case, seed, runs)
                said = complaint(case, report)
                if case.unseen is not None and said and said.startswith("missed: "):
                    said = None
                outcome = report.verdict.outcome.value if report.verdict else "original failed"
                reason = report.verdict.reason if report.verdict else ""
                seconds = time.perf_counter() - started
                result = Result(
                    case.name, case.group, seed, said is None, outcome, reason, said, seconds
                )
                print(line(result), flush=True)
                results.append(result)
    return results


def line(result: Result) -> str:
    """One result as it is shown while the score is being made."""
    mark = "ok  " if result.right else "BAD "
    return f"{mark}{result.case} (seed {result.seed}, {result.seconds:.0f} s): {result.complaint or result.reason}"


def table(results: Sequence[Result], known: Mapping[str, Case]) -> str:
    """Per class and together, over all seeds: caught / mutants and false alarms / controls."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for result in results:
        case = known[result.case]
        if case.unseen is not None:
            continue
        for row in (counts[result.group], counts["all"]):
            place = 0 if case.wrong else 2
            row[place] += result.right if case.wrong else not result.right
            row[place + 1] += 1
    rows = ["| class | caught / mutants | false alarms / controls |", "| --- | --- | --- |"]
    for group in [*sorted(counts.keys() - {"all"}), "all"]:
        caught, mutants, alarms, controls = counts[group]
        rows.append(f"| {group} | {caught} / {mutants} | {alarms} / {controls} |")
    unseen = [case for case in known.values() if case.unseen is not None]
    return "\n".join([*rows, *(f"not to be seen: {case.name}: {case.unseen}" for case in unseen)])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--only", nargs="+", default=["*"], help="parts of cases' names, or patterns"
    )
    parser.add_argument("--jobs", type=int, default=1, help="scripts verified at the same time")
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="on this machine's GPU, in place of an emulated one or none",
    )
    parser.add_argument("--json", type=Path, help="where to write every result")
    options = parser.parse_args()
    wanted = cases(*options.only)
    if not wanted:
        parser.error(f"no case is called {' or '.join(options.only)}")
    with laboratory(on_gpu=options.gpu) as lab, ThreadPoolExecutor(options.jobs) as pool:
        waiting = [
            pool.submit(score_script, lab, script, list(group), options.seeds)
            for script, group in groupby(wanted, lambda case: case.script)
        ]
        results = [result for one in waiting for result in one.result()]
    print("\n" + table(results, {case.name: case for case in wanted}))
    if options.json:
        options.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
    return 0 if all(result.right for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
