"""Small scripts that run anywhere, before and after one transform: the verifier finds both versions equal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.torch

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Signals(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        signal = torch.fft.rfft(torch.randn(62, generator=generator)).abs()
        return signal, index % 4


model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
"""
LOADER = "loader = DataLoader(Signals(32), batch_size=8, shuffle=True)\n"
TRAIN = """\
for epoch in range(2):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
"""
GUARDED = (
    HEAD
    + "\n\ndef main():\n"
    + "".join(f"    {line}\n" for line in (LOADER + TRAIN).splitlines())
    + '\n\nif __name__ == "__main__":\n    main()\n'
)
PLAIN = HEAD + LOADER + TRAIN
SCALED = TRAIN.replace(
    "        loss = criterion(model(x), y)\n        loss.backward()\n        optimizer.step()\n",
    "        with torch.cuda.amp.autocast(enabled=use_amp):\n"
    "            loss = criterion(model(x), y)\n"
    "        scaler.scale(loss).backward()\n"
    "        scaler.step(optimizer)\n"
    "        scaler.update()\n",
)

SCRIPTS = {
    "dataloader-workers": GUARDED,
    "pin-memory": PLAIN,
    "non-blocking": HEAD
    + LOADER.replace("shuffle=True", 'shuffle=True, pin_memory=device.type == "cuda"')
    + TRAIN,
    "device-construction": PLAIN.replace(
        "criterion(model(x), y)",
        "criterion(model(x + 0.1 * torch.randn(x.shape).to(device)), y)",
    ),
    "empty-cache": PLAIN.replace(
        "        optimizer.step()\n", "        optimizer.step()\n        torch.cuda.empty_cache()\n"
    ),
    "no-grad": PLAIN
    + """\
model.eval()
correct = 0
for x, y in DataLoader(Signals(16), batch_size=8):
    x, y = x.to(device), y.to(device)
    correct += (model(x).argmax(1) == y).sum().item()
print("accuracy", correct / 16)
""",
    "deprecated-amp": HEAD
    + "use_amp = torch.cuda.is_available()\nscaler = torch.cuda.amp.GradScaler(enabled=use_amp)\n"
    + LOADER
    + SCALED,
    "autocast": PLAIN,
    "compile": PLAIN.replace("range(2)", "range(200)"),
}
DAILY = frozenset({"dataloader-workers", "no-grad", "autocast", "compile"})
"""The others change next to nothing of what a CPU runs."""


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The transform, from the parameters of the test instead of the name of the file."""
    return str(request.param)


@pytest.mark.parametrize(
    ("name", "script"),
    [
        pytest.param(name, script, marks=[] if name in DAILY else pytest.mark.slow, id=name)
        for name, script in SCRIPTS.items()
    ],
    indirect=["name"],
)
def test_verified(script: str, check_verified: Callable[..., None]) -> None:
    check_verified(script)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["main-guard"], indirect=True)
def test_main_guard_verified(
    name: str,
    check_verified: Callable[..., None],
) -> None:
    check_verified(PLAIN, platform="darwin", names=["dataloader-workers", name])
