"""Helpers to ask the analysis about small scripts."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis import understand
from torchopt_cli.optimizer.analysis.program.syntax import Module
from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.values.values import (
    Class,
    External,
    Function,
    Literal,
    Made,
    Value,
)
from torchopt_cli.optimizer.source import Sources


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., TrainingScript]:
    """``script(text)`` or ``script({path: text, ...})``, the entry first."""

    def make(files: str | Mapping[str, str]) -> TrainingScript:
        named = {"train.py": files} if isinstance(files, str) else files
        for name, text in named.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
        return understand(tmp_path / next(iter(named)), Sources())

    return make


def questions(script: TrainingScript) -> list[tuple[ast.expr, Module]]:
    """The arguments of the calls to ``ASK`` in a script, in source order."""
    return [
        (call.args[0], module)
        for module in script.modules
        for call in module.calls
        if isinstance(call.func, ast.Name) and call.func.id == "ASK"
    ]


def describe(value: Value) -> object:
    """A value as a test writes it down."""
    match value:
        case External(name):
            return name
        case Literal(literal):
            return literal
        case Made(_, _, External(name)):
            return f"{name}()"
        case Made(_, _, Class(node)):
            return f"{node.name}()"
        case Class(node) | Function(ast.FunctionDef() as node):
            return f"<{node.name}>"
        case _:
            return type(value).__name__


@pytest.fixture
def ask(script: Callable[..., TrainingScript]) -> Callable[..., set[object]]:
    """``ask(files)``: what the argument of the first ``ASK(...)`` of a script may be."""

    def answer(files: str | Mapping[str, str]) -> set[object]:
        understood = script(files)
        expression, module = questions(understood)[0]
        return {describe(value) for value in understood.values(expression, module)}

    return answer
