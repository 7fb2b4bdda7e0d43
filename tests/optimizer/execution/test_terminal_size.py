"""Scripts that ask how wide the terminal is: runs have none."""

from __future__ import annotations

import pytest

from torchopt_cli.optimizer.execution.observations import Status
from torchopt_cli.optimizer.execution.runner import Mode

pytestmark = pytest.mark.torch

TRAIN = """
import os, shutil
import torch

_, width = os.popen('stty size', 'r').read().split()
print(width, os.get_terminal_size().columns, shutil.get_terminal_size((70, 20)).columns)
with os.popen("echo other commands") as other:
    print(other.read().strip())
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.sum().backward()
optimizer.step()
"""


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.TIME])
def test_a_script_is_told_a_width_and_a_library_is_not(project, observe, monkeypatch, mode):
    monkeypatch.delenv("COLUMNS", raising=False)
    ended = observe(project({"train.py": TRAIN}), mode=mode)
    assert ended.status is Status.COMPLETED, ended.failure_details
    assert ended.stdout.splitlines() == ["80 80 70", "other commands"]


def test_the_width_may_be_set(project, observe, monkeypatch):
    monkeypatch.setenv("COLUMNS", "132")
    ended = observe(project({"train.py": TRAIN}))
    assert ended.stdout.splitlines()[0] == "132 132 132"
