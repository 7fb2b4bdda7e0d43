"""Whether the gate catches what it is for, in a repository with a history, on the machine at hand.

    python -m benchmarks.gate [--clean 10]

Makes a small project under git and gates pull requests against its main branch on the CPU: one that only moves code
about (again and again: it has to pass each time), one that makes the step about a tenth slower, one that evaluates more slowly, one that
changes the training; and a committed rewrite of which the original has moved on. Prints a table, writes it to
``benchmarks/results/gate.json``, and exits with 1 if any gate was wrong.

The project's step takes half a millisecond of one thread: much shorter than what a busy machine gives a process at a time, so
that most steps are undisturbed and their median is that of the code. An interpreter that has torch imported runs the scripts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.verification.warm import warm_interpreter

from .machine import load, machine
from .results import RESULTS

TRAIN = """\
import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    inputs, targets = torch.randn(50, 64, 64), torch.randint(10, (50, 64))
    for epoch in range(100):
        for x, y in zip(inputs, targets):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()
        right = 0
        with torch.no_grad():
            for x, y in zip(inputs, targets):
                right += (model(x).argmax(dim=1) == y).sum().item()
        model.train()
        print(f"epoch {epoch}: loss {loss.item():.4f}, {right} of {targets.numel()} right")


if __name__ == "__main__":
    main()
"""
STEP = "            loss = nn.functional.cross_entropy(model(x), y)\n"
# The first layer once more makes the step about a tenth longer.
SLOW = STEP + "            with torch.no_grad():\n                model[0](x)\n"
EVALUATION = "                right += (model(x)"
# Two forward passes more for every batch make an epoch, of which evaluation is a ninth, about 15 % longer.
SLOW_EVALUATION = f"                model(x), model(x)\n{EVALUATION}"
TIDY = STEP.replace("loss = ", "output = model(x)\n            loss = ").replace(
    "(model(x)", "(output"
)
WRONG = "momentum=0.9, weight_decay=0.01"
FAST = TRAIN.replace("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=True)")
PASSES, NOT_EQUIVALENT, NOT_FAST_ENOUGH = 0, 3, 4


@dataclass(frozen=True)
class Case:
    """What is gated: the working tree's ``files``, how, and the exit status that is right."""

    name: str
    files: dict[str, str]
    arguments: tuple[str, ...]
    expected: int


AGAINST_MAIN = ("train.py", "--base", "main")
CLEAN = Case("only moves code", {"train.py": TRAIN.replace(STEP, TIDY)}, AGAINST_MAIN, PASSES)
CASES = (
    Case("a tenth slower", {"train.py": TRAIN.replace(STEP, SLOW)}, AGAINST_MAIN, NOT_FAST_ENOUGH),
    Case(
        "a slower evaluation",
        {"train.py": TRAIN.replace(EVALUATION, SLOW_EVALUATION)},
        AGAINST_MAIN,
        NOT_FAST_ENOUGH,
    ),
    Case(
        "another training",
        {"train.py": TRAIN.replace("momentum=0.9", WRONG)},
        AGAINST_MAIN,
        NOT_EQUIVALENT,
    ),
    Case(
        "a stale rewrite",
        {"train.py": TRAIN.replace("lr=0.05", "lr=0.04"), "fast.py": FAST},
        ("fast.py", "--original", "train.py", "--minimum-speedup", "0.95"),
        NOT_EQUIVALENT,
    ),
)


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", *identity, "-C", str(folder), *arguments]
    subprocess.run(command, check=True, capture_output=True)


def gate(folder: Path, case: Case, python: Path) -> tuple[int, str]:
    """The exit status of one gate, and the line it printed about the script."""
    git(folder, "checkout", "-q", "-B", "change", "main")
    for name, text in case.files.items():
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", case.name)
    command = [sys.executable, "-m", "torchopt_cli.optimizer.cli", "gate", *case.arguments]
    command += ["--device", "cpu", "--python", str(python)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, (done.stdout or done.stderr).splitlines()[0]


def gated(folder: Path, cases: Sequence[Case], python: Path) -> Iterator[dict[str, Any]]:
    """Make the project in ``folder``, and gate one case after the other."""
    git(folder, "init", "-q", "-b", "main")
    (folder / "train.py").write_text(TRAIN)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "train")
    for case in cases:
        started, before = time.monotonic(), load()
        status, told = gate(folder, case, python)
        yield {
            "change": case.name,
            "seconds": round(time.monotonic() - started, 1),
            "load": before,
            "expected": case.expected,
            "status": status,
            "told": told,
        }


def row(gate: dict[str, Any]) -> str:
    right = "yes" if gate["status"] == gate["expected"] else f"no: {gate['status']}"
    return f"| {gate['change']} | {gate['seconds']:.0f} | {right} | {gate['told']} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--clean", type=int, default=10, help="gates of the clean change")
    options = parser.parse_args(arguments)
    cases = (*CASES, *(CLEAN,) * options.clean)
    done: list[dict[str, Any]] = []
    print("| change | seconds | right | what the gate said |\n| --- | ---: | --- | --- |")
    with tempfile.TemporaryDirectory() as temporary, warm_interpreter() as python:
        for gate in gated(Path(temporary), cases, python):
            done.append(gate)
            print(row(gate), flush=True)
    wrong = sum(gate["status"] != gate["expected"] for gate in done)
    document = {"machine": machine("cpu"), "wrong": wrong, "gates": done}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "gate.json").write_text(json.dumps(document, indent=1) + "\n")
    print(f"\n{wrong} of {len(done)} gates were wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
