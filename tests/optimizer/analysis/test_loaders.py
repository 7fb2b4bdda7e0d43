"""DataLoader arguments are known wherever they are written."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = "from torch.utils.data import DataLoader\n"


def arguments(found: TrainingScript) -> dict[str, str]:
    (loader,) = found.loaders
    return {name: ast.unparse(argument.value) for name, argument in loader.arguments.items()}


@pytest.mark.parametrize(
    "source",
    [
        "DataLoader(ds, 8, True, num_workers=2)",
        "DataLoader(dataset=ds, batch_size=8, shuffle=True, num_workers=2)",
        "kw = {'batch_size': 8, 'shuffle': True, 'num_workers': 2}\nDataLoader(ds, **kw)",
        "kw = dict(batch_size=8, shuffle=True, num_workers=2)\nDataLoader(ds, **kw)",
        "kw = dict(batch_size=8)\nkw.update(shuffle=True)\nkw['num_workers'] = 2\nDataLoader(ds, **kw)",
        "kw = dict(batch_size=8)\nkw.update({'shuffle': True, 'num_workers': 2})\nDataLoader(ds, **kw)",
        "base = dict(batch_size=8)\nkw = {**base, 'shuffle': True, 'num_workers': 2}\nDataLoader(ds, **kw)",
        "def make(ds, **kw):\n    return DataLoader(ds, **kw)\nmake(1, batch_size=8, shuffle=True, num_workers=2)",
        "def make(ds, size, **kw):\n    return DataLoader(ds, batch_size=8, **kw)\n"
        "make(1, 2, shuffle=True, num_workers=2)\nmake(2, size=3, shuffle=True, num_workers=2)",
        "class Data:\n    def __init__(self, ds, **kw):\n        self.loader = DataLoader(ds, **kw)\n"
        "rest = dict(shuffle=True, num_workers=2)\nData(1, batch_size=8, **rest)",
        "kw = {'num_workers': 2} if cuda else {}\nDataLoader(ds, batch_size=8, shuffle=True, **kw)",
    ],
)
def test_every_way_to_pass_them(script: Script, source: str) -> None:
    assert arguments(script(HEAD + source)) == {
        "dataset": "ds",
        "batch_size": "8",
        "shuffle": "True",
        "num_workers": "2",
    }


@pytest.mark.parametrize(
    ("size", "told"),
    [
        ("None", {"dataset": "ds", "batch_sampler": "BatchSampler(order, 8, True)"}),
        (
            "8",
            {"dataset": "ds", "sampler": "BatchSampler(order, 8, True)", "batch_size": "8"},
        ),
    ],
)
def test_a_sampler_of_whole_batches(script: Script, size: str, told: dict[str, str]) -> None:
    source = f"DataLoader(ds, sampler=BatchSampler(order, 8, True), batch_size={size})"
    assert arguments(script(f"from torch.utils.data import BatchSampler\n{HEAD}{source}")) == told


@pytest.mark.parametrize(
    "source",
    [
        "DataLoader(ds, **make_arguments())",
        "def build(ds, **kw):\n    return DataLoader(ds, **kw)",
        "def build(ds, **kw):\n    return DataLoader(ds, **kw)\nbuild(1, shuffle=True)\nbuild(2)",
        "def build(ds, **kw):\n    return DataLoader(ds, **kw)\nbuild(1, shuffle=True)\nbuild(2, shuffle=False)",
        "def build(ds, **kw):\n    return DataLoader(ds, **kw)\nbuild(1, **read())",
        "def build(ds, **kw):\n    kw['shuffle'] = True\n    return DataLoader(ds, **kw)\nbuild(1)",
        "kw = {name: 1 for name in names}\nDataLoader(ds, **kw)",
        "kw = dict(a=1)\nkw[name] = 2\nDataLoader(ds, **kw)",
        "DataLoader(*everything)",
    ],
)
def test_arguments_that_cannot_be_resolved_are_said_so(script: Script, source: str) -> None:
    (loader,) = script(HEAD + source).loaders
    assert loader.opaque is not None


def test_a_subclass_with_its_own_iteration_is_no_plain_loader(script: Script) -> None:
    source = HEAD + "class L(DataLoader):\n    def __iter__(self):\n        yield 1\nL(ds)"
    assert script(source).loaders == ()


MADE_BY_SUPER = """
class Base(DataLoader):
    def __init__(self, data, size, workers):
        self.kw = {'dataset': data, 'batch_size': size, 'num_workers': workers}
        super().__init__(shuffle=True, **self.kw)
    def rest(self):
        return DataLoader(**self.kw)
class Images(Base):
    def __init__(self, size):
        super().__init__([1, 2], size, workers=2)
loader = Images(8)
for epoch in range(2):
    for batch in loader:
        print(batch)
for batch in loader.rest():
    print(batch)
"""


def test_a_subclass_that_says_its_arguments_itself(script: Script) -> None:
    found = script(HEAD + MADE_BY_SUPER)
    said = [{n: ast.unparse(a.value) for n, a in x.arguments.items()} for x in found.loaders]
    own = {"dataset": "data", "batch_size": "size", "num_workers": "workers"}
    assert said == [{"shuffle": "True", **own}, own]
    iterated = [loop.loaders for loop in found.loops if loop.loaders]
    assert iterated == [(found.loaders[0],), (found.loaders[1],)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    def rest(self):", "    def __iter__(self):\n        yield 1\n    def rest(self):"),
        ("loader = Images", "    def __iter__(self):\n        yield 1\nloader = Images"),
        ("(DataLoader):", "(Unknown, DataLoader):"),
        ("def __init__(self, data,", "def begin(self, data,"),
    ],
)
def test_subclasses_that_are_not_understood(script: Script, old: str, new: str) -> None:
    assert old in MADE_BY_SUPER
    (loader,) = script(HEAD + MADE_BY_SUPER.replace(old, new)).loaders
    assert loader.code == "DataLoader(**self.kw)"
