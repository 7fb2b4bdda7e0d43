"""What a loader reads, and the user's code behind it."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.loading.datasets import Dataset, DatasetKind, is_iterable
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
import torch
from functools import partial
from torch.utils.data import *
from torch.utils.data import StackDataset
from torchvision import datasets, transforms
import things


class Own(Dataset):
    def __init__(self, transform=None):
        self.transform = transform
    def __getitem__(self, i):
        return self.transform(i)


class Stream(IterableDataset):
    def __iter__(self):
        yield 1


class Cifar(datasets.CIFAR10):
    pass


class Flipped(datasets.CIFAR10):
    def __init__(self, root):
        super().__init__(root, transform=flip)
    def __getitem__(self, i):
        return super().__getitem__(i)


class Foreign(things.Dataset):
    def __getitem__(self, i):
        return 1


class Empty(Dataset):
    pass


def flip(x):
    return x.flip(0)


class Turn:
    def __call__(self, x):
        return x.turned()


class Wrapper(Dataset):
    def __init__(self, inner):
        self.inner = inner
    def __getitem__(self, i):
        return self.inner[i]
"""


def found(script: TrainingScript) -> list[Dataset]:
    (loader,) = script.loaders
    return list(script.datasets[loader])


@pytest.mark.parametrize(
    ("expression", "kinds"),
    [
        ("Own()", ["own `Own`"]),
        ("Subset(Own(), [1])", ["own `Own`"]),
        ("Subset(dataset=Own(), indices=[1])", ["own `Own`"]),
        (
            "ConcatDataset([Own(), datasets.MNIST('x')])",
            ["own `Own`", "library `torchvision.datasets.MNIST`"],
        ),
        ("ConcatDataset([Own() for _ in range(3)])", ["own `Own`"]),
        (
            "StackDataset(Own(), datasets.MNIST('x'))",
            ["own `Own`", "library `torchvision.datasets.MNIST`"],
        ),
        ("random_split(Own(), [1, 2])[1]", ["own `Own`"]),
        ("Own() + Own()", ["own `Own`", "own `Own`"]),
        ("Stream()", ["own `Stream`"]),
        ("Cifar('x')", ["library `Cifar`"]),
        ("Flipped('x')", ["own `Flipped`"]),
        ("Foreign()", ["foreign `Foreign`, a `things.Dataset`"]),
        ("Empty()", ["unknown `Empty`"]),
        ("TensorDataset(torch.zeros(3))", ["in memory a TensorDataset"]),
        ("[1, 2]", ["in memory a list in memory"]),
        ("[x for x in open('f')]", ["in memory a list in memory"]),
        ("range(3)", ["in memory a sequence in memory"]),
        ("things.Set()", ["foreign `things.Set`"]),
        ("things.pairs()[0]", ["unknown `things.pairs()[0]`"]),
        ("datasets.LSUN('x')", ["foreign `torchvision.datasets.LSUN`"]),
        ("datasets.__dict__[name]('x')", ["foreign `datasets.__dict__[name]`"]),
        ("DataLoader", ["unknown `DataLoader`"]),
    ],
)
def test_kinds(script: Script, expression: str, kinds: list[str]) -> None:
    understood = script(f"{HEAD}loader = DataLoader({expression})\n")
    assert [f"{d.kind.value} {d.name}" for d in found(understood)] == kinds


@pytest.mark.parametrize(
    ("filled", "kinds"),
    [
        ("parts.append(things.Set())", ["own `Own`", "foreign `things.Set`"]),
        ("parts.insert(0, Stream())", ["own `Own`", "own `Stream`"]),
        ("parts.extend([Own(), Stream()])", ["own `Own`", "own `Own`", "own `Stream`"]),
        ("for part in things:\n    parts.append(part)", ["own `Own`", "unknown `part`"]),
        ("fill(parts)", ["own `Stream`", "own `Own`"]),
        ("parts.extend(parts)", ["own `Own`"]),
    ],
)
def test_list_that_is_filled(script: Script, filled: str, kinds: list[str]) -> None:
    code = (
        f"def fill(kept):\n    kept.append(Stream())\n\nparts = [Own()]\n{filled}\n"
        "loader = DataLoader(ConcatDataset(parts))\n"
    )
    assert [f"{d.kind.value} {d.name}" for d in found(script(HEAD + code))] == kinds


def test_list_that_is_filled_out_of_sight(script: Script) -> None:
    understood = script(f"{HEAD}parts = []\nloader = DataLoader(ConcatDataset(parts))\n")
    assert [d.kind for d in found(understood)] == [DatasetKind.UNKNOWN]


def test_dataset_of_another_loader(script: Script) -> None:
    understood = script(HEAD + "a = DataLoader(Own())\nb = DataLoader(Subset(a.dataset, [1]))\n")
    first, second = understood.loaders
    assert [d.node for d in understood.datasets[second]] == [
        d.node for d in understood.datasets[first]
    ]


def test_name_that_becomes_a_dataset(script: Script) -> None:
    code = """\
        def make(data="own"):
            if data == "own":
                data = Own()
            elif data == "mnist":
                data = datasets.MNIST("x")
            return DataLoader(data)
        make()
    """
    names = [d.name for d in found(script(HEAD + dedent(code)))]
    assert names == ["`Own`", "`torchvision.datasets.MNIST`"]


def test_loader_without_a_dataset(script: Script) -> None:
    (dataset,) = found(script(HEAD + "loader = DataLoader(**things.options)\n"))
    assert dataset.kind is DatasetKind.UNKNOWN


@pytest.mark.parametrize(
    ("dataset", "reached"),
    [
        ("Own(flip)", "x.flip(0)"),
        ("Own(lambda x: x.lambda_())", "x.lambda_()"),
        ("Own(Turn())", "x.turned()"),
        ("Own(transforms.Compose([Turn(), flip]))", "x.turned()"),
        ("Own(transforms.Lambda(partial(flip)))", "x.flip(0)"),
        ("Own({'a': flip})", "x.flip(0)"),
        ("datasets.MNIST('x', transform=flip)", "x.flip(0)"),
        ("Flipped('x')", "x.flip(0)"),
        ("Wrapper(Own(flip))", "self.transform(i)"),
        ("Wrapper(Subset(Own(flip), [1]))", "x.flip(0)"),
        ("Wrapper(datasets.MNIST('x', transform=flip))", "x.flip(0)"),
    ],
)
def test_code_behind_an_item(script: Script, dataset: str, reached: str) -> None:
    understood = script(f"{HEAD}loader = DataLoader({dataset})\n")
    code = {
        r.module.code(r.node)
        for d in found(understood)
        for r in d.item_code
        if hasattr(r.node, "lineno")
    }
    assert reached in code


def test_code_of_init_does_not_run_for_an_item(script: Script) -> None:
    understood = script(HEAD + "loader = DataLoader(Own(flip))\n")
    (dataset,) = found(understood)
    assert "self.transform = transform" not in {
        r.module.code(r.node) for r in dataset.item_code if hasattr(r.node, "lineno")
    }


def test_streams(script: Script) -> None:
    understood = script(HEAD + "a = DataLoader(Stream())\nb = DataLoader(Own())\n")
    answers = [is_iterable(understood.resolver, d) for v in understood.datasets.values() for d in v]
    assert answers == [True, False]


def test_recursive_transform_ends(script: Script) -> None:
    code = """\
        class Again:
            def __call__(self, x):
                return self(x) if x else Again()(x)
        loader = DataLoader(Own(Again()))
    """
    (dataset,) = found(script(HEAD + dedent(code)))
    assert dataset.kind is DatasetKind.OWN
