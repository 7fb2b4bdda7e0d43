from __future__ import annotations

from collections.abc import Iterator

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.cli import main
from torchopt_cli.optimizer.commands import catalogue
from torchopt_cli.optimizer.options import Options
from torchopt_cli.transforms import registry
from torchopt_cli.transforms.base import Advice, Advisor, Example

Capture = pytest.CaptureFixture[str]


class Look(Advisor):
    """Looks at slow calls."""

    name = "look"
    example = Example("import torch\nslow()\n", advice=("this is slow",))

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Advice]:
        for call in script.entry.calls:
            yield self.advice(script.entry.path, script.entry.span(call), "this is slow")

    @classmethod
    def documentation(cls) -> str:
        return "Looks at slow calls."


def test_rules_lists_every_transform(capsys: Capture) -> None:
    assert main(["rules"]) == 0
    rows = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["slow-to-fast", "exact", "data", "Calls the fast one."],
        ["bold-to-bolder", "semantic", "data", "Calls the fast one."],
    ]


def test_explain_shows_documentation_and_example(capsys: Capture) -> None:
    assert main(["explain", "slow-to-fast"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "slow-to-fast [exact], stage: data",
        "",
        "Calls the fast one.",
        "",
        "Because the slow one is slow.",
        "",
        " import torch",
        "-slow()",
        "+fast()",
    ]


def test_explain_what_is_not_there(capsys: Capture) -> None:
    assert main(["explain", "slow-to-fats"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "torchopt: explain: no transform is called 'slow-to-fats' (did you mean 'slow-to-fast'?)\n"
    )


def test_one_that_only_advises(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "all_transforms", lambda: (Look(),))
    assert main(["rules"]) == 0
    assert capsys.readouterr().out.split(maxsplit=3)[:3] == ["look", "advice", "advice"]
    assert main(["explain", "look"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "look [advice], stage: advice",
        "",
        "Looks at slow calls.",
        "",
        " import torch",
        " slow()",
        "",
        "Advice: this is slow",
    ]


@pytest.mark.parametrize("columns", [60, 80])
def test_a_narrow_terminal_gets_what_a_transform_does_beside_or_below_its_name(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    does = "Looks at calls that are slow and says so, whatever they may do and whoever wrote them."
    monkeypatch.setattr(Look, "documentation", classmethod(lambda cls: does))
    monkeypatch.setattr(registry, "all_transforms", lambda: (Look(),))
    monkeypatch.setattr(catalogue, "width_of", lambda stream: columns)
    assert main(["rules"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert " ".join([first, *map(str.strip, rest)]).endswith(does)
    assert max(len(line) for line in [first, *rest]) <= columns
    assert first.startswith("look")
    assert (does[:20] in first) == (columns == 80)
