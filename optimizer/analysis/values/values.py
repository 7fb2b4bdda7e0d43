"""What an expression may evaluate to, as far as the source tells.

A value is described by *where it comes from*: the call that made it, the definition it names, the literal it is.
"""

from __future__ import annotations

import ast
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from ..program.syntax import FunctionNode, Module
from ..torch_names import canonical

# The hashes below are the same in every run: sets of values are gone through in the same order, and what is found first
# is the same. Python's own depend on addresses and on a seed.


@cache
def _number(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def _kept(compute: Callable[[Any], int]) -> Callable[[Any], int]:
    """``compute``, a hash, worked out once for each value: sets of values are joined over and over."""

    def kept(value: Any) -> int:
        known: dict[str, Any] = value.__dict__
        found: int | None = known.get("_hash")
        if found is None:
            found = known["_hash"] = compute(value)
        return found

    return kept


def _place(node: ast.stmt | ast.expr) -> int:
    return hash((node.lineno, node.col_offset, node.end_lineno, node.end_col_offset))


class Names(frozenset[str]):
    """Dotted names of libraries, gone through in the order of the alphabet for the same reason."""

    __slots__ = ()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__()))


@dataclass(frozen=True)
class External:
    """Something of a library: ``name`` is its canonical dotted name, such as ``torch.utils.data.DataLoader``."""

    name: str

    def __hash__(self) -> int:
        return _number(self.name)


@dataclass(frozen=True)
class FirstPartyModule:
    """A module of the user's own."""

    module: Module

    def __hash__(self) -> int:
        return _number(self.module.name)


@dataclass(frozen=True)
class Function:
    """A first-party function; ``bound`` when reached through an instance, so that ``self`` is filled."""

    node: FunctionNode | ast.Lambda
    module: Module
    bound: bool = False

    @_kept
    def __hash__(self) -> int:
        return _place(self.node) ^ self.bound


@dataclass(frozen=True)
class Class:
    """A first-party class."""

    node: ast.ClassDef
    module: Module

    @_kept
    def __hash__(self) -> int:
        return _place(self.node)


@dataclass(frozen=True)
class Instance:
    """``self`` inside a method of ``cls``."""

    cls: Class

    @_kept
    def __hash__(self) -> int:
        return hash((1, hash(self.cls)))


@dataclass(frozen=True)
class Made:
    """What a call returned. ``maker`` is what was called: an External or a Class.

    A method of an external object has the External ``<class>.<method>``: ``torch.optim.SGD.step``.
    """

    call: ast.Call
    module: Module
    maker: External | Class

    @_kept
    def __hash__(self) -> int:
        return hash((_place(self.call), hash(self.maker)))


@dataclass(frozen=True)
class Literal:
    """A literal constant; ``value`` is what it says."""

    value: object
    node: ast.expr
    module: Module

    @_kept
    def __hash__(self) -> int:
        return _place(self.node)


@dataclass(frozen=True)
class Option:
    """A command-line option: an attribute of an argparse namespace.

    ``call`` is its ``add_argument`` call, ``default`` the expression of its default (None when it has none).
    """

    destination: str
    call: ast.Call
    module: Module
    default: ast.expr | None

    @_kept
    def __hash__(self) -> int:
        return _place(self.call)


@dataclass(frozen=True)
class Display:
    """Any other expression written out: an arithmetic expression, a container display, a comprehension."""

    node: ast.expr
    module: Module

    @_kept
    def __hash__(self) -> int:
        return _place(self.node)


SLICE = ":"
"""The part of a path that takes neighbours in order, as ``values[first:last]`` does."""


@dataclass(frozen=True)
class Element:
    """An element or slice of an iterable, or a part of an unpacked value, that is not written out in the source."""

    of: Value
    path: tuple[int | str, ...]

    @_kept
    def __hash__(self) -> int:
        return hash((hash(self.of), len(self.path)))


@dataclass(frozen=True)
class Attribute:
    """An attribute nobody in the project assigns, of an object that is not a module."""

    of: Value
    name: str

    @_kept
    def __hash__(self) -> int:
        return hash((hash(self.of), _number(self.name)))


@dataclass(frozen=True)
class Unknown:
    """Not traceable; ``why`` says what stopped the trace."""

    why: str

    def __hash__(self) -> int:
        return _number(self.why)


Value: TypeAlias = (
    External
    | FirstPartyModule
    | Function
    | Class
    | Instance
    | Made
    | Literal
    | Option
    | Display
    | Element
    | Attribute
    | Unknown
)


@cache
def external(name: str) -> frozenset[Value]:
    """The library object of the dotted ``name``, however it is spelled."""
    return frozenset([External(canonical(name))])


def innermost(value: Value) -> Value:
    """What ``value`` is an element of, or an element's element; itself where it is none."""
    while isinstance(value, Element):
        value = value.of
    return value


def whole_number(values: Iterable[Value]) -> int | None:
    """The whole number that ``values`` are, an option being its default; None when there is not exactly one."""
    match list(values):
        case [Literal(value=int() as number)] | [
            Option(default=ast.Constant(value=int() as number))
        ]:
            return None if isinstance(number, bool) else number
        case _:
            return None


def union(sets: Iterable[frozenset[Value]]) -> frozenset[Value]:
    """Everything that is in any of ``sets``."""
    return frozenset(value for values in sets for value in values)


def without_rounds(before: frozenset[Value], now: frozenset[Value]) -> frozenset[Value]:
    """``now``, but what going around a cycle once more makes of ``before``: ``node.next.next`` where ``node = node.next``."""
    if not before:
        return now
    return frozenset(v for v in now if v in before or not _goes_round(v, before))


def _goes_round(value: Value, before: frozenset[Value]) -> bool:
    match value:
        case Made(call, _, External(maker)):
            return any(
                isinstance(other, Made)
                and other.call is call
                and isinstance(other.maker, External)
                and maker.startswith(f"{other.maker.name}.")
                for other in before
            )
        case Attribute() | Element():
            inner = _inner(value)
            while isinstance(inner, Attribute | Element):
                if inner in before and _last_step(inner) == _last_step(value):
                    return True
                inner = _inner(inner)
            return False
        case _:
            return False


def _inner(value: Attribute | Element) -> Value:
    """What ``value`` is an attribute or element of, the last step of its path taken back."""
    if isinstance(value, Element) and len(value.path) > 1:
        return Element(value.of, value.path[:-1])
    return value.of


def _last_step(value: Attribute | Element) -> tuple[int | str, ...] | str:
    return value.name if isinstance(value, Attribute) else value.path[-1:]
