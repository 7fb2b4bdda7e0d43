"""One spelling for each name of torch."""

from __future__ import annotations

import pytest

from torchopt_cli.optimizer.analysis.torch_names import canonical


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ("torch.sparse.torch.eye", "torch.eye"),
        ("torch.nn.functional.torch.utils.data.dataset.Dataset", "torch.utils.data.Dataset"),
        ("torch.sparse.mm", "torch.sparse.mm"),
        ("torch.utils.data.dataloader.DataLoader", "torch.utils.data.DataLoader"),
        ("torchvision.models.torch.eye", "torchvision.models.torch.eye"),
    ],
)
def test_canonical(written: str, known: str) -> None:
    assert canonical(written) == known
