"""Pinned memory, and who writes to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.loading.batch_memory import (
    host_write_after,
    pinning_refused,
    pins_memory,
    says_no_pinning,
)
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
import torch
from typing import NamedTuple
from torch.utils.data import DataLoader
from torchvision import datasets
data = datasets.MNIST("x")
flag = torch.cuda.is_available()
"""


@pytest.mark.parametrize(
    ("arguments", "pins", "unsaid"),
    [
        ("", False, True),
        ("pin_memory=False", False, True),
        ("pin_memory=True", True, False),
        ("pin_memory=flag", True, False),
        ("pin_memory=True if flag else False", True, False),
        ("pin_memory=None", False, False),
        ("**({'pin_memory': True} if flag else {})", True, False),
    ],
)
def test_says(script: Script, arguments: str, pins: bool, unsaid: bool) -> None:
    understood = script(f"{HEAD}loader = DataLoader(data, {arguments})\n")
    (loader,) = understood.loaders
    assert pins_memory(understood.resolver, loader) is pins
    assert says_no_pinning(loader) is unsaid


@pytest.mark.parametrize(
    ("collate", "refused"),
    [
        ("def collate(items):\n    return torch.stack(items)\n", False),
        ("def collate(items):\n    return Batch(items)\nclass Batch:\n    pass\n", True),
        (
            "def collate(items):\n    return Batch(items)\nclass Batch(NamedTuple):\n    x: int\n",
            False,
        ),
        ("def collate(items):\n    return Batch(items)\nclass Batch(dict):\n    pass\n", False),
        (
            "def collate(items):\n    return Batch(items)\nclass Batch:\n    def pin_memory(self):\n        return self\n",
            False,
        ),
        ("collate = lambda items: items\n", False),
    ],
)
def test_batch_classes(script: Script, collate: str, refused: bool) -> None:
    code = (
        f"{collate}loader = DataLoader(data, collate_fn=collate)\nfor x in loader:\n    x.cuda()\n"
    )
    understood = script(HEAD + code)
    reason = pinning_refused(understood, understood.loaders[0])
    assert (reason is not None and "no pin_memory() method" in reason) is refused


@pytest.mark.parametrize(
    ("loop", "write"),
    [
        ("z = x.cuda()\n    x[0] = 1", "x[0]"),
        ("z = x.cuda()\n    x += 1", "x += 1"),
        ("z = x.cuda()\n    x.mul_(2)", "x.mul_(2)"),
        ("z = x.cuda()\n    torch.neg(y, out=x)", "torch.neg(y, out=x)"),
        ("z = x.cuda()\n    v = x.view(-1)\n    v[0] = 1", "v[0]"),
        ("x[0] = 1\n    z = x.cuda()", None),
        ("for k in range(3):\n        x[0] = 1\n        z = x.cuda()", None),
        ("while y:\n        x[0] = 1\n        z = x.cuda()", "x[0]"),
        ("z = x.cuda()\n    print(x.mean())", None),
        ("z = x.cuda()\n    z[0] = 1\n    z += 1", None),
        ("x = x.cuda()\n    x[0] = 1\n    x.relu_()", None),
        ("z = x.cuda()\n    y = x + 1\n    y[0] = 2", None),
        ("z = x.cuda()\n    x.__len__()", None),
    ],
)
def test_writes_after_the_copy(script: Script, loop: str, write: str | None) -> None:
    code = f"loader = DataLoader(data)\nfor x, y in loader:\n    {loop}\n"
    understood = script(HEAD + code)
    (copy,) = understood.batch_copies
    found = host_write_after(understood, copy)
    assert (None if found is None else found.code) == write
