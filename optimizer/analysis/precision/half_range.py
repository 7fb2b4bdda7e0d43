"""What the range and the resolution of half-precision types do to constants, steep functions and whole numbers.

float16 ends at 65504 and has nothing between zero and 6e-8; bfloat16 has the range of float32. Both are coarse near 1:
bfloat16 knows nothing between 0.996 and 1. It has all whole numbers up to 256, and float16 up to 2048.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, TypeGuard

from ..calls.reach import Reached
from ..calls.signatures import call_argument
from ..networks.forward_code import called_names, method_name
from ..obstacles import Obstacle
from ..program.reaching import bindings_of
from ..program.scopes import Assigned
from ..program.syntax import Module, last_identifier
from ..program.trees import walk
from ..values.constants import constant
from ..values.dataflow import dotted
from ..values.resolver import Resolver
from ..values.values import Display, Literal
from .half_constants import constant_obstacle

Rounded: TypeAlias = Callable[[ast.expr, Module], bool]
"""Whether an expression may hold what a network computed in half precision."""

_MATRIX_PRODUCTS = frozenset({"torch.mm", "torch.bmm", "torch.matmul"})
_STEEP_AT_ONE = frozenset(
    {"acos", "arccos", "asin", "arcsin", "atanh", "arctanh", "erfinv", "logit"}
)
_STEEP_AT_ZERO = frozenset({"log", "log2", "log10", "log1p", "sqrt", "rsqrt"})
_LOGARITHMS = frozenset({"log", "log2", "log10"})
_BOUNDED = frozenset({"clamp", "clamp_", "clamp_min", "clamp_min_", "clip", "clip_", "maximum"})
_STEEP = _STEEP_AT_ONE | _STEEP_AT_ZERO
_RUN_IN_FLOAT32 = frozenset(
    "softmax log_softmax exp expm1 cross_entropy nll_loss cosine_similarity norm sum cumsum cumprod prod float double "
    "logsigmoid softplus normalize dist cdist rand randn zeros ones tensor rand_like".split()
)


_GRID_SAMPLE = "torch.nn.functional.grid_sample"
_AFFINE_GRID = "torch.nn.functional.affine_grid"
_WHOLE_UP_TO = 256
_TO_WHOLE = frozenset({"long", "int", "short"})
_COUNTING = frozenset(
    "torch.arange torch.range torch.randperm torch.randint torch.tensor torch.LongTensor".split()
)


def range_obstacles(
    resolver: Resolver, nodes: Iterable[Reached], rounded: Rounded
) -> Iterator[Obstacle]:
    """What in ``nodes`` runs out of the range of float16, or into the resolution of both types."""
    for reached in nodes:
        message = _gram_matrix(resolver, reached)
        if message is not None:
            yield Obstacle(reached.module, reached.node, message, float16_only=True)
            continue
        unfit = constant_obstacle(resolver, reached, rounded)
        if unfit is not None:
            yield unfit
        elif isinstance(reached.node, ast.Call):
            message = (
                _near_one(resolver, reached, rounded)
                or _whole_numbers(resolver, reached, rounded)
                or _positions(resolver, reached, rounded)
            )
            if message is not None:
                yield Obstacle(reached.module, reached.node, message)
                continue
            message = _vanished(resolver, reached, rounded)
            if message is not None:
                yield Obstacle(reached.module, reached.node, message, float16_only=True)


def _gram_matrix(resolver: Resolver, reached: Reached) -> str | None:
    match reached.node:
        case ast.Call():
            return _gram_product(resolver, reached)
        case ast.BinOp(left, ast.MatMult(), right):
            return _gram([left, right], reached.module)
        case _:
            return None


def _number(resolver: Resolver, node: ast.expr, module: Module) -> float | None:
    """The number ``node`` is, written out or by a name or attribute that is only ever that."""
    if not isinstance(node, ast.Name | ast.Attribute):
        return constant(node)
    numbers = {
        constant(value.node) if isinstance(value, Literal | Display) else None
        for value in resolver.values(node, module)
    }
    return numbers.pop() if len(numbers) == 1 else None


def _near_one(resolver: Resolver, reached: Reached, rounded: Rounded) -> str | None:
    """Functions that run to infinity, or whose slope does, at a one that half precision rounds to."""
    found = _steep_function(resolver, reached)
    if found is None:
        return None
    function, argument = found
    if function in _STEEP_AT_ONE:
        values = [argument]
    else:
        values = list(_subtracted_from_one(argument, function == "log1p"))
    for value in values:
        if rounded(value, reached.module) and not _is_float32(value, reached.module):
            shown = f"{function}({ast.unparse(argument)})"
            return f"`{shown}` is not finite where half precision rounds to 1"
    return None


def _whole_numbers(resolver: Resolver, reached: Reached, rounded: Rounded) -> str | None:
    """Whole numbers that take a network's type on their way: ``torch.arange(n).type_as(output).long()``."""
    if method_name(resolver, reached) not in _TO_WHOLE:
        return None
    node = reached.node
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Attribute)
    match node.func.value:
        case ast.Call(func=ast.Attribute(value=ast.Call() as counted, attr="type_as"), args=[like]):
            loses = bool(resolver.names(counted.func, reached.module) & _COUNTING)
        case ast.Call(func=ast.Attribute(value=like, attr="new_full")) as made:
            filled = call_argument(made, "fill_value", 1)
            number = _number(resolver, filled, reached.module) if filled is not None else None
            loses = number is None or abs(number) > _WHOLE_UP_TO
        case ast.Call(func=ast.Attribute(value=like, attr="new_tensor")):
            loses = True
        case _:
            return None
    if loses and rounded(like, reached.module):
        return f"whole numbers above {_WHOLE_UP_TO} are rounded in half precision"
    return None


