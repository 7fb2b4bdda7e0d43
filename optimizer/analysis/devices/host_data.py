"""What is surely a size and what is surely data on the host: integers, and lists and arrays of numbers."""

from __future__ import annotations

import ast
from collections.abc import Callable

from ..calls.signatures import call_argument
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned, Binding
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import Display, Element, External, Literal, Made, Option, Value

_ARRAY_MAKERS = frozenset(
    f"numpy.{name}"
    for name in (
        "array asarray ascontiguousarray zeros ones empty full zeros_like ones_like full_like eye arange linspace logspace "
        "concatenate stack vstack hstack dstack column_stack tile repeat outer expand_dims reshape ravel transpose swapaxes "
        "moveaxis broadcast_to flip fliplr flipud roll pad atleast_1d atleast_2d loadtxt genfromtxt"
    ).split()
)
_SIZE_AT = {
    "random.normal": 2,
    "random.uniform": 2,
    "random.randint": 2,
    "random.binomial": 2,
    "random.choice": 1,
    "random.random": 0,
    "random.random_sample": 0,
    "random.standard_normal": 0,
}
"""Where numpy's random functions take the shape; without one they return a single number."""
_ARRAY_METHODS = frozenset({"astype", "numpy", "tolist", "reshape", "copy"})
_INT_CALLS = frozenset({"builtins.len", "builtins.int"})
_INT_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Pow)
_SEQUENCES = frozenset({"builtins.list", "builtins.tuple"})
_NUMBERS = ("numpy.", "math.", "random.", "builtins.float", "builtins.int", "builtins.len")


