"""What workers need that are not forked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.loading.spawning import (
    names_set_in,
    starts_workers_by_fork,
    unpicklable,
)
from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.options import Options

Script = Callable[..., TrainingScript]
FORKING = Options(platform="linux", python_version=(3, 12))
SPAWNING = Options(platform="darwin", python_version=(3, 12))
HEAD = """\
import multiprocessing
import torch.multiprocessing as mp
from functools import partial
from torch.utils.data import DataLoader
def top(x):
    return x
def make():
    def inner(x):
        return x
    class Local:
        pass
    return inner, Local()
class Items:
    def __init__(self, f):
        self.f = f
    def method(self, batch):
        return batch
    def __getitem__(self, i):
        return self.f(i)
class Keeps:
    def __init__(self):
        self.f = lambda x: x
    def __getitem__(self, i):
        return self.f(i)
"""


@pytest.mark.parametrize(
    ("code", "forks"),
    [
        ("DataLoader(x)", (True, False)),
        ("DataLoader(x, multiprocessing_context='spawn')", (False, False)),
        ("DataLoader(x, multiprocessing_context='fork')", (True, True)),
        ("DataLoader(x, multiprocessing_context=context())", (False, False)),
        ("mp.set_start_method('forkserver')\nDataLoader(x)", (False, False)),
        ("multiprocessing.set_start_method(method())\nDataLoader(x)", (False, False)),
        ("mp.set_start_method('fork')\nDataLoader(x)", (True, True)),
    ],
)
def test_start_method(script: Script, code: str, forks: tuple[bool, bool]) -> None:
    understood = script(HEAD + code + "\n")
    (loader,) = understood.loaders
    asked = [starts_workers_by_fork(understood.resolver, loader, o) for o in (FORKING, SPAWNING)]
    assert tuple(asked) == forks


@pytest.mark.parametrize(
    ("loader", "problem"),
    [
        ("DataLoader(Items(top))", None),
        ("DataLoader(Items(partial(top)))", None),
        ("DataLoader(Items(lambda x: x))", "a lambda does not pickle"),
        ("DataLoader(Items([top, lambda x: x]))", "a lambda does not pickle"),
        (
            "DataLoader(Items(make()[0]))",
            "`inner` is defined inside a function and does not pickle",
        ),
        (
            "DataLoader(Items(make()[1]))",
            "`Local` is defined inside a function and does not pickle",
        ),
        ("DataLoader(Keeps())", "a lambda does not pickle"),
        ("DataLoader(Items(top), collate_fn=lambda b: b)", "a lambda does not pickle"),
        (
            "DataLoader(Items(top), worker_init_fn=make()[0])",
            "`inner` is defined inside a function and does not pickle",
        ),
        ("DataLoader(Items(top), collate_fn=Items(top).method)", None),
    ],
)
def test_unpicklable(script: Script, loader: str, problem: str | None) -> None:
    understood = script(f"{HEAD}{loader}\n")
    (found,) = understood.loaders
    answer = unpicklable(understood.resolver, found, understood.datasets[found])
    assert (None if answer is None else answer[1]) == problem


def test_names_a_child_lacks(script: Script) -> None:
    code = """\
from torch.utils.data import DataLoader
from lib import load
ROOT = "x"
class Items:
    def __getitem__(self, i):
        local = ROOT, SIZE, SIZE, both, load, len
        return local
if load:
    both = 1
if __name__ == "__main__":
    SIZE = 3
    both = 2
    loader = DataLoader(Items())
"""
    understood = script(code)
    ((dataset,),) = understood.datasets.values()
    entry = understood.entry
    guarded = entry.main_guards[0].body
    found = names_set_in(understood.resolver, guarded, dataset.item_code, entry)
    assert [name for name, _ in found] == ["SIZE", "both"]
