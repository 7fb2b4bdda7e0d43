"""Where a fact was seen, in words."""

from __future__ import annotations

from collections.abc import Callable

from torchopt_cli.optimizer.analysis.facts import Fact, seen_at
from torchopt_cli.optimizer.analysis.script import TrainingScript


def test_code_is_named_once(script: Callable[..., TrainingScript]) -> None:
    understood = script(
        {"train.py": "import other\nloss = 1\n\ncall(loss)\n", "other.py": "x = 2\n"}
    )
    entry, other = understood.modules
    loss, call = (Fact(entry, statement) for statement in entry.tree.body[1:])
    elsewhere = Fact(other, other.tree.body[0])
    assert seen_at(loss, call) == " (`loss = 1`)"
    assert seen_at(loss, loss) == ""
    assert seen_at(loss, call, "`loss = 1` is a number") == ""
    assert seen_at(elsewhere, call) == " (`x = 2` in other.py)"
    assert seen_at(elsewhere, call, "`x = 2` is a number") == " (in other.py)"


def test_code_of_several_lines_is_told_in_one(script: Callable[..., TrainingScript]) -> None:
    lines = {
        "loss = criterion(\n    outputs,\n    labels,\n)\n": "loss = criterion(outputs, labels)",
        "loss = criterion(outputs,\n                 labels)\n": "loss = criterion(outputs, labels)",
        "loss = total \\\n    / count\n": "loss = total / count",
        "print(\n    loss,  # of the batch\n    step\n)\n": "print(loss, step)",
        "with torch.no_grad():\n    call()\n": "with torch.no_grad():",
    }
    for code, told in lines.items():
        (module,) = script({"train.py": code}).modules
        assert Fact(module, module.tree.body[0]).excerpt == told
