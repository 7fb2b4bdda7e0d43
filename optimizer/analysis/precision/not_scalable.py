"""Why gradients cannot be scaled."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..facts import Fact
from ..program.syntax import Module


@dataclass(frozen=True, eq=False)
class NotScalable(Fact):
    """Why gradients cannot be scaled, seen at ``node``."""

    why: str


class NotScalableError(Exception):
    """Raised where it is found that gradients cannot be scaled."""

    def __init__(self, module: Module, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.fact = NotScalable(module, node, why)
