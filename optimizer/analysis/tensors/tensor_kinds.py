"""Which expressions are certainly tensors that stay on their device, and whether their elements are integers or floats."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from enum import Enum

from ..calls.signatures import argument_for, call_argument
from ..loading.batches import BatchTrace, Place
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned, Binding, Parameter, Path, Untraceable
from ..program.syntax import Module
from ..program.trees import walk
from ..training.loops import is_forward
from ..values.host_numbers import is_number
from ..values.resolver import Resolver
from ..values.unpacking import element_at
from ..values.values import External, Function, Made
from .returned_values import returned_by, returned_parts
from .tensor_functions import (
    FLOAT_FUNCTIONS,
    INTEGER_FUNCTIONS,
    MIXING,
    PAIRS,
    SAME_KIND,
    is_pair,
)


class TensorKind(Enum):
    """What an expression is: a tensor of floats or of integers (or booleans), something on the host, or not known.

    ``TENSOR`` is a tensor of unknown type.
    """

    FLOAT = "float"
    INTEGER = "integer"
    TENSOR = "tensor"
    HOST = "host"
    UNKNOWN = "unknown"


FLOAT, INTEGER, TENSOR = TensorKind.FLOAT, TensorKind.INTEGER, TensorKind.TENSOR
HOST, UNKNOWN = TensorKind.HOST, TensorKind.UNKNOWN
_TENSORS = frozenset({FLOAT, INTEGER, TENSOR})

_TO_FLOAT = frozenset({"float", "double", "half", "bfloat16"})
_TO_INTEGER = frozenset({"long", "int", "bool", "short", "byte"})
_CASTS = {**dict.fromkeys(_TO_FLOAT, FLOAT), **dict.fromkeys(("long", "int", "bool"), INTEGER)}
_TO_HOST = frozenset(
    "cpu numpy item tolist size numel nelement dim ndimension stride is_contiguous is_floating_point".split()
)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_READS_VALUES = frozenset({"numpy", "item", "tolist", "cpu"})
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_DEEPEST = 16


class TensorKinds:
    """Answers for one project."""

    def __init__(self, resolver: Resolver, batches: BatchTrace) -> None:
        self._resolver = resolver
        self._batches = batches
        self._active: list[ast.expr] = []
        self._known: dict[ast.expr, TensorKind] = {}
        self._for_now: dict[ast.expr, TensorKind] = {}
        """Answers that hang on questions still open: they hold until the first of these is answered."""
        self._hangs_on: int = sys.maxsize
        """The outermost of the active questions that the answer just given hangs on: it was left open in it."""

    def of(self, node: ast.expr, module: Module) -> TensorKind:
        """The kind of ``node``."""
        if node in self._known:
            return self._known[node]
        depth = len(self._active)
        if node in self._active:
            self._hangs_on = min(self._hangs_on, self._active.index(node))
            return UNKNOWN
        if node in self._for_now or depth > _DEEPEST:
            self._hangs_on = 0
            return self._for_now.get(node, UNKNOWN)
        outer, self._hangs_on = self._hangs_on, sys.maxsize
        self._active.append(node)
        found = self._evaluate(node, module)
        self._active.pop()
        if self._hangs_on >= depth:
            self._known[node] = found
            self._hangs_on = outer
        else:
            self._for_now[node] = found
            self._hangs_on = min(self._hangs_on, outer)
        if not self._active:
            self._for_now.clear()
        return found

    def _evaluate(self, node: ast.expr, module: Module) -> TensorKind:
        match node:
            case ast.Constant():
                return HOST
            case ast.Call():
                return self._call(node, module)
            case ast.Name():
                return self._name(node, module)
            case ast.Compare(ops=[operator]) if isinstance(operator, _COMPARISONS):
                sides = {self.of(node.left, module), self.of(node.comparators[0], module)}
                return INTEGER if sides & _TENSORS else HOST if sides == {HOST} else UNKNOWN
            case ast.BinOp():
                return self._arithmetic(node, module)
            case ast.UnaryOp(op=ast.USub() | ast.Invert()):
                return self.of(node.operand, module)
            case ast.IfExp():
                return _joined([self.of(node.body, module), self.of(node.orelse, module)])
            case ast.Attribute(value=value, attr="data"):
                return self.of(value, module)
            case ast.Subscript(value=value) if not isinstance(node.slice, ast.Constant):
                return self.of(value, module)
            case ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=int(part))):
                return self._element(node, call, part, module)
            case ast.Attribute(value=ast.Call() as call, attr="values" | "indices" as field):
                return self._element(node, call, int(field == "indices"), module)
            case _:
                return self._batch(node, module)

    def _batch(self, node: ast.expr, module: Module) -> TensorKind:
        parts = self._batches.parts(node, module)
        on_device = [part is not None and part.place is Place.DEVICE for part in parts]
        if on_device and all(on_device):
            return TENSOR
        return HOST if is_number(self._resolver, node, module) else UNKNOWN

    def _element(self, node: ast.expr, call: ast.Call, part: int, module: Module) -> TensorKind:
        """``torch.max(x, 1)[1]``, ``x.topk(5).values``, ``accuracy(x, y)[0]``; ``x.max(1)[1]`` of an array is one of its numbers."""
        names = self._resolver.names(call.func, module)
        if names:
            functions = [name.removeprefix("torch.") for name in names if name.startswith("torch.")]
            is_known = len(functions) == len(names) and all(is_pair(f, call, 1) for f in functions)
        else:
            is_known = (
                isinstance(call.func, ast.Attribute)
                and is_pair(call.func.attr, call, 0)
                and self.of(call.func.value, module) in _TENSORS
            )
        if is_known:
            return self._part_of_pair(call, part, module)
        kind = self._part_of_result(call, part, module)
        return self._batch(node, module) if kind is UNKNOWN else kind

    def _arithmetic(self, node: ast.BinOp, module: Module) -> TensorKind:
        sides = [self.of(node.left, module), self.of(node.right, module)]
        if isinstance(node.op, ast.BitAnd | ast.BitOr | ast.BitXor):
            return INTEGER if set(sides) == {INTEGER} else UNKNOWN
        if not isinstance(node.op, _ARITHMETIC) or UNKNOWN in sides:
            return UNKNOWN  # with an array on one side the result may be one
        if FLOAT in sides:
            return FLOAT
        if not _TENSORS & set(sides):
            return HOST
        if any(type(getattr(side, "value", None)) is float for side in (node.left, node.right)):
            return FLOAT
        if TENSOR in sides:
            return TENSOR
        if isinstance(node.op, ast.Div):
            return FLOAT
        counts = all(
            kind is INTEGER or is_number(self._resolver, side, module, whole=True)
            for side, kind in zip((node.left, node.right), sides, strict=True)
        )
        return INTEGER if counts else TENSOR

    def _call(self, node: ast.Call, module: Module) -> TensorKind:
        names = self._resolver.names(node.func, module)
        if names:
            return _joined(self._library_call(name, node, module) for name in names)
        made = [
            v.maker.name if isinstance(v, Made) and isinstance(v.maker, External) else ""
            for v in self._resolver.values(node.func, module)
        ]
        if made and all(name.startswith("torch.nn.") and name.endswith("Loss") for name in made):
            return FLOAT
        functions = self._resolver.callees(node, module)
        if functions:
            found = _joined(self._returned(function) for function in functions)
            return self._of_network(node, module) if found is UNKNOWN else found
        if is_forward(self._resolver, node, module):
            return TENSOR
        if isinstance(node.func, ast.Attribute):
            return self._method(node, node.func, module)
        return self._batch(node, module)

    def _library_call(self, name: str, node: ast.Call, module: Module) -> TensorKind:
        package, _, function = name.rpartition(".")
        if package in {"torch", "torch.nn.functional", "torch.special", "torch.linalg"}:
            if function in FLOAT_FUNCTIONS:
                return FLOAT
            if function in INTEGER_FUNCTIONS:
                return INTEGER
            if function in SAME_KIND and node.args and not is_pair(function, node, 1):
                return self._converted(node, self.of(node.args[0], module), module)
            if function in MIXING and node.args:
                return self._mixed(node.args[0], node, node.args[1:], module)
            if function == "where" and len(node.args) == 3:
                return self._promoted(node.args[1:], module)
        if name in {"builtins.len", "builtins.int", "builtins.float", "builtins.round"}:
            return HOST
        if package.partition(".")[0] in {"numpy", "math", "time", "random"}:
            return HOST
        if name == "torch.autograd.Variable" and node.args:
            return self.of(node.args[0], module)
        return UNKNOWN

    def _method(self, node: ast.Call, function: ast.Attribute, module: Module) -> TensorKind:
        method = function.attr
        receiver = self.of(function.value, module)
        if method in _TO_HOST:
            return HOST
        is_computed = isinstance(function.value, ast.Compare | ast.BinOp | ast.UnaryOp)
        if receiver is UNKNOWN and is_computed and method in _CASTS and not node.args:
            return _CASTS[method]  # neither numbers nor arrays have such a method
        if receiver not in _TENSORS:
            return HOST if receiver is HOST else self._batch(node, module)
        if method.endswith("_"):
            return receiver  # changed in place
        if method == "to":
            return self._moved(node, receiver, module)
        if method in FLOAT_FUNCTIONS or method in _TO_FLOAT:
            return self._converted(node, FLOAT, module)
        if method in INTEGER_FUNCTIONS or method in _TO_INTEGER:
            return INTEGER
        if method in SAME_KIND and not is_pair(method, node, 0):
            return self._converted(node, receiver, module)
        if method in MIXING:
            return self._mixed(function.value, node, node.args, module)
        return self._batch(node, module)

    def _mixed(
        self, tensor: ast.expr, call: ast.Call, others: list[ast.expr], module: Module
    ) -> TensorKind:
        """``tensor.mul(other)``: integers stay integers among themselves only."""
        kind = self.of(tensor, module)
        if kind is not INTEGER:
            return kind
        given = [*others, *(keyword.value for keyword in call.keywords)]
        return self._promoted([tensor, *given], module)

    def _promoted(self, operands: list[ast.expr], module: Module) -> TensorKind:
        """The type of a tensor that is made of all of ``operands``, tensors or numbers."""
        kinds = [self.of(operand, module) for operand in operands]
        if FLOAT in kinds or any(
            type(getattr(operand, "value", None)) is float for operand in operands
        ):
            return FLOAT
        whole = all(
            kind is INTEGER or is_number(self._resolver, operand, module, whole=True)
            for operand, kind in zip(operands, kinds, strict=True)
        )
        return INTEGER if whole else TENSOR

    def _converted(self, node: ast.Call, kind: TensorKind, module: Module) -> TensorKind:
        """``kind``, unless the call names a dtype."""
        dtype = call_argument(node, "dtype")
        return kind if dtype is None else self._dtype_kind(dtype, module)

    def _moved(self, node: ast.Call, receiver: TensorKind, module: Module) -> TensorKind:
        """``x.to(..)``: of a dtype, to a device, or like another tensor."""
        for argument in [*node.args, *(k.value for k in node.keywords if k.arg != "non_blocking")]:
            values = self._resolver.values(argument, module)
            texts = {getattr(v, "value", None) for v in values}
            if "cpu" in texts or "torch.device" in self._resolver.maker_names(argument, module):
                if _is_cpu(argument, self._resolver, module):
                    return HOST
                continue
            names = self._resolver.names(argument, module)
            if names and all(name.startswith("torch.") for name in names):
                receiver = self._dtype_kind(argument, module)
        return receiver

    def _dtype_kind(self, dtype: ast.expr, module: Module) -> TensorKind:
        names = {n.rpartition(".")[2] for n in self._resolver.names(dtype, module)}
        if names and all(n.startswith(("float", "double", "half", "bfloat")) for n in names):
            return FLOAT
        if names and all(n.startswith(("int", "uint", "long", "bool")) for n in names):
            return INTEGER
        return TENSOR

    def _of_network(self, call: ast.Call, module: Module) -> TensorKind:
        """What a first-party network returns, or a part of it: tensors, unless its code turns some into numbers."""
        if not is_forward(self._resolver, call, module):
            return UNKNOWN
        reads = (
            isinstance(node, ast.Attribute) and node.attr in _READS_VALUES
            for function in self._resolver.callees(call, module)
            for node in walk(function.node)
        )
        return UNKNOWN if any(reads) else TENSOR

    def _returned(self, function: Function) -> TensorKind:
        kinds = [
            self.of(value, function.module) if value is not None else UNKNOWN
            for value in returned_by(function)
        ]
        return _joined(kinds)

    def _name(self, node: ast.Name, module: Module) -> TensorKind:
        scope = module.scope(node)
        found = scope.lookup(node.id)
        if found is None:
            return UNKNOWN
        owner, bindings = found
        reaching = reaching_bindings(module, owner, bindings, scope, node)
        kind = _joined(self._binding(binding, module) for binding in reaching)
        return self._batch(node, module) if kind is UNKNOWN else kind

    def _binding(self, binding: Binding, module: Module) -> TensorKind:
        match binding.source:
            case Assigned(value, path):
                return self._part(value, path, module)
            case Parameter(ast.FunctionDef() | ast.AsyncFunctionDef() as function, "plain"):
                return self._argument(function, binding.name, module)
            case Untraceable("augmented assignment"):
                return self._augmented(binding, module)
            case _:
                return UNKNOWN

    def _augmented(self, binding: Binding, module: Module) -> TensorKind:
        """``x += y``: of the kind of both, like ``x + y``."""
        statement = module.parents[binding.node]
        if not isinstance(statement, ast.AugAssign) or not isinstance(
            statement.op, ast.Add | ast.Sub | ast.Mult | ast.Div
        ):
            return UNKNOWN
        added = self.of(statement.value, module)
        before = self.of(statement.target, module)
        if {added, before} <= {FLOAT, HOST} or {added, before} == {INTEGER}:
            return FLOAT if FLOAT in {added, before} else added
        return UNKNOWN

    def _argument(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str, module: Module
    ) -> TensorKind:
        kinds: list[TensorKind] = []
        for site in self._resolver.call_sites(function):
            passed = argument_for(function, name, site.call, site.bound)
            if passed is None or passed.given is None:
                return UNKNOWN
            kinds.append(self.of(passed.given, site.module))
        return _joined(kinds)

    def _part(self, value: ast.expr, path: Path, module: Module) -> TensorKind:
        if not path:
            return self.of(value, module)
        if isinstance(value, ast.Tuple | ast.List):
            element = element_at(value.elts, path[0])
            return self._part(element, path[1:], module) if element is not None else UNKNOWN
        if isinstance(value, ast.Call) and len(path) == 1:
            return self._part_of_pair(value, path[0], module)
        return UNKNOWN

    def _part_of_result(self, call: ast.Call, part: int | str, module: Module) -> TensorKind:
        """A part of the tuple or list that a first-party function returns."""
        return _joined(
            UNKNOWN if value is None else self.of(value, function.module)
            for function in self._resolver.callees(call, module)
            for value in returned_parts(function, part)
        )

    def _part_of_pair(self, call: ast.Call, part: int | str, module: Module) -> TensorKind:
        """The values and the indices that ``torch.max(x, 1)``, ``x.topk(5)`` and the like return."""
        if is_forward(self._resolver, call, module):
            return self._of_network(call, module)
        names = self._resolver.names(call.func, module)
        if names:
            functions = {n.removeprefix("torch.") for n in names if n.startswith("torch.")}
            is_pair = len(functions) == len(names) and functions <= PAIRS
            source = call.args[0] if call.args else None
        else:
            is_method = isinstance(call.func, ast.Attribute)
            is_pair = is_method and getattr(call.func, "attr", "") in PAIRS
            source = getattr(call.func, "value", None)
        if not is_pair or source is None:
            return self._part_of_result(call, part, module)
        kind = self.of(source, module)
        if kind is HOST:
            return HOST
        # Arrays have no `topk`, and `max(1)` of one is no pair: what is unpacked like this is a tensor.
        return INTEGER if part == 1 else kind


def _is_cpu(argument: ast.expr, resolver: Resolver, module: Module) -> bool:
    if isinstance(argument, ast.Constant):
        return argument.value == "cpu"
    return all(
        (isinstance(v, Made) and bool(v.call.args) and ast.unparse(v.call.args[0]) == "'cpu'")
        or getattr(v, "value", None) == "cpu"
        for v in resolver.values(argument, module)
    )


def _joined(kinds: Iterable[TensorKind]) -> TensorKind:
    found = set(kinds)
    if len(found) == 1:
        return found.pop()
    if found and found <= _TENSORS:
        return TENSOR
    return UNKNOWN
