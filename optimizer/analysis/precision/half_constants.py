"""Constants that a half-precision type cannot hold: ``masked_fill(mask, -1e9)`` raises in float16, ``+ 1e-8`` adds nothing there.

A sum or product with them, ``torch.where`` and ``x[mask] = -1e9`` write an infinity, of which a row with nothing else becomes NaN in a
softmax. ``clamp`` with such a bound raises on a CPU; a GPU compares in float32 and writes the bound in float16, so that infinities stay
that were to be kept out (``clamp_scalar_cuda`` in ``aten/src/ATen/native/cuda/TensorCompare.cu``).

bfloat16 has nearly the range of float32, but ends below ``torch.finfo(torch.float32).max``, which raises in it as well.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator

from ..calls.reach import Reached
from ..calls.signatures import call_argument
from ..networks.forward_code import called_names, method_name
from ..obstacles import Obstacle
from ..program.syntax import Module, last_identifier
from ..program.trees import is_none
from ..values.composition import call_arguments
from ..values.constants import constant
from ..values.host_numbers import is_number
from ..values.resolver import Resolver
from .float32_values import Float32Values
from .possible_numbers import possible_numbers

_Rounded = Callable[[ast.expr, Module], bool]

_FLOAT16_MAX = 65504.0
_BFLOAT16_MAX = 3.3895313892515355e38
_FLOAT16_TINY = 2.0**-25
"""What is no larger rounds to zero: half of the smallest subnormal number."""

_FILLING = {
    "masked_fill": ("value", 1),
    "masked_fill_": ("value", 1),
    "fill_": ("value", 0),
    "index_fill": ("value", 2),
    "index_fill_": ("value", 2),
    "new_full": ("fill_value", 1),
    "scatter": ("value", 2),
    "scatter_": ("value", 2),
    "clamp": ("min", 0),
    "clamp_": ("min", 0),
    "clamp_min": ("min", 0),
    "clamp_min_": ("min", 0),
    "clamp_max": ("max", 0),
    "clamp_max_": ("max", 0),
    "clip": ("min", 0),
    "clip_": ("min", 0),
    "nan_to_num": ("nan", 0),
    "nan_to_num_": ("nan", 0),
}
"""Methods that write a number into a tensor of the type they are called on, and which of their arguments that is, or the first of it."""
_FURTHER = {"min": ("max",), "nan": ("posinf", "neginf")}
"""The arguments after it that are numbers, too."""
_FUNCTIONS = {
    **{
        f"torch.{name}": (keyword, position + 1)
        for name, (keyword, position) in _FILLING.items()
        if name not in {"new_full", "fill_"}
    },
    "torch.full": ("fill_value", 1),
    "torch.full_like": ("fill_value", 1),
    "torch.nn.functional.pad": ("value", 3),
    "torch.nn.functional.threshold": ("value", 2),
}
_UPPER_BOUNDS = frozenset({"clamp", "clamp_", "clip", "clip_"})
_LOWER_BOUNDS = _UPPER_BOUNDS | {"clamp_min", "clamp_min_"}
_CHOOSING = frozenset({"torch.where", "torch.maximum", "torch.minimum"})
_REDUCING = frozenset({"norm", "sum", "prod", "mean", "max", "min"})
_ADDING = frozenset({"add", "add_"})


def constant_obstacle(resolver: Resolver, reached: Reached, rounded: _Rounded) -> Obstacle | None:
    """The constant in ``reached`` that half precision, or float16 alone, makes infinite or zero.

    Not beside what autocast computes in float32, such as a softmax, or what is made in that type.
    """
    module = reached.module
    float32 = Float32Values(resolver, through_casts=True)
    anywhere = Float32Values(resolver, through_casts=True, by_autocast=False)
    for number, tensor in _written(resolver, reached):
        value = _largest(resolver, number, module)
        known = anywhere if abs(value) > _BFLOAT16_MAX else float32
        if abs(value) > _FLOAT16_MAX and not (tensor and known.is_other(tensor, module)):
            both = abs(value) > _BFLOAT16_MAX and (tensor is None or rounded(tensor, module))
            return _overflow(reached, value, both)
    for number, tensor in _combined(reached):
        value = _largest(resolver, number, module)
        if abs(value) > _FLOAT16_MAX and constant(tensor) is None and rounded(tensor, module):
            return _overflow(reached, value, abs(value) > _BFLOAT16_MAX)
    for number, tensor in _kept_from_zero(resolver, reached):
        small = [n for n in possible_numbers(resolver, number, module) if n]
        value = min(small, key=abs, default=1.0)
        if abs(value) > _FLOAT16_TINY:
            continue
        is_exact = tensor is not None and float32.is_other(tensor, module)
        if not is_exact or _is_reduced(resolver, tensor, module):
            message = f"the constant {value:g} is zero in float16"
            return Obstacle(module, reached.node, message, float16_only=True)
    return None


def _is_reduced(resolver: Resolver, tensor: ast.expr | None, module: Module) -> bool:
    """Whether ``tensor`` is reduced to one number, which takes the type of what it is combined with: ``y / (x.norm() + 1e-8)``."""
    if not isinstance(tensor, ast.Call) or last_identifier(tensor.func) not in _REDUCING:
        return False
    return len(call_arguments(tensor)) == bool(resolver.names(tensor.func, module))


def _overflow(reached: Reached, value: float, both: bool) -> Obstacle:
    types = "half precision" if both else "float16"
    message = f"the constant {value:g} overflows in {types}"
    return Obstacle(reached.module, reached.node, message, float16_only=not both)


def _largest(resolver: Resolver, number: ast.expr, module: Module) -> float:
    """The finite number farthest from zero that ``number`` may be; zero where it is none."""
    numbers = (n for n in possible_numbers(resolver, number, module) if abs(n) < math.inf)
    return max(numbers, key=abs, default=0.0)


def _written(resolver: Resolver, reached: Reached) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The numbers that ``reached`` writes into tensors, each with the tensor that has the type of the result."""
    match reached.node:
        case ast.Call() as call:
            yield from _written_by_call(resolver, reached, call)
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Subscript):
                    yield value, target.value
        case _:
            return


