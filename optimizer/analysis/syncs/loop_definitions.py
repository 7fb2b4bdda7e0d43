"""The plain arithmetic by which the statements of a loop give variables their values."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..program.scopes import Assigned
from ..program.syntax import Module
from ..values.unpacking import written_part

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div)


@dataclass(frozen=True, eq=False)
class Definition:
    """A statement that gives the variable ``name`` the ``value``, adds it or, when ``appends``, appends it."""

    name: str
    statement: ast.stmt
    value: ast.expr
    appends: bool = False

    @property
    def adds(self) -> bool:
        return isinstance(self.statement, ast.AugAssign) and not self.appends


@dataclass(frozen=True, eq=False)
class HandedOver:
    """A statement that gives the ``value`` to a method of the object ``name``, and does nothing else."""

    name: str
    method: str
    call: ast.Call
    value: ast.expr


def handed_over(module: Module, value: ast.expr) -> HandedOver | None:
    """What hands ``value`` over to an object that has a name."""
    call = module.parents[value]
    if isinstance(call, ast.keyword):
        call = module.parents[call]
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if isinstance(
            module.parents[call], ast.Expr
        ):
            return HandedOver(name, method, call, value)
        case _:
            return None


def definitions_in(statement: ast.stmt) -> Iterator[Definition]:
    """What ``statement`` assigns, adds or appends to a variable, other than constants."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            if not isinstance(value, ast.Constant):
                yield Definition(name, statement, value)
        case ast.AugAssign(
            target=ast.Name(id=name), op=ast.Add(), value=ast.List(elts=[value])
        ) if not isinstance(value, ast.Starred):
            yield Definition(name, statement, value, appends=True)
        case ast.AugAssign(target=ast.Name(id=name), value=value):
            yield Definition(name, statement, value)
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=ast.Name(id=name), attr="append"),
                args=[value],
                keywords=[],
            )
        ):
            yield Definition(name, statement, value, appends=True)
        case _:
            pass


def is_plain(operator: ast.operator) -> bool:
    """Whether ``operator`` is one of plain arithmetic."""
    return isinstance(operator, _OPERATORS)


def leaves(value: ast.expr) -> Iterator[ast.expr]:
    """The operands of plain arithmetic."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, _OPERATORS):
        yield from leaves(value.left)
        yield from leaves(value.right)
    else:
        yield value


def operators(value: ast.expr) -> Iterator[ast.operator]:
    """The operators of plain arithmetic."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, _OPERATORS):
        yield value.op
        yield from operators(value.left)
        yield from operators(value.right)


def leaf_name(leaf: ast.expr) -> str | None:
    """The variable that ``leaf`` is, None when it is none."""
    return leaf.id if isinstance(leaf, ast.Name) and isinstance(leaf.ctx, ast.Load) else None


def arithmetic_root(module: Module, node: ast.expr) -> ast.expr:
    """The whole arithmetic expression that ``node`` is an operand of."""
    parent = module.parents[node]
    while isinstance(parent, ast.BinOp) and isinstance(parent.op, _OPERATORS):
        node, parent = parent, module.parents[parent]
    return node


def assigned_value(source: Assigned) -> ast.expr | None:
    """What a variable gets of the tuple it is assigned from; None when that is not written out."""
    return written_part(source.value, source.path)


def is_start(source: Assigned, name: str, *, is_list: bool) -> bool:
    """Whether a variable that gets its value like this is a plain number (or an empty list)."""
    match assigned_value(source):
        case ast.List(elts=[]):
            return is_list
        case ast.Call(func=ast.Name(id="list"), args=[], keywords=[]):
            return is_list
        case ast.Constant(value=number):
            return not is_list and type(number) in {int, float}
        case ast.Call(
            func=ast.Name(id="float" | "int"), args=[ast.Name(id=converted)], keywords=[]
        ):
            return converted == name and not is_list
        case _:
            return False


def is_whole(source: Assigned) -> bool:
    """Whether the number it gets is an integer."""
    value = assigned_value(source)
    if isinstance(value, ast.Call):
        return getattr(value.func, "id", "") == "int"
    return isinstance(value, ast.List) or type(getattr(value, "value", None)) is int
