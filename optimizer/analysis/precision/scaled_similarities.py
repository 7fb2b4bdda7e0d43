"""Cosines that are multiplied by a large constant, as in contrastive losses: ``F.normalize(a) @ F.normalize(b).t() / 0.01``.

A cosine comes out of a product in half precision, which rounds it by up to half of its last digit: 2^-9 of it in bfloat16, 2^-12 in
float16 (8 and 11 binary digits, https://en.wikipedia.org/wiki/Bfloat16_floating-point_format). Cosines of what belongs together are
near 1. Times a factor s, the logit of a softmax is off by s * 2^-9 and s * 2^-12. A logit that is off by 0.1 moves its weight in
the softmax, and so its share of the gradient, by a tenth. That is so from s = 51 on in bfloat16 (a temperature of 0.01, CosFace's
64), and from s = 410 on in float16. Measured on 256 pairs of a perceptron's outputs, where those are rounded as well, with s = 100: gradients
move by 5.5 % in bfloat16, by 3.7 % with the product alone in float32, and by 0.8 % in float16. So float16 it is.

A factor that is trained along, such as CLIP's ``logit_scale.exp()``, is no constant, and trained under autocast as published
(https://arxiv.org/abs/2103.00020).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..calls.reach import Reached
from ..obstacles import Bfloat16Obstacle, Obstacle
from ..program.syntax import Module, last_identifier
from ..program.trees import walk
from ..values.resolver import Resolver
from .linear_origins import LinearOrigins, tensor_operands
from .matrix_products import is_summed_product
from .possible_numbers import possible_numbers

_LARGEST_ERROR = 0.1
_LARGEST_IN_BFLOAT16 = _LARGEST_ERROR * 2**9
_LARGEST_IN_FLOAT16 = _LARGEST_ERROR * 2**12
_MULTIPLYING = frozenset({"mul", "mul_", "multiply", "multiply_"})
_DIVIDING = frozenset({"div", "div_", "divide", "divide_", "true_divide", "true_divide_"})
_NORMS = frozenset({"norm", "vector_norm"})
_NORMALIZE = "torch.nn.functional.normalize"

_Factor = tuple[ast.expr, ast.expr, bool]
"""What is multiplied, by what, and whether it is divided by it instead."""


def scaled_similarities(resolver: Resolver, nodes: Iterable[Reached]) -> Iterator[Obstacle]:
    """Where ``nodes``, run under autocast, multiply cosines by constants for which a type is too coarse."""
    code = tuple(nodes)
    covered = frozenset(reached.node for reached in code)
    similarities = _Similarities(resolver, covered)
    for reached in code:
        factor = similarities.factor(reached.node, reached.module)
        if factor > _LARGEST_IN_BFLOAT16:
            lost = f"cosines times {factor:g} lose their digits in"
            if factor > _LARGEST_IN_FLOAT16:
                yield Obstacle(reached.module, reached.node, f"{lost} half precision")
            else:
                why = f"{lost} bfloat16"
                yield Bfloat16Obstacle(reached.module, reached.node, why, in_float16=why)


class _Similarities:
    """Finds products of normalized rows, and by what they are multiplied."""

    def __init__(self, resolver: Resolver, covered: frozenset[ast.AST]) -> None:
        self._resolver, self._covered = resolver, covered
        self._cosines = LinearOrigins(resolver, self._is_cosine)
        self._normalized = LinearOrigins(resolver, self._is_normalized)

    def factor(self, node: ast.AST, module: Module) -> float:
        """By how much ``node`` enlarges cosines; 0 where it does not, or by what is not known."""
        found = _product_with_number(self._resolver, node, module)
        for value, by, divides in found:
            size = self._size(by, module, divides=divides)
            if size > _LARGEST_IN_BFLOAT16 and self._cosines.of(value, module) is not None:
                return size
        if isinstance(node, ast.expr) and self._is_cosine(node, module):
            # `100 * a @ b.t()` multiplies the rows
            inner = (
                self._size(by, module, divides=divides)
                for operand in _operands(self._resolver, node, module)
                for part in walk(operand)
                for _, by, divides in _product_with_number(self._resolver, part, module)
            )
            return max(inner, default=0.0)
        return 0.0

    def _size(self, by: ast.expr, module: Module, *, divides: bool) -> float:
        numbers = [abs(n) for n in possible_numbers(self._resolver, by, module) if n]
        sizes = [1 / n if divides else n for n in numbers]
        return max(sizes, default=0.0)

    def _is_cosine(self, node: ast.expr, module: Module) -> bool:
        if node not in self._covered or not is_summed_product(self._resolver, node, module):
            return False
        operands = _operands(self._resolver, node, module)
        return len(operands) > 1 and all(
            self._normalized.of(operand, module) is not None for operand in operands
        )

    def _is_normalized(self, node: ast.expr, module: Module) -> bool:
        match node:
            case ast.Call():
                return _NORMALIZE in self._resolver.names(node.func, module)
            case ast.BinOp(op=ast.Div(), right=right):
                return _is_norm(right)
            case ast.Name():
                users = (module.parents[use] for use in module.names_of(node.id))
                return any(
                    isinstance(user, ast.AugAssign)
                    and isinstance(user.op, ast.Div)
                    and module.function(user) is module.function(node)
                    and _is_norm(user.value)
                    for user in users
                )
            case _:
                return False


def _is_norm(node: ast.expr) -> bool:
    return any(
        isinstance(part, ast.Call) and last_identifier(part.func) in _NORMS for part in walk(node)
    )


def _operands(resolver: Resolver, product: ast.expr, module: Module) -> list[ast.expr]:
    if isinstance(product, ast.BinOp):
        return [product.left, product.right]
    if not isinstance(product, ast.Call):
        return []
    operands = tensor_operands(resolver, product, module)
    return [o for o in operands if not (isinstance(o, ast.Constant) and isinstance(o.value, str))]


def _product_with_number(resolver: Resolver, node: ast.AST, module: Module) -> Iterator[_Factor]:
    """The ways to read ``node`` as something times, or divided by, a number."""
    match node:
        case ast.BinOp(left, ast.Mult(), right):
            yield left, right, False
            yield right, left, False
        case ast.BinOp(left, ast.Div(), right):
            yield left, right, True
        case ast.AugAssign(target, ast.Mult() | ast.Div(), value):
            yield target, value, isinstance(node.op, ast.Div)
        case ast.Call(func=function) if last_identifier(function) in _MULTIPLYING | _DIVIDING:
            operands = tensor_operands(resolver, node, module)
            if len(operands) > 1:
                yield operands[0], operands[1], last_identifier(function) in _DIVIDING
        case _:
            pass
