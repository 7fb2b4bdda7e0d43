"""Code that never runs because a test is always true, or never."""

from __future__ import annotations

import ast

from ..values.resolver import Resolver
from ..values.values import Literal
from .syntax import Module


class DeadCode:
    """Answers for one project."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    def truth(self, test: ast.expr, module: Module) -> bool | None:
        """Whether ``test`` is always true or always false; None when that is not known."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            truth = self.truth(test.operand, module)
            return None if truth is None else not truth
        values = self._resolver.values(test, module)
        truths = {bool(v.value) if isinstance(v, Literal) else None for v in values}
        return truths.pop() if len(truths) == 1 else None

    def contains(self, node: ast.AST, module: Module) -> bool:
        """Whether ``node`` never runs when its function does: in a branch that is not taken, or behind a return."""
        child = node
        for ancestor in module.ancestors(node):
            if isinstance(child, ast.stmt) and self._returns_before(child, module):
                return True
            if isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                return False
            if isinstance(ancestor, ast.If) and child is not ancestor.test:
                truth = self.truth(ancestor.test, module)
                if truth is not None and truth != (child in ancestor.body):
                    return True
            child = ancestor
        return False

    def _returns_before(self, statement: ast.stmt, module: Module) -> bool:
        for earlier in module.block(statement):
            if earlier is statement:
                return False
            match earlier:
                case ast.If(test=test, body=[*_, ast.Return()]) if self.truth(test, module):
                    return True
                case _:
                    pass
        return False
