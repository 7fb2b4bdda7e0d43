"""Two emulated CUDA devices for the time of a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from torchopt_cli.optimizer.execution.probe.cuda.install import emulate_cuda
from torchopt_cli.optimizer.execution.probe.patches import Patches


@pytest.fixture(autouse=True)
def two_devices() -> Iterator[None]:
    """The test's process sees two devices, and none afterwards."""
    patches = Patches()
    emulate_cuda(patches, 2)
    yield
    patches.undo()
