"""Batches in another order, beside themselves: ``x[torch.randperm(len(x))]``, as mixup and CutMix have them."""

from __future__ import annotations

import ast

from ..program.module_names import name_reads
from ..program.reaching import all_assigned
from ..program.scopes import Assigned
from ..program.syntax import Module
from ..values.resolver import Resolver
from .loss_forms import whose_sizes

_PERMUTATION = frozenset({"torch.randperm"})
_MOVES = frozenset({"cuda", "to", "long", "type_as"})


def is_permutation(resolver: Resolver, index: ast.expr, module: Module) -> bool:
    """Whether ``index`` is a permutation that ``torch.randperm`` draws, by whatever name."""
    while isinstance(index, ast.Call) and isinstance(index.func, ast.Attribute):
        if index.func.attr not in _MOVES:
            break
        index = index.func.value
    if isinstance(index, ast.Call):
        return resolver.names(index.func, module) == _PERMUTATION
    values = all_assigned(module, index) if isinstance(index, ast.Name) else []
    return bool(values) and all(is_permutation(resolver, value, module) for value in values)


def orders_batch(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` draws an order of all samples of a batch, which then indexes tensors of it and does nothing else."""
    if resolver.names(call.func, module) != _PERMUTATION or not call.args:
        return False
    if not _counts_samples(call.args[0], module):
        return False
    drawn: ast.expr = call
    while isinstance(method := module.parents[drawn], ast.Attribute) and method.attr in _MOVES:
        moved = module.parents[method]
        if not isinstance(moved, ast.Call) or moved.func is not method:
            return False
        drawn = moved
    parent = module.parents[drawn]
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        (target,) = parent.targets
        reads = list(name_reads(target, module)) if isinstance(target, ast.Name) else []
        return bool(reads) and all(_is_index(read, module) for read in reads)
    return _is_index(drawn, module)


def _is_index(node: ast.expr, module: Module) -> bool:
    """Whether ``node`` picks rows: ``x[node]``, ``x[node, :]``."""
    inner: ast.AST = node
    parent = module.parents[node]
    if isinstance(parent, ast.Tuple) and parent.elts[0] is node:
        inner, parent = parent, module.parents[parent]
    return isinstance(parent, ast.Subscript) and parent.slice is inner


def _counts_samples(number: ast.expr, module: Module) -> bool:
    """Whether ``number`` is ``x.size(0)``, ``x.size()[0]``, ``x.shape[0]`` or ``len(x)``, or a variable that is."""
    match number:
        case ast.Call(func=ast.Attribute(attr="size"), args=[ast.Constant(value=0)]):
            return True
        case ast.Call(func=ast.Name(id="len"), args=[_]):
            return True
        case ast.Subscript(value=sizes, slice=ast.Constant(value=0)):
            return whose_sizes(sizes) is not None
        case ast.Name():
            found = module.scope(number).lookup(number.id)
            sources = [binding.source for binding in found[1]] if found is not None else []
            match sources:
                case [Assigned(value=value, path=())] if not isinstance(value, ast.Name):
                    return _counts_samples(value, module)
                case _:
                    return False
        case _:
            return False
