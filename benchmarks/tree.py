"""A dry run over a tree of Python files against TorchFix on the same tree, side by side, and the memory it takes.

    python -m benchmarks.tree FOLDER --torchfix PROGRAM

TorchFix (https://github.com/meta-pytorch/torchfix) also reads every file and resolves names; it runs with all its rules,
in the same number of processes as torchopt (``--jobs``, default 1). Both are run in turn, after a first run that does not count; the medians of
the CPU times are compared, since CPU time depends less than wall time on what else the machine does. The memory is the peak of a dry run over the tree, and over several
copies of it in one folder: what each further file adds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 5
COPIES = 4
TORCHOPT = [sys.executable, "-m", "torchopt_cli.optimizer.cli", "rewrite", "--dry-run"]


@dataclass(frozen=True)
class Cost:
    """``cpu_seconds``: user and system time, that of child processes included. ``peak_mib``: the largest resident size."""

    cpu_seconds: float
    peak_mib: float


def cost(command: list[str], folder: Path) -> Cost:
    """What running ``command`` in ``folder`` takes; both programs exit with 0 or 1 here, anything else is an error."""
    devnull = subprocess.DEVNULL
    process = subprocess.Popen(
        command, cwd=folder, env=_ENVIRONMENT, stdout=devnull, stderr=devnull
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1, 2):
        raise RuntimeError(f"{command[0]} ended with {process.returncode}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / _RSS_UNITS_PER_MIB)


_ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""Both find their modules compiled, as every run but the first does."""
_RSS_UNITS_PER_MIB = 2**20 if sys.platform == "darwin" else 2**10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--torchfix", default="torchfix", help="the program to compare with")
    parser.add_argument("--jobs", type=int, default=1, help="the processes of both programs")
    arguments = parser.parse_args()
    tree = arguments.folder.resolve()
    jobs = f"-j{arguments.jobs}"
    files = sum(1 for _ in tree.rglob("*.py"))
    theirs_command = [arguments.torchfix, "--select=ALL", jobs, "."]
    ours: list[Cost] = []
    theirs: list[Cost] = []
    for command in ([*TORCHOPT, jobs, "."], theirs_command):
        cost(command, tree)  # compiles the modules
    for _ in range(ROUNDS):
        ours.append(cost([*TORCHOPT, jobs, "."], tree))
        theirs.append(cost(theirs_command, tree))
    mine = statistics.median(c.cpu_seconds for c in ours)
    other = statistics.median(c.cpu_seconds for c in theirs)
    print(
        f"{files} Python files, {arguments.jobs} process(es) each, median CPU time of {ROUNDS} runs in turn"
    )
    print(f"torchopt rewrite --dry-run  {mine:6.2f} s")
    print(f"torchfix --select=ALL       {other:6.2f} s")
    print(f"ratio                       {mine / other:6.2f}")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(COPIES):
            shutil.copytree(tree, Path(folder) / f"copy{number}")
        several = cost([*TORCHOPT, jobs, "."], Path(folder)).peak_mib
    one = max(c.peak_mib for c in ours)
    further = (several - one) * 1024 / (files * (COPIES - 1))
    print(f"peak memory                 {one:6.0f} MiB, {several:.0f} MiB for {COPIES} copies")
    print(f"each further file           {further:6.0f} KiB")


if __name__ == "__main__":
    main()
