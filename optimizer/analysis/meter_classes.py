"""Classes of the script's own whose objects only calculate with what they are given, such as ``AverageMeter``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from .loop_definitions import is_plain, leaves, operators
from .resolver import Resolver
from .trees import walk
from .values import Class

_UNUSED_UNLESS_CALLED = frozenset({"__init__", "__str__", "__repr__", "__call__", "__format__"})


class NoMeter(Exception):
    """Objects of a class may do more than calculate; the message says what, as the end of a sentence about one."""


@dataclass(frozen=True)
class MeterUpdate:
    """What a meter's method does with the number it is given.

    ``figures`` are the attributes computed from it; ``divides`` when one of them is a quotient, such as a mean.
    """

    figures: frozenset[str]
    divides: bool


class MeterClass:
    """A class that has no more than attributes and methods."""

    def __init__(self, resolver: Resolver, cls: Class) -> None:
        node = cls.node
        bases = [resolver.names(base, cls.module) for base in node.bases]
        derives = node.keywords or any(names != frozenset({"builtins.object"}) for names in bases)
        if derives or node.decorator_list:
            raise NoMeter(f"whose class `{node.name}` takes more than its own text says")
        self.name = node.name
        self.methods: dict[str, ast.FunctionDef] = {}
        for statement in node.body:
            if _is_docstring(statement):
                continue
            if not isinstance(statement, ast.FunctionDef) or statement.decorator_list:
                raise NoMeter(f"whose class `{node.name}` has more than methods")
            name = statement.name
            is_special = name.startswith("__") and name not in _UNUSED_UNLESS_CALLED
            if is_special or name in self.methods:
                raise NoMeter(f"whose class `{node.name}` has a `{name}` of its own")
            self.methods[name] = statement

    def update(self, name: str, given: str) -> MeterUpdate:
        """What the method ``name`` computes from its parameter ``given``. Raises NoMeter unless by plain arithmetic."""
        steps = list(self._steps(self.methods[name]))
        figures: set[str] = set()
        size = -1
        while size != len(figures):
            size = len(figures)
            figures |= {step.attribute for step in steps if step.takes(given, figures)}
        taking = [step for step in steps if step.takes(given, figures)]
        sums = {step.attribute for step in taking if step.adds}
        for step in taking:
            step.check(given, figures, sums)
        self._check_starts(figures)
        return MeterUpdate(frozenset(figures), any(step.divides for step in taking))

    def sets_back(self, name: str, figures: frozenset[str]) -> bool:
        """Whether the method ``name`` does no more than give attributes their first values."""
        method = self.methods.get(name)
        if method is None or len(method.args.args) != 1:
            return False
        try:
            self._check_method(method, figures, called=(name,))
        except NoMeter:
            return False
        return True

    def _steps(self, method: ast.FunctionDef) -> Iterator[_Step]:
        arguments = method.args
        if arguments.vararg or arguments.kwarg or not arguments.args:
            raise self._does_more(method)
        parameters = [a.arg for a in (*arguments.args, *arguments.kwonlyargs)]
        for statement in method.body:
            match statement:
                case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=owner), attr=attribute)]):
                    step = _Step(owner, attribute, statement.value, None)
                case ast.AugAssign(target=ast.Attribute(value=ast.Name(id=owner), attr=attribute)):
                    step = _Step(owner, attribute, statement.value, statement.op)
                case _ if _is_docstring(statement):
                    continue
                case _:
                    raise self._does_more(method)
            if not step.is_arithmetic(parameters[0], frozenset(parameters[1:])):
                raise self._does_more(method)
            yield step

    def _check_starts(self, figures: set[str]) -> None:
        """An object that was given nothing yet holds plain numbers, and nothing else knows it."""
        start = self.methods.get("__init__")
        if start is None:
            raise NoMeter(f"whose class `{self.name}` has no `__init__`")
        self._check_method(start, frozenset(figures), called=("__init__",))

    def _check_method(
        self, method: ast.FunctionDef, figures: frozenset[str], called: tuple[str, ...]
    ) -> None:
        if not method.args.args:
            raise self._does_more(method)
        owner = method.args.args[0].arg
        for statement in method.body:
            match statement:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        if not _is_attribute_of(owner, target) or _names(value, owner):
                            raise self._does_more(method)
                        if getattr(target, "attr", "") in figures and not _is_number(value):
                            raise self._does_more(method)
                case ast.Expr(
                    value=ast.Call(
                        func=ast.Attribute(value=ast.Name(id=receiver), attr=name),
                        args=[],
                        keywords=[],
                    )
                ) if receiver == owner and name in self.methods and name not in called:
                    self._check_method(self.methods[name], figures, (*called, name))
                case _ if _is_docstring(statement):
                    pass
                case _:
                    raise self._does_more(method)

    def _does_more(self, method: ast.FunctionDef) -> NoMeter:
        return NoMeter(f"whose `{self.name}.{method.name}` does more than plain arithmetic")


@dataclass(frozen=True)
class _Step:
    """``owner.attribute = value``, or ``owner.attribute <operator>= value``."""

    owner: str
    attribute: str
    value: ast.expr
    operator: ast.operator | None

    @property
    def adds(self) -> bool:
        return self.operator is not None

    @property
    def divides(self) -> bool:
        divisions = [*operators(self.value), *([self.operator] if self.operator else [])]
        return any(isinstance(operator, ast.Div) for operator in divisions)

    def is_arithmetic(self, owner: str, parameters: frozenset[str]) -> bool:
        if self.owner != owner or not (self.operator is None or is_plain(self.operator)):
            return False
        return all(
            _is_attribute_of(owner, leaf)
            or (isinstance(leaf, ast.Name) and leaf.id in parameters)
            or _is_number(leaf)
            for leaf in leaves(self.value)
        )

    def takes(self, given: str, figures: set[str]) -> bool:
        """Whether the attribute is computed from the parameter ``given``, or from one that is."""
        return any(_holds(leaf, given, figures) for leaf in leaves(self.value)) or (
            self.adds and self.attribute in figures
        )

    def check(self, given: str, figures: set[str], sums: set[str]) -> None:
        """Tensors behave like numbers here: none that is added to in place has a second name, none divides."""
        value = self.value
        if isinstance(value, ast.Attribute) and value.attr in sums and not self.adds:
            raise NoMeter(f"whose `{self.attribute}` is a second name of `{value.attr}`")
        if self.attribute in sums and not self.adds:
            raise NoMeter(f"whose `{self.attribute}` is both replaced and added to")
        divisors = [self.value] if isinstance(self.operator, ast.Div) else []
        divisors += _divisors(self.value)
        if any(_holds(leaf, given, figures) for each in divisors for leaf in leaves(each)):
            raise NoMeter(f"whose `{self.attribute}` divides by what it is given")


def _holds(leaf: ast.expr, given: str, figures: set[str]) -> bool:
    return (isinstance(leaf, ast.Name) and leaf.id == given) or (
        isinstance(leaf, ast.Attribute) and leaf.attr in figures
    )


def _divisors(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, ast.BinOp) and is_plain(value.op):
        yield from _divisors(value.left)
        yield from _divisors(value.right)
        if isinstance(value.op, ast.Div):
            yield value.right


def _is_attribute_of(owner: str, node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == owner
    )


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in {int, float}


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _names(node: ast.expr, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in walk(node))
