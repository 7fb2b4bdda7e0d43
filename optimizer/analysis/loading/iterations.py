"""Where the passes over DataLoaders start, and how often the code around them runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..facts import DataLoader, Fact, Loop
from ..program.syntax import FunctionNode, LoopNode, Module
from ..program.trees import child_nodes, walk
from ..training.loops import gone_over, iterated_by_method, iterated_loaders
from ..values.resolver import Resolver
from ..values.values import External, Made
from .loaders import loaders_in

_ZIPS = (External("builtins.zip"), External("builtins.enumerate"))


@dataclass(frozen=True, eq=False)
class Iteration(Fact):
    """A place where a pass over ``loaders`` starts: a loop, a comprehension or an ``iter(loader)`` call.

    ``by_hand`` for ``iter(loader)``; ``takes_one`` for one that a single batch is drawn from, ``next(iter(loader))``.
    """

    loaders: tuple[DataLoader, ...]
    by_hand: bool = False
    takes_one: bool = False


@dataclass(frozen=True, eq=False)
class Around:
    """A loop whose body runs a piece of code, directly or through function calls."""

    node: LoopNode
    module: Module


def find_iterations(
    resolver: Resolver, loaders: tuple[DataLoader, ...], loops: tuple[Loop, ...]
) -> tuple[Iteration, ...]:
    """Every place where a pass over one of ``loaders`` starts."""
    found: list[Iteration] = []
    iterables: set[ast.expr] = set()
    for loop in loops:
        if not isinstance(loop.node, ast.While):
            iterables.add(loop.node.iter)
            over = _gone_over(resolver, loaders, loop.node.iter, loop.module)
            if over:
                found.append(Iteration(loop.module, loop.node, over))
    for module in resolver.project.modules:
        for node in module.nodes:
            if isinstance(node, ast.comprehension):
                over = _gone_over(resolver, loaders, node.iter, module)
                if over:
                    found.append(Iteration(module, module.parents[node], over))
        for call in module.calls:
            iterable = _iterated(resolver, call, module)
            if iterable is not None and call not in iterables:
                over = _gone_over(resolver, loaders, iterable, module)
                if over:
                    single = _is_argument_of_next(resolver, call, module) or _draws_once(
                        resolver, call, module
                    )
                    found.append(Iteration(module, call, over, not single, single))
    return tuple(found)


def _iterated(resolver: Resolver, call: ast.Call, module: Module) -> ast.expr | None:
    """What ``call`` makes an iterator of, by hand."""
    if call.args and resolver.names(call.func, module) == frozenset({"builtins.iter"}):
        return call.args[0]
    return iterated_by_method(call)


def _gone_over(
    resolver: Resolver,
    loaders: tuple[DataLoader, ...],
    iterable: ast.expr,
    module: Module,
    within: frozenset[ast.Call] = frozenset(),
) -> tuple[DataLoader, ...]:
    """The loaders ``iterable`` goes over: all that it zips, one that it zips with itself twice.

    ``within`` are the calls that it is a part of: in a loop, ``batches = enumerate(batches)`` leads back to itself.
    """
    match [*resolver.values(iterable, module)]:
        case [Made(call, owner, maker)] if maker in _ZIPS and call not in within:
            inside = within | {call}
            parts = [_gone_over(resolver, loaders, part, owner, inside) for part in call.args]
            return tuple(loader for part in parts for loader in part)
        case _:
            return iterated_loaders(resolver, loaders, iterable, module)[0]


def goes_over_one(resolver: Resolver, iteration: Iteration) -> bool:
    """Whether ``iteration`` is a pass over one loader, whichever of its ``loaders`` that is, and not over several at once."""
    match iteration.node:
        case _ if len(iteration.loaders) < 2:
            return True
        case ast.For(iter=iterable) | ast.Call(args=[iterable]):
            return _is_one(resolver, iteration.loaders, iterable, iteration.module, frozenset())
        case _:
            return False


def _is_one(
    resolver: Resolver,
    loaders: tuple[DataLoader, ...],
    iterable: ast.expr,
    module: Module,
    within: frozenset[ast.expr],
) -> bool:
    if iterable in within:
        return True
    for value in resolver.values(iterable, module):
        if loaders_in(loaders, frozenset({value})):
            continue
        inner = list(gone_over(value))
        if len(inner) != 1:
            return False
        (argument, owner, _) = inner[0]
        if not _is_one(resolver, loaders, argument, owner, within | {iterable}):
            return False
    return True


def _is_argument_of_next(resolver: Resolver, iterator: ast.expr, module: Module) -> bool:
    parent = module.parents[iterator]
    if isinstance(parent, ast.Attribute):
        return parent.attr in {"next", "__next__"}
    return isinstance(parent, ast.Call) and (
        resolver.names(parent.func, module) == frozenset({"builtins.next"})
    )


def _draws_once(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether the iterator that ``call`` makes has a name for a single ``next(..)``: ``batches = iter(loader)``."""
    match module.parents[call]:
        case ast.Assign(targets=[ast.Name(id=name)]):
            others = [
                use
                for use in module.names_of(name)
                if module.parents[use] is not module.parents[call]
            ]
        case _:
            return False
    return (
        len(others) == 1
        and isinstance(others[0].ctx, ast.Load)
        and module.function(others[0]) is module.function(call)
        and list(module.loops(others[0])) == list(module.loops(call))
        and _is_argument_of_next(resolver, others[0], module)
    )


