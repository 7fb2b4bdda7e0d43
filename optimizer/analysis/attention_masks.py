"""The masks of attention that is written out, as ``scaled_dot_product_attention`` takes them."""

from __future__ import annotations

import ast
import math

from .attention_chains import Chain, Mask
from .classes import kept_as
from .constants import constant
from .item_state import changes_receiver
from .reaching import bindings_of, only_value
from .resolver import Resolver
from .signatures import call_argument
from .syntax import Module
from .trees import is_name, is_none, walk
from .values import Class, External, Made

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
_MADE_BOOLEAN = frozenset({"bool", "view", "reshape", "unsqueeze", "to", "type", "expand"})


class UntoldMaskError(Exception):
    """The mask has no equal among those of the fused operation; the message says why."""


def hides_when_scaled(mask: Mask, module: Module, resolver: Resolver) -> bool:
    """Whether ``mask`` still hides what it fills when that is scaled, by a ten-thousandth at least."""
    return _hides(mask, module, resolver, _HIDING * 1e4)


def hides_wholly(mask: Mask, module: Module, resolver: Resolver) -> bool:
    """Whether nothing is left of the scores where ``mask`` fills them in, also where a query sees no key: it does so with minus infinity."""
    return mask.fill is not None and _number(mask.fill, module, resolver) == -math.inf


def mask_code(mask: Mask, module: Module, resolver: Resolver) -> str:
    """The mask to pass: true where queries see keys, or what is added to the scores.

    Raises :class:`UntoldMaskError`.
    """
    if mask.fill is None:
        code = module.code(mask.value)
    elif not _hides(mask, module, resolver):
        fill = module.code(mask.fill)
        raise UntoldMaskError(f"the mask fills scores with `{fill}`, which may not hide them")
    else:
        code = module.code(mask.value) if mask.inverted else _opposite(mask.value, module)
    if mask.condition is None:
        return code
    match mask.condition:
        case ast.Compare(left, [ast.Is()], [right]) if is_none(right):
            return f"None if {module.code(left)} is None else {code}"
        case _:
            return f"{code} if {module.code(mask.condition)} else None"


