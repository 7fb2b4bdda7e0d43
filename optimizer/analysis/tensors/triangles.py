"""Square matrices of two values, one above the diagonal and one elsewhere: what masks of attention are made of."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ..calls.signatures import argument_for, call_argument
from ..loading.written_views import may_be_written
from ..program.reaching import bindings_of
from ..program.scopes import Assigned, Binding, Parameter, Path
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..values.constants import constant
from ..values.resolver import Resolver
from ..values.unpacking import written_part
from ..values.values import External, Made

_FILLED = {"torch.ones": 1.0, "torch.zeros": 0.0}
_TRANSFORMER, _SUBSEQUENT = "torch.nn.Transformer", "generate_square_subsequent_mask"
_KEEPING = frozenset("to cuda cpu clone contiguous detach requires_grad_ float double".split())
_COMPARED: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.Lt: operator.lt,
    ast.GtE: operator.ge,
    ast.LtE: operator.le,
}


@dataclass(frozen=True)
class Triangle:
    """A matrix that is ``above`` above its diagonal and ``rest`` on and below it; its transpose is, if ``transposed``."""

    above: float | bool
    rest: float | bool
    transposed: bool = False

    def mapped(self, function: Callable[[float], float]) -> Triangle:
        return replace(self, above=function(self.above), rest=function(self.rest))

    @property
    def uniform(self) -> bool:
        return self.above == self.rest

    @property
    def is_zero(self) -> bool:
        """Whether it is zeros, or False, everywhere: a mask that hides nothing."""
        return self.above == self.rest == 0.0

    @property
    def hides_what_follows(self) -> bool:
        """Whether it is a mask by which attention sees every position itself and those before it, and all of these alike."""
        if self.transposed:
            return False
        if self.above is True:
            return self.rest is False
        return self.above == -math.inf and self.rest == 0.0 and not isinstance(self.rest, bool)


class Triangles:
    """Answers for one project."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._known: dict[ast.expr, Triangle | None] = {}

    def of(self, expression: ast.expr, module: Module) -> Triangle | None:
        """What ``expression`` is in every run, None where that is not such a matrix, or not known."""
        if expression not in self._known:
            self._known[expression] = None  # what leads back to itself
            self._known[expression] = self._find(expression, module)
        return self._known[expression]

    def _find(self, expression: ast.expr, module: Module) -> Triangle | None:
        match expression:
            case ast.Name():
                return self._named(expression, module)
            case ast.UnaryOp(ast.Invert(), inner):
                found = self.of(inner, module)
                return found and found.mapped(operator.not_)
            case ast.Compare(left, [kind], [right]) if type(kind) in _COMPARED:
                found, number = self.of(left, module), constant(right)
                if found is None or number is None:
                    return None
                compared = _COMPARED[type(kind)]
                return found.mapped(lambda value: compared(value, number))
            case ast.BinOp(left, ast.Mult(), right):
                number = constant(right)
                found = self.of(left if number is not None else right, module)
                number = constant(left) if number is None else number
                return None if found is None or number is None else found.mapped(number.__mul__)
            case ast.Attribute(inner, "T"):
                return _transposed(self.of(inner, module))
            case ast.Call():
                return self._called(expression, module)
            case _:
                return None

    def _called(self, call: ast.Call, module: Module) -> Triangle | None:
        names = self._resolver.names(call.func, module)
        if names == frozenset({f"{_TRANSFORMER}.{_SUBSEQUENT}"}) or self._is_method(call, module):
            return Triangle(-math.inf, 0.0)
        if len(names) == 1 and not names.isdisjoint({*_FILLED, "torch.full"}):
            return self._filled(call, next(iter(names)), module)
        if len(names) == 1 and names <= {"torch.triu", "torch.tril", "torch.logical_not"}:
            given = call_argument(call, "input", 0)
            name = next(iter(names)).rpartition(".")[2]
            return self._operated(name, given, call, 1, module)
        if isinstance(call.func, ast.Attribute) and not names:
            found = self._operated(call.func.attr, call.func.value, call, 0, module)
            if found is not None:
                return found
        return self._returned(call, (), module)

    def _is_method(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call`` is that of a transformer's own method for causal masks."""
        match call.func:
            case ast.Attribute(owner, name) if name == _SUBSEQUENT:
                made = self._resolver.values(owner, module)
                makers = [v.maker for v in made if isinstance(v, Made)]
                return len(makers) == len(made) and set(makers) == {External(_TRANSFORMER)}
            case _:
                return False

    def _filled(self, call: ast.Call, name: str, module: Module) -> Triangle | None:
        sizes = call.args
        value = _FILLED.get(name)
        if name == "torch.full":
            filling = call_argument(call, "fill_value", 1)
            value, sizes = constant(filling) if filling is not None else None, call.args[:1]
        if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple | ast.List):
            sizes = sizes[0].elts
        if value is None or len(sizes) != 2 or any(isinstance(s, ast.Starred) for s in sizes):
            return None
        dtype = call_argument(call, "dtype")
        if dtype is not None and self._is_bool(dtype, module):
            return Triangle(bool(value), bool(value))
        return Triangle(value, value)

    def _operated(
        self,
        name: str,
        operand: ast.expr | None,
        call: ast.Call,
        first: int,
        module: Module,
    ) -> Triangle | None:
        """``operand.name(..)``, whose own arguments in ``call`` begin at ``first``."""
        found = self.of(operand, module) if operand is not None else None
        if found is None:
            return None
        arguments = call.args[first:]
        if name in {"triu", "tril"}:
            return _cut(found, name, call_argument(call, "diagonal", first))
        if name in {"bool", "logical_not"} and not arguments:
            return found.mapped(bool if name == "bool" else operator.not_)
        if name in {"t", "transpose"}:
            return _transposed(found)
        if name == "masked_fill" and len(arguments) == 2:
            where, value = self.of(arguments[0], module), constant(arguments[1])
            if where is None or value is None or where.transposed is not found.transposed:
                return None
            above, rest = (
                value if w else v for w, v in zip(_pair(where), _pair(found), strict=True)
            )
            return replace(found, above=above, rest=rest)
        if name in _KEEPING or name == "type":
            if any(self._is_bool(given, module) for given in _given(call)):
                return found.mapped(bool)
            return found.mapped(float) if name in {"float", "double"} else found
        return None

    def _is_bool(self, dtype: ast.expr, module: Module) -> bool:
        return bool(self._resolver.names(dtype, module) & {"torch.bool", "builtins.bool"})

    def _named(self, name: ast.Name, module: Module) -> Triangle | None:
        uses = module.names_of(name.id)
        if any(may_be_written(self._resolver, use, module, inside=True) for use in uses):
            return None
        return _same(self._bound(b, name.id, module) for b in bindings_of(module, name))

    def _bound(self, binding: Binding, name: str, module: Module) -> Triangle | None:
        match binding.source:
            case Assigned(value, ()):
                return self.of(value, module)
            case Assigned(ast.Call() as call, path):
                return self._returned(call, path, module)
            case Parameter(ast.FunctionDef() as function, "plain"):
                return _same(self._passed(function, name, module))
            case _:
                return None

    def _passed(
        self, function: FunctionNode, name: str, module: Module
    ) -> Iterator[Triangle | None]:
        for site in self._resolver.call_sites(function):
            passed = argument_for(function, name, site.call, site.bound)
            given = None if passed is None else passed.given
            yield None if given is None else self.of(given, site.module)

    def _returned(self, call: ast.Call, path: Path, module: Module) -> Triangle | None:
        """What the script's own functions return, or the part of it at ``path``."""
        found: list[Triangle | None] = []
        for callee in self._resolver.callees(call, module):
            if isinstance(callee.node, ast.Lambda):
                return None
            for node in walk(callee.node):
                if isinstance(node, ast.Return):
                    part = written_part(node.value, path)
                    found.append(None if part is None else self.of(part, callee.module))
        return _same(iter(found))


def _same(found: Iterator[Triangle | None]) -> Triangle | None:
    """The one that all are; numbers and truth values are not the same."""
    different = {repr(one): one for one in found}
    return different.popitem()[1] if len(different) == 1 else None


def _pair(triangle: Triangle) -> tuple[float, float]:
    return triangle.above, triangle.rest


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _transposed(triangle: Triangle | None) -> Triangle | None:
    return triangle and replace(triangle, transposed=not triangle.transposed)


def _cut(triangle: Triangle, name: str, diagonal: ast.expr | None) -> Triangle | None:
    """``triu`` or ``tril``, from the diagonal or beside it, of a matrix that is the same everywhere."""
    number = 0.0 if diagonal is None else constant(diagonal)
    if not triangle.uniform:
        return None
    value = triangle.above
    zero = False if isinstance(value, bool) else 0.0
    match name, number:
        case "triu", 1.0:
            return Triangle(value, zero)
        case "tril", 0.0:
            return Triangle(zero, value)
        case "triu", 0.0:
            return Triangle(zero, value, transposed=True)
        case "tril", -1.0:
            return Triangle(value, zero, transposed=True)
        case _:
            return None
