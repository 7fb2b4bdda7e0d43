"""``ddp`` where a script asks whether its network is in ``nn.DataParallel``: checkpoints keep their keys."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

START = """\
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

multi_gpu = "--multi-gpu" in sys.argv
data = TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)).cuda()
if multi_gpu:
    model = nn.DataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(9):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
"""
Rewrite = Callable[..., RewriteResult]


def after(rewrite: Rewrite, asked: str) -> str:
    """The text behind the training that becomes of ``asked``."""
    result = rewrite(START + asked, ["ddp"])
    file = result.files[0]
    assert not file.errors
    assert file.changes, [skip.message for skip in file.skips]
    return file.text.partition("        optimizer.step()\n")[2]


@pytest.mark.parametrize(
    ("asked", "then"),
    [
        (
            "isinstance(model, nn.DataParallel)",
            "isinstance(model, (nn.DataParallel, DistributedDataParallel))",
        ),
        (
            "isinstance(model, (nn.DataParallel, nn.ModuleList))",
            "isinstance(model, (nn.DataParallel, nn.ModuleList, DistributedDataParallel))",
        ),
        (
            "isinstance(model, (nn.DataParallel,))",
            "isinstance(model, (nn.DataParallel, DistributedDataParallel))",
        ),
        (
            "type(model) is nn.DataParallel",
            "type(model) in (nn.DataParallel, DistributedDataParallel)",
        ),
        (
            "model.__class__ == torch.nn.DataParallel",
            "model.__class__ in (torch.nn.DataParallel, DistributedDataParallel)",
        ),
        (
            "type(model) in [nn.DataParallel]",
            "type(model) in [nn.DataParallel, DistributedDataParallel]",
        ),
        (
            "type(model).__name__ == 'DataParallel'",
            "type(model).__name__ in ('DataParallel', 'DistributedDataParallel')",
        ),
    ],
)
def test_tests_for_the_class(rewrite: Rewrite, asked: str, then: str) -> None:
    assert after(rewrite, f"if {asked}:\n    model = model.module\n").startswith(f"if {then}:\n")


@pytest.mark.parametrize(
    ("asked", "then"),
    [
        ("multi_gpu", "WORLD_SIZE > 1 or multi_gpu"),
        ("torch.cuda.device_count() > 1", "WORLD_SIZE > 1 or torch.cuda.device_count() > 1"),
        ("(multi_gpu if epoch else 0)", "(WORLD_SIZE > 1 or (multi_gpu if epoch else 0))"),
    ],
)
def test_tests_for_several_gpus(rewrite: Rewrite, asked: str, then: str) -> None:
    text = after(rewrite, f"inner = model.module if {asked} else model\n")
    assert f"inner = model.module if {then} else model\n" in text


@pytest.mark.parametrize(
    ("asked", "then"),
    [
        (
            "type(model) is not nn.DataParallel",
            "type(model) not in (nn.DataParallel, DistributedDataParallel)",
        ),
        ("not multi_gpu", "WORLD_SIZE == 1 and not multi_gpu"),
        ("quiet or not multi_gpu", "WORLD_SIZE == 1 and (quiet or not multi_gpu)"),
    ],
)
def test_tests_for_the_network_itself(rewrite: Rewrite, asked: str, then: str) -> None:
    text = after(rewrite, f"if {asked}:\n    inner = model\nelse:\n    inner = model.module\n")
    assert f"if {then}:\n    inner = model\nelse:\n    inner = model.module\n" in text


def test_the_condition_under_which_it_was_wrapped(rewrite: Rewrite) -> None:
    text = after(rewrite, "if multi_gpu:\n    weight = model.module[0].weight\n")
    assert "if WORLD_SIZE > 1 or multi_gpu:\n    weight = model.module[0].weight\n" in text


@pytest.mark.parametrize(
    "asked",
    [
        "inner = model.module if hasattr(model, 'module') else model\n",
        "wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)\ninner = model.module if isinstance(model, wrappers) else model\n",
        "inner = model.module if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)) else model\n",
        "if sys.flags.debug:\n    weight = model.module[0].weight\n",
        "if multi_gpu:\n    weight = model[0].weight\n",
        "is_network = isinstance(model, nn.Module)\n",
    ],
)
def test_tests_that_hold_as_they_are(rewrite: Rewrite, asked: str) -> None:
    assert asked in after(rewrite, asked)


def test_a_wrapper_that_an_expression_chooses(rewrite: Rewrite) -> None:
    wrapped = "model = nn.DataParallel(model) if multi_gpu else model\n"
    script = START.replace("if multi_gpu:\n    model = nn.DataParallel(model)\n", wrapped)
    text = rewrite(f"{script}net = model.module if multi_gpu else model\n", ["ddp"]).files[0].text
    assert f"    )\nelse:\n    {wrapped}" in text
    assert text.endswith("net = model.module if WORLD_SIZE > 1 or multi_gpu else model\n")
