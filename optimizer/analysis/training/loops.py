"""Finds the loops of a script and tells training from evaluation.

A loop trains when a ``backward`` runs in its body and in no loop nested inside it; it evaluates when it goes over a
DataLoader, calls a model and never reaches a ``backward``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ..calls.reach import Reached, lexical_nodes, reached_nodes
from ..facts import CallFact, DataLoader, Loop, LoopKind
from ..frameworks.framework_wrapping import wrapped_by_framework
from ..loading.loaders import loaders_in
from ..networks.models import is_module_value, is_optimizer_name, unwrap_copies
from ..program.classes import class_attribute
from ..program.module_objects import is_module_object
from ..program.scopes import Path
from ..program.syntax import LoopNode, Module
from ..program.trees import position
from ..values.resolver import Resolver
from ..values.unpacking import unpacked_targets, written_part
from ..values.values import Class, External, Function, Made, Value

_BACKWARD_METHODS = frozenset({"backward", "manual_backward"})
_STEP_METHODS = frozenset({"step", "step_and_update", "step_and_update_lr", "optimizer_step"})
WRAPPING_ITERATORS = frozenset(
    {
        "builtins.enumerate",
        "builtins.iter",
        "builtins.list",
        "tqdm.tqdm",
        "tqdm.auto.tqdm",
        "tqdm.autonotebook.tqdm",
        "tqdm.notebook.tqdm",
        "tqdm.std.tqdm",
        "tqdm.tqdm_notebook",
        "tqdm.auto",
        "tqdm",
        "itertools.islice",
        "itertools.cycle",
        "rich.progress.track",
        "progressbar.progressbar",
        "fastprogress.progress_bar",
        "fastprogress.fastprogress.progress_bar",
        "alive_progress.alive_it",
        "barbar.Bar",
    }
)


def find_loops(resolver: Resolver, loaders: tuple[DataLoader, ...]) -> tuple[Loop, ...]:
    """Every loop of the project, outer before inner."""
    found: dict[LoopNode, Loop] = {}
    bodies: dict[LoopNode, tuple[Reached, ...]] = {}
    for module in resolver.project.modules:
        nodes = module.nodes_of(ast.For, ast.AsyncFor, ast.While)
        for node in sorted(nodes, key=position):
            bodies[node] = tuple(reached_nodes(resolver, node.body, module))
            found[node] = _loop(resolver, loaders, node, module, bodies[node])
    return tuple(_with_kind(found, loop, bodies[node]) for node, loop in found.items())


def backward_calls(nodes: Iterable[Reached]) -> tuple[CallFact, ...]:
    """The calls among ``nodes`` that run backpropagation."""
    return tuple(
        CallFact(r.module, r.node, r.node.func.attr)
        for r in nodes
        if isinstance(r.node, ast.Call)
        and isinstance(r.node.func, ast.Attribute)
        and r.node.func.attr in _BACKWARD_METHODS
        and not is_module_object(r.node.func.value, r.module)  # `cuda_kernels.backward(..)`
    )


def forward_calls(resolver: Resolver, nodes: Iterable[Reached]) -> tuple[CallFact, ...]:
    """The calls among ``nodes`` that run a network's forward (``model(x)``, not ``model.encode(x)``)."""
    found: list[CallFact] = []
    for reached in nodes:
        if isinstance(reached.node, ast.Call) and is_forward(
            resolver, reached.node, reached.module
        ):
            found.append(CallFact(reached.module, reached.node, ast.unparse(reached.node.func)))
    return tuple(found)


