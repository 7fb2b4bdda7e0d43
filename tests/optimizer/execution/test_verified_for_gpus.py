"""``torchopt rewrite --verify`` for two GPUs as a user starts it, on scripts like those that are given to it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchopt_cli.optimizer.cli import main

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = """\
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset


class AverageMeter:
    def __init__(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


torch.manual_seed(1)
images = torch.randn(96, 3, 8, 8)
labels = (images.mean((1, 2, 3)) > 0).long()
trainloader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
testloader = DataLoader(TensorDataset(images[:50], labels[:50]), batch_size=8)

net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2)).cuda()
criterion = nn.CrossEntropyLoss().cuda()
optimizer = optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

for epoch in range(2):
    net.train()
    running_loss, losses = 0.0, AverageMeter()
    for i, data in enumerate(trainloader, 0):
        inputs, targets = data[0].cuda(), data[1].cuda()
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        losses.update(loss.item(), inputs.size(0))
        if i % 3 == 2:
            print('[%d, %5d] loss: %.3f' % (epoch + 1, i + 1, running_loss / 3))
            print('{}/{} {losses.val:.3f} {losses.avg:.3f}'.format(
                i * len(inputs), len(trainloader.dataset), losses=losses))
            running_loss = 0.0
    net.eval()
    correct = total = 0
    with torch.no_grad():
        for inputs, targets in testloader:
            outputs = net(inputs.cuda())
            _, predicted = torch.max(outputs.data, 1)
            total += targets.size(0)
            correct += (predicted == targets.cuda()).sum().item()
    print('accuracy %d %%' % (100 * correct / total))
    torch.save(net.state_dict(), 'net.pth')
"""
PARALLEL = SCRIPT.replace("net = nn.Sequential(", "net = nn.DataParallel(nn.Sequential(").replace(
    "nn.Linear(8 * 36, 2))", "nn.Linear(8 * 36, 2)))"
)
DEVICE = 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
Verified = Callable[..., dict[str, Any]]


@pytest.fixture
def verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Verified:
    """What the JSON says of the verification of ``script``, rewritten in place."""

    def start(script: str, *flags: str) -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        Path("train.py").write_text(script)
        Path("pyproject.toml").write_text("[tool.torchopt]\nsteps = 8\nno-timing = true\n")
        told = ["--verify", "--format", "json", "--python", sys.executable]
        assert main(["rewrite", "train.py", *told, *flags]) == 0
        (verification,) = json.loads(capsys.readouterr().out)["verification"]
        return verification

    return start


def test_a_script_that_names_the_gpu_is_verified_on_two_emulated_ones(verified: Verified) -> None:
    found = verified(SCRIPT, "--gpus", "2", "--emulate-cuda", "--select", "ddp,channels-last")
    assert found["ending"] == "verified"
    assert found["rolled_back"] == []
    assert found["reports"][-1]["outcome"] == "equivalent"
    assert found["reports"][-1]["rewritten"]["processes"] == 2
    text = Path("train.py").read_text()
    assert "DistributedDataParallel(net)" in text
    assert "losses.update(global_loss, inputs.size(0) * WORLD_SIZE)" in text


@pytest.mark.parametrize("gpus", [["--gpus", "2"], []])
def test_data_parallel_is_verified_on_two_emulated_gpus(
    verified: Verified, gpus: list[str]
) -> None:
    found = verified(PARALLEL, *gpus, "--emulate-cuda", "--select", "ddp")
    assert (found["ending"], found["rolled_back"]) == ("verified", [])
    assert "DistributedDataParallel(" in Path("train.py").read_text()


def test_two_processes_without_gpus(verified: Verified) -> None:
    script = SCRIPT.replace("torch.manual_seed(1)\n", DEVICE + "torch.manual_seed(1)\n")
    script = script.replace(".cuda()", ".to(device)")
    found = verified(script, "--gpus", "2", "--select", "ddp,defer-sync")
    assert (found["ending"], found["rolled_back"]) == ("verified", [])
    text = Path("train.py").read_text()
    assert "global_running_loss" in text
    assert "int(correct)" in text
