"""The check before writing: edits pass, losses do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchopt_cli.optimizer.commands import rewrite as command
from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.rewriting.losslessness import LossError, check_lossless

ORIGINAL = '''# head
import torch

text = """
  kept as it is
"""
def f(x):  # why
    y = g(
        x,  # the input
        2,
    )
    return y
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import torch\n", "import os\n\nimport torch\n"),
        ("    return y\n", "    with h():\n        return y\n"),
        ("2,", "2,\n        k=3,"),
        ("    return y\n", ""),
        (
            "    y = g(\n        x,  # the input\n        2,\n    )\n",
            "    if a:\n        y = g(\n            x,  # the input\n            2,\n        )\n",
        ),
    ],
)
def test_edits_pass(old: str, new: str) -> None:
    assert old in ORIGINAL
    check_lossless(ORIGINAL, ORIGINAL.replace(old, new))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_behind_a_backslash_are_indented_with_their_statement(end: str) -> None:
    original = "def f():\n    y = 1 + \\\n        2\n    return y\n"
    moved = "def f():\n    with h():\n        y = 1 + \\\n            2\n    return y\n"
    check_lossless(original.replace("\n", end), moved.replace("\n", end))


def test_a_string_that_goes_on_behind_a_backslash_may_not_be_indented() -> None:
    original = "def f():\n    y = 'a\\\n    b'\n    return y\n"
    with pytest.raises(LossError):
        check_lossless(original, original.replace("    b'", "        b'"))


def test_text_inside_a_string_may_not_be_indented() -> None:
    spoiled = ORIGINAL.replace("  kept as it is", "      kept as it is")
    with pytest.raises(LossError) as caught:
        check_lossless(ORIGINAL, spoiled)
    assert caught.value.line == 4


def test_a_statement_may_not_end_up_inside_a_string() -> None:
    with pytest.raises(LossError):
        check_lossless("a = 1\nb = 2\n", '"""\na = 1\nb = 2\n"""\n')


def test_the_result_must_parse() -> None:
    with pytest.raises(LossError, match="does not parse"):
        check_lossless("a = 1\n", "a = = 1\n")


def test_what_libcst_cannot_read_is_not_judged() -> None:
    check_lossless("a = = 1\n", "a = 1\n")


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_ends(newline: str) -> None:
    before, after = (t.replace("\n", newline) for t in (ORIGINAL, ORIGINAL.replace("2,", "3,")))
    check_lossless(before, after)


def test_nothing_is_written_when_the_check_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchopt_cli.optimizer.rewriting import losslessness

    def fail(original: str, rewritten: str) -> None:
        raise LossError(3, "a statement that nothing was to change has changed")

    monkeypatch.setattr(losslessness, "check_lossless", fail)
    script = tmp_path / "train.py"
    script.write_text("import torch\n\nscaler = torch.cuda.amp.GradScaler()\n")
    from torchopt_cli.optimizer.config import Settings

    with pytest.raises(TorchoptError, match=r"train\.py:3: internal error"):
        command._rewrite([script], Settings(), ())
    assert "torch.cuda.amp" in script.read_text()
