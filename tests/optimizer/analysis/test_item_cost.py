"""Items that cost nothing to make."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent

import pytest

from torchopt_cli.optimizer.analysis.loading.item_cost import only_indexes, only_reads
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader
class Items:
    def __init__(self, transform=None):
        self.x, self.frame, self.transform = [], [], transform
    def label(self, i):
        return int(self.x[i])
    def __getitem__(self, i):
"""


@pytest.mark.parametrize(
    ("body", "cheap"),
    [
        ("return self.x[i]", True),
        ("return torch.tensor(self.x[i]).float(), int(self.x[i])", True),
        ("return {'x': torch.from_numpy(self.x[i]), 'y': self.label(i)}", True),
        ("return self.x[i] / 255.0", True),
        ("if self.transform:\n    return self.transform(self.x[i])\nreturn self.x[i]", True),
        ("x = torch.ones(9)\nx[self.x[i]] = 0\nreturn torch.arange(9), x", True),
        ("k = torch.randint(0, 9, (1,))\nreturn self.x[k : k + 3].long()", True),
        ("k = np.random.randint(len(self.x), size=1)\nreturn self.x[k]", True),
        ("return torch.randint(0, 9, (3, 64, 64))", False),
        ("return torch.randint(high=255, size=self.x).float() / 255", False),
        ("return torch.rand(3)", False),
        ("return Image.open(self.x[i])", False),
        ("return np.load(self.x[i])", False),
        ("return [v for v in self.x[i]]", False),
        ("for v in self.x:\n    i += v\nreturn i", False),
        ("return self.frame.iloc[i]", False),
        ("return torch.stack([self.x[i], self.x[i]])", False),
        ("return self.x[i].resize((3, 3))", False),
        ("with open(i) as f:\n    return 3", False),
        ("return np.copy(self.x[i])", False),
    ],
)
def test_cost(script: Script, body: str, cheap: bool) -> None:
    code = HEAD + indent(body, " " * 8) + "\nloader = DataLoader(Items())\n"
    understood = script(code)
    ((dataset,),) = understood.datasets.values()
    assert only_indexes(understood.resolver, dataset) is cheap


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ("return np.load(self.x[i])", True),
        ("return torch.load(os.path.join('a', self.x[i]))", True),
        ("with open(i) as f:\n    return f.read().split()", True),
        ("return torch.from_numpy(np.load(self.x[i])), ['a'].index('a')", True),
        ("return self.x[i]", True),
        ("return Image.open(self.x[i])", False),
        ("return [v for v in np.load(self.x[i])]", False),
        ("return np.load(self.x[i]).sum()", False),
        ("return json.load(open(self.x[i]))", False),
    ],
)
def test_reading(script: Script, body: str, read: bool) -> None:
    code = "import json, os\n" + HEAD + indent(body, " " * 8) + "\nloader = DataLoader(Items())\n"
    understood = script(code)
    ((dataset,),) = understood.datasets.values()
    assert only_reads(understood.resolver, dataset) is read


@pytest.mark.parametrize(
    ("inner", "cheap"),
    [
        ("datasets.MNIST('x')", False),
        ("Subset(datasets.MNIST('x'), [1])", False),
        ("TensorDataset([1])", True),
        ("Subset([1, 2], [1])", True),
    ],
)
def test_cost_of_a_wrapper(script: Script, inner: str, cheap: bool) -> None:
    code = f"""\
from torch.utils.data import *
from torchvision import datasets
class Proxy(Dataset):
    def __init__(self, inner):
        self.inner = inner
    def __getitem__(self, i):
        return self.inner[i]
loader = DataLoader(Proxy({inner}))
"""
    understood = script(code)
    ((found,),) = understood.datasets.values()
    assert only_indexes(understood.resolver, found) is cheap


@pytest.mark.parametrize(
    ("dataset", "cheap"),
    [
        ("TensorDataset(x)", True),
        ("[1, 2]", True),
        ("datasets.MNIST('x')", False),
        ("lib.Set()", False),
    ],
)
def test_cost_of_other_datasets(script: Script, dataset: str, cheap: bool) -> None:
    code = "import lib\nfrom torch.utils.data import *\nfrom torchvision import datasets\nx = open('x')\n"
    understood = script(f"{code}loader = DataLoader({dataset})\n")
    ((found,),) = understood.datasets.values()
    assert only_indexes(understood.resolver, found) is cheap
