"""What of an item's code changes things that outlive it."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.analysis.loading.item_state import stored_changes
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]

CHANGES = [
    "self.last = i",
    "self.last: int = i",
    "self.rows[i] = 1",
    "self.rows[i] += 1",
    "a, self.last = i, i",
    "del self.rows[i]",
    "self.rows.append(i)",
    "self.images[i].mul_(2)",
    "rows = self.rows\nrows.append(i)",
    "row = self.rows[i]\nrow[0] = 1",
    "row = self.rows.get(i)\nrow[0] = 1",
    "row = self.rows[i]\nrow += other(i)",
    "row = torch.from_numpy(self.rows[i])\nrow[0] = 1",
    "for row in self.rows:\n    row.clear()",
    "for j, row in enumerate(self.rows):\n    row.clear()",
    "(self.rows if i else []).append(i)",
    "(i or self.rows).append(i)",
    "(rows := self.rows).append(i)",
    "random.shuffle(self.rows)",
    "next(self.lines)",
    "SEEN.append(i)",
    "Items.count = i",
    "store(self.rows, i)",
    "store(target=self.rows, i=i)",
    "self.put(i)",
    "self.helper.put(i)",
    "self.helper(i)",
]
NO_CHANGES = [
    "x = i",
    "x: int",
    "x += 1",
    "path = self.paths[i]\npath += '.png'",
    "path = self.paths[i]\npath += f'.{i}'",
    "row = self.rows[i].clone()\nrow[0] = 1",
    "row = self.rows[i] + 1\nrow[0] = 1",
    "rows = []\nrows.append(self.rows[i])",
    "rows = [r for r in self.rows]\nrows.sort()",
    "rows = {}\nfor row in rows:\n    row.clear()",
    "with open(i) as file:\n    file.seek(3)",
    "torch.add(self.rows[i], 1)",
    "math.floor(i)",
    "store([], i)",
    "helper = Helper()\nhelper.put(i)",
    "helper = Helper()\nhelper.put.x = 1",
    "random.shuffle()",
]
SETUP = """\
import math
import random
import torch
from torch.utils.data import DataLoader
SEEN = []


def store(target, i):
    target.append(i)


class Helper:
    def __init__(self):
        self.rows = []

    def put(self, i):
        self.rows.append(i)

    def __call__(self, i):
        self.rows.append(i)

    def show(self):
        print(self.shown)


class Items:
    def __init__(self):
        self.rows, self.images, self.paths = {}, [], []
        self.lines = iter([])
        self.helper = Helper()

    def put(self, i):
        self.rows[i] = i

    def __getitem__(self, i):
"""


def changes(script: TrainingScript) -> list[str]:
    (loader,) = script.loaders
    (dataset,) = script.datasets[loader]
    return [change.message for change in stored_changes(script.resolver, dataset.item_code)]


def dataset(body: str) -> str:
    return SETUP + indent(dedent(body), " " * 8) + "\n\nloader = DataLoader(Items())\n"


@pytest.mark.parametrize("body", CHANGES)
def test_changes(script: Script, body: str) -> None:
    assert len(changes(script(dataset(body)))) == 1


@pytest.mark.parametrize("body", NO_CHANGES)
def test_no_changes(script: Script, body: str) -> None:
    assert changes(script(dataset(body))) == []


@pytest.mark.parametrize(
    "body",
    [
        "self.last = i\nreturn self.last",
        "if i:\n    self.last = i\n    i = self.last + 1\nreturn i",
        "self.shown = i\nreturn self.shown",
    ],
)
def test_an_attribute_that_only_the_same_call_reads(script: Script, body: str) -> None:
    assert changes(script(dataset(body))) == []


@pytest.mark.parametrize(
    "body",
    [
        "if i:\n    self.last = i\nreturn self.last",
        "x = self.last\nself.last = i\nreturn x",
        "self.last = i\nself.last += 1\nreturn self.last",
        "self.last = i\nreturn self.last, vars(self)",
        "self.last = i\nreturn self.last\n\ndef shown(self):\n    return self.last",
    ],
)
def test_an_attribute_that_a_later_call_may_read(script: Script, body: str) -> None:
    assert changes(script(dataset(body))) != []


@pytest.mark.parametrize(
    ("test", "value", "is_change"),
    [
        ("self.x is None", "open(i)", False),
        ("not self.x", "open(i)", False),
        ("not hasattr(self, 'x')", "open(i)", False),
        ("self.y is None", "open(i)", True),
        ("not hasattr(self, 'y')", "open(i)", True),
        ("self.x is not None", "open(i)", True),
        ("self.x == 3", "open(i)", True),
        ("i", "open(i)", True),
        ("self.x is None", "random.Random(0)", True),
        ("self.x is None", "np.random.default_rng()", True),
    ],
)
def test_set_once_per_process(script: Script, test: str, value: str, is_change: bool) -> None:
    found = changes(script(dataset(f"if {test}:\n    self.x = {value}")))
    assert bool(found) == is_change


@pytest.mark.parametrize("declaration", ["global", "nonlocal"])
def test_names_of_outer_scopes(script: Script, declaration: str) -> None:
    code = f"""\
        import torch
        from torch.utils.data import DataLoader
        count = 0
        def make():
            count = 0
            def collate(batch):
                {declaration} count
                count = len(batch)
                return batch
            return collate
        class Items:
            def __init__(self, collate):
                self.collate = collate
            def __getitem__(self, i):
                return self.collate([i])
        loader = DataLoader(Items(make()))
    """
    assert changes(script(dedent(code))) == [
        "it sets the global `count`, which a worker cannot give back"
    ]


@pytest.mark.parametrize("decorator", ["lru_cache", "lru_cache(maxsize=9)", "cache"])
def test_caches(script: Script, decorator: str) -> None:
    code = f"""\
        from functools import *
        from functools import lru_cache, cache
        from torch.utils.data import DataLoader
        @{decorator}
        def load(i):
            return open(i)
        class Items:
            def __getitem__(self, i):
                return load(i)
        loader = DataLoader(Items())
    """
    assert changes(script(dedent(code))) == [
        "`load` keeps its results; every worker would fill a cache of its own"
    ]


def test_closure_of_a_function_that_is_over(script: Script) -> None:
    code = """\
        from torch.utils.data import DataLoader
        def make():
            seen = []
            def load(i):
                seen.append(i)
                return open(i)
            return load
        class Items:
            def __init__(self):
                self.load = make()
            def __getitem__(self, i):
                return self.load(i)
        loader = DataLoader(Items())
    """
    assert len(changes(script(dedent(code)))) == 1
