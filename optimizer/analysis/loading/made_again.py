"""Loaders that a script makes over and over: one in each turn of a loop, or one for each of many clients, folds or domains.

Workers cost a start each time, and as long as they live on a process each. They pay where one loader is gone over for long.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...options import Options
from ..facts import DataLoader, Fact, LoopKind
from ..program.syntax import Module
from ..script import TrainingScript
from ..values.resolver import Resolver
from ..values.values import Display
from .iterations import Around, Iteration, loops_around, ways_to
from .passes import is_remade

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def making_reasons(
    script: TrainingScript, loader: DataLoader, passes: list[Iteration], options: Options
) -> Iterator[str]:
    """Why workers would not live as long as pays: ``loader`` is made over and over."""
    resolver = script.resolver
    kinds = {loop.node: loop for loop in script.loops}
    for around in loops_around(resolver, loader.node, loader.module):
        loop = kinds[around.node]
        where = f"({loop.place})"
        if loop.loaders or loop.kind is LoopKind.TRAINING:
            yield f"it is made anew in every pass of the loop {where}, and so would be its workers"
        elif _is_inner(resolver, around):
            if any(is_remade(script, loader, i) for i in passes):
                yield f"it is made anew for one pass, in the inner loop {where}, and so would be its workers"
            elif options.workers is None and _goes_on_training(script, around):
                yield (
                    f"it is made anew in each turn of the inner loop {where}, and so would be its workers, for passes of "
                    "unknown length (`--workers N`)"
                )
    many = made_for_each(script, loader, passes) if options.workers is None else None
    if many is not None and any(_takes_turns(script, loader, i) for i in passes):
        yield (
            f"each of the loaders that `{many.excerpt}` ({many.place}) makes would start workers of its own in each of its "
            "turns (`--workers N`)"
        )


def made_for_each(
    script: TrainingScript, loader: DataLoader, passes: list[Iteration]
) -> Fact | None:
    """The loop or comprehension that makes many of ``loader``, which are there together when one is gone over.

    What goes over things that are written out, such as ``for split in ("train", "val")``, makes no more than could be made without it.
    """
    resolver = script.resolver
    together = [set(_turns_around(resolver, i.node, i.module)) for i in passes]
    for turn, module in _turns_around(resolver, loader.node, loader.module):
        outlived = any((turn, module) not in around for around in together)
        if outlived and not _is_written_out(resolver, turn, module):
            return Fact(module, turn)
    return None


def _turns_around(
    resolver: Resolver, node: ast.AST, module: Module
) -> Iterator[tuple[ast.AST, Module]]:
    """The loops and comprehensions that run ``node`` over and over, directly or through function calls."""
    for current, owner in ways_to(resolver, node, module):
        function, loops = owner.function(current), owner.loops(current)
        inside = {current}
        for ancestor in owner.ancestors(current):
            if ancestor is function:
                break
            # What a comprehension goes over first is made once.
            once = isinstance(ancestor, _COMPREHENSIONS) and ancestor.generators[0].iter in inside
            if ancestor in loops or (isinstance(ancestor, _COMPREHENSIONS) and not once):
                yield ancestor, owner
            inside.add(ancestor)


def _is_written_out(resolver: Resolver, turn: ast.AST, module: Module) -> bool:
    """Whether all that ``turn`` goes over is written out in lists, tuples, sets or dicts."""
    match turn:
        case ast.For(iter=iterable):
            return _is_display(resolver, iterable, module)
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return all(_is_display(resolver, g.iter, module) for g in turn.generators)
        case _:
            return False


def _is_display(resolver: Resolver, iterable: ast.expr, module: Module) -> bool:
    match iterable:
        case ast.Call(func=ast.Attribute(value=held, attr="items" | "keys" | "values"), args=[]):
            return _is_display(resolver, held, module)
        case ast.Call(func=ast.Name(id="enumerate" | "zip"), args=arguments) if arguments:
            return all(_is_display(resolver, each, module) for each in arguments)
        case _:
            values = resolver.values(iterable, module)
    return bool(values) and all(
        isinstance(value, Display) and _has_elements(value.node) for value in values
    )


def _has_elements(display: ast.expr) -> bool:
    """Whether ``display`` is a container with its elements in it: ``clients = {}`` is filled elsewhere, with any number."""
    match display:
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            return bool(elements)
        case ast.Dict(keys=keys):
            return bool(keys)
        case _:
            return False


def _is_inner(resolver: Resolver, loop: Around) -> bool:
    """Whether ``loop`` runs in another one, as over the clients of each round."""
    return any(True for _ in loops_around(resolver, loop.node, loop.module))


def _goes_on_training(script: TrainingScript, loop: Around) -> bool:
    """Whether networks of the script are made, and none of them anew in ``loop``, as for each fold of each setting."""
    made = [
        {around.node for around in loops_around(script.resolver, model.node, model.module)}
        for model in script.models
    ]
    return bool(made) and all(loop.node not in around for around in made)


def _takes_turns(script: TrainingScript, loader: DataLoader, iteration: Iteration) -> bool:
    """Whether ``iteration`` goes over the loaders made like ``loader`` in turns that come again and again: two loops around it."""
    resolver = script.resolver
    made_in = {a.node for a in loops_around(resolver, loader.node, loader.module)}
    run_in = {a.node for a in loops_around(resolver, iteration.node, iteration.module)}
    return len(run_in - made_in) > 1