def _positions(resolver: Resolver, reached: Reached, rounded: Rounded) -> str | None:
    """Positions between the pixels of an image, of which bfloat16 knows 256 from its middle to its edge.

    The grid of a matrix is a product itself, which autocast computes in half precision whatever the matrix is.
    """
    node = reached.node
    assert isinstance(node, ast.Call)
    names = called_names(resolver, reached)
    grid = call_argument(node, "grid", 1) if _GRID_SAMPLE in names else None
    if _AFFINE_GRID in names or (grid is not None and rounded(grid, reached.module)):
        return "positions in an image lose their digits in half precision"
    return None


def _vanished(resolver: Resolver, reached: Reached, rounded: Rounded) -> str | None:
    """Logarithms of what float32 keeps above zero, a sigmoid say, and float16 does not."""
    found = _steep_function(resolver, reached)
    if found is None or found[0] not in _LOGARITHMS:
        return None
    function, argument = found
    module = reached.module
    if not rounded(argument, module) or _is_float32(argument, module) or _is_kept(argument, module):
        return None
    return f"`{function}({ast.unparse(argument)})` is not finite where float16 rounds to zero"


def _steep_function(resolver: Resolver, reached: Reached) -> tuple[str, ast.expr] | None:
    """The steep function that is called, and of what."""
    node = reached.node
    assert isinstance(node, ast.Call)
    names = {
        n.rpartition(".")[2] for n in called_names(resolver, reached) if n.startswith("torch.")
    }
    method = method_name(resolver, reached)
    function = next(iter(names & _STEEP), method if method in _STEEP else None)
    if function is None:
        return None
    if names and node.args:
        return function, node.args[0]
    if isinstance(node.func, ast.Attribute):
        return function, node.func.value
    return None


def _is_kept(node: ast.expr, module: Module) -> bool:
    """Whether the last operation that made ``node`` keeps it away from zero, by a sum or a bound."""
    match node:
        case ast.Name():
            bindings = bindings_of(module, node)
            values = [b.source.value for b in bindings if isinstance(b.source, Assigned)]
            return 0 < len(values) == len(bindings) and all(
                not isinstance(value, ast.Name) and _is_kept(value, module) for value in values
            )
        case ast.BinOp(op=ast.Add()):
            return True
        case ast.Call(func=ast.Attribute(attr=last)) | ast.Call(func=ast.Name(id=last)):
            return last in _BOUNDED
        case _:
            return False


def _subtracted_from_one(argument: ast.expr, negated: bool) -> Iterator[ast.expr]:
    """``p`` in ``1 - p`` anywhere in ``argument``, or in ``-p`` when it is ``negated``."""
    if negated and isinstance(argument, ast.UnaryOp) and isinstance(argument.op, ast.USub):
        yield argument.operand
    for part in walk(argument):
        if (
            isinstance(part, ast.BinOp)
            and isinstance(part.op, ast.Sub)
            and constant(part.left) == 1
        ):
            yield part.right


def _is_float32(node: ast.expr, module: Module) -> bool:
    """Whether autocast computes ``node`` in float32, as far as its last operation or assignment says."""
    if isinstance(node, ast.Name):
        found = module.scope(node).lookup(node.id)
        sources = [binding.source for binding in found[1]] if found else []
        return bool(sources) and all(
            isinstance(s, Assigned)
            and not isinstance(s.value, ast.Name)
            and _is_float32(s.value, module)
            for s in sources
        )
    if isinstance(node, ast.Call):
        function = node.func
        last = last_identifier(function)
        return last in _RUN_IN_FLOAT32
    if isinstance(node, ast.BinOp):
        return any(_is_float32(side, module) for side in (node.left, node.right))
    return constant(node) is not None


def _gram_product(resolver: Resolver, reached: Reached) -> str | None:
    node = reached.node
    assert isinstance(node, ast.Call)
    operands: list[ast.expr] = []
    if called_names(resolver, reached) & _MATRIX_PRODUCTS and len(node.args) == 2:
        operands = node.args
    elif method_name(resolver, reached) in {"mm", "bmm", "matmul"} and len(node.args) == 1:
        assert isinstance(node.func, ast.Attribute)
        operands = [node.func.value, node.args[0]]
    return _gram(operands, reached.module) if operands else None


def _gram(operands: list[ast.expr], module: Module) -> str | None:
    """A matrix times its own transpose: sums of squares, which float16 cannot hold for long rows."""
    roots = [_untransposed(operand, module) for operand in operands]
    if roots[0] is not None and roots[0] == roots[1]:
        return (
            "the product of a matrix with its own transpose (a Gram matrix) can overflow in float16"
        )
    return None


def _untransposed(node: ast.expr, module: Module) -> str | None:
    if _is_transposition(node):
        assert isinstance(node.func, ast.Attribute)
        return _untransposed(node.func.value, module)
    if isinstance(node, ast.Attribute) and node.attr in {"T", "mT"}:
        return _untransposed(node.value, module)
    if isinstance(node, ast.Name):
        sources = [binding.source for binding in bindings_of(module, node)]
        source = sources[0] if len(sources) == 1 else None
        value = source.value if isinstance(source, Assigned) else None
        if value is not None and _is_transposition(value):
            return _untransposed(value, module)
        if value is not None and _is_normalized(value):
            return None
    return dotted(node)


def _is_normalized(node: ast.expr) -> bool:
    """Whether ``node`` reads like rows of bounded length: something divided, or a call of ``normalize``."""
    if isinstance(node, ast.Call):
        function = node.func
        last = last_identifier(function)
        return "norm" in last
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)


def _is_transposition(node: ast.expr) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"t", "transpose", "permute", "swapaxes"}
    )
