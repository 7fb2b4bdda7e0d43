"""How a script goes over a DataLoader: how often, how far, and what happens while a pass is under way."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.reach import reached_nodes
from ..calls.signatures import argument_for, first_parameter
from ..facts import DataLoader, Fact
from ..frameworks.lightning_passes import TrainerRun
from ..program.parameters import parameter_names
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..script import TrainingScript
from ..training.loops import WRAPPING_ITERATORS, iterated_loaders
from ..values.resolver import CallSite, Resolver
from ..values.values import Literal
from .iterations import Around, Iteration, batches_of_pass, draws_of, loops_around

_MADE_AHEAD = 16


def passes_repeat(script: TrainingScript, loader: DataLoader) -> bool:
    """Whether the script goes over ``loader`` more than once: every epoch, or at several places.

    Not where only another script is seen to make it, which goes over it in its own way.
    """
    if _is_anothers(script, loader):
        return False
    passes = [i for i in script.iterations if loader in i.loaders and not i.takes_one]
    kept = [i for i in passes if not is_remade(script, loader, i)]
    return len(kept) > 1 or any(repeats(script, loader, i) for i in kept)


def _is_anothers(script: TrainingScript, loader: DataLoader) -> bool:
    """Whether no code of the script's own file, also that which only a library calls, gets to where ``loader`` is made."""
    function = loader.module.function(loader.node)
    is_plain = function is not None and loader.module.enclosing_class(function) is None
    if not is_plain or loader.module is script.entry or function in script.functions_run:
        return False
    own = script.entry.nodes_of(ast.FunctionDef, ast.AsyncFunctionDef)
    roots = [statement for definition in own for statement in definition.body]
    reached = reached_nodes(script.resolver, roots, script.entry)
    return all(each.node is not loader.node for each in reached)


def repeats(script: TrainingScript, loader: DataLoader, iteration: Iteration) -> bool:
    """Whether ``iteration`` goes over ``loader`` again and again."""
    if isinstance(iteration, TrainerRun) and iteration.repeats:
        return True
    loops = loops_of_pass(script, loader, iteration)
    return any(not _runs_once(script.resolver, loop) for loop in loops)


def _runs_once(resolver: Resolver, loop: Around) -> bool:
    """Whether ``loop`` is ``for epoch in range(1)``."""
    match loop.node:
        case ast.For(iter=ast.Call(func=function, args=[count], keywords=[])):
            is_range = resolver.names(function, loop.module) == frozenset({"builtins.range"})
            values = resolver.values(count, loop.module)
            return is_range and all(isinstance(v, Literal) and v.value == 1 for v in values)
        case _:
            return False


def loops_of_pass(
    script: TrainingScript, loader: DataLoader, iteration: Iteration
) -> Iterator[Around]:
    """The loops that run ``iteration`` over ``loader`` again.

    Unlike :func:`.iterations.loops_around` not those around calls that hand another loader to its function, nor those that take one loader
    after the other: ``for loader in (val_loader, test_loader)``.
    """
    seen: set[tuple[ast.AST, ast.AST]] = set()
    pending: list[tuple[ast.AST, Module, ast.AST]] = [
        (iteration.node, iteration.module, _iterable(iteration.node))
    ]
    while pending:
        node, module, given = pending.pop()
        names = list(_names_gone_over(script.resolver, given, module))
        for loop in module.loops(node):
            if isinstance(loop, ast.While) or not _takes_turns(loop, names, module):
                yield Around(loop, module)
        function = module.function(node)
        for site in script.resolver.call_sites(function) if function is not None else ():
            handed = _handed(function, names, site) if function is not None else []
            leading = [each for each in handed if _may_be(script, loader, each, site.module)]
            for each in leading if handed else [site.call.func]:
                if (site.call, each) not in seen:
                    seen.add((site.call, each))
                    pending.append((site.call, site.module, each))


def _iterable(node: ast.AST) -> ast.AST:
    """What a loop, or a call of ``iter``, goes over."""
    match node:
        case ast.For(iter=iterable) | ast.Call(args=[iterable, *_]):
            return iterable
        case _:
            return node


def _names_gone_over(resolver: Resolver, given: ast.AST, module: Module) -> Iterator[ast.Name]:
    """The names in ``given`` that may stand for what it goes over, not ``epoch`` in ``tqdm(loader, desc=f"epoch {epoch}")``."""
    if isinstance(given, ast.Call) and given.args:
        makers = resolver.names(given.func, module)
        if makers and makers <= WRAPPING_ITERATORS:
            return _names_gone_over(resolver, given.args[0], module)
    return (n for n in walk(given) if isinstance(n, ast.Name))