class HostData:
    """Answers for one project; what is not proven is False."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._active: set[ast.expr] = set()

    def is_int(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` is an integer (``x.size(0)``, ``len(x)``, ``opt.latent_dim`` declared with ``type=int``, the ``i`` of an ``enumerate``)."""
        if isinstance(node, ast.BinOp):
            return self._is_int_arithmetic(node, module)
        if _is_dimension(node):
            return True
        if isinstance(node, ast.Name) and self._all_assigned(node, module, self.is_int):
            return True
        values = self._resolver.values(node, module)
        return bool(values) and all(self._is_int_value(value) for value in values)

    def _is_int_arithmetic(self, node: ast.BinOp, module: Module) -> bool:
        if node in self._active or not isinstance(node.op, _INT_OPERATORS):
            return False  # `n = n + 1` leads back to itself
        self._active.add(node)
        is_int = self.is_int(node.left, module) and self.is_int(node.right, module)
        self._active.discard(node)
        return is_int

    def _is_int_value(self, value: Value) -> bool:
        match value:
            case Literal(number):
                return isinstance(number, int) and not isinstance(number, bool)
            case Option(default=default):
                return self._is_int_option(value, default)
            case Made(_, _, External(name)):
                return name in _INT_CALLS
            case Element(of=Made(_, _, External("builtins.range"))):
                return True
            case Element(of=iterable, path=("each", 0)):
                return self._is_enumerated(iterable)
            case Display(node, module):
                return isinstance(node, ast.BinOp) and self.is_int(node, module)
            case _:
                return False

    def _is_enumerated(self, iterable: Value, over: frozenset[Value] = frozenset()) -> bool:
        """Whether ``iterable`` is an ``enumerate``, or a progress bar over one: its elements begin with a count.

        ``over`` are the bars that go over it: in a loop, ``bar = tqdm(bar)`` leads back to itself.
        """
        match iterable:
            case Made(_, _, External("builtins.enumerate")):
                return True
            case Made(call, module, External(name)) if call.args and name.startswith("tqdm"):
                over |= {iterable}
                inner = self._resolver.values(call.args[0], module) - over
                return bool(inner) and all(self._is_enumerated(value, over) for value in inner)
            case _:
                return False

    def _all_assigned(
        self, node: ast.Name, module: Module, test: Callable[[ast.expr, Module], bool]
    ) -> bool:
        """Whether all that ``node`` may be assigned passes ``test``."""
        scope = module.scope(node)
        found = scope.lookup(node.id)
        if found is None or node in self._active:
            return False
        self._active.add(node)
        owner, bindings = found
        reaching = reaching_bindings(module, owner, bindings, scope, node)
        if any(isinstance(module.parents[b.node], ast.AugAssign) for b in reaching):
            reaching = bindings  # what it was before counts, too
        passes = bool(reaching) and all(self._passes(b, module, test) for b in reaching)
        self._active.discard(node)
        return passes

    def _passes(
        self, binding: Binding, module: Module, test: Callable[[ast.expr, Module], bool]
    ) -> bool:
        """Whether what ``binding`` assigns, or adds, passes ``test``."""
        changed = module.parents[binding.node]
        if isinstance(changed, ast.AugAssign):
            return isinstance(changed.op, _INT_OPERATORS) and test(changed.value, module)
        source = binding.source
        if not isinstance(source, Assigned):
            return False
        if source.path:
            if not isinstance(source.path[-1], int) or len(source.path) > 1:
                return False
            if self._holds_data(source.value, module):
                return test != self.is_int
            return self.is_shape(source.value) and test != self.is_data
        return test(source.value, module)

    def _holds_data(self, node: ast.expr, module: Module) -> bool:
        """Whether the elements of ``node`` are tuples, lists or arrays: ``zip(*batch)``, ``map(np.stack, zip(*batch))``."""
        if not isinstance(node, ast.Call) or not node.args:
            return False
        names = self._resolver.names(node.func, module)
        if names == frozenset({"builtins.zip"}):
            return True
        if names and names <= _SEQUENCES:
            return self._holds_data(node.args[0], module)
        if names != frozenset({"builtins.map"}):
            return False
        makers = self._resolver.names(node.args[0], module)
        return bool(makers) and makers <= _SEQUENCES | _ARRAY_MAKERS

    def _is_int_option(self, option: Option, default: ast.expr | None) -> bool:
        kind = call_argument(option.call, "type")
        if kind is not None:
            names = self._resolver.names(kind, option.module)
            required = default is None or not (
                isinstance(default, ast.Constant) and default.value is None
            )
            return names == frozenset({"builtins.int"}) and required
        return False

    def is_shape(self, node: ast.expr) -> bool:
        """Whether ``node`` is a sequence of sizes by its form: ``x.shape``, ``x.size()``."""
        if isinstance(node, ast.Attribute):
            return node.attr == "shape"
        return self.is_torch_size(node)

    def is_torch_size(self, node: ast.expr) -> bool:
        """Whether ``node`` is a ``torch.Size`` by its form: ``x.size()``, ``x.size() + (n,)``.

        The ``shape`` of an array is a plain tuple.
        """
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.is_torch_size(node.left)  # to which only a tuple can be added
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "size"
            and not node.args
        )

    def is_data(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` is a list, tuple or numpy array: never a tensor, never a single number."""
        match node:
            case ast.List() | ast.Tuple() | ast.ListComp():
                return True
            case ast.BinOp():
                return self._is_computed_data(node, module)
            case ast.Call(func=ast.Attribute(value=array, attr=method)) if method in _ARRAY_METHODS:
                is_of_data = method == "numpy" or self.is_data(array, module)
                return is_of_data or self._is_array(node, module)
            case ast.Name():
                return self._all_assigned(node, module, self.is_data)
            case _:
                return self._is_array(node, module)

    def _is_computed_data(self, node: ast.BinOp, module: Module) -> bool:
        """Whether an operation gives data; with a tuple in it, what is not known may be a ``torch.Size``, which it stays."""
        sides = (node.left, node.right)
        if isinstance(node.op, ast.Add) and any(self._is_tuple(side, module) for side in sides):
            return all(self.is_data(side, module) for side in sides)
        return any(self._is_array(side, module) for side in sides)

    def _is_tuple(self, node: ast.expr, module: Module) -> bool:
        values = self._resolver.values(node, module)
        return any(isinstance(v, Display) and isinstance(v.node, ast.Tuple) for v in values)

    def _is_array(self, node: ast.expr, module: Module) -> bool:
        values = self._resolver.values(node, module)
        return bool(values) and all(_is_array_value(value) for value in values)

    def is_no_tensor(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` is data, a number or an option: anything but a tensor."""
        if self.is_data(node, module) or self.is_int(node, module):
            return True
        if isinstance(node, ast.UnaryOp):
            return self.is_no_tensor(node.operand, module)
        if isinstance(node, ast.BinOp):
            return self.is_no_tensor(node.left, module) and self.is_no_tensor(node.right, module)
        if isinstance(node, ast.Name) and self._all_assigned(node, module, self.is_no_tensor):
            return True
        values = self._resolver.values(node, module)
        return bool(values) and all(
            isinstance(v, Literal | Option)
            or (
                isinstance(v, Made)
                and isinstance(v.maker, External)
                and v.maker.name.startswith(_NUMBERS)
            )
            for v in values
        )


def _is_dimension(node: ast.expr) -> bool:
    """Whether an expression is an integer by its form alone: ``x.size(0)``, ``x.shape[0]``, ``x.numel()``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        method = node.func.attr
        return (method == "size" and bool(node.args)) or method in {"numel", "dim", "nelement"}
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
        value = node.value
        if isinstance(value, ast.Call):
            return isinstance(value.func, ast.Attribute) and value.func.attr == "size"
        return isinstance(value, ast.Attribute) and value.attr == "shape"
    return False


def _is_array_value(value: Value) -> bool:
    if isinstance(value, Display):
        return isinstance(value.node, ast.List | ast.Tuple | ast.ListComp)
    if not (isinstance(value, Made) and isinstance(value.maker, External)):
        return False
    name = value.maker.name
    if name in _ARRAY_MAKERS:
        return True
    if name in {"numpy.random.rand", "numpy.random.randn"}:
        return bool(value.call.args)
    position = _SIZE_AT.get(name.removeprefix("numpy."))
    if position is None or not name.startswith("numpy."):
        return False
    size = call_argument(value.call, "size", position)
    return size is not None and not (isinstance(size, ast.Constant) and size.value is None)
