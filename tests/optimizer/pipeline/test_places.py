"""Lines are told to the user by ``Module.place`` alone, which knows that they move while a file is rewritten."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchopt_cli import optimizer, transforms

_FOLDERS = [
    Path(next(iter(optimizer.__path__))) / "analysis",
    Path(next(iter(transforms.__path__))),
]
_MODULES = [path for folder in _FOLDERS for path in sorted(folder.rglob("*.py"))]
_NUMBERS = {"lineno", "end_lineno", "line", "end_line"}
_FILLED_IN = re.compile(r"\blines? (\{\w*\}|%\w)")


def _numbered_by_hand(tree: ast.Module) -> Iterator[str]:
    allowed = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name == "place"
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if node in allowed:
            continue
        if isinstance(node, ast.JoinedStr):
            texts = [v.value if isinstance(v, ast.Constant) else "{}" for v in node.values]
            numbers = [
                n
                for v in node.values
                if isinstance(v, ast.FormattedValue)
                for n in ast.walk(v.value)
                if isinstance(n, ast.Attribute) and n.attr in _NUMBERS
            ]
            if numbers or _FILLED_IN.search("".join(map(str, texts))):
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Constant) and _FILLED_IN.search(str(node.value)):
            yield f"{node.lineno}: {node.value}"


@pytest.mark.parametrize("path", _MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_message_numbers_lines_by_hand(path: Path) -> None:
    assert not [*_numbered_by_hand(ast.parse(path.read_text(encoding="utf-8")))]


@pytest.mark.parametrize(
    "code",
    [
        "f'set at line {line}'",
        "f'(line {node.lineno})'",
        "f'{path.name}:{fact.span.line}'",
        "'(line {0}) rounds'.format(1)",
        "'read at line %d' % number",
    ],
)
def test_numbering_by_hand_is_found(code: str) -> None:
    assert [*_numbered_by_hand(ast.parse(code))]
