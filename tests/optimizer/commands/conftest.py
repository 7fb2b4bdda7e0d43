"""A project to rewrite and transforms that are easy to foresee."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.options import Options, Tier
from torchopt_cli.optimizer.rewriting.edits import FileEdit, ReplaceExpression
from torchopt_cli.transforms import registry
from torchopt_cli.transforms.base import Change, Example, Skip, Stage, Transform


class SlowToFast(Transform):
    name = "slow-to-fast"
    tier = Tier.EXACT
    stage = Stage.DATA
    example = Example("import torch\nslow()\n", "import torch\nfast()\n")
    old, new = "slow", "fast"

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        for module in script.modules:
            for call in module.calls:
                span = module.span(call)
                if not isinstance(call.func, ast.Name) or call.func.id != self.old:
                    continue
                if call.args:
                    yield self.skip(module.path, span, "the call has arguments")
                else:
                    edits = (FileEdit(module.path, ReplaceExpression(span, f"{self.new}()")),)
                    yield self.change(module.path, span, f"calls {self.new}()", "it is pure", edits)

    @classmethod
    def documentation(cls) -> str:
        return "Calls the fast one.\n\nBecause the slow one is slow."


class BoldToBolder(SlowToFast):
    name = "bold-to-bolder"
    tier = Tier.SEMANTIC
    old, new = "bold", "bolder"


HEADER = (
    "import torch\n\n\ndef slow(*x): ...\ndef fast(): ...\ndef bold(): ...\ndef bolder(): ...\n\n\n"
)


@pytest.fixture(autouse=True)
def transforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "all_transforms", lambda: (SlowToFast(), BoldToBolder()))


@pytest.fixture
def header() -> str:
    """What makes a script of the calls below it; 9 lines."""
    return HEADER


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """``project({"train.py": "slow()\\n"})``: makes it, with definitions on top, the working directory."""

    def make(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(HEADER + text if name.endswith(".py") else text)
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return make
