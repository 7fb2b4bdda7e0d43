"""What a loop over batches adds up, and what becomes of the sums when every process has a share of the batches' samples."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..facts import DataLoader, Fact, Loop
from ..program.scopes import Assigned, Binding
from ..program.syntax import Module
from ..program.trees import child_nodes, walk
from ..values.resolver import Resolver
from ..values.unpacking import written_part
from .batch_shares import Share, ShareOf
from .divergence import Divergence
from .number_forms import converted, makes_zero

_NUMBERS = frozenset({"builtins.float", "builtins.int", "builtins.len"})


@dataclass(frozen=True, eq=False)
class Accumulator(Fact):
    """A variable that is zero ahead of ``loop`` and added to in it; ``node`` is its first addition.

    ``share`` is what the variable of one process is to that of all, None where that is not understood. ``looked_at``:
    the loop also reads it; ``read_later``: other code does. ``resets`` are where the loop makes it zero again.
    ``becomes_array``: it begins as a number, and what is added may be an array.
    """

    node: ast.AugAssign
    loop: Loop
    name: str
    share: Share | None
    looked_at: bool
    read_later: bool
    resets: tuple[ast.stmt, ...] = ()
    becomes_array: bool = False


def find_accumulators(resolver: Resolver, loop: Loop) -> tuple[Accumulator, ...]:
    """The variables that ``loop`` adds up, in the order of their first additions."""
    found: dict[str, list[ast.AugAssign]] = {}
    for node in walk(loop.node):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            base = node.target.value if isinstance(node.target, ast.Subscript) else node.target
            if isinstance(base, ast.Name):
                found.setdefault(base.id, []).append(node)
    return tuple(
        accumulator
        for name, additions in found.items()
        if (accumulator := _accumulator(resolver, loop, name, additions)) is not None
    )


def find_common_sums(
    resolver: Resolver, loop: Loop, loaders: tuple[DataLoader, ...]
) -> tuple[Accumulator, ...]:
    """The variables that ``loop`` adds up, and makes zero in between in all processes together if at all.

    One that is calculated with besides what stays each process's own (``correct / seen``, where it is not understood
    what ``correct`` has added up) is not understood either.
    """
    sums = find_accumulators(resolver, loop)
    if any(found.resets for found in sums):
        divergence = Divergence(resolver, loaders, (), ())
        sums = tuple(
            found
            for found in sums
            if all(
                loop.module.loops(reset)[:1] == [loop.node]
                and divergence.decides(reset, loop.module, loop.node) is None
                for reset in found.resets
            )
        )
    return _not_mixed(resolver, sums, loaders)


def _not_mixed(
    resolver: Resolver, sums: tuple[Accumulator, ...], loaders: tuple[DataLoader, ...]
) -> tuple[Accumulator, ...]:
    while True:
        common = [(found.loop.node, found.name) for found in sums if found.share is not None]
        beside = {found: list(_calculated_with(found)) for found in sums}
        if not any(beside[found] for found in sums if found.share in {Share.SUM, Share.MEAN}):
            return sums
        divergence = Divergence(resolver, loaders, (), common)
        mixed = {
            found
            for found in sums
            if found.share in {Share.SUM, Share.MEAN}
            and any(divergence.of(name, found.module) for name in beside[found])
        }
        if not mixed:
            return sums
        sums = tuple(replace(f, share=None) if f in mixed else f for f in sums)


def _calculated_with(found: Accumulator) -> Iterator[ast.Name]:
    """The other variables of arithmetic with ``found`` behind its loop that this loop gives values, too."""
    module, loop = found.module, found.loop.node
    scope = module.scope(loop)
    owner = scope.lookup(found.name)
    for use in module.names_of(found.name):
        outer: ast.AST = use
        if (
            loop in module.ancestors(use)
            or not isinstance(use.ctx, ast.Load)
            or module.scope(use).lookup(found.name) != owner
        ):
            continue
        for around in module.ancestors(use):
            if not isinstance(around, ast.BinOp | ast.UnaryOp | ast.Call | ast.Attribute):
                break
            if isinstance(around, ast.BinOp):
                outer = around
        for name in walk(outer):
            known = (
                module.scope(name).lookup(name.id)
                if isinstance(name, ast.Name) and name.id != found.name
                else None
            )
            if known is not None and any(loop in module.ancestors(b.node) for b in known[1]):
                assert isinstance(name, ast.Name)
                yield name


def _accumulator(
    resolver: Resolver, loop: Loop, name: str, additions: list[ast.AugAssign]
) -> Accumulator | None:
    module, scope = loop.module, loop.module.scope(loop.node)
    owner = scope.lookup(name)
    if owner is None or owner[0] is not scope:
        return None
    starts: list[Binding] = []
    resets: list[ast.stmt] = []
    for binding in owner[1]:
        statement = module.statement(binding.node)
        if loop.node in module.ancestors(binding.node):
            if makes_zero(resolver, binding, module):
                resets.append(statement)
            elif statement not in additions and converted(binding) is None:
                return None
        elif statement.lineno < loop.node.lineno:
            starts.append(binding)
    if not starts or not _starts_at_zero(resolver, starts[-1], loop):
        return None
    own = {target for addition in additions for target in walk(addition.target)}
    looked_at = read_later = False
    for use in module.names_of(name):
        if use in own or module.scope(use).lookup(name) != owner:
            continue
        if loop.node in module.ancestors(use):
            looked_at = True
        else:
            read_later = read_later or isinstance(use.ctx, ast.Load)
    kinds = {
        ShareOf(resolver, [loop.node]).of(addition.value, module)
        if not isinstance(addition.target, ast.Subscript)
        else None
        for addition in additions
    }
    share = kinds.pop() if len(kinds) == 1 else None
    becomes_array = (
        share is None
        and _is_number(starts[-1])
        and any(_may_be_array(resolver, addition.value, module) for addition in additions)
    )
    return Accumulator(
        module, additions[0], loop, name, share, looked_at, read_later, tuple(resets), becomes_array
    )


def _is_number(start: Binding) -> bool:
    """Whether ``start`` makes the variable a number of Python's."""
    source = start.source
    value = written_part(source.value, source.path) if isinstance(source, Assigned) else None
    return isinstance(value, ast.Constant)


