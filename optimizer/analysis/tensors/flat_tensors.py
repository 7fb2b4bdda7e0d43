"""Which expressions are certainly no image batches any more: flattened, or pooled to a single pixel.

For these the order of channels and pixels in memory makes no difference.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from enum import IntEnum

from ..calls.signatures import call_argument
from ..program.reaching import bindings_of
from ..program.scopes import Assigned
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import External, Made

_ELEMENTWISE = frozenset(
    "relu relu_ relu6 leaky_relu elu gelu silu selu mish hardswish sigmoid tanh softmax log_softmax dropout dropout_ "
    "softplus logsigmoid squeeze detach float clamp exp log ReLU ReLU6 LeakyReLU ELU GELU SiLU SELU Mish Hardswish "
    "Sigmoid Tanh Softmax LogSoftmax Dropout Softplus LogSigmoid Identity Hardsigmoid".split()
)
_COUNTS = frozenset({"bincount", "histc"})
"""Have one dimension, whatever they count."""
_POOLS = frozenset(
    "AdaptiveAvgPool2d AdaptiveMaxPool2d adaptive_avg_pool2d adaptive_max_pool2d".split()
)
_PROJECTIONS = frozenset({"Linear", "linear"})
_IN_PROJECTIONS = _PROJECTIONS | _ELEMENTWISE | {"BatchNorm1d"}
_SIZES = 2


class Shape(IntEnum):
    """How much is known: nothing, that height and width are 1, or that there are no such dimensions."""

    UNKNOWN = 0
    PIXEL = 1
    FLAT = 2


class FlatTrace:
    """Answers for expressions inside one function at a time."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._active: set[ast.AST] = set()

    def shape(self, node: ast.expr, module: Module) -> Shape:
        """What is known of the value of ``node``."""
        if node in self._active:
            return Shape.FLAT  # whatever else it may be decides
        self._active.add(node)
        try:
            return self._shape(node, module)
        finally:
            self._active.discard(node)

    def is_projected(self, node: ast.expr, module: Module) -> bool:
        """Whether ``node`` is what linear layers made, element by element operations aside: no layout of images is left in it."""
        if node in self._active:
            return True  # whatever else it may be decides
        self._active.add(node)
        try:
            match node:
                case ast.Name():
                    values = self._assigned(node, module)
                    return bool(values) and all(
                        value is not None and self.is_projected(value, module) for value in values
                    )
                case ast.Call():
                    return self._is_projected_call(node, module)
                case _:
                    return False
        finally:
            self._active.discard(node)

    def _is_projected_call(self, node: ast.Call, module: Module) -> bool:
        makers = self._resolver.maker_names(node.func, module)
        called = _last_parts(makers or self._resolver.names(node.func, module))
        inputs = node.args[:1]
        if not called and isinstance(node.func, ast.Attribute):
            called, inputs = {node.func.attr}, [node.func.value]
        if called == {"Sequential"}:
            return self._is_projection(node.func, module)
        if called and called <= _PROJECTIONS:
            return True
        elementwise = bool(called) and called <= _ELEMENTWISE
        return elementwise and any(self.is_projected(given, module) for given in inputs)

    def _is_projection(self, sequence: ast.expr, module: Module) -> bool:
        """Whether ``sequence`` is a ``Sequential`` of linear layers and activations."""
        for value in self._resolver.values(sequence, module):
            if not isinstance(value, Made):
                return False
            kinds = [
                _last_parts(self._resolver.maker_names(layer, value.module))
                for layer in value.call.args
            ]
            known = all(kind and kind <= _IN_PROJECTIONS for kind in kinds)
            if not known or not any(kind & _PROJECTIONS for kind in kinds):
                return False
        return True

    def _shape(self, node: ast.expr, module: Module) -> Shape:
        match node:
            case ast.Name():
                return self._name(node, module)
            case ast.Call():
                return self._call(node, module)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) if parts:
                return min(self.shape(part, module) for part in parts)
            case ast.BinOp(left=left, right=right):
                sides = [s for s in (left, right) if not isinstance(s, ast.Constant)]
                return min((self.shape(s, module) for s in sides), default=Shape.UNKNOWN)
            case _:
                return Shape.UNKNOWN

    def _name(self, node: ast.Name, module: Module) -> Shape:
        known = [
            self.shape(value, module) if value is not None else Shape.UNKNOWN
            for value in self._assigned(node, module)
        ]
        return min(known, default=Shape.UNKNOWN)

    def _assigned(self, node: ast.Name, module: Module) -> list[ast.expr | None]:
        """What the variable may have been assigned; None for a value it has in another way."""
        found: list[ast.expr | None] = []
        for binding in bindings_of(module, node):
            source = binding.source
            plain = isinstance(source, Assigned) and not source.path
            found.append(source.value if plain else None)  # type: ignore[union-attr]
        return found

    def _call(self, node: ast.Call, module: Module) -> Shape:
        names = [*self._resolver.names(node.func, module)]
        layers = [
            value
            for value in self._resolver.values(node.func, module)
            if isinstance(value, Made) and isinstance(value.maker, External)
        ]
        if len(layers) == 1 and len(self._resolver.values(node.func, module)) == 1:
            maker = layers[0].maker
            assert isinstance(maker, External)
            return self._operation(
                maker.name, node.args[:1], layers[0].call, layers[0].module, node, module
            )
        if len(names) == 1 and names[0].startswith("torch."):
            rest = ast.Call(node.func, node.args[1:], node.keywords)
            return self._operation(names[0], node.args[:1], rest, module, node, module)
        if not names and isinstance(node.func, ast.Attribute):
            if self._resolver.callees(node, module):
                return Shape.UNKNOWN
            method = f"torch.{node.func.attr}"
            return self._operation(method, [node.func.value], node, module, node, module)
        return Shape.UNKNOWN

    def _operation(
        self,
        name: str,
        inputs: list[ast.expr],
        settings: ast.Call,
        settings_module: Module,
        node: ast.Call,
        module: Module,
    ) -> Shape:
        """The shape that a layer, a function or a method gives, by the last part of its name."""
        last = name.rpartition(".")[2]
        if last in _POOLS:
            size = call_argument(settings, "output_size", 0)
            return Shape.PIXEL if size is not None and _is_one(size) else Shape.UNKNOWN
        if last in _COUNTS:
            return Shape.FLAT
        if last == "Flatten" and not settings.args and not settings.keywords:
            return Shape.FLAT
        if last == "flatten":
            return Shape.FLAT if _flattens(settings) else Shape.UNKNOWN
        if last in {"view", "reshape"} and len(settings.args) == _SIZES:
            unpacked = any(isinstance(size, ast.Starred) for size in settings.args)
            return Shape.UNKNOWN if unpacked else Shape.FLAT
        if last == "mean":
            return _mean(settings)
        if last in {"Linear", "BatchNorm1d"} and inputs:
            return Shape.FLAT if self.shape(inputs[0], module) is Shape.FLAT else Shape.UNKNOWN
        if last == "contiguous" and inputs:
            return self.shape(inputs[0], module)
        if last in _ELEMENTWISE and inputs:
            return self.shape(inputs[0], module)
        return Shape.UNKNOWN


