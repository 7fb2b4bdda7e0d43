"""Runs whose numbers are printed with more digits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution.observations import Observations

pytestmark = pytest.mark.torch

FILES = {
    "train.py": """
import torch
from told import tell
model = torch.nn.Linear(8, 1)
torch.nn.init.constant_(model.weight, 0.1)
torch.nn.init.zeros_(model.bias)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.ones(4, 8)).mean()
loss.backward()
optimizer.step()
print(f"loss {loss.item():.2f}")
tell(loss.item())
""",
    "told.py": """
def tell(loss):
    print("told %.2f" % loss)
""",
}


@pytest.mark.slow
def test_the_script_and_its_modules_print_more(
    project: Callable[[Mapping[str, str]], Path], observe: Callable[..., Observations]
) -> None:
    folder = project(FILES)
    assert observe(folder).stdout.split() == ["loss", "0.80", "told", "0.80"]
    loss, told = observe(folder, more_digits=True).stdout.split()[1::2]
    assert loss == told == f"{float(loss):.10f}"
    assert len(loss) == len("0.8000000119")
    assert not list(folder.rglob("*.pyc"))