def _combined(reached: Reached) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The operands of sums and products, each with the other: ``(1 - mask) * -1e9``."""
    match reached.node:
        case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult(), right):
            yield left, right
            yield right, left
        case ast.AugAssign(target=target, op=ast.Add() | ast.Sub() | ast.Mult(), value=value):
            yield value, target
        case _:
            return


def _written_by_call(
    resolver: Resolver, reached: Reached, call: ast.Call
) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    method, names = method_name(resolver, reached), called_names(resolver, reached)
    if names & _CHOOSING:
        for index, argument in enumerate(call.args):
            others = [other for place, other in enumerate(call.args) if place != index]
            yield argument, others[-1] if others else None
        return
    filling, tensor = _FILLING.get(method or ""), None
    if filling is not None and isinstance(call.func, ast.Attribute):
        tensor = call.func.value
    else:
        filling = next((_FUNCTIONS[name] for name in names if name in _FUNCTIONS), None)
        tensor = call_argument(call, "input", 0)
    dtype = call_argument(call, "dtype")
    typed_as = dtype.value if isinstance(dtype, ast.Attribute) and dtype.attr == "dtype" else None
    if filling is None or (typed_as is None and _has_own_type(dtype, names)):
        return
    keyword, position = filling
    given = [call_argument(call, keyword, position)]
    given += [
        call_argument(call, further, position + place)
        for place, further in enumerate(_FURTHER.get(keyword, ()), start=1)
    ]
    yield from ((number, typed_as or tensor) for number in given if number is not None)


def _has_own_type(dtype: ast.expr | None, names: frozenset[str]) -> bool:
    """Whether the result is of the type ``dtype``, or the default type, whatever the function is given."""
    return "torch.full" in names or (dtype is not None and not is_none(dtype))


def _kept_from_zero(
    resolver: Resolver, reached: Reached
) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The numbers that ``reached`` adds to tensors, or bounds them from below by, each with the tensor."""
    module = reached.module
    match reached.node:
        case ast.BinOp(left, ast.Add(), right):
            for number, other in ((left, right), (right, left)):
                if constant(other) is None and not is_number(resolver, other, module):
                    yield number, other
        case ast.AugAssign(target=target, op=ast.Add(), value=number):
            if not is_number(resolver, target, module):
                yield number, target
        case ast.Call() as call:
            yield from _bounded_from_zero(resolver, reached, call)
        case _:
            return


def _bounded_from_zero(
    resolver: Resolver, reached: Reached, call: ast.Call
) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    method, names = method_name(resolver, reached), called_names(resolver, reached)
    is_function = bool(names & {f"torch.{name}" for name in _LOWER_BOUNDS | _ADDING})
    if "torch.maximum" in names and len(call.args) == 2:
        first, second = call.args
        yield first, second
        yield second, first
    elif is_function or method in _LOWER_BOUNDS | _ADDING:
        last = "other" if "add" in (method or min(names)) else "min"
        bound = call_argument(call, last, 1 if is_function else 0)
        if is_function:
            tensor = call_argument(call, "input", 0)
        else:
            tensor = call.func.value if isinstance(call.func, ast.Attribute) else None
        if bound is not None:
            yield bound, tensor