def _last_parts(names: Iterable[str]) -> set[str]:
    return {name.rpartition(".")[2] for name in names}


def _flattens(settings: ast.Call) -> bool:
    """Whether ``x.flatten(..)`` leaves no more than the batch and one dimension."""
    start = call_argument(settings, "start_dim", 0)
    end = call_argument(settings, "end_dim", 1)
    return end is None and (
        start is None or (isinstance(start, ast.Constant) and start.value in {0, 1})
    )


def _mean(settings: ast.Call) -> Shape:
    """``x.mean((2, 3))`` takes both dimensions away, with ``keepdim`` leaves them as one pixel."""
    dims = call_argument(settings, "dim", 0)
    if not isinstance(dims, ast.Tuple | ast.List):
        return Shape.UNKNOWN
    try:
        wanted = {ast.literal_eval(part) for part in dims.elts}
    except ValueError:
        return Shape.UNKNOWN
    if wanted not in ({2, 3}, {-2, -1}):
        return Shape.UNKNOWN
    return Shape.FLAT if call_argument(settings, "keepdim", 1) is None else Shape.PIXEL


def _is_one(size: ast.expr) -> bool:
    parts = size.elts if isinstance(size, ast.Tuple | ast.List) else [size]
    return all(isinstance(part, ast.Constant) and part.value == 1 for part in parts)