def _may_be_array(resolver: Resolver, value: ast.expr, module: Module) -> bool:
    """Whether ``value`` has in it what numpy, a function of the script or a sum along a dimension gives, not made a number."""
    match value:
        case ast.Call(func=ast.Attribute(attr="item")):
            return False
        case ast.Call(func=function) if resolver.names(function, module) & _NUMBERS:
            return False
        case ast.Call(func=function) if resolver.callees(value, module) or any(
            name.startswith("numpy.") for name in resolver.names(function, module)
        ):
            return True
        case ast.Call(func=ast.Attribute(attr="sum" | "mean"), args=[_, *_]):
            return True
        case ast.Call(func=ast.Attribute(attr="sum" | "mean"), keywords=[_, *_]):
            return True
        case _:
            parts = (part for part in child_nodes(value) if isinstance(part, ast.expr))
            return any(_may_be_array(resolver, part, module) for part in parts)


def _starts_at_zero(resolver: Resolver, start: Binding, loop: Loop) -> bool:
    """Whether ``start`` makes the variable zero each time that ``loop`` is about to begin."""
    module = loop.module
    if not makes_zero(resolver, start, module):
        return False
    block = module.block(module.statement(start.node))
    for around in [loop.node, *module.ancestors(loop.node)]:
        if not isinstance(around, ast.stmt) or isinstance(around, ast.FunctionDef | ast.ClassDef):
            return False
        if around is not loop.node and isinstance(around, ast.For | ast.AsyncFor | ast.While):
            return False
        if around in block:
            return True
    return False