def _takes_turns(loop: ast.For | ast.AsyncFor, names: list[ast.Name], module: Module) -> bool:
    """Whether ``loop`` gives one of ``names`` another value each time."""
    named = [n for n in walk(loop.target) if isinstance(n, ast.Name)]
    targets = {n.id for n in named if isinstance(n.ctx, ast.Store)}  # not `self` of `self.epoch`
    return any(
        name.id in targets and module.function(name) is module.function(loop) for name in names
    )


def _handed(function: FunctionNode, names: list[ast.Name], site: CallSite) -> list[ast.expr]:
    """What the call ``site`` gives for those of ``names`` that are parameters of ``function``."""
    own = {name.id for name in names} & {*parameter_names(function)}
    if site.bound:
        own -= {first_parameter(function) or ""}
    passed = [argument_for(function, name, site.call, site.bound) for name in sorted(own)]
    return [each.given for each in passed if each is not None and each.given is not None]


def _may_be(script: TrainingScript, loader: DataLoader, given: ast.expr, module: Module) -> bool:
    """Whether ``given`` may be ``loader``, or lead to it: all that is not seen to be other loaders."""
    over, _ = iterated_loaders(script.resolver, script.loaders, given, module)
    return not over or loader in over


def is_remade(script: TrainingScript, loader: DataLoader, iteration: Iteration) -> bool:
    """Whether the loader is made anew for each pass, so that its workers end with it anyway."""
    resolver = script.resolver
    made_in = {a.node for a in loops_around(resolver, loader.node, loader.module)}
    run_in = {a.node for a in loops_of_pass(script, loader, iteration)}
    return bool(made_in) and run_in <= made_in


def ends_early(iteration: Iteration) -> bool:
    """Whether a pass needs no more batches than workers make before the first is used: 2 for each of up to 8."""
    return (
        not iteration.takes_one and (batches_of_pass(iteration) or _MADE_AHEAD + 1) <= _MADE_AHEAD
    )


def in_batch_loop(script: TrainingScript, loader: DataLoader, iteration: Iteration) -> bool:
    """Whether ``iteration`` over ``loader`` starts in the midst of a pass over some loader."""
    kinds = {loop.node: loop for loop in script.loops}
    around = loops_of_pass(script, loader, iteration)
    return any(kinds[loop.node].loaders for loop in around)


def is_under_way(
    script: TrainingScript, loader: DataLoader, passes: list[Iteration], change: Fact
) -> bool:
    """Whether a pass over ``loader`` may be under way at ``change``: in its loop, or in one that draws from its iterator."""
    resolver = script.resolver
    kinds = {loop.node: loop for loop in script.loops}
    inside = {around.node for around in loops_around(resolver, change.node, change.module)}
    if any(loader in kinds[loop].loaders for loop in inside):
        return True
    for iteration in passes:
        if iteration.by_hand:
            started = loops_around(resolver, iteration.node, iteration.module)
            drawn = {
                a.node
                for call in draws_of(resolver, iteration)
                for a in loops_around(resolver, call.node, call.module)
            }
            if inside & drawn - {around.node for around in started}:
                return True
    return False


def overlapping(script: TrainingScript, loader: DataLoader) -> str | None:
    """Why two passes over ``loader`` may be under way at the same time; None when each ends before the next."""
    passes = [i for i in script.iterations if loader in i.loaders and not i.takes_one]
    if len({_iterator_name(i) for i in passes}) > 1 and any(i.by_hand for i in passes):
        return "an iterator made by hand and another pass over it may be under way at the same time"
    if any(i.loaders.count(loader) > 1 for i in passes):
        return "it is gone over twice at the same time"
    by_trainer = [isinstance(i, TrainerRun) for i in passes]
    if any(by_trainer) and not all(by_trainer):
        where = f"({passes[by_trainer.index(False)].place})"
        return f"a second pass over it may start {where} while the Trainer's is under way"
    for iteration in passes:
        for around in loops_of_pass(script, loader, iteration):
            if any(other.node is around.node for other in passes):
                where = f"({iteration.place})"
                return f"a second pass over it starts {where} while the first is under way"
    return None


def _iterator_name(iteration: Iteration) -> object:
    """The name an iterator made by hand goes by: giving it a new one ends the old one."""
    if iteration.by_hand:
        statement = iteration.module.statement(iteration.node)
        if isinstance(statement, ast.Assign) and statement.value is iteration.node:
            return ast.unparse(statement.targets[0])
    return iteration
