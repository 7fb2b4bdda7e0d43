"""``torchopt rewrite --verify`` over real runs: transforms that are wrong on purpose are named and rolled back."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.cli import main
from torchopt_cli.optimizer.options import Options, Tier
from torchopt_cli.optimizer.rewriting.edits import FileEdit, ReplaceExpression
from torchopt_cli.transforms import registry
from torchopt_cli.transforms.base import Change, Example, Stage, Transform

pytestmark = pytest.mark.torch

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
inputs, targets = torch.randn(64, 8), torch.randn(64, 1)


def base(raised=0):
    return 1.5 if raised else 1.0


def exponent(raised=0):
    return 1.0 if raised else 0.0


def main():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = (outputs - targets).pow(2).mean() * base(0) ** exponent(0)
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")


main()
"""


class Replaces(Transform):
    """Replaces every call that reads ``old``."""

    tier = Tier.EXACT
    stage = Stage.DATA
    example = Example("import torch\nold()\n", "import torch\nnew()\n")
    old = new = ""

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change]:
        for call in script.entry.calls:
            if ast.unparse(call) == self.old:
                span = script.entry.span(call)
                edit = FileEdit(script.entry.path, ReplaceExpression(span, self.new))
                yield self.change(script.entry.path, span, f"writes {self.new}", "why", (edit,))


def replaces(name: str, old: str, new: str, tier: Tier = Tier.EXACT) -> Transform:
    return type(name, (Replaces,), {"name": name, "old": old, "new": new, "tier": tier})()


SAVES_A_DICT = replaces(
    "saves-a-dict",
    "torch.save(model.state_dict(), 'model.pt')",
    'torch.save(dict(model.state_dict()), "model.pt")',
)
SETS_TO_NONE = replaces(
    "set-to-none", "optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=True)"
)
NO_ZERO_GRAD = replaces("no-zero-grad", "optimizer.zero_grad()", "optimizer.state_dict()")
FASTER_LR = replaces(
    "faster-lr",
    "torch.optim.SGD(model.parameters(), lr=0.1)",
    "torch.optim.SGD(model.parameters(), lr=0.2)",
)
CRASHES = replaces("crashes", "model(inputs)", "model(inputs[0, 0])")
Rewrite = Callable[..., dict[str, Any]]


@pytest.fixture
def rewrite(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    warm_python: Path,
) -> Rewrite:
    """Rewrites the script with these transforms, expecting ``code``; gives what the JSON says of the verification."""

    def start(*transforms: Transform, code: int = 0, tier: str = "exact") -> dict[str, Any]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setattr(registry, "all_transforms", lambda: transforms)
        Path("train.py").write_text(SCRIPT)
        Path("pyproject.toml").write_text("[tool.torchopt]\nsteps = 3\nno-timing = true\n")
        flags = ["--verify", "--format", "json", "--tier", tier, "--python", str(warm_python)]
        assert main(["rewrite", "train.py", *flags]) == code
        (verification,) = json.loads(capsys.readouterr().out)["verification"]
        return verification

    return start


def test_a_changed_learning_rate_is_rolled_back(rewrite: Rewrite) -> None:
    found = rewrite(SETS_TO_NONE, FASTER_LR)
    assert found["ending"] == "verified"
    (item,) = found["rolled_back"]
    assert (item["transform"], item["together_with"]) == ("faster-lr", [])
    assert item["finding"]["kind"] in {"optimizer-settings", "learning-rate"}
    assert item["changes"][0]["source"] == [
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    ]
    assert found["reports"][-1]["outcome"] == "equivalent"
    assert Path("train.py").read_text() == SCRIPT.replace(
        "zero_grad()", "zero_grad(set_to_none=True)"
    )


@pytest.mark.slow
def test_gradients_that_are_not_cleared_and_a_crash(rewrite: Rewrite) -> None:
    found = rewrite(NO_ZERO_GRAD, CRASHES, SAVES_A_DICT)
    assert found["ending"] == "verified"
    gradient, crash = found["rolled_back"]
    assert gradient["transform"] == "no-zero-grad"
    assert gradient["finding"]["step"] == 2, "the first step's gradients are what they should be"
    assert gradient["finding"]["kind"] in {"gradient", "parameter-update", "parameter"}
    assert gradient["finding"]["tensor"] is not None
    assert crash["transform"] == "crashes"
    assert crash["failure"]["script"] == "rewritten"
    assert "Error" in crash["failure"]["details"]
    assert Path("train.py").read_text() == SCRIPT.replace(
        "torch.save(model.state_dict(), ", "torch.save(dict(model.state_dict()), "
    )


@pytest.mark.slow
def test_two_that_are_wrong_only_together(rewrite: Rewrite) -> None:
    """The loss's factor is a power: 1.5 ** 0 and 1 ** 1 are 1, but not 1.5 ** 1."""
    bases = replaces("bases", "base(0)", "base(1)")
    exponents = replaces("exponents", "exponent(0)", "exponent(1)")
    found = rewrite(SETS_TO_NONE, bases, exponents, SAVES_A_DICT)
    (item,) = found["rolled_back"]
    assert (item["transform"], item["together_with"]) == ("exponents", ["bases"])
    assert item["finding"]["kind"] == "loss"
    assert item["finding"]["step"] == 1


@pytest.mark.slow
def test_nothing_is_left_of_what_is_all_wrong(rewrite: Rewrite) -> None:
    found = rewrite(NO_ZERO_GRAD, FASTER_LR, code=3)
    assert found["ending"] == "nothing left"
    assert {item["transform"] for item in found["rolled_back"]} == {"no-zero-grad", "faster-lr"}
    assert Path("train.py").read_text() == SCRIPT


@pytest.mark.slow
def test_a_change_of_training_is_not_called_verified(rewrite: Rewrite) -> None:
    asked_for = replaces("faster-lr", FASTER_LR.old, FASTER_LR.new, Tier.SEMANTIC)  # pyright: ignore
    found = rewrite(SETS_TO_NONE, asked_for, tier="semantic")
    (item,) = found["rolled_back"]
    assert (item["transform"], item["outcome"]) == ("faster-lr", "inconclusive")
    assert "zero_grad(set_to_none=True)" in Path("train.py").read_text()
    assert "lr=0.1" in Path("train.py").read_text()
