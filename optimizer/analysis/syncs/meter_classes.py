"""Classes of the script's own whose objects only calculate with what they are given, such as ``AverageMeter``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..program.syntax import is_docstring
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import Class
from .loop_definitions import is_plain, leaves, operators

_UNUSED_UNLESS_CALLED = frozenset({"__init__", "__str__", "__repr__", "__call__", "__format__"})


class NoMeter(Exception):
    """Objects of a class may do more than calculate; the message says what, as the end of a sentence about one."""


@dataclass(frozen=True)
class MeterUpdate:
    """What a meter's method does with the number it is given.

    ``figures`` are the attributes and properties computed from it, ``numbers`` all attributes it calculates with; ``divides``
    when a figure is a quotient, such as a mean.
    """

    figures: frozenset[str]
    numbers: frozenset[str]
    divides: bool


class MeterClass:
    """A class that has no more than attributes, methods and properties that are one expression."""

    def __init__(self, resolver: Resolver, cls: Class) -> None:
        node = cls.node
        bases = [resolver.names(base, cls.module) for base in node.bases]
        derives = node.keywords or any(names != frozenset({"builtins.object"}) for names in bases)
        if derives or node.decorator_list:
            raise NoMeter(f"whose class `{node.name}` takes more than its own text says")
        self._resolver, self._module = resolver, cls.module
        self.name = node.name
        self.methods: dict[str, ast.FunctionDef] = {}
        self.properties: dict[str, ast.expr] = {}
        for statement in node.body:
            if is_docstring(statement):
                continue
            if not isinstance(statement, ast.FunctionDef):
                raise NoMeter(f"whose class `{node.name}` has more than methods")
            name = statement.name
            is_special = name.startswith("__") and name not in _UNUSED_UNLESS_CALLED
            if is_special or name in self.methods or name in self.properties:
                raise NoMeter(f"whose class `{node.name}` has a `{name}` of its own")
            decorators = [resolver.names(d, cls.module) for d in statement.decorator_list]
            if decorators == [frozenset({"builtins.property"})]:
                self.properties[name] = self._returned(statement)
            elif decorators:
                raise NoMeter(f"whose class `{node.name}` has more than methods")
            else:
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
        shown = {name: self._shown(name, figures) for name in self.properties}
        values = [value for alternatives in shown.values() for value in alternatives]
        divides = any(step.divides for step in taking) or any(map(_divides, values))
        numbers = {step.attribute for step in steps} | {
            node.attr
            for value in (*values, *(step.value for step in steps))
            for leaf in leaves(value)
            for node in walk(leaf)
            if isinstance(node, ast.Attribute)
        }
        start = self.methods.get("__init__")
        if start is None:
            raise NoMeter(f"whose class `{self.name}` has no `__init__`")
        self._check_method(start, frozenset(numbers), called=("__init__",))
        figures |= {name for name, alternatives in shown.items() if alternatives}
        return MeterUpdate(frozenset(figures), frozenset(numbers), divides)

    def sets_back(self, name: str, update: MeterUpdate) -> bool:
        """Whether the method ``name`` does no more than give attributes their first values."""
        method = self.methods.get(name)
        if method is None or len(method.args.args) != 1:
            return False
        try:
            self._check_method(method, update.numbers, called=(name,))
        except NoMeter:
            return False
        return True

    def _returned(self, method: ast.FunctionDef) -> ast.expr:
        """The expression that a property is: what it returns, also by way of a variable."""
        if not _is_parameter_self(method):
            raise self._does_more(method.name)
        match [statement for statement in method.body if not is_docstring(statement)]:
            case [ast.Return(value=ast.expr() as value)]:
                return value
            case [
                ast.Assign(targets=[ast.Name(id=name)], value=value),
                ast.Return(value=ast.Name(id=returned)),
            ] if name == returned:
                return value
            case _:
                raise self._does_more(method.name)

    def _shown(self, name: str, figures: set[str]) -> list[ast.expr]:
        """The values the property ``name`` may have, computed by plain arithmetic; none unless from ``figures``."""
        found: list[ast.expr] = []
        looks = False
        pending = [self.properties[name]]
        while pending:
            value = pending.pop()
            if isinstance(value, ast.IfExp):
                pending += [value.body, value.orelse]
                by_python = [value.test]
            else:
                found.append(value)
                taken = [leaf for leaf in leaves(value) if _is_figure(leaf, figures)]
                others = [leaf for leaf in leaves(value) if leaf not in taken]
                looks = looks or bool(taken)
                by_python = [*others, *_divisors(value)]
                if not all(self._is_host_number(leaf) for leaf in others):
                    raise self._does_more(name)
            if any(self._may_see(part, figures) for part in by_python):
                raise self._does_more(name)
        return found if looks else []

    def _is_host_number(self, leaf: ast.expr) -> bool:
        """An attribute or a number, or the larger or smaller of some, such as ``max(1, self.count)``."""
        if isinstance(leaf, ast.Call) and leaf.args and not leaf.keywords:
            names = self._resolver.names(leaf.func, self._module)
            is_bound = bool(names) and names <= {"builtins.max", "builtins.min"}
            return is_bound and all(map(self._is_host_number, leaf.args))
        return _is_attribute_of("self", leaf) or _is_number(leaf)

    def _may_see(self, part: ast.expr, figures: set[str]) -> bool:
        """Whether ``part`` of a property may look at ``figures``, or at what is computed from them."""
        hidden = {*figures, *self.methods, *self.properties}
        attributes = [
            node
            for node in walk(part)
            if isinstance(node, ast.Attribute) and _is_attribute_of("self", node)
        ]
        owners = [node for node in walk(part) if isinstance(node, ast.Name) and node.id == "self"]
        return len(owners) > len(attributes) or any(
            node.attr in hidden or node.attr.startswith("__") for node in attributes
        )

    def _steps(self, method: ast.FunctionDef) -> Iterator[_Step]:
        arguments = method.args
        if arguments.vararg or arguments.kwarg or not arguments.args:
            raise self._does_more(method.name)
        parameters = [a.arg for a in (*arguments.args, *arguments.kwonlyargs)]
        for statement in method.body:
            match statement:
                case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=owner), attr=attribute)]):
                    step = _Step(owner, attribute, statement.value, None)
                case ast.AugAssign(target=ast.Attribute(value=ast.Name(id=owner), attr=attribute)):
                    step = _Step(owner, attribute, statement.value, statement.op)
                case _ if is_docstring(statement):
                    continue
                case _:
                    raise self._does_more(method.name)
            if not step.is_arithmetic(parameters[0], frozenset(parameters[1:])) or any(
                isinstance(leaf, ast.Attribute) and leaf.attr in {*self.methods, *self.properties}
                for leaf in leaves(step.value)
            ):
                raise self._does_more(method.name)
            yield step

    def _check_method(
        self, method: ast.FunctionDef, numbers: frozenset[str], called: tuple[str, ...]
    ) -> None:
        """``method`` sets attributes and does nothing else; those of ``numbers`` become plain numbers."""
        if not method.args.args:
            raise self._does_more(method.name)
        owner = method.args.args[0].arg
        for statement in method.body:
            match statement:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self._check_set(method, owner, target, value, numbers)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._check_set(method, owner, target, value, numbers)
                case ast.Expr(
                    value=ast.Call(
                        func=ast.Attribute(value=ast.Name(id=receiver), attr=name),
                        args=[],
                        keywords=[],
                    )
                ) if receiver == owner and name in self.methods and name not in called:
                    self._check_method(self.methods[name], numbers, (*called, name))
                case _ if is_docstring(statement):
                    pass
                case _:
                    raise self._does_more(method.name)

    def _check_set(
        self,
        method: ast.FunctionDef,
        owner: str,
        target: ast.expr,
        value: ast.expr,
        numbers: frozenset[str],
    ) -> None:
        if not _is_attribute_of(owner, target) or _names(value, owner):
            raise self._does_more(method.name)
        if getattr(target, "attr", "") in numbers and not _is_number(value):
            raise self._does_more(method.name)

    def _does_more(self, method: str) -> NoMeter:
        return NoMeter(f"whose `{self.name}.{method}` does more than plain arithmetic")


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
        return isinstance(self.operator, ast.Div) or _divides(self.value)

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


def _is_parameter_self(method: ast.FunctionDef) -> bool:
    return [argument.arg for argument in method.args.args] == ["self"]


def _divides(value: ast.expr) -> bool:
    return any(isinstance(operator, ast.Div) for operator in operators(value))


def _is_figure(leaf: ast.expr, figures: set[str]) -> bool:
    return _is_attribute_of("self", leaf) and getattr(leaf, "attr", "") in figures


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


def _names(node: ast.expr, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in walk(node))
