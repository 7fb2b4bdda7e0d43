"""A script in which everything is made of itself: questions about it lead back to themselves, and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchopt_cli.optimizer.options import Target, Tier
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult
from torchopt_cli.transforms.registry import all_transforms

SCRIPT = """\
import copy
import functools
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Subset, ConcatDataset, TensorDataset
from torchvision import datasets, transforms
from tqdm import tqdm


def wrap(thing):
    return thing


class Block(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner
        self.fc = nn.Sequential(nn.Linear(784, 784), nn.ReLU())
        for _ in range(3):
            self.fc = nn.Sequential(nn.Flatten(), self.fc)
            self.fc = nn.Sequential(self.fc, nn.ReLU(inplace=True))
            self.fc = nn.ModuleList([self.fc, self.fc])[0]
        self.act = nn.ReLU()
        self.act = nn.Sequential(self.act, self.act)
        self.scale = 1.0
        self.scale = self.scale * self.scale

    def forward(self, x):
        for _ in range(2):
            x = self.act(self.fc(x)) * self.scale
            x = x.view(x.size(0), -1)
        if self.inner is not None:
            x = self.inner(x)
        return x


transform = transforms.ToTensor()
for _ in range(3):
    transform = transforms.Compose([transform, transforms.Normalize((0.5,), (0.5,))])
dataset = datasets.MNIST("data", transform=transform)
for i in range(2):
    dataset = Subset(dataset, range(1000))
    dataset = ConcatDataset([dataset, dataset])
model = Block()
for _ in range(3):
    model = Block(model)
    model = copy.deepcopy(model)
    model = nn.DataParallel(model)
    model = torch.compile(model)
    model = nn.Sequential(model, model)
    model = wrap(model)
    model = functools.partial(wrap, model)()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
for _ in range(2):
    device = torch.device(device)
model = model.to(device)
optimizer = optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer = wrap(optimizer)
scheduler = optim.lr_scheduler.StepLR(optimizer, 1)
for _ in range(2):
    scheduler = optim.lr_scheduler.SequentialLR(optimizer, [scheduler, scheduler], [1])
loader = DataLoader(dataset, batch_size=64, shuffle=True)
for _ in range(2):
    loader = tqdm(loader)
    loader = enumerate(loader)
    loader = [batch for _, batch in loader]
criterion = nn.CrossEntropyLoss()
total = 0.0
size = 1
while size < 100:
    size = size * 2
state = {"model": model}
state["self"] = state
names = [model]
names.append(names)
for epoch in range(2):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        x = x[0] if size else x
        x = x.unsqueeze(0).squeeze(0)
        out = model(x)
        loss = criterion(out, y)
        loss = loss + loss
        total = total + loss.item()
        total += total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model = wrap(model)
    model.eval()
    correct = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = model(x)
        out = out.max(1)[1]
        correct += (out == y).sum().item()
    print(total, correct)
"""


@pytest.mark.parametrize(
    "options",
    [{}, {"tier": Tier.NUMERIC}, {"target": Target.CPU}, {"gpus": 4}, {"accumulate": 2}],
)
def test_what_is_made_of_itself_is_followed_to_an_end(
    rewrite: Callable[..., RewriteResult], options: dict[str, Any]
) -> None:
    names = [transform.name for transform in all_transforms()]
    result = rewrite(SCRIPT, names, **options)
    assert [error for file in result.files for error in file.errors] == []
    assert result.files[0].changed
