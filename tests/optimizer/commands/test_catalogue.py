from __future__ import annotations

import pytest

from torchopt_cli.optimizer.cli import main

Capture = pytest.CaptureFixture[str]


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
