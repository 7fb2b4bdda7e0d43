"""What is written for a PyTorch release exists in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult
from torchopt_cli.transforms.base import Transform
from torchopt_cli.transforms.registry import all_transforms

SINCE = {
    "torch.amp.GradScaler": (2, 3),
    "torch.amp.custom_fwd": (2, 4),
    "torch.amp.custom_bwd": (2, 4),
    "including_emulation": (2, 5),
    "torch.accelerator": (2, 6),
}
"""Names that transforms may write, and the release that has them first
(https://github.com/pytorch/pytorch/releases)."""


@pytest.mark.parametrize("version", [(2, 2), (2, 3), (2, 4), (2, 5)])
@pytest.mark.parametrize("transform", all_transforms(), ids=lambda transform: transform.name)
def test_examples_in_older_releases(
    rewrite: Callable[..., RewriteResult], transform: Transform, version: tuple[int, int]
) -> None:
    before = transform.example.before
    result = rewrite(before, [transform.name], torch_version=version, python_version=(3, 10))
    assert not [error for file in result.files for error in file.errors]
    for file in result.files:
        added = [name for name in SINCE if file.text.count(name) > before.count(name)]
        assert all(version >= SINCE[name] for name in added), added
