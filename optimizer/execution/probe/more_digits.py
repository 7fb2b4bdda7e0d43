"""A script's code that prints its floating-point numbers with more digits: what the last one of ``f"{loss:.4f}"`` hides."""

from __future__ import annotations

import ast
import re
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any

MORE = 8
"""Digits that are added: four and eight are what float32 and float64 tell a printed loss by, with some to spare."""
_DEFAULT = 6
"""Python's, where a format gives no number of digits."""

_SPEC = re.compile(r"([^%]*?)(?:\.(\d+))?([eEfFgG%])")
"""What stands behind the colon of a format; with a ``%`` before its end it is that of a date."""
_FIELD = re.compile(r"(\{[^{}:]*:)([^{}]*)(\})")
_PERCENT = re.compile(r"(%(?:\(\w+\))?[-+ #0]*\d*)(?:\.(\d+))?([a-zA-Z%])")
_LOGS = frozenset({"debug", "info", "warning", "error", "critical", "log"})


def compiled(source: bytes | str, path: str) -> CodeType:
    """The code of a file, as it prints with more digits."""
    tree = ast.parse(source, path)
    return compile(
        ast.fix_missing_locations(_MoreDigits().visit(tree)), path, "exec", dont_inherit=True
    )


class MoreDigitsLoader(SourceFileLoader):
    """Loads a module of the project likewise."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return compiled(self.get_data(path), path)


class _MoreDigits(ast.NodeTransformer):
    """Formats that stand in the code: of f-strings, ``str.format``, ``format``, ``%``, and of what is logged."""

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        self.generic_visit(node)
        spec = node.format_spec
        # What stands behind numbers that are put into the format (`{x:{width}.3f}`) ends it.
        if isinstance(spec, ast.JoinedStr) and spec.values:
            last = spec.values[-1]
            if isinstance(last, ast.Constant) and isinstance(last.value, str):
                last.value = _finer(last.value)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mod):
            _change(node.left, _finer_percents)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Name) and function.id == "format" and len(node.args) == 2:
            _change(node.args[1], _finer)
        if isinstance(function, ast.Attribute):
            if function.attr == "format":
                _change(function.value, _finer_fields)
            elif function.attr in _LOGS:
                for argument in node.args[:2] if len(node.args) > 1 else ():
                    _change(argument, _finer_percents)
        return node


def _change(node: ast.AST, how: Any) -> None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node.value = how(node.value)


def _finer(spec: str) -> str:
    found = _SPEC.fullmatch(spec)
    if found is None:
        return spec
    before, digits, kind = found.groups()
    return f"{before}.{_more(digits)}{kind}"


def _finer_fields(text: str) -> str:
    return _FIELD.sub(lambda field: field[1] + _finer(field[2]) + field[3], text)


def _finer_percents(text: str) -> str:
    def finer(found: re.Match[str]) -> str:
        before, digits, kind = found.groups()
        return f"{before}.{_more(digits)}{kind}" if kind in "eEfFgG" else found[0]

    return _PERCENT.sub(finer, text)


def _more(digits: str | None) -> int:
    return (_DEFAULT if digits is None else int(digits)) + MORE
