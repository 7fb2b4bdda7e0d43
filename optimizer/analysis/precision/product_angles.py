"""Angles made of a matrix product: ``torch.sin(2 * math.pi * x @ frequencies)``, as in Fourier features of positions.

Of an angle of many turns, half precision and TF32 keep the turns and lose where in the last of them it ends. A product that is
rounded by a share e moves an angle of the size a by a * e, and a sine moves no more than its angle does. A ReLU moves by e times
what it is given. So a sine of a product is no worse off than any other activation where its angle is of a size of about one: a
layer's output, as PyTorch draws the weights, of inputs of about one, times known factors of at most 1 (``torch.sin(self.fc(h))``).
TF32 keeps 10 bits after the first and bfloat16 keeps 7, so that angles 8 times as large are as exact in TF32. In bfloat16 a sine
with a factor of 1 moves by 0.3 %, as a ReLU does, with 8 by 1.2 % and with 30, as in SIREN, by 5.5 %; times up to 1000 that go into
a layer as they are leave nothing of it. What is not known holds back: factors that are given or computed, weights of the
script's own size, and inputs from outside of the network, such as positions.

Rotary embeddings multiply positions by frequencies: in ``torch.einsum("i,j->ij", t, inv_freq)``, which autocast casts, or in ``torch.outer``, which
it leaves alone (https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/autocast_mode.h). TF32 rounds where products are summed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from ..calls.reach import Reached
from ..calls.signatures import call_argument
from ..obstacles import Obstacle
from ..program.syntax import Module, last_identifier
from ..values.constants import constant
from ..values.resolver import Resolver
from .linear_origins import LinearOrigins, Origin
from .matrix_products import (
    LINEAR_LAYERS,
    PRODUCT_LAYERS,
    is_half_product,
    is_linear_layer,
    is_summed_product,
)
from .value_sizes import ValueSizes

_WAVES = frozenset({"sin", "cos", "sin_", "cos_"})
_MADE = frozenset("arange linspace range tensor full ones zeros".split())
_MADE_LIKE = frozenset("new_tensor new_full new_ones new_zeros".split())
_WHOLE_UP_TO = 256
"""bfloat16 has all whole numbers to here."""
_LARGEST_IN_HALF = 1.0
_LARGEST_IN_TF32 = 2.0 ** (10 - 7)
"""Angles of so many radians, as an order of magnitude, are as exact as any other activation."""
_OF_A_PRODUCT = "angles made of a matrix product lose their phase in half precision"
_OF_ROUNDED = (
    "positions take the type of what a network computes: half precision rounds them above "
    f"{_WHOLE_UP_TO}, and so the angles made of them"
)

_Test = Callable[[ast.expr, Module], bool]


def half_angles(resolver: Resolver, nodes: Iterable[Reached], rounded: _Test) -> Iterator[Obstacle]:
    """Where ``nodes``, run under autocast, take sines and cosines of angles that it rounds.

    ``rounded`` tells what may be of half precision as it is.
    """
    code = tuple(nodes)
    angles = [
        (angle, r.module) for r in code if (angle := _angle(resolver, r.node, r.module)) is not None
    ]
    if not angles:
        return
    covered = frozenset(reached.node for reached in code)

    def is_product(node: ast.expr, module: Module) -> bool:
        return node in covered and is_half_product(resolver, node, module)

    def takes_type(node: ast.expr, module: Module) -> bool:
        return node in covered and _takes_type(resolver, node, module, rounded)

    products = LinearOrigins(resolver, is_product, PRODUCT_LAYERS)
    positions = LinearOrigins(resolver, takes_type)
    sizes = ValueSizes(resolver)
    for angle, module in angles:
        product = products.of(angle, module)
        if product is not None and sizes.of(angle, module) > _LARGEST_IN_HALF:
            yield Obstacle(product[1], product[0], _OF_A_PRODUCT)
        elif (position := positions.of(angle, module)) is not None:
            yield Obstacle(position[1], position[0], _OF_ROUNDED)


class ProductAngles:
    """Finds the angles that TF32 rounds. Convolutions are in TF32 as it is."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._products = LinearOrigins(resolver, self._is_summed, LINEAR_LAYERS)
        self._sizes = ValueSizes(resolver)

    def product(self, node: ast.AST, module: Module) -> Origin | None:
        """The matrix product of whose results ``node`` takes the sine or cosine, of angles that TF32 does not keep."""
        angle = _angle(self._resolver, node, module)
        product = self._products.of(angle, module) if angle is not None else None
        if angle is None or product is None:
            return None
        return product if self._sizes.of(angle, module) > _LARGEST_IN_TF32 else None

    def _is_summed(self, node: ast.expr, module: Module) -> bool:
        return is_summed_product(self._resolver, node, module) or is_linear_layer(
            self._resolver, node, module
        )


def _angle(resolver: Resolver, node: ast.AST, module: Module) -> ast.expr | None:
    """What ``torch.sin(x)`` and ``x.sin()`` are about, by whatever name: ``for wave in (torch.sin, torch.cos): wave(x)``."""
    if not isinstance(node, ast.Call):
        return None
    may_be_kept = isinstance(node.func, ast.Name) or (
        isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
    )
    if not may_be_kept and last_identifier(node.func) not in _WAVES:
        return None
    names = resolver.names(node.func, module)
    if names:
        is_wave = any(name in names for name in (f"torch.{wave}" for wave in _WAVES))
        return call_argument(node, "input", 0) if is_wave else None
    if last_identifier(node.func) in _WAVES and isinstance(node.func, ast.Attribute):
        return node.func.value if not resolver.callees(node, module) else None
    return None


def _takes_type(resolver: Resolver, node: ast.expr, module: Module, rounded: _Test) -> bool:
    """Whether ``node`` makes numbers in, or takes them to, a type that ``rounded`` says may be half precision."""
    if not isinstance(node, ast.Call) or resolver.callees(node, module):
        return False
    name = last_identifier(node.func)
    like: ast.expr | None = None
    if name in _MADE:
        numbers = [constant(argument) for argument in node.args]
        if not numbers or any(n is None or abs(n) > _WHOLE_UP_TO for n in numbers):
            like = _typed_as(call_argument(node, "dtype"))
    elif name in _MADE_LIKE and isinstance(node.func, ast.Attribute):
        like = node.func.value
    elif name in {"to", "type", "type_as"} and not resolver.names(node.func, module):
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        typed = (_typed_as(argument) for argument in given)
        like = next((found for found in typed if found is not None), None)
        if like is None and len(given) == 1 and name != "type":
            like = None if last_identifier(given[0]) == "device" else given[0]
    return like is not None and rounded(like, module)


def _typed_as(node: ast.expr | None) -> ast.expr | None:
    """``x`` of ``x.dtype``."""
    return node.value if isinstance(node, ast.Attribute) and node.attr == "dtype" else None
