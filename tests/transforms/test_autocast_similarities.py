"""autocast: contrastive losses, whose cosines are divided by a small temperature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchopt_cli.optimizer.options import AmpDtype

Check = Callable[..., None]
Rewrite = Callable[..., Any]

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Linear(256, 128).cuda()
optimizer = torch.optim.Adam(model.parameters())
labels = torch.arange(64, device="cuda")

for x, y in loader:
    optimizer.zero_grad()
    a = F.normalize(model(x.cuda()), dim=1)
    b = F.normalize(model(y.cuda()), dim=1)
    loss = F.cross_entropy(a @ b.t() / TEMPERATURE, labels)
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def name() -> str:
    return "autocast"


def test_a_small_temperature_is_for_float16(rewrite: Rewrite) -> None:
    result = rewrite(SCRIPT.replace("TEMPERATURE", "0.01"), ["autocast"]).files[0]
    assert 'torch.autocast("cuda", dtype=torch.float16)' in result.text
    assert 'scaler = torch.amp.GradScaler("cuda")' in result.text
    assert "cosines times 100 lose their digits in bfloat16" in result.changes[0].message


def test_a_larger_temperature_is_for_either(rewrite: Rewrite) -> None:
    result = rewrite(SCRIPT.replace("TEMPERATURE", "0.07"), ["autocast"]).files[0]
    assert "torch.bfloat16" in result.text


def test_bfloat16_that_is_asked_for(check_noop: Check) -> None:
    source = SCRIPT.replace("TEMPERATURE", "0.01")
    check_noop(source, "cosines times 100 lose their digits in bfloat16", amp=AmpDtype.BF16)


def test_a_temperature_too_small_for_both(check_noop: Check) -> None:
    source = SCRIPT.replace("TEMPERATURE", "0.001")
    check_noop(source, "cosines times 1000 lose their digits in half precision")
