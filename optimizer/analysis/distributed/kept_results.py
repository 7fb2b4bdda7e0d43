"""Functions of a training step that leave nothing behind, such as one that saves pictures of what a generator makes."""

from __future__ import annotations

import ast

from ..autograd.graph_names import BACKWARD_METHODS, mutates
from ..calls.reach import lexical_nodes
from ..program.syntax import FunctionNode, Module
from ..values.resolver import Resolver


def keeps_nothing(resolver: Resolver, function: FunctionNode, module: Module) -> bool:
    """Whether nothing that ``function`` computes is returned, kept elsewhere or backpropagated."""
    sites = resolver.call_sites(function)
    if not sites or any(isinstance(node, ast.Nonlocal | ast.Global) for node in _code(function)):
        return False
    own = {node.id for node in _code(function) if isinstance(node, ast.Name) and _is_stored(node)}
    own -= {name for node in _code(function) for name in _elsewhere(node, module)}
    for node in _code(function):
        match node:
            case ast.Return(value=value) if value is not None:
                return False
            case ast.Attribute() if _is_stored(node):
                return False
            case ast.Subscript(value=changed) if _is_stored(node):
                if not (isinstance(changed, ast.Name) and changed.id in own):
                    return False
            case ast.Call(func=ast.Attribute(attr=method, value=receiver)):
                is_own = isinstance(receiver, ast.Name) and receiver.id in own
                if method in BACKWARD_METHODS or (mutates(method) and not is_own):
                    return False
            case ast.Yield() | ast.YieldFrom() | ast.Await():
                return False
            case _:
                pass
    return True


def _code(function: FunctionNode) -> list[ast.AST]:
    return list(lexical_nodes(function.body))


def _elsewhere(node: ast.AST, module: Module) -> list[str]:
    """The variable that ``node`` binds to something that is not made there."""
    if not isinstance(node, ast.Name) or not _is_stored(node):
        return []
    match module.parents[node]:
        case ast.Assign(targets=[_], value=ast.List() | ast.Dict() | ast.Set() | ast.ListComp()):
            return []
        case ast.Assign(targets=[_], value=ast.Call(func=ast.Attribute(attr="clone"))):
            return []
        case _:
            return [node.id]


def _is_stored(node: ast.Name | ast.Attribute | ast.Subscript) -> bool:
    return isinstance(node.ctx, ast.Store)
