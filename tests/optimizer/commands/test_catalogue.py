from __future__ import annotations

from collections.abc import Iterator

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.cli import main
from torchopt_cli.optimizer.commands import catalogue
from torchopt_cli.optimizer.options import Options, Tier
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
        ["bold-to-bolder", "semantic", "data", "Calls the fast one. (only with --tier semantic)"],
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


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, ""),
        ({"opt_in": True}, " (only with --select)"),
        ({"tier": Tier.SEMANTIC}, " (only with --tier semantic)"),
        ({"tier": Tier.SEMANTIC, "opt_in": True}, " (only with --tier semantic and --select)"),
        ({"tier": Tier.SEMANTIC, "asked_by": "accumulate"}, " (only with --accumulate)"),
    ],
)
def test_what_has_to_be_asked_for_is_told(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], told: str
) -> None:
    for name, value in settings.items():
        monkeypatch.setattr(Look, name, value)
    monkeypatch.setattr(registry, "all_transforms", lambda: (Look(),))
    assert main(["explain", "look"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == f"look [advice], stage: advice{told}"
    assert main(["rules"]) == 0
    assert capsys.readouterr().out.strip().endswith(f"Looks at slow calls.{told}")


def test_a_link_between_pages_is_a_path_in_a_terminal(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Looks at calls: [distributed.md](../distributed.md)."
    monkeypatch.setattr(Look, "documentation", classmethod(lambda cls: text))
    monkeypatch.setattr(registry, "all_transforms", lambda: (Look(),))
    assert main(["explain", "look"]) == 0
    assert "Looks at calls: docs/distributed.md." in capsys.readouterr().out


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
