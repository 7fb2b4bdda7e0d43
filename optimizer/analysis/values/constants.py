"""Expressions of numbers."""

from __future__ import annotations

import ast


def constant(node: ast.expr) -> float | None:
    """The number an expression of numbers is (``-1e9``, ``-2**15``, ``float("-inf")``), None for any other."""
    if isinstance(node, ast.Constant):
        value = node.value
        return (
            float(value)
            if isinstance(value, (int, float)) and not isinstance(value, bool)
            else None
        )
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = constant(node.operand)
        return -inner if inner is not None else None
    if isinstance(node, ast.BinOp) and isinstance(
        node.op, (ast.Pow, ast.Add, ast.Sub, ast.Mult, ast.Div)
    ):
        left, right = constant(node.left), constant(node.right)
        if left is None or right is None or abs(right) > 1000:
            return None
        return _calculate(node.op, left, right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float":
        argument = node.args[0] if node.args else None
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str | int | float):
            try:
                return float(argument.value)
            except ValueError:
                return None
    return None


def _calculate(operator: ast.operator, left: float, right: float) -> float | None:
    try:
        match operator:
            case ast.Pow():
                result = left**right
            case ast.Add():
                result = left + right
            case ast.Sub():
                result = left - right
            case ast.Div():
                result = left / right
            case _:
                result = left * right
    except (OverflowError, ZeroDivisionError):
        return None
    return result if isinstance(result, float) else None
