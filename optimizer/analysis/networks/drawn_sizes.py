"""Whether the sizes that images are brought to may be drawn at random."""

from __future__ import annotations

import ast

from ..program.reaching import bindings_of
from ..program.scopes import Assigned
from ..program.syntax import Module
from ..program.trees import walk
from ..training.loops import is_forward
from ..values.resolver import Resolver
from ..values.values import Literal, Option

_COUNTING = frozenset({"builtins.int", "builtins.round", "builtins.tuple", "builtins.list"})
_IMAGES = frozenset({"input", "img", "x"})
_FIXED_INDEX = (ast.Constant, ast.Slice, ast.UnaryOp, ast.unaryop)
_DEEPEST = 6


def may_be_drawn(resolver: Resolver, resize: ast.Call, module: Module) -> bool:
    """Whether ``resize``, ``F.interpolate(x, ..)`` or ``Resize(..)``, may be told a size that is neither written down nor that of a tensor."""
    name = getattr(resize.func, "attr", getattr(resize.func, "id", ""))
    is_method = isinstance(resize.func, ast.Attribute) and not resolver.names(resize.func, module)
    takes_images = name[:1].islower() and (not is_method or is_forward(resolver, resize, module))
    given = resize.args[1:] if takes_images else resize.args
    keywords = [k for k in resize.keywords if not (takes_images and k.arg in _IMAGES)]
    if any(keyword.arg is None for keyword in keywords):
        return True
    every = [*given, *(keyword.value for keyword in keywords)]
    return not all(_is_fixed(resolver, argument, module) for argument in every)


def _is_fixed(resolver: Resolver, node: ast.expr, module: Module, depth: int = 0) -> bool:
    """Whether ``node`` is made of constants and of sizes of tensors."""
    if depth > _DEEPEST:
        return False

    def again(*parts: ast.expr) -> bool:
        return all(_is_fixed(resolver, part, module, depth + 1) for part in parts)

    match node:
        case ast.Constant() | ast.Attribute(attr="shape"):
            return True
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return again(*parts)
        case ast.UnaryOp(operand=part) | ast.Starred(value=part):
            return again(part)
        case ast.BinOp(left=left, right=right):
            return again(left, right)
        case ast.Subscript(value=value, slice=index):
            return again(value) and all(isinstance(n, _FIXED_INDEX) for n in walk(index))
        case ast.Call(func=ast.Attribute(attr="size"), args=args, keywords=[]):
            return again(*args)
        case ast.Call(func=func, args=args, keywords=[]):
            names = resolver.names(func, module)
            return bool(names) and names <= _COUNTING and again(*args)
        case ast.Name() | ast.Attribute():
            return _is_known(resolver, node, module, depth)
        case _:
            return False


def _is_known(
    resolver: Resolver, node: ast.Name | ast.Attribute, module: Module, depth: int
) -> bool:
    values = resolver.values(node, module)
    if values and all(isinstance(value, Literal | Option) for value in values):
        return True
    bindings = bindings_of(module, node) if isinstance(node, ast.Name) else []
    return bool(bindings) and all(
        isinstance(b.source, Assigned) and _is_fixed(resolver, b.source.value, module, depth + 1)
        for b in bindings
    )
