"""Where a script changes a dataset behind its workers' backs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.dataset_changes import changes_of_dataset
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
from torch.utils.data import DataLoader
class Items:
    def __init__(self):
        self.level, self.rows = 0, []
    def harder(self):
        self.level += 1
    def describe(self):
        return self.level
    def __getitem__(self, i):
        return open(i)
data = Items()
other = Items()
"""
LOADER = "loader = DataLoader(data)\n"


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        (LOADER + "data.level = 2\n", ["data.level"]),
        (LOADER + "loader.dataset.level = 2\n", ["loader.dataset.level"]),
        (LOADER + "data.rows[0] = 2\n", ["data.rows"]),
        (LOADER + "data.harder()\n", ["data.harder"]),
        (LOADER + "def f(d):\n    d.level = 3\nf(data)\n", ["d.level"]),
        (LOADER + "print(data.level, data.describe())\n", []),
        (LOADER + "other.level = 2\n", []),
        (LOADER + "data = 3\n", []),
        ("data.level = 2\n" + LOADER, []),
        ("for i in range(3):\n    data.level = 2\n" + LOADER, ["data.level"]),
    ],
)
def test_changes(script: Script, code: str, changed: list[str]) -> None:
    understood = script(HEAD + code)
    (loader,) = understood.loaders
    (dataset,) = understood.datasets[loader]
    found = changes_of_dataset(understood.resolver, loader, dataset)
    assert [change.code for change in found] == changed
