"""Datasets that draw random numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.loading.random_draws import draws_random_numbers
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
import random
import numpy as np
import torch
import albumentations as A
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
class Items:
    def __init__(self, f):
        self.f = f
    def __getitem__(self, i):
        return self.f(i)
"""


@pytest.mark.parametrize(
    ("dataset", "draws"),
    [
        ("datasets.MNIST('x')", False),
        ("datasets.MNIST('x', transform=transforms.ToTensor())", False),
        ("datasets.MNIST('x', transform=transforms.RandomCrop(3))", True),
        ("datasets.MNIST('x', transform=transforms.Compose([transforms.ColorJitter(3)]))", True),
        ("datasets.FakeData()", True),
        ("Items(A.Compose([A.HorizontalFlip()]))", True),
        ("Items(lambda i: random.random())", True),
        ("Items(lambda i: np.random.rand(i))", True),
        ("Items(lambda i: torch.randn(i))", True),
        ("Items(lambda i: torch.ones(i))", False),
        ("[1, 2]", False),
    ],
)
def test_draws(script: Script, dataset: str, draws: bool) -> None:
    understood = script(f"{HEAD}loader = DataLoader({dataset})\n")
    ((found,),) = understood.datasets.values()
    assert draws_random_numbers(understood.resolver, found) is draws
