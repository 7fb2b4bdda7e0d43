from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchopt_cli.optimizer import gpus
from torchopt_cli.optimizer.errors import TorchoptError


def interpreter(folder: Path, line: str) -> Path:
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
    return program


def test_why_torch_cannot_be_asked_is_told(tmp_path: Path) -> None:
    # -S: without the site-packages that have torch.
    bare = interpreter(tmp_path, f'exec "{sys.executable}" -S "$@"')
    with pytest.raises(TorchoptError) as caught:
        gpus.visible_gpus(bare)
    told = f"{bare}: torch cannot be imported: No module named 'torch'; name another with --python"
    assert str(caught.value) == told
    silent = interpreter(tmp_path, "exit 3")
    with pytest.raises(TorchoptError, match="torch cannot be imported; name another"):
        gpus.visible_gpus(silent)


def test_devices_are_named_as_the_environment_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = interpreter(tmp_path, "echo 2")
    monkeypatch.delenv(gpus.VISIBLE_GPUS, raising=False)
    assert gpus.visible_gpus(two) == ("0", "1")
    monkeypatch.setenv(gpus.VISIBLE_GPUS, "3,5")
    assert gpus.visible_gpus(two) == ("3", "5")
