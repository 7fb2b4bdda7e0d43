"""What PyTorch's functions and the methods of its tensors make of the samples of a batch."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .reductions import (
    EACH,
    REDUCED,
    Reduced,
    Reduction,
    compared,
    crossed,
    elementwise,
    operation,
    whole_mean,
    whole_number,
    whole_sum,
)

_ELEMENTWISE = frozenset(
    "exp log log2 log10 log1p expm1 abs sqrt rsqrt square pow neg sigmoid tanh relu softplus logsigmoid sign clamp "
    "clamp_min clamp_max type type_as add sub mul div true_divide eq ne gt lt ge le logical_and logical_or logical_not "
    "where maximum minimum lerp nan_to_num round floor ceil sin cos tan atan erf erfc lgamma digamma masked_fill "
    "zeros_like ones_like rand_like randn_like full_like one_hot elu leaky_relu gelu silu hardtanh reciprocal half "
    "long int bool byte isnan isfinite".split()
)
"""Those whose every result depends on one element."""
_SAME = frozenset(
    "item detach clone contiguous cpu cuda to float double squeeze requires_grad_".split()
)
_BOUNDS = frozenset({"clamp", "clamp_", "clamp_min", "max"})
"""How a sum of weights is kept from being zero."""
_SAME_ROWS = frozenset("view reshape flatten view_as reshape_as expand_as unsqueeze".split())
_ALONG = frozenset(
    "softmax log_softmax logsumexp sum mean norm std var argmax argmin cumsum max min topk sort gather scatter "
    "normalize cosine_similarity cat stack chunk split prod index_select select narrow".split()
)
"""Those that are given a dimension, which must not be that of the samples."""
_FROM_THE_END = frozenset(
    "softmax log_softmax logsumexp normalize cosine_similarity argmax".split()
)
"""Those that nobody asks for along a batch: a dimension counted from the end is another one."""
_BESIDE_SAMPLES = frozenset({"normalize", "cosine_similarity"})
"""Those that take the dimension behind that of the samples unless they are told another one."""
_COMPARES_ROWS = frozenset("softmax log_softmax normalize cosine_similarity cumsum".split())
"""Those that put the samples in relation to each other along the dimension of these."""
_EVERY_WITH_EVERY = frozenset({"linear", "tensordot"})
"""Those that take each row of one tensor with each of another."""
_DIMENSION_SECOND = frozenset({"cat", "stack", "chunk", "split", "topk", "norm"})
_NUMBERS = frozenset("norm std var max min prod logsumexp".split())
_WHOLE = {"mean": whole_mean, "sum": whole_sum}
_OPERATORS = {"add": ast.Add(), "sub": ast.Sub(), "mul": ast.Mult(), "div": ast.Div()}


def tensor_reduction(
    function: str,
    tensor: Reduced,
    arguments: Sequence[ast.expr],
    kinds: Sequence[Reduced],
    keywords: Sequence[tuple[ast.keyword, Reduced]],
) -> Reduced:
    """What ``function`` makes of ``tensor``: a method of it, or a function of ``torch`` that it is the first argument of.

    ``arguments``, which are of ``kinds``, and ``keywords`` are what else it is given.
    """
    if function == "numel" and tensor in EACH:
        return Reduction.COUNT
    if function in _WHOLE and not arguments and not keywords:
        return _WHOLE[function](tensor)
    if function == "squeeze" and tensor is Reduction.CROSSED:
        return None
    if function == "unsqueeze" and arguments and dimensions(arguments[0]) == [0]:
        return crossed(tensor)
    if function in _SAME or (function in _BOUNDS and tensor is Reduction.WEIGHT):
        return tensor
    if function in _SAME_ROWS:
        return tensor if tensor in REDUCED else elementwise([tensor])
    every = [tensor, *kinds, *(k for word, k in keywords if word.arg not in {"dim", "dtype"})]
    if set(every) <= {Reduction.FIXED}:
        return Reduction.FIXED
    name = function.removesuffix("_")
    if name in _ALONG:
        return _along(name, tensor, arguments, kinds, keywords)
    if name in _EVERY_WITH_EVERY and kinds:
        return compared([tensor, kinds[0]])
    if name in _OPERATORS and len(every) == 2:
        return operation(_OPERATORS[name], *every)
    return elementwise(every) if name in _ELEMENTWISE else None


def _along(
    function: str,
    tensor: Reduced,
    arguments: Sequence[ast.expr],
    kinds: Sequence[Reduced],
    keywords: Sequence[tuple[ast.keyword, Reduced]],
) -> Reduced:
    """What ``function`` makes of ``tensor`` along a dimension of it."""
    told = [word.value for word, _ in keywords if word.arg in {"dim", "axis"}]
    position = 1 if function in _DIMENSION_SECOND else 0
    told += [] if told else arguments[position : position + 1]
    others = [k for k, a in zip(kinds, arguments, strict=True) if a not in told]
    if not told or (told[0] in arguments and function in {"max", "min"} and _is_tensor(told[0])):
        pairs = function in {"max", "min"} and len(arguments) == 1
        if pairs or function in _BESIDE_SAMPLES:
            return elementwise([tensor, *kinds])
        is_number = function in _NUMBERS and not arguments and not keywords
        return whole_number(tensor) if is_number else None
    numbers = dimensions(told[0])
    if numbers and all(n >= 1 or (n < 0 and function in _FROM_THE_END) for n in numbers):
        return elementwise([tensor, *others])
    if numbers == [0] and function in _COMPARES_ROWS:
        return compared([tensor, *others])
    if numbers == [0] and function in _WHOLE:
        return _WHOLE[function](tensor)
    return whole_number(tensor) if numbers == [0] and function in _NUMBERS else None


def _is_tensor(argument: ast.expr) -> bool:
    """Whether what ``max`` is given is no dimension, which is written out."""
    return not dimensions(argument)


def dimensions(node: ast.expr) -> list[int]:
    """The dimensions that are written out: ``1``, ``-1``, ``(1, 2)``; none where they are not."""
    match node:
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            found = [dimensions(element) for element in elements]
            return [n for numbers in found for n in numbers] if all(found) else []
        case ast.Constant(value=int(number)):
            return [number]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
            return [-number]
        case _:
            return []