def is_float(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is certainly a tensor of floating-point numbers, of PyTorch's own choice of type or of a network's weights."""
    for _ in range(_DEEPEST):
        match node:
            case ast.Name():
                value = only_value(module, node)
                if value is None:
                    break
                node = value
            case ast.Call(ast.Attribute(inner, method)) if method in _FLOAT_METHODS:
                if resolver.names(node.func, module):
                    break
                if method == "float":
                    return True
                node = inner
            case ast.Subscript(inner):
                node = inner
            case _:
                break
    values = resolver.values(node, module)
    return bool(values) and all(
        isinstance(v, Made)
        and isinstance(v.maker, External)
        and v.maker.name in _FLOAT_MAKERS
        and call_argument(v.call, "dtype") is None
        for v in values
    )


def _hides(mask: Mask, module: Module, resolver: Resolver, most: float = _HIDING) -> bool:
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


# Masks that let every position see itself and those before it


def is_causal(chain: Chain, mask: Mask, module: Module, resolver: Resolver) -> bool:
    """Whether ``mask`` is the lower triangle, of as many positions as both queries and keys are seen to have."""
    if mask.condition is not None or not _hides(mask, module, resolver):
        return False
    match mask.value:
        case ast.Compare(tested, [ast.Eq()], [zero]) if constant(zero) == 0:
            hides_zeros = True
        case ast.Compare(tested, [ast.NotEq()], [zero]) if constant(zero) == 0:
            hides_zeros = False
        case ast.Compare(tested, [ast.Eq()], [one]) if constant(one) == 1:
            hides_zeros = False
        case ast.UnaryOp(ast.Invert(), tested):
            hides_zeros = True
        case tested:
            hides_zeros = False
    if mask.inverted:
        hides_zeros = not hides_zeros
    length = _positions(chain.query.node, module)
    keys = _positions(chain.key.node, module)
    if length is None or keys is None or not _is_same(keys, length, module):
        return False
    return _is_triangle(tested, length, hides_zeros, module, resolver)


def _is_same(node: ast.expr, variable: ast.Name, module: Module) -> bool:
    """Whether ``node`` is ``variable``, with the value it has there."""
    if not is_name(node, variable.id):
        return False
    assert isinstance(node, ast.Name)
    return set(bindings_of(module, node)) == set(bindings_of(module, variable))


def _positions(tensor: ast.expr, module: Module) -> ast.Name | None:
    """``T``, where ``tensor`` is ``x.view(B, T, H, D).transpose(1, 2)``, also by way of variables."""
    match _followed(tensor, module):
        case ast.Call(ast.Attribute(inner, order), [*dims]):
            numbers = [constant(dim) for dim in dims]
            is_swap = (order == "transpose" and numbers in ([1, 2], [2, 1])) or (
                order == "permute" and numbers == [0, 2, 1, 3]
            )
        case _:
            return None
    match _followed(inner, module):
        case ast.Call(ast.Attribute(attr="view" | "reshape"), [_, ast.Name() as size, _, _]):
            return size if is_swap else None
        case _:
            return None


def _followed(node: ast.expr, module: Module) -> ast.expr:
    """What the variable ``node`` was assigned, if that is known; ``node`` itself if it is none."""
    value = only_value(module, node) if isinstance(node, ast.Name) else None
    return node if value is None else value


def _is_triangle(
    mask: ast.expr, length: ast.Name, hides_zeros: bool, module: Module, resolver: Resolver
) -> bool:
    """Whether ``mask`` is the first ``length`` rows and columns of a triangle."""
    match _followed(mask, module):
        case ast.Subscript(whole, ast.Tuple(dims)) if len(dims) >= 2:
            is_square = all(_is_first(dim, length, module) for dim in dims[-2:])
            if not is_square or not all(_is_all(dim) for dim in dims[:-2]):
                return False
            return _is_made_triangle(whole, None, hides_zeros, module, resolver)
        case _:
            return _is_made_triangle(mask, length, hides_zeros, module, resolver)


def _is_first(dim: ast.expr, length: ast.Name, module: Module) -> bool:
    """Whether ``dim`` is ``:T``."""
    match dim:
        case ast.Slice(None, ast.Name() as end, None):
            return _is_same(end, length, module)
        case _:
            return False


def _is_all(dim: ast.expr) -> bool:
    return isinstance(dim, ast.Slice) and dim.lower is dim.upper is dim.step is None


def _is_made_triangle(
    mask: ast.expr, length: ast.Name | None, hides_zeros: bool, module: Module, resolver: Resolver
) -> bool:
    """Whether ``mask`` is made as a triangle: of ``length`` rows and columns, or of as many of both if that is None."""
    while isinstance(mask, ast.Call) and isinstance(mask.func, ast.Attribute):
        if mask.func.attr not in _MADE_BOOLEAN or resolver.names(mask.func, module):
            break
        mask = mask.func.value
    match mask:
        case ast.Name():
            made = only_value(module, mask)
            if made is None or _is_changed(mask, module):
                return False
            return _is_made_triangle(made, length, hides_zeros, module, resolver)
        case ast.Attribute(ast.Name("self"), name):
            made = _buffer(name, mask, module, resolver)
            return made is not None and _is_made_triangle(
                made, length, hides_zeros, module, resolver
            )
        case ast.Call(function, [ones, *_]):
            names = resolver.names(function, module)
            diagonal = call_argument(mask, "diagonal", 1)
            first = 0.0 if diagonal is None else constant(diagonal)
            wanted = ("torch.tril", 0.0) if hides_zeros else ("torch.triu", 1.0)
            return (
                names == frozenset({wanted[0]})
                and first == wanted[1]
                and _is_square_of_ones(ones, length, module, resolver)
            )
        case _:
            return False


def _is_square_of_ones(
    ones: ast.expr, length: ast.Name | None, module: Module, resolver: Resolver
) -> bool:
    if not isinstance(ones, ast.Call) or resolver.names(ones.func, module) != frozenset(
        {"torch.ones"}
    ):
        return False
    sizes = ones.args
    if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple | ast.List):
        sizes = sizes[0].elts
    if len(sizes) != 2 or ast.dump(sizes[0]) != ast.dump(sizes[1]):
        return False
    return length is None or _is_same(sizes[0], length, module)


def _buffer(name: str, at: ast.Attribute, module: Module, resolver: Resolver) -> ast.expr | None:
    """What ``self.name`` was made as, where one statement of its class makes it and none of its methods writes to it."""
    cls = module.enclosing_class(at)
    if cls is None or resolver.subclasses(Class(cls, module)):
        return None
    made = [value for value, path, _ in kept_as(resolver, cls, module, name) if not path]
    for node in walk(cls):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr != "register_buffer":
                continue
            registered = call_argument(node, "name", 0)
            if isinstance(registered, ast.Constant) and registered.value == name:
                tensor = call_argument(node, "tensor", 1)
                made += [tensor] if tensor is not None else []
    is_written = any(
        isinstance(node, ast.Attribute)
        and node.attr == name
        and is_name(node.value, "self")
        and _is_written(node, module)
        for node in walk(cls)
    )
    return made[0] if len(made) == 1 and not is_written else None


def _is_changed(variable: ast.Name, module: Module) -> bool:
    """Whether what ``variable`` holds is changed in place somewhere in its function."""
    return any(_is_written(use, module) for use in module.names_of(variable.id))


def _is_written(node: ast.expr, module: Module) -> bool:
    """Whether the tensor ``node`` is written to: ``mask[..] = 1``, ``mask.fill_(1)``."""
    parent = module.parents[node]
    match parent:
        case ast.Attribute(attr=method):
            return changes_receiver(method) or method == "data"
        case ast.Subscript():
            return not isinstance(parent.ctx, ast.Load) or _is_written(parent, module)
        case ast.AugAssign():
            return parent.target is node
        case _:
            return False
