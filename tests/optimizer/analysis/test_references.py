"""Emitted names follow the file's imports."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.editing.references import reference
from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.rewriting.edits import AddImport, FileEdit


@pytest.mark.parametrize(
    ("imports", "name", "code"),
    [
        ("import torch", "torch.autocast", "torch.autocast"),
        ("import torch as th", "torch.autocast", "th.autocast"),
        ("import torch\nimport torch.nn as nn", "torch.nn.ReLU", "nn.ReLU"),
        ("import torch\nimport torch.optim", "torch.autocast", "torch.autocast"),
        ("from torch.amp import autocast", "torch.amp.autocast", "autocast"),
        ("from torch import nn", "torch.nn.functional.relu", "nn.functional.relu"),
        (
            "try:\n    import torch\nexcept ImportError:\n    torch = None",
            "torch.autocast",
            "torch.autocast",
        ),
    ],
)
def test_spelling(
    script: Callable[..., TrainingScript], imports: str, name: str, code: str
) -> None:
    found = reference(script(imports).entry, name)
    assert (found.code, found.edits) == (code, ())


@pytest.mark.parametrize(
    "imports",
    [
        "import numpy",
        "from torch import nn",
        "torch = 3",
        "torch = None",
        "def f():\n    import torch",
    ],
)
def test_missing_import_is_added(script: Callable[..., TrainingScript], imports: str) -> None:
    entry = script(imports).entry
    found = reference(entry, "torch.autocast")
    assert found.code == "torch.autocast"
    assert found.edits == (FileEdit(entry.path, AddImport("torch")),)
