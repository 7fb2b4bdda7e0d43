"""What stands in a loop for a number that it need not wait for, and what keeps a number from being such."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..facts import Fact, Loop
from ..program.scopes import Scope
from .device_reads import DeviceRead
from .loop_definitions import Definition, leaf_name, leaves, operators


@dataclass(frozen=True, eq=False)
class Deferred(Fact):
    """A variable of ``loop`` that can hold tensors until it is looked at.

    ``node`` is its first definition in the loop. ``rare_uses`` are the places in the loop that look at it;
    ``reads`` those it is computed from. ``is_integer`` when it is a count, which stays an integer on the device.
    ``has_numbers`` when it is a list of which some elements are numbers all along.
    ``widened`` are other such counts in its definitions that are to be made float64 there: see :func:`widened_uses`.
    """

    loop: Loop
    name: str
    scope: Scope
    definitions: tuple[Definition, ...]
    reads: tuple[DeviceRead, ...]
    rare_uses: tuple[ast.Name, ...]
    is_integer: bool
    is_list: bool
    has_numbers: bool = False
    widened: tuple[ast.Name, ...] = ()

    @property
    def divides(self) -> bool:
        """Whether it is computed by a division, which some devices do by multiplying with the reciprocal."""
        return any(read.divides for read in self.reads) or any(
            isinstance(o, ast.Div) for d in self.definitions for o in operators(d.value)
        )

    @property
    def is_kept(self) -> bool:
        """Whether it is a list of nothing but numbers that nobody has computed with."""
        return self.is_list and all(map(self.keeps, self.reads))

    def keeps(self, read: DeviceRead) -> bool:
        """Whether it is a list of which the number of ``read`` is an element as it is."""
        return (
            self.is_list
            and read.result is read.source.node
            and any(definition.value is read.node for definition in self.definitions)
        )

    @property
    def holds_arrays(self) -> bool:
        """Whether it is a list of arrays that nobody has computed with."""
        return self.is_kept and {read.is_array for read in self.reads} == {True}

    @property
    def accumulates(self) -> bool:
        return any(
            d.adds or any(leaf_name(leaf) == self.name for leaf in leaves(d.value))
            for d in self.definitions
        )


def widened_uses(variable: Deferred, others: Mapping[str, Deferred]) -> Iterator[ast.Name]:
    """The counts among ``others`` that ``variable`` is computed from as a fraction, where nothing makes them float64.

    Of a tensor of integers and a Python float torch makes a float32, and so it does of the quotient of two integers
    (https://docs.pytorch.org/docs/stable/tensor_attributes.html#type-promotion-doc); beside a tensor of float64 it is one.
    """
    if variable.is_integer:
        return
    for definition in variable.definitions:
        if variable.is_list and not _computes(definition.value):
            continue  # an element as it is
        for leaf in leaves(definition.value):
            other = others.get(leaf_name(leaf) or "")
            if other is None or not other.is_integer:
                continue
            beside = _operand_beside(variable, leaf)
            if beside is None or not _is_float64(variable, beside, others):
                assert isinstance(leaf, ast.Name)
                yield leaf


def _computes(value: ast.expr) -> bool:
    return next(operators(value), None) is not None


def _operand_beside(variable: Deferred, leaf: ast.expr) -> ast.expr | None:
    operation = variable.module.parents[leaf]
    if not isinstance(operation, ast.BinOp):
        return None
    return operation.right if operation.left is leaf else operation.left


def _is_float64(variable: Deferred, operand: ast.expr, others: Mapping[str, Deferred]) -> bool:
    """Whether a tensor in ``operand`` is one of float64, as every read of a fraction is made."""
    own = {read.node for read in variable.reads}
    names = {name for name, other in others.items() if not other.is_integer and not other.is_list}
    return any(leaf in own or leaf_name(leaf) in names for leaf in leaves(operand))
