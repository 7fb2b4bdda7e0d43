"""Modules that are imported by a name that is put together when the script runs: ``import_module("models." + args.model)``."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator

from .reaching import only_value
from .syntax import Module

_ANY = r"\w+"
"""Stands for what is known when the script runs: a name without dots."""
_MOST_NAMES = 20
"""A name is made of fewer variables than this; more are a cycle."""


def computed_imports(module: Module) -> Iterator[tuple[ast.Call, re.Pattern[str]]]:
    """The calls of ``module`` that import a module by a text, with what its dotted name matches."""
    for call in module.calls_named("import_module"):
        if not call.args or module.leaves_out(call):
            continue
        parts = [part for part in _parts(call.args[0], module) if part]
        if parts and parts[0].startswith("."):
            package = _package(call, module)
            if package is None or parts[0].startswith(".."):
                continue
            parts.insert(0, package)
        name = "".join(_ANY if part == _ANY else re.escape(part) for part in parts)
        yield call, re.compile(name.replace(_ANY * 2, _ANY))


def known_package(name: re.Pattern[str]) -> str:
    """The package that is spelled in all that ``name`` matches: ``models`` of ``models.<any>_model``; nothing where none is."""
    told = name.pattern.partition(_ANY)[0]
    return told.replace("\\", "").rpartition(".")[0]


def _package(call: ast.Call, module: Module) -> str | None:
    """The package that a name with a dot at its beginning is relative to."""
    match [*call.args[1:], *(k.value for k in call.keywords if k.arg == "package")]:
        case [ast.Constant(str() as package)]:
            return package
        case [ast.Name("__package__" | "__name__")]:
            return module.package
        case _:
            return None


def _parts(text: ast.expr, module: Module, names: int = 0) -> Iterator[str]:
    """What ``text`` is put together of, :data:`_ANY` for what is not written out."""
    match text:
        case ast.Constant(str() as written):
            yield written
        case ast.BinOp(left, ast.Add(), right):
            yield from _parts(left, module, names)
            yield from _parts(right, module, names)
        case ast.BinOp(ast.Constant(str() as written), ast.Mod()):
            yield from (
                _ANY if part in {"%s", "%d"} else part for part in re.split("(%[sd])", written)
            )
        case ast.Call(ast.Attribute(ast.Constant(str() as written), "format")):
            for told, field, _, _ in string.Formatter().parse(written):
                yield told
                if field is not None:
                    yield _ANY
        case ast.JoinedStr(values):
            for value in values:
                yield from _parts(value, module, names)
        case ast.Name() if names < _MOST_NAMES and (value := only_value(module, text)) is not None:
            yield from _parts(value, module, names + 1)
        case _:
            yield _ANY
