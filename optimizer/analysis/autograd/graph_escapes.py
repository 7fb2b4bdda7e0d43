"""Where tensors with a graph begin, and where they leave what can be followed."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..facts import Fact
from ..program.syntax import Module


@dataclass(frozen=True, eq=False)
class Escape(Fact):
    """Where a tensor leaves what can be followed, or where code needs autograd; ``why`` says how."""

    why: str

    def __str__(self) -> str:
        return f"{self.why} at {self.place}"


@dataclass(frozen=True)
class Source:
    """An expression that computes a tensor; ``certain`` when it does so for sure.

    ``called`` when it stands in a function that the region calls, not in the region itself; ``in_place`` when it names
    a tensor that is changed rather than computed.
    """

    node: ast.expr
    module: Module
    certain: bool
    called: bool
    in_place: bool = False