def draws_of(resolver: Resolver, iteration: Iteration) -> Iterator[Fact]:
    """The calls of ``next(..)``, also as the iterator's method, that take batches from one made by hand."""
    for module in resolver.project.modules:
        for call in (*module.calls_named("next"), *module.calls_named("__next__")):
            drawn = [call.func.value] if isinstance(call.func, ast.Attribute) else call.args[:1]
            values = resolver.values(drawn[0], module) if drawn else ()
            if any(isinstance(v, Made) and v.call is iteration.node for v in values):
                yield Fact(module, call)


def batches_of_pass(iteration: Iteration) -> int | None:
    """After how many batches every pass is over; None where that is not written out: ``if i == 3: break``."""
    loop = iteration.node
    if iteration.takes_one:
        return 1
    if not isinstance(loop, ast.For) or any(isinstance(n, ast.Continue) for n in walk(loop)):
        return None
    if any(isinstance(statement, ast.Break) for statement in loop.body):
        return 1
    lasts = [_last_index(loop, statement) for statement in loop.body]
    return min((last + 1 for last in lasts if last is not None), default=None)


def may_end_early(iteration: Iteration) -> bool:
    """Whether a pass may be over before the last batch: a ``break`` of its loop, or an iterator that nobody exhausts."""
    loop = iteration.node
    if not isinstance(loop, ast.For):
        return iteration.by_hand or iteration.takes_one
    pending: list[ast.AST] = [*loop.body]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Break):
            return True
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            pending += node.orelse  # a break inside is that loop's own
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda | ast.expr):
            pending += child_nodes(node)
    return False


def _last_index(loop: ast.For, statement: ast.stmt) -> int | None:
    """The index at which ``statement`` ends a loop over ``enumerate(..)``."""
    match loop.iter, loop.target, statement:
        case (
            ast.Call(func=ast.Name(id="enumerate"), args=[_], keywords=[]),
            ast.Tuple(elts=[ast.Name(id=counter), *_]),
            ast.If(
                test=ast.Compare(
                    left=ast.Name(id=tested),
                    ops=[ast.Eq() | ast.GtE() | ast.Gt() as operator],
                    comparators=[ast.Constant(value=int(last))],
                )
            ),
        ) if tested == counter and isinstance(statement.body[-1], ast.Break):
            return last + 1 if isinstance(operator, ast.Gt) else last
        case _:
            return None


def ways_to(resolver: Resolver, node: ast.AST, module: Module) -> Iterator[tuple[ast.AST, Module]]:
    """``node``, the calls of the function that it is in, the calls of the functions that those are in, and so on."""
    seen: set[FunctionNode] = set()
    pending: list[tuple[ast.AST, Module]] = [(node, module)]
    while pending:
        current, owner = pending.pop()
        yield current, owner
        function = owner.function(current)
        if function is not None and function not in seen:
            seen.add(function)
            pending += [(site.call, site.module) for site in resolver.call_sites(function)]


def loops_around(resolver: Resolver, node: ast.AST, module: Module) -> Iterator[Around]:
    """The loops that run ``node`` over and over: around it, and around the calls of its function, and so on."""
    for current, owner in ways_to(resolver, node, module):
        for loop in owner.loops(current):
            yield Around(loop, owner)


def runs_when_imported(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` runs when its file is imported: outside functions and the main guard, or called from there."""
    return next(started_at_import(resolver, node, module), None) is not None


def started_at_import(
    resolver: Resolver, node: ast.AST, module: Module
) -> Iterator[tuple[ast.AST, Module]]:
    """The top-level code, outside of main guards, that leads to ``node``: itself, or a call of its function."""
    for start, owner in top_level_starts(resolver, node, module):
        if not any(ancestor in owner.main_only for ancestor in owner.ancestors(start)):
            yield start, owner


def top_level_starts(
    resolver: Resolver, node: ast.AST, module: Module
) -> Iterator[tuple[ast.AST, Module]]:
    """The code outside of functions that leads to ``node``: itself, or a call of its function, and so on."""
    for current, owner in ways_to(resolver, node, module):
        if owner.function(current) is None:
            yield current, owner
