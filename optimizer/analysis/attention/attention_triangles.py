"""Masks that let every position see itself and those before it: triangles, which are passed as ``is_causal=True``."""

from __future__ import annotations

import ast

from ..calls.signatures import call_argument
from ..loading.written_views import may_be_written
from ..program.classes import kept_as
from ..program.reaching import only_value, same_variable
from ..program.syntax import Module
from ..program.trees import is_name, walk
from ..values.constants import constant
from ..values.outside_writes import outside_uses, outside_values
from ..values.resolver import Resolver
from ..values.values import Class
from .attention_chains import Chain, Mask
from .attention_masks import hides

_MADE_BOOLEAN = frozenset({"bool", "view", "reshape", "unsqueeze", "to", "type", "expand"})


def is_causal(chain: Chain, mask: Mask, module: Module, resolver: Resolver) -> bool:
    """Whether ``mask`` is the lower triangle, of as many positions as both queries and keys are seen to have."""
    if mask.condition is not None or not hides(mask, module, resolver):
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
    if length is None or keys is None or not same_variable(keys, length, module):
        return False
    return _is_triangle(tested, length, hides_zeros, module, resolver)


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
            return same_variable(end, length, module)
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
            uses = module.names_of(mask.id)
            if made is None or any(may_be_written(resolver, use, module) for use in uses):
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
    return length is None or same_variable(sizes[0], length, module)


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
    own = [
        (node, module)
        for node in walk(cls)
        if isinstance(node, ast.Attribute) and node.attr == name and is_name(node.value, "self")
    ]
    uses = [*own, *outside_uses(resolver, name)]
    if any(may_be_written(resolver, node, owner) for node, owner in uses):
        return None
    is_kept = len(made) == 1 and not list(outside_values(resolver, name))
    return made[0] if is_kept else None
