"""Whether what changes an object in place shows where a variable is read."""

from __future__ import annotations

import ast

from .reaching import bindings_of, enclosing_blocks
from .scopes import Assigned, Binding
from .syntax import LoopNode, Module
from .trees import position


def may_show_change(module: Module, use: ast.Name, change: ast.Name) -> bool:
    """Whether the variable may hold at ``use`` the object that is changed by its name at ``change``, and after that.

    It does not where it is bound anew in between, as in each pass of a loop. By another name it is not looked for.
    """
    seen = bindings_of(module, use)
    changed = {binding.node for binding in bindings_of(module, change)}
    common = [binding for binding in seen if binding.node in changed]
    if not common:
        return False
    is_above = position(change) < position(use)
    if is_above or module.function(change) is not module.function(use):
        return True
    inside = set(module.loops(change))
    return any(
        not _is_bound_in_each_pass(module, loop, binding, use)
        for loop in module.loops(use)
        if loop in inside
        for binding in common
    )


def _is_bound_in_each_pass(
    module: Module,
    loop: LoopNode,
    binding: Binding,
    use: ast.Name,
    seen: frozenset[Binding] = frozenset(),
) -> bool:
    """Whether no pass of ``loop``, which is around ``use``, gets there without ``binding``, to an object of that pass.

    A name for what is bound outside, or for a part of it (``w = weights``), is bound to the same object in every pass.
    """
    statement = module.statement(binding.node)
    if statement is loop:
        return True
    if binding in seen or loop not in module.ancestors(statement):
        return False
    if id(module.block(statement)) not in enclosing_blocks(module, use):
        return False
    source = binding.source
    taken = source.value if isinstance(source, Assigned) else None
    while isinstance(taken, ast.Attribute | ast.Subscript):
        taken = taken.value
    if not isinstance(taken, ast.Name):
        return True
    held = bindings_of(module, taken)
    return bool(held) and all(
        _is_bound_in_each_pass(module, loop, each, taken, seen | {binding}) for each in held
    )
