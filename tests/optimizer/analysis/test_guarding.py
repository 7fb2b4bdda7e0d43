"""What a main guard has to cover, and what workers need."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.program.guarding import (
    Weight,
    statements_needed_by_workers,
    weight,
)
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
import argparse, os, random
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
from lib import work
parser = argparse.ArgumentParser()
net = nn.Linear(3, 3)
"""


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("import math", Weight.DEFINITION),
        ("def f(): pass", Weight.DEFINITION),
        ("class A: pass", Weight.DEFINITION),
        ("'text'", Weight.DEFINITION),
        ("try:\n    import a\nexcept ImportError:\n    pass", Weight.DEFINITION),
        ("try:\n    import a\nexcept ImportError:\n    work()", Weight.HEAVY),
        (
            "try:\n    import a\nexcept ImportError:\n    work()\n    raise",
            Weight.DEFINITION,
        ),
        ("if work:\n    import a", Weight.DEFINITION),
        ("if __name__ == '__main__' and net:\n    work()", Weight.DEFINITION),
        ("torch.set_default_dtype(torch.float64)", Weight.LIGHT),
        ("if __name__ == '__main__':\n    work()", Weight.DEFINITION),
        ("x = 3", Weight.LIGHT),
        ("x: int = 3", Weight.LIGHT),
        ("x = [len('a'), min(1, 2)]", Weight.LIGHT),
        ("parser.add_argument('--x')", Weight.LIGHT),
        ("args = parser.parse_args()", Weight.LIGHT),
        ("device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')", Weight.LIGHT),
        ("torch.manual_seed(0)", Weight.LIGHT),
        ("random.seed(0)", Weight.LIGHT),
        ("os.makedirs('x', exist_ok=True)", Weight.LIGHT),
        ("t = transforms.Compose([transforms.ToTensor()])", Weight.LIGHT),
        ("d = datasets.MNIST('x')", Weight.MIDDLING),
        ("l = DataLoader([1])", Weight.MIDDLING),
        ("c = nn.BCELoss()", Weight.MIDDLING),
        ("print(net)", Weight.MIDDLING),
        ("net.cuda()", Weight.HEAVY),
        ("net.to('cuda')", Weight.HEAVY),
        ("if work:\n    net.cuda()", Weight.HEAVY),
        ("os.makedirs('x')", Weight.HEAVY),
        ("work()", Weight.HEAVY),
        ("x = open('f')", Weight.HEAVY),
        ("for i in work:\n    pass", Weight.HEAVY),
        ("with work:\n    pass", Weight.HEAVY),
        ("del net", Weight.HEAVY),
    ],
)
def test_weight(script: Script, statement: str, expected: Weight) -> None:
    understood = script(f"{HEAD}{statement}\n")
    found = weight(understood.resolver, understood.entry.tree.body[-1], understood.entry)
    assert found is expected


def test_needed_by_workers(script: Script) -> None:
    code = """\
from torch.utils.data import DataLoader, Dataset
SIZE = 3
HALF = SIZE // 2
UNUSED = 4
Index = Result = int
def decorate(f):
    return f
def load(i: Index) -> Result:
    return open(i + str(HALF))
class Base(Dataset):
    @decorate
    def more(self, n=UNUSED):
        return n
class Items(Base):
    def __getitem__(self, i):
        return load(i)
    def show(self):
        print(lonely)
lonely = 1
def collate(batch):
    return batch
class Turn:
    def __call__(self, x):
        return x
loader = DataLoader(Items(Turn()), collate_fn=collate)
for x in loader:
    print(x)
"""
    understood = script(code)
    needed = statements_needed_by_workers(understood, understood.loaders)
    lines = sorted(statement.lineno for statement in needed)
    first = {understood.entry.lines[line - 1].split("(")[0].split("=")[0].strip() for line in lines}
    assert first >= {
        "SIZE",
        "HALF",
        "UNUSED",
        "def decorate",
        "def load",
        "class Base",
        "class Items",
    }
    assert first >= {"def collate", "class Turn:"}
    assert not first & {"lonely", "loader", "for x in loader:"}
