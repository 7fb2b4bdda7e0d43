"""``ddp`` where a step mixes the samples of its batch: with others in random order, of which each process has its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

SOURCE = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def mixed_loss(out, y, other, share):
    return share * criterion(out, y) + (1 - share) * criterion(out, other)


def box(size, share):
    width = size[1]
    start = np.random.randint(width)
    half = int(width * np.sqrt(1.0 - share)) // 2
    return np.clip(start - half, 0, width), np.clip(start + half, 0, width)


for epoch in range(2):
    for x, y in loader:
        count = x.size()[0]
        share = np.random.beta(1.0, 1.0)
{step}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
MIXUP = """\
        index = torch.randperm(count)
        loss = mixed_loss(model(share * x + (1 - share) * x[index, :]), y, y[index], share)
"""
CUTMIX = """\
        index = torch.randperm(x.size(0)).to(x.device)
        x[:, 2:5] = x[index, 2:5]
        loss = mixed_loss(model(x), y, y[index], share)
"""
BOX = """\
        index = torch.randperm(x.size()[0]).to(x.device)
        if np.random.rand(1) < 0.5:
            share = np.random.beta(1.0, 1.0)
            low, high = box(x.size(), share)
            x[:, low:high] = x[index, low:high]
            share = 1 - (high - low) / x.size()[-1]
            out = model(x)
            loss = criterion(out, y) * share + criterion(out, y[index]) * (1.0 - share)
        else:
            out = model(x)
            loss = criterion(out, y)
"""
BOX_OF_THE_BATCH = BOX.replace("x.size()[-1]", "x.size()[0]")
MORE_IN_ONE_BRANCH = BOX.replace(
    "            loss = criterion(out, y)\n", "            loss = criterion(model(x), y)\n"
)
NONE_IN_THE_OTHER = BOX.replace(
    "        else:\n            out", "        elif x.sum() > 0:\n            out"
)
HALF = MIXUP.replace("x[index, :]", "x[index[: len(x)], :]")
SORTED = MIXUP.replace("randperm(count)", "randperm(count).sort()[0]")
OF_THE_DATA = MIXUP.replace("randperm(count)", "randperm(len(data))[:16]")
COMPARED = """\
        index = torch.randperm(count)
        loss = (model(x) @ model(x[index]).T).mean()
"""
NOTE = "samples are mixed with others of the same process's part of a batch"


@pytest.mark.parametrize("step", [MIXUP, CUTMIX, BOX], ids=["mixup", "cutmix", "box"])
def test_samples_mixed_in_random_order(rewrite: Callable[..., RewriteResult], step: str) -> None:
    file = rewrite(SOURCE.replace("{step}\n", step), ["ddp"], gpus=2).files[0]
    (change,) = file.changes
    assert NOTE in change.reason


@pytest.mark.parametrize(
    "step",
    [HALF, SORTED, OF_THE_DATA, COMPARED, BOX_OF_THE_BATCH, MORE_IN_ONE_BRANCH, NONE_IN_THE_OTHER],
    ids=["half", "sorted", "of the data", "compared", "box of the batch", "more runs", "no run"],
)
def test_what_else_an_order_may_be_for(rewrite: Callable[..., RewriteResult], step: str) -> None:
    (file,) = rewrite(SOURCE.replace("{step}\n", step), ["ddp"], gpus=2).files
    assert not file.changes
    assert "not distributed" in file.skips[0].message
