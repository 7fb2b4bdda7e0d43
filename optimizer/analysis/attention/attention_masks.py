"""The masks of attention that is written out, as ``scaled_dot_product_attention`` takes them."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from ..calls.signatures import call_argument
from ..loading.written_views import may_be_written
from ..program.reaching import only_value
from ..program.syntax import Module, last_identifier
from ..program.trees import is_none
from ..values.constants import constant
from ..values.resolver import Resolver
from ..values.values import External, Made
from .attention_chains import Mask

_HIDING = -1e4
"""What is filled with less weighs nothing beside a score that is seen: ``exp(-104)`` is zero in float32, and scores of -9,896 do not occur."""
_DEEPEST = 8
"""So many assignments and views are looked through."""
_LARGEST = 65504.0
"""What no type of floating-point numbers has less of: the largest number of float16."""
_INFINITIES = frozenset({"math.inf", "numpy.inf", "numpy.Inf", "torch.inf"})
_FLOAT_METHODS = frozenset(
    "masked_fill view reshape unsqueeze permute contiguous expand float".split()
)
_FLOAT_MAKERS = frozenset(
    "torch.zeros torch.ones torch.randn torch.rand torch.nn.Parameter "
    "torch.nn.Transformer.generate_square_subsequent_mask".split()
)
_OPPOSITES: dict[type[ast.cmpop], str] = {ast.Eq: "!=", ast.NotEq: "=="}


class UntoldMaskError(Exception):
    """The mask has no equal among those of the fused operation; the message says why."""


def hides_when_scaled(mask: Mask, module: Module, resolver: Resolver) -> bool:
    """Whether ``mask`` still hides what it fills when that is scaled, by a ten-thousandth at least."""
    return hides(mask, module, resolver, _HIDING * 1e4)


def hides_wholly(mask: Mask, module: Module, resolver: Resolver) -> bool:
    """Whether nothing is left of the scores where ``mask`` fills them in, also where a query sees no key: it does so with minus infinity."""
    return mask.fill is not None and _number(mask.fill, module, resolver) == -math.inf


def mask_code(mask: Mask, module: Module, resolver: Resolver) -> str:
    """The mask to pass: true where queries see keys, or what is added to the scores.

    Raises :class:`UntoldMaskError`.
    """
    if mask.fill is None:
        code = choice_operand(mask.value, module)
    elif not hides(mask, module, resolver):
        fill = module.code(mask.fill)
        raise UntoldMaskError(f"the mask fills scores with `{fill}`, which may not hide them")
    else:
        code = (
            choice_operand(mask.value, module) if mask.inverted else _opposite(mask.value, module)
        )
    if mask.condition is None:
        return code
    match mask.condition:
        case ast.Compare(left, [ast.Is()], [right]) if is_none(right):
            return f"None if {module.code(left)} is None else {code}"
        case _:
            return f"{code} if {choice_operand(mask.condition, module)} else None"


def choice_operand(node: ast.expr, module: Module) -> str:
    """``node`` as it is written as a part of ``a if b else c``."""
    code = module.code(node)
    return f"({code})" if isinstance(node, ast.IfExp | ast.Lambda | ast.NamedExpr) else code


def is_float(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is certainly a tensor of floating-point numbers, of PyTorch's own choice of type or of a network's weights."""
    steps = list(_made_of(resolver, node, module))
    if any(isinstance(s, ast.Call) and last_identifier(s.func) == "float" for s in steps):
        return True
    values = resolver.values(steps[-1], module)
    return bool(values) and all(
        isinstance(v, Made)
        and isinstance(v.maker, External)
        and v.maker.name in _FLOAT_MAKERS
        and call_argument(v.call, "dtype") is None
        for v in values
    )


def adds_large(mask: Mask, module: Module, resolver: Resolver) -> bool:
    """Whether ``mask`` may add large numbers to the scores, but not infinity.

    A query all of whose keys have them sees all keys alike. The fused operation computes its weights anew for the backward
    pass, from the logarithm of a sum that such numbers swallow.
    """
    if mask.fill is not None:
        return False
    for node in _made_of(resolver, mask.value, module):
        match node:
            case ast.Call(ast.Attribute(attr="masked_fill"), [_, fill]):
                number = _number(fill, module, resolver)
                if number is None or -math.inf < number < _HIDING:
                    return True
            case ast.Name() if any(
                may_be_written(resolver, use, module) for use in module.names_of(node.id)
            ):
                return True
            case _:
                pass
    return False


def _made_of(resolver: Resolver, node: ast.expr, module: Module) -> Iterator[ast.expr]:
    """``node`` and what it is made of by way of variables, parts and methods that keep its type, up to what makes it."""
    for _ in range(_DEEPEST):
        yield node
        match node:
            case ast.Name():
                value = only_value(module, node)
                if value is None:
                    return
                node = value
            case ast.Call(ast.Attribute(inner, method)) if method in _FLOAT_METHODS:
                if resolver.names(node.func, module):
                    return
                node = inner
            case ast.Subscript(inner):
                node = inner
            case _:
                return


def hides(mask: Mask, module: Module, resolver: Resolver, most: float = _HIDING) -> bool:
    """Whether nothing is left of a score that ``mask`` fills, beside one that is seen."""
    fill = _number(mask.fill, module, resolver) if mask.fill is not None else None
    return fill is not None and fill <= most


def _number(node: ast.expr, module: Module, resolver: Resolver) -> float | None:
    number = constant(node)
    if number is not None:
        return number
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand, module, resolver)
        return None if inner is None else -inner
    names = resolver.names(node, module)
    if names and names <= _INFINITIES:
        return math.inf
    if isinstance(node, ast.Name) and (value := only_value(module, node)) is not None:
        return _number(value, module, resolver)
    match node:
        case ast.Attribute(ast.Call(function), "min" | "max" as end):
            if resolver.names(function, module) == frozenset({"torch.finfo"}):
                return -_LARGEST if end == "min" else _LARGEST
        case _:
            pass
    try:
        value = resolver.literal(node, module)
    except LookupError:
        return None
    return float(value) if isinstance(value, int | float) and value not in (True, False) else None


def _opposite(condition: ast.expr, module: Module) -> str:
    """Where ``condition``, a mask of booleans, does not hold."""
    match condition:
        case ast.UnaryOp(ast.Invert(), inner):
            return module.code(inner)
        case ast.Compare(left, [ast.Eq() | ast.NotEq() as operator], [right]):
            return f"{module.code(left)} {_OPPOSITES[type(operator)]} {module.code(right)}"
        case ast.Name() | ast.Attribute() | ast.Subscript() | ast.Call():
            return f"~{module.code(condition)}"
        case _:
            return f"~({module.code(condition)})"