def is_forward(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` runs a network: the called object may be a module made anywhere in the project."""
    callees = unwrap_copies(resolver, resolver.values(call.func, module))
    return any(is_module_value(resolver, callee) for callee in callees)


def optimizer_steps(resolver: Resolver, nodes: Iterable[Reached]) -> tuple[CallFact, ...]:
    """The calls among ``nodes`` that step an optimizer, directly, through a scaler or a wrapper class."""
    found: list[CallFact] = []
    for reached in nodes:
        call = reached.node
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            continue
        if call.func.attr in _STEP_METHODS and steps_optimizer(resolver, call, reached.module):
            found.append(CallFact(reached.module, call, call.func.attr))
    return tuple(found)


def steps_optimizer(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``x.step()`` steps an optimizer and not a learning-rate scheduler or a profiler."""
    assert isinstance(call.func, ast.Attribute)
    for value in resolver.values(call.func.value, module):
        if isinstance(value, Made) and isinstance(value.maker, External):
            name = value.maker.name
            if "lr_scheduler" in name or "profile" in name or name.startswith("transformers.get_"):
                continue
            if (
                name.startswith("torch.optim.")
                or name.endswith("GradScaler")
                or is_optimizer_name(name)
            ):
                return True
        elif isinstance(value, Made) and isinstance(value.maker, Class):
            bases = resolver.base_names(value.maker)
            if any(b.startswith("torch.optim.") and "lr_scheduler" not in b for b in bases):
                return True
    return False


def iterated_loaders(
    resolver: Resolver,
    loaders: tuple[DataLoader, ...],
    iterable: ast.expr,
    module: Module,
    within: frozenset[ast.AST] = frozenset(),
) -> tuple[tuple[DataLoader, ...], Path]:
    """The DataLoaders ``iterable`` goes over, and where in each element the batch is (``(1,)`` for enumerate).

    ``within`` are the expressions and generators this one is part of: in a loop, ``bar = tqdm(bar)`` leads back to itself.
    """
    if iterable in within:
        return (), ()
    within |= {iterable}
    direct = loaders_in(loaders, resolver.values(iterable, module))
    found: dict[Path, list[DataLoader]] = {(): list(direct)} if direct else {}
    for value in resolver.values(iterable, module):
        for inner, owner, prefix in gone_over(value):
            over, path = iterated_loaders(resolver, loaders, inner, owner, within)
            if over:
                found.setdefault((*prefix, *path), []).extend(over)
                break
    if found:
        path = next(iter(found))
        return tuple(dict.fromkeys(found[path])), path
    return _loaders_of_generators(resolver, loaders, iterable, module, within)


def gone_over(value: Value) -> Iterator[tuple[ast.expr, Module, Path]]:
    """The iterables that the iterable ``value`` goes over, and where in its elements theirs are."""
    wrapped = wrapped_by_framework(value)
    if wrapped is not None:
        yield *wrapped, ()
    if not isinstance(value, Made):
        return
    if (own := iterated_by_method(value.call)) is not None:
        yield own, value.module, ()
        return
    if not value.call.args:
        return
    maker = value.maker.name if isinstance(value.maker, External) else ""
    if maker == "builtins.zip":
        for position, argument in enumerate(value.call.args):
            yield argument, value.module, (position,)
    elif maker in WRAPPING_ITERATORS:
        yield value.call.args[0], value.module, (1,) if maker == "builtins.enumerate" else ()
    elif maker.rpartition(".")[2] == "log_every":
        yield value.call.args[0], value.module, ()


def iterated_by_method(call: ast.Call) -> ast.expr | None:
    """What ``call`` makes an iterator of by its own method: ``loader.__iter__()``."""
    match call:
        case ast.Call(func=ast.Attribute(value=iterable, attr="__iter__"), args=[], keywords=[]):
            return iterable
        case _:
            return None


def _loaders_of_generators(
    resolver: Resolver,
    loaders: tuple[DataLoader, ...],
    iterable: ast.expr,
    module: Module,
    within: frozenset[ast.AST],
) -> tuple[tuple[DataLoader, ...], Path]:
    """Looks through a first-party generator that yields from a loader: ``log_every(loader, ..)``, an object's ``__iter__``."""
    for function in _generators(resolver, iterable, module):
        if isinstance(function.node, ast.Lambda) or function.node in within:
            continue
        inside = within | {function.node}
        for node in lexical_nodes(function.node.body):
            if not isinstance(node, ast.For) or (part := _yielded_part(node)) is None:
                continue
            over, path = iterated_loaders(resolver, loaders, node.iter, function.module, inside)
            if path[: len(part)] == part:
                return over, path[len(part) :]
    return (), ()


def _generators(resolver: Resolver, iterable: ast.expr, module: Module) -> Iterator[Function]:
    """The first-party functions that may give the elements of ``iterable``."""
    if isinstance(iterable, ast.Call):
        yield from resolver.callees(iterable, module)
    for cls in resolver.classes(iterable, module):
        found = class_attribute(resolver, cls, "__iter__")
        yield from (method for method in found if isinstance(method, Function))


def _yielded_part(loop: ast.For) -> Path | None:
    """The part of its elements that ``loop`` yields: ``(1,)`` of ``for i, batch in enumerate(loader): yield batch``."""
    parts = {ast.unparse(target): path for target, path in unpacked_targets(loop.target)}
    parts[ast.unparse(loop.target)] = ()
    yields = (n.value for n in lexical_nodes(loop.body) if isinstance(n, ast.Yield))
    yielded = (parts.get(ast.unparse(value)) for value in yields if value is not None)
    return next((path for path in yielded if path is not None), None)


def _loop(
    resolver: Resolver,
    loaders: tuple[DataLoader, ...],
    node: LoopNode,
    module: Module,
    body: tuple[Reached, ...],
) -> Loop:
    iterated: tuple[DataLoader, ...] = ()
    target = None
    if not isinstance(node, ast.While):
        iterated, path = iterated_loaders(resolver, loaders, node.iter, module)
        target = written_part(node.target, path) if iterated else None
    return Loop(
        module,
        node,
        LoopKind.OTHER,
        iterated,
        target,
        forward_calls(resolver, body),
        backward_calls(body),
        optimizer_steps(resolver, body),
    )


def _with_kind(loops: dict[LoopNode, Loop], loop: Loop, body: tuple[Reached, ...]) -> Loop:
    inner = [loops[r.node] for r in body if r.node in loops]  # type: ignore[index]
    kind = LoopKind.OTHER
    if loop.backwards:
        own = {call.node for call in loop.backwards} - {
            call.node for other in inner for call in other.backwards
        }
        trains = bool(own) or bool(loop.loaders)
        kind = LoopKind.TRAINING if trains else LoopKind.EPOCHS
    elif loop.loaders and loop.forwards:
        kind = LoopKind.EVALUATION
    return replace(loop, kind=kind)
