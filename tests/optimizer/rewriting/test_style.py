from __future__ import annotations

from pathlib import Path

import pytest

from torchopt_cli.optimizer.rewriting.source_tree import SourceTree
from torchopt_cli.optimizer.rewriting.style import Style


def style_of(text: str, path: Path = Path("/nowhere/train.py")) -> Style:
    return Style.of(path, SourceTree.parse(text))


@pytest.mark.parametrize(
    ("text", "indent"),
    [
        ("x = 1\n", "    "),
        ("if x:\n  y\n", "  "),
        ("if x:\n\ty\n", "\t"),
        ("class A:\n   def f(self):\n      y\n", "   "),
        ("if x: y\nfor x in y:\n  z\n", "  "),
        ("if x:\n    y\nif x:\n    y\nif x:\n  y\n", "    "),
        ("def f():\n  return g(\n          a)\n", "  "),
        ("if x: \\\n   y\n", "    "),
    ],
)
def test_indentation_is_what_most_blocks_have(text: str, indent: str) -> None:
    assert style_of(text).indent == indent


ALIGNED = "f(a, b,\n  c)\n"
EXPLODED = "f(\n    a, b\n)\n"


@pytest.mark.parametrize(
    ("text", "aligns"),
    [
        ("f(a, b)\n", False),
        (ALIGNED, True),
        (EXPLODED, False),
        (EXPLODED + ALIGNED, True),
        (EXPLODED * 2 + ALIGNED, False),
        ("f(a, b,\n    c)\n", False),
        ("f(g(\n    a\n))\n", False),
        ("if x:\n\tf(a,\n\t  b)\n", False),
        ("x = f('é', k=1,\n      j=2)\n", True),
    ],
)
def test_arguments_are_aligned_where_calls_of_several_lines_have_them_so(
    text: str, aligns: bool
) -> None:
    assert style_of(text).aligns is aligns


@pytest.mark.parametrize(
    ("text", "newline"),
    [("", "\n"), ("x", "\n"), ("x\r\ny\r\nz\n", "\r\n"), ("x\ry\r", "\r"), ("x\ny\r\nz\n", "\n")],
)
def test_line_ends_are_what_most_lines_have(text: str, newline: str) -> None:
    assert style_of(text).newline == newline


@pytest.mark.parametrize(
    ("line", "length"),
    [
        ("x = 1", 88),
        ("x = " + "y + " * 22 + "z", 93),
        ("x = " + "y + " * 60 + "z", 120),
        ("# " + "a comment " * 10, 88),
        ('s = """\n' + "text " * 30 + '\n"""', 88),
    ],
)
def test_line_length_is_that_of_the_longest_line_within_reason(line: str, length: int) -> None:
    style = style_of(line + "\n")
    assert style.line_length == length
    assert style.indented_length == (88 if length == 88 else 120)


@pytest.mark.parametrize(
    ("configuration", "length"),
    [
        ("[tool.black]\nline-length = 79\n", 79),
        ("[tool.ruff]\nline-length = 110\n", 110),
        ("[tool.ruff]\nline-length = 110\n[tool.black]\nline-length = 79\n", 79),
        ("[tool.other]\nline-length = 79\n", 88),
        ("[tool.black\nline-length = 79\n", 88),
        ("[project]\nname = 'x'\n", 88),
    ],
)
def test_line_length_of_the_project_comes_first(
    tmp_path: Path, configuration: str, length: int
) -> None:
    (tmp_path / "pyproject.toml").write_text(configuration)
    (tmp_path / "package").mkdir()
    style = style_of("x = 1\n", tmp_path / "package" / "train.py")
    assert style.line_length == style.indented_length == length


def test_the_nearest_project_decides(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.black]\nline-length = 79\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "pyproject.toml").write_text("[project]\n")
    assert style_of("x\n", tmp_path / "inner" / "a.py").line_length == 88
