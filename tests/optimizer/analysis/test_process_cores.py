from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.loading.process_cores import core_counts
from torchopt_cli.optimizer.analysis.script import TrainingScript

SCRIPT = """\
import argparse
import multiprocessing
import os
import psutil
from torch.utils.data import DataLoader
{before}
loader = DataLoader(data, num_workers={workers})
"""
GRANTED = (
    "len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1"
)


@pytest.mark.parametrize(
    ("before", "workers", "code", "name"),
    [
        ("", "os.cpu_count()", "os.cpu_count()", None),
        ("", "min(8, os.cpu_count() or 1)", "os.cpu_count() or 1", None),
        ("", "multiprocessing.cpu_count() - 1", "multiprocessing.cpu_count() - 1", None),
        ("", "max(1, os.cpu_count() // 2)", "os.cpu_count() // 2", None),
        ("", "int(os.cpu_count() / 2)", "int(os.cpu_count() / 2)", None),
        ("", "math.ceil(os.cpu_count() / 2)", "os.cpu_count()", None),
        ("", "16 - os.cpu_count()", "os.cpu_count()", None),
        (f"cores = {GRANTED}", "min(8, cores)", GRANTED, "cores"),
        (f"cores = {GRANTED}\nn = min(8, cores)", "n", GRANTED, "cores"),
        (
            "config = {'workers': psutil.cpu_count(False)}",
            "config['workers']",
            "psutil.cpu_count(False)",
            None,
        ),
        (
            "parser = argparse.ArgumentParser()\n"
            "parser.add_argument('--workers', type=int, default=os.cpu_count())\nargs = parser.parse_args()",
            "args.workers",
            "os.cpu_count()",
            None,
        ),
    ],
    ids=[
        "call",
        "no less than one",
        "all but one",
        "half",
        "half as an integer",
        "half rounded by a function",
        "rest",
        "variable",
        "two variables",
        "dict",
        "option",
    ],
)
def test_workers_counted_from_the_cores(
    before: str,
    workers: str,
    code: str,
    name: str | None,
    script: Callable[[str], TrainingScript],
) -> None:
    understood = script(SCRIPT.format(before=before, workers=workers))
    (count,) = core_counts(understood.resolver, understood.loaders)
    assert count.module.code(count.node) == code
    assert count.name == name


@pytest.mark.parametrize(
    ("before", "workers"),
    [
        ("", "4"),
        ("cores = os.cpu_count()", "4"),
        ("def cpu_count(): return 4", "cpu_count()"),
        ("n = unknown(os.environ)", "n"),
    ],
    ids=["number", "counted for something else", "function of the script's own", "unknown"],
)
def test_other_workers(before: str, workers: str, script: Callable[[str], TrainingScript]) -> None:
    understood = script(SCRIPT.format(before=before, workers=workers))
    assert core_counts(understood.resolver, understood.loaders) == []


def test_one_count_of_two_loaders(script: Callable[[str], TrainingScript]) -> None:
    code = SCRIPT.format(before="n = os.cpu_count()", workers="n")
    understood = script(code + "DataLoader(data, num_workers=n)\n")
    assert len(core_counts(understood.resolver, understood.loaders)) == 1
