"""Whether a tensor's values are read on the host, or pick elements of something: then they decide what happens."""

from __future__ import annotations

import ast

from ..program.reaching import reaching_bindings
from ..program.syntax import Module
from ..values.resolver import Resolver

_HOST_METHODS = frozenset({"item", "tolist", "numpy", "cpu"})
_HOST_CALLS = frozenset(
    f"builtins.{name}" for name in ("int", "float", "bool", "list", "sorted", "range")
)
_PICKING = ("index_select", "gather", "take", "Subset", "SubsetRandomSampler", "random_split")


def deciding_read(resolver: Resolver, node: ast.expr, module: Module) -> ast.AST | None:
    """Where the tensor ``node`` decides something; None when it is only computed with, as far as its function says."""
    seen: set[ast.AST] = set()
    pending: list[ast.expr] = [node]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        parent = module.parents[current]
        if _decides(resolver, current, parent, module):
            return parent
        pending += _next(resolver, current, parent, module)
    return None


def _decides(resolver: Resolver, node: ast.expr, parent: ast.AST, module: Module) -> bool:
    match parent:
        case ast.If() | ast.While() | ast.Assert():
            return True
        case ast.IfExp():
            return parent.test is node
        case ast.Subscript():
            return parent.slice is node
        case ast.Attribute(attr=method):
            return method in _HOST_METHODS
        case ast.For() | ast.comprehension():
            return parent.iter is node
        case ast.Call() if node is not parent.func:
            names = resolver.names(parent.func, module)
            func = parent.func
            name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
            return name in _PICKING or bool(names & _HOST_CALLS)
        case _:
            return False


def _next(resolver: Resolver, node: ast.expr, parent: ast.AST, module: Module) -> list[ast.expr]:
    """The expressions that hold the tensor, or something computed from it elementwise, one step on."""
    match parent:
        case ast.Attribute():
            call = module.parents[parent]
            return [call if isinstance(call, ast.Call) and call.func is parent else parent]
        case ast.Call() if node is not parent.func:
            names = resolver.names(parent.func, module)
            is_torch = bool(names) and all(n.startswith("torch.") for n in names)
            return [parent] if is_torch else []
        case (
            ast.BinOp()
            | ast.Compare()
            | ast.UnaryOp()
            | ast.BoolOp()
            | ast.Subscript()
            | ast.IfExp()
        ):
            return [parent]
        case ast.Assign():
            return [
                use
                for target in parent.targets
                if isinstance(target, ast.Name)
                for use in _uses(target, module)
            ]
        case _:
            return []


def _uses(target: ast.Name, module: Module) -> list[ast.Name]:
    found = module.scope(target).lookup(target.id)
    binding = next((b for b in found[1] if b.node is target), None) if found else None
    if found is None or binding is None:
        return []
    owner, bindings = found
    return [
        use
        for use in module.names_of(target.id)
        if isinstance(use.ctx, ast.Load)
        and module.scope(use).lookup(target.id) == found
        and binding in reaching_bindings(module, owner, bindings, module.scope(use), use)
    ]
