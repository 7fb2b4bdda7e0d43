"""Augmentation that moves into workers is the same bit for bit: torchvision's, numpy's and Python's own draws."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchopt_cli.optimizer.comparison.verdict import Outcome
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.optimizer.verifying.verification import verify

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SCRIPT = """
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms


class Pictures(Dataset):
    def __init__(self):
        self.images = np.random.default_rng(0).integers(0, 256, (48, 3, 16, 16), dtype=np.uint8)
        self.augment = transforms.Compose(
            [
                transforms.RandomResizedCrop(12, antialias=True),
                transforms.RandomHorizontalFlip(),
                transforms.ColorJitter(0.4, 0.4, 0.4),
                transforms.RandomErasing(),
            ]
        )

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = torch.from_numpy(self.images[index]).float() / 255
        image = self.augment(image) + float(np.random.normal(0, 0.1))
        if random.random() < 0.5:
            image = image.flip(-2)
        return image, index % 4


def main():
    torch.manual_seed(0)
    device = torch.device("cpu")
    loader = DataLoader(Pictures(), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(3):
        for images, labels in loader:
            noise = torch.randn(images.shape).to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images + 0.1 * noise), labels)
            loss.backward()
            optimizer.step()
            print(loss.item(), torch.rand(()).item(), np.random.rand(), random.random())


if __name__ == "__main__":
    main()
"""

LOADER = "batch_size=8, shuffle=True"
WORKERS = {
    "fork": 'num_workers=2, multiprocessing_context="fork"',
}


@pytest.mark.parametrize("name", WORKERS)
def test_workers_augment_the_same_over_several_epochs(
    name: str, tmp_path: Path, warm_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    entry = tmp_path / "train.py"
    entry.write_text(SCRIPT, encoding="utf-8")
    rewritten = SCRIPT.replace(LOADER, f"{LOADER}, {WORKERS[name]}").replace(
        "torch.randn(images.shape).to(device)", "torch.randn(images.shape, device=device)"
    )
    assert rewritten.count("num_workers") == rewritten.count("shape, device=device") == 1
    settings = VerifySettings(
        python=warm_python,
        cwd=tmp_path,
        steps=16,
        timeout_s=500,
        tier=Tier.EXACT,
        measure_speed=False,
    )
    report = verify(ScriptVersion(entry), ScriptVersion(entry, {entry: rewritten}), settings)
    assert report.verdict is not None
    assert report.verdict.findings == ()
    assert (report.verdict.outcome, report.verdict.precision) == (Outcome.EQUIVALENT, None)
    assert report.seen.samples == 2 * 48 + 4 * 8
