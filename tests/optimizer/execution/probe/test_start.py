"""Which interpreters can run the probe."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from torchopt_cli.optimizer.execution.probe.start import unfit


@pytest.mark.parametrize(
    ("version", "emulates", "said"),
    [
        ("2.4.0", False, None),
        ("2.10.0+cu130", True, None),
        ("2.3.1", False, "torch 2.3.1 is too old, 2.4 is needed"),
        ("2.5.1", True, "torch 2.5.1 is too old to emulate a CUDA device, 2.6 is needed"),
        ("1.13.1", True, "torch 1.13.1 is too old to emulate a CUDA device, 2.6 is needed"),
    ],
)
def test_versions(
    monkeypatch: pytest.MonkeyPatch, version: str, emulates: bool, said: str | None
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))
    assert unfit(emulates=emulates) == said


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = unfit(emulates=False)
    assert found is not None
    assert found.startswith("torch cannot be imported: ")
