"""How large values are, as an order of magnitude: what layers, with weights as PyTorch draws them, make of what goes in.

A linear layer or convolution as PyTorch draws it returns numbers of the size it is given (of unit variance it makes a third,
``kaiming_uniform_(a=sqrt(5))``); a norm, a sigmoid or a sine returns numbers of about one whatever it is given. What comes from
outside, such as a batch, a position or a time, is of unknown size, and so is what a matrix of the script's own makes.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable
from functools import cached_property

from ..calls.signatures import argument_for, call_argument, default_of
from ..networks.called_layers import called_layers, library_layer
from ..networks.layer_sequences import LayerSequences, Untold
from ..networks.models import instances
from ..program.classes import class_attribute, kept_as
from ..program.reaching import bindings_of
from ..program.scopes import Assigned, Binding, Iterated, Parameter, Path, Untraceable
from ..program.syntax import FunctionNode, Module
from ..tensors.returned_values import returned_by
from ..values.resolver import Resolver
from ..values.unpacking import unpacked_element
from ..values.values import Class, External, Function, Made, Value
from .drawn_weights import draws_weights
from .linear_origins import SAME_VALUES, tensor_operands
from .matrix_products import PRODUCT_LAYERS
from .possible_numbers import known_numbers

UNKNOWN = math.inf

_WEIGHTED = PRODUCT_LAYERS | {f"ConvTranspose{n}d" for n in (1, 2, 3)} | {"Embedding"}
_ABOUT_ONE = frozenset(
    "LayerNorm GroupNorm RMSNorm BatchNorm1d BatchNorm2d BatchNorm3d SyncBatchNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d "
    "Tanh Sigmoid Softmax Softmax2d Hardtanh Hardsigmoid Softsign "
    "layer_norm group_norm rms_norm batch_norm instance_norm normalize tanh tanh_ sigmoid sigmoid_ softmax hardtanh hardsigmoid "
    "softsign sin sin_ cos cos_ erf sign rand rand_like randn randn_like bernoulli".split()
)
"""Layers and functions that return numbers of about one whatever they are given."""
_NO_LARGER = SAME_VALUES | frozenset(
    "ReLU ReLU6 LeakyReLU PReLU RReLU ELU CELU SELU GELU SiLU Mish Softplus Hardswish Dropout Dropout1d Dropout2d Dropout3d "
    "AlphaDropout Identity Flatten Unflatten MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d Upsample PixelShuffle "
    "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveMaxPool2d ZeroPad2d ReflectionPad1d ReflectionPad2d ReplicationPad1d "
    "relu relu_ relu6 leaky_relu elu celu selu gelu silu mish softplus hardswish dropout dropout1d dropout2d abs neg pad "
    "interpolate max_pool1d max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d mean amax amin clone "
    "Parameter clamp clamp_min clamp_max".split()
)
"""Those that return numbers no larger than what they are given, or hardly."""
_WRITTEN = {"zeros": 0.0, "ones": 1.0, "ones_like": 1.0, "zeros_like": 0.0}
_JOINING = frozenset("cat concat concatenate stack hstack vstack dstack maximum minimum".split())
_OPERATORS = {
    **dict.fromkeys(("add", "sub", "subtract", "remainder", "fmod"), ast.Add()),
    **dict.fromkeys(("mul", "multiply"), ast.Mult()),
    **dict.fromkeys(("div", "divide", "true_divide"), ast.Div()),
}
_METHODS = (
    SAME_VALUES
    | _OPERATORS.keys()
    | frozenset(
        "relu relu_ tanh tanh_ sigmoid sigmoid_ softmax sin sin_ cos cos_ erf sign abs neg mean amax amin clamp clamp_min "
        "clamp_max exp maximum minimum".split()
    )
)
"""Methods that tensors have, of the functions above."""
_MOST_EXPONENT = 10.0
_ROUNDS = 4
"""After so many rounds what still grows is taken to grow in a loop."""

_Key = tuple[ast.expr, Path]


class ValueSizes:
    """The sizes of values in one project; infinite where they are unknown."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._sequences = LayerSequences(resolver)
        self._assumed: dict[_Key, float] = {}
        self._found: dict[_Key, float] = {}

    @cached_property
    def _of_drawn(self) -> float:
        """By how much a layer's weights enlarge what it is given."""
        return UNKNOWN if draws_weights(self._resolver) is not None else 1.0

    def of(self, node: ast.expr, module: Module) -> float:
        """The size of ``node``. What grows in a loop is of unknown size."""
        self._assumed = {}
        for _ in range(_ROUNDS):
            self._found = {}
            size = self._size(node, module)
            if size == UNKNOWN or self._found == self._assumed:
                return size
            self._assumed = self._found
        return UNKNOWN

    def _size(self, node: ast.expr, module: Module, path: Path = ()) -> float:
        key = (node, path)
        if key not in self._found:
            self._found[key] = self._assumed.get(key, 0.0)
            self._found[key] = self._made(node, module, path)
        return self._found[key]

    def _largest(self, places: Iterable[tuple[ast.expr, Module]]) -> float:
        """The size of what may be any of ``places``; unknown for none."""
        return max((self._size(*place) for place in places), default=UNKNOWN)

    def _made(self, node: ast.expr, module: Module, path: Path) -> float:
        numbers = known_numbers(self._resolver, node, module) if not path else ()
        if numbers:
            return max(map(abs, numbers))
        match node:
            case ast.Name():
                bindings = bindings_of(module, node)
                return max((self._bound(b, module, path) for b in bindings), default=UNKNOWN)
            case ast.Attribute():
                return self._attribute(node, module, path)
            case ast.Call():
                return self._call(node, module, path)
            case ast.BinOp(left, operator, right):
                return self._calculated(left, operator, right, module)
            case ast.UnaryOp(ast.USub() | ast.UAdd(), operand):
                return self._size(operand, module)
            case ast.Subscript() | ast.NamedExpr() | ast.Starred():
                return self._size(node.value, module)
            case ast.IfExp(body=body, orelse=orelse):
                return self._largest([(body, module), (orelse, module)])
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return self._largest((element, module) for element in elements)
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element):
                return self._size(element, module)
            case _:
                return UNKNOWN

    def _calculated(
        self, left: ast.expr, operator: ast.operator, right: ast.expr, module: Module
    ) -> float:
        match operator:
            case ast.Add() | ast.Sub() | ast.Mod():
                return self._largest([(left, module), (right, module)])
            case ast.Mult():
                return _product(self._size(left, module), self._size(right, module))
            case ast.Div():
                divisors = known_numbers(self._resolver, right, module)
                smallest = min(map(abs, divisors), default=0.0)
                return self._size(left, module) / smallest if smallest else UNKNOWN
            case _:
                return UNKNOWN

    # Variables

    def _bound(self, binding: Binding, module: Module, path: Path) -> float:
        match binding.source:
            case Assigned(value, part):
                return self._part(value, module, (*part, *path))
            case Iterated(iterable):
                return self._size(iterable, module)
            case Parameter(ast.FunctionDef() | ast.AsyncFunctionDef() as function, "plain"):
                return self._passed(function, binding.name, module, path)
            case Untraceable():
                changed = module.parents.get(binding.node)
                if not isinstance(changed, ast.AugAssign):
                    return UNKNOWN
                return self._calculated(changed.target, changed.op, changed.value, module)
            case _:
                return UNKNOWN

    def _part(self, value: ast.expr, module: Module, path: Path) -> float:
        """The size of the part of ``value`` that ``path`` leads to."""
        while path and (inner := unpacked_element(value, path[:1])) is not value:
            value, path = inner, path[1:]
        return self._size(value, module, path)

    def _passed(self, function: FunctionNode, name: str, module: Module, path: Path) -> float:
        sites = self._resolver.call_sites(function)
        sizes = [*self._handed_on(function, module)] if function.name == "forward" else []
        for site in sites:
            passed = argument_for(function, name, site.call, site.bound)
            if passed is None:
                return UNKNOWN
            if passed.given is not None:
                sizes.append(self._part(passed.given, site.module, path))
            else:
                default = default_of(function, name)
                sizes.append(self._size(default, module) if default is not None else UNKNOWN)
        return max(sizes, default=UNKNOWN)

    def _handed_on(self, forward: FunctionNode, module: Module) -> Iterable[float]:
        """The sizes of what ``forward`` is given in sequences that its layers are in."""
        cls = module.parents[forward]
        if not isinstance(cls, ast.ClassDef):
            return
        for made in instances(self._resolver, Class(cls, module)):
            try:
                before = self._sequences.before(made.call, made.module)
            except Untold:
                continue
            for layer, where in before:
                yield self._run(layer, where, lambda: UNKNOWN)

    def _attribute(self, node: ast.Attribute, module: Module, path: Path) -> float:
        if node.attr in {"T", "mT", "data"}:
            return self._size(node.value, module)
        cls = module.enclosing_class(node)
        if cls is None or not isinstance(node.value, ast.Name):
            return UNKNOWN
        kept = kept_as(self._resolver, cls, module, node.attr)
        return max((self._part(v, at, (*part, *path)) for v, part, at in kept), default=UNKNOWN)

    # Calls

    def _call(self, call: ast.Call, module: Module, path: Path) -> float:
        names = self._resolver.names(call.func, module)
        if names:
            ours = all(name.startswith("torch.") for name in names)
            lasts = [name.rpartition(".")[2] for name in names]
            return max(self._function(n, call, module) for n in lasts) if ours else UNKNOWN

        def given() -> float:
            argument = call_argument(call, "input", 0)
            return self._size(argument, module) if argument is not None else UNKNOWN

        if self._resolver.callees(call, module) or self._may_be_layer(call, module):
            return self._run(call.func, module, given, path)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS:
            return self._function(call.func.attr, call, module)
        return UNKNOWN

    def _may_be_layer(self, call: ast.Call, module: Module) -> bool:
        layers = called_layers(self._resolver, call.func, module)
        return any(library_layer(self._resolver, layer) is not None for layer in layers)

    def _run(
        self, callee: ast.expr, module: Module, given: Callable[[], float], path: Path = ()
    ) -> float:
        """The size of what ``callee`` returns when it is given values of the size ``given``."""
        values = called_layers(self._resolver, callee, module)
        return max((self._result(value, given, path) for value in values), default=UNKNOWN)

    def _result(self, value: Value, given: Callable[[], float], path: Path) -> float:
        layer = library_layer(self._resolver, value)
        if layer is not None:
            if layer in _WEIGHTED:
                size = 1.0 if layer == "Embedding" else given()
                return _product(self._of_drawn, size)
            return 1.0 if layer in _ABOUT_ONE else given() if layer in _NO_LARGER else UNKNOWN
        match value:
            case External(name) if name.startswith("torch."):
                last = name.rpartition(".")[2]
                return 1.0 if last in _ABOUT_ONE else given() if last in _NO_LARGER else UNKNOWN
            case Function():
                return self._returned(value, path)
            case Made(_, _, Class() as cls):
                forwards = class_attribute(self._resolver, cls, "forward")
                runs = [self._returned(f, path) for f in forwards if isinstance(f, Function)]
                return max(runs, default=UNKNOWN)
            case _:
                return UNKNOWN

    def _returned(self, function: Function, path: Path) -> float:
        returned = returned_by(function)
        return max(
            (
                self._part(value, function.module, path) if value is not None else UNKNOWN
                for value in returned
            ),
            default=UNKNOWN,
        )

    def _function(self, name: str, call: ast.Call, module: Module) -> float:
        """The size of what PyTorch's function ``name``, or a tensor's method, returns."""
        if name in _WRITTEN or name in _ABOUT_ONE:
            return _WRITTEN.get(name, 1.0)
        operands = tensor_operands(self._resolver, call, module)
        if name == "linspace":
            ends = [known_numbers(self._resolver, end, module) for end in operands[:2]]
            return (
                max((abs(n) for end in ends for n in end), default=UNKNOWN)
                if all(ends)
                else UNKNOWN
            )
        if not operands:
            return UNKNOWN
        first = operands[0]
        if name in _NO_LARGER:
            return self._size(first, module)
        if name in _JOINING:
            return self._largest((operand, module) for operand in operands[:2])
        if name == "exp":
            size = self._size(first, module)
            return math.exp(size) if size < _MOST_EXPONENT else UNKNOWN
        if len(operands) > 1 and name in _OPERATORS:
            return self._calculated(first, _OPERATORS[name], operands[1], module)
        return UNKNOWN


def _product(one: float, other: float) -> float:
    """Their product; what is of unknown size makes any product so."""
    return UNKNOWN if UNKNOWN in (one, other) else one * other
