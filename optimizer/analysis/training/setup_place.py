"""Where a script sets up the process: beside its seeds, below its device, or ahead of what it makes first."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...options import Options
from ...rewriting.edits import FileEdit, InsertAfter, InsertBefore
from ..calls.reach import reached_nodes
from ..distributed.training_processes import training_function, training_processes
from ..editing.setting_lists import end_of_settings
from ..facts import DeviceKind, Fact
from ..precision.backend_settings import Topic
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..script import TrainingScript
from ..values.resolver import Resolver
from .loops import backward_calls

_SEEDS = frozenset(
    {
        "torch.manual_seed",
        "torch.seed",
        "torch.cuda.manual_seed",
        "torch.cuda.manual_seed_all",
        "torch.random.manual_seed",
        "random.seed",
        "numpy.random.seed",
    }
)
_TORCH_SEEDS = frozenset(name for name in _SEEDS if name.startswith("torch."))


def settings_refused(script: TrainingScript, options: Options) -> Fact | str | None:
    """Why the settings by which the GPU multiplies and convolves are not to be changed for the whole run."""
    if not script.targets_cuda(options):
        return "the script does not use a GPU"
    frameworks = script.frameworks
    if frameworks:
        return f"{frameworks[0].framework} runs the step in its own way"
    return next((s for s in script.backend_settings if s.topic is Topic.DETERMINISM), None)


@dataclass(frozen=True, eq=False)
class SetupPlace:
    """A place that every run of the training passes once, ahead of it: below ``statement``, or above it."""

    module: Module
    statement: ast.stmt
    below: bool

    def insertion(self, code: str) -> FileEdit:
        """The edit that puts ``code`` there."""
        span = self.module.span(self.statement)
        edit = InsertAfter(span, code) if self.below else InsertBefore(span, code)
        return FileEdit(self.module.path, edit)


@dataclass(frozen=True, eq=False)
class Block:
    """The statements of one block that run before the first one that trains, and those behind it."""

    module: Module
    before: list[ast.stmt]
    trains: ast.stmt
    after: list[ast.stmt]


def setup_place(script: TrainingScript) -> SetupPlace | None:
    """Where a setting of the whole process belongs; None when no statement of the script is seen to train."""
    blocks = _passed_by_all(script)
    if not blocks:
        return None
    for block in blocks:
        seeded = _seeded(script.resolver, block)
        if seeded is not None:
            return SetupPlace(block.module, seeded, True)
    for block in blocks:
        settings = [s for s in block.before if _sets(script.resolver, s, block.module)]
        if settings:
            return SetupPlace(block.module, settings[-1], True)
    for block in blocks[::-1]:
        device = _device(script, block)
        if device is not None:
            last = _last_setting(script.resolver, block, end_of_settings(device, block.before))
            return SetupPlace(block.module, last, True)
    for block in blocks:
        made = _first_made(script, block)
        if made is not None:
            return SetupPlace(block.module, made, False)
    # Rather in the script than in a launcher of its own, which may start the training in more ways than one.
    last = next((b for b in reversed(blocks) if b.module is script.entry), blocks[-1])
    return SetupPlace(last.module, last.trains, False)


def _passed_by_all(script: TrainingScript) -> list[Block]:
    """The blocks that lead to all training: where a second statement trains (``find_lr()``), none inside the first.

    Where processes of their own train, these are in the function they run: what is set outside of it does not reach them.
    """
    resolver, blocks = script.resolver, list[Block]()
    processes = training_processes(resolver)
    if processes:
        function = training_function(resolver, processes)
        if function is None:
            return []
        leading = _blocks(resolver, function[0].body, function[1], methods=False)
    else:
        leading = training_blocks(script)
    for block in leading:
        blocks.append(block)
        if any(_trains(script.resolver, statement, block.module) for statement in block.after):
            break
    return blocks


def training_blocks(script: TrainingScript, *, methods: bool = False) -> Iterator[Block]:
    """The blocks that lead from the script's beginning to its training, outside in; also through ``methods``."""
    return _blocks(script.resolver, script.entry.tree.body, script.entry, methods=methods)


def _blocks(
    resolver: Resolver, body: Sequence[ast.stmt], module: Module, *, methods: bool
) -> Iterator[Block]:
    seen: set[FunctionNode] = set()
    while True:
        trains = next((s for s in body if _trains(resolver, s, module)), None)
        if trains is None:
            return
        first = body.index(trains)
        yield Block(module, list(body[:first]), trains, list(body[first + 1 :]))
        branch = _branch(resolver, trains, module)
        if branch is not None:
            body = branch
            continue
        called = _called(resolver, trains, module, methods)
        if called is None or called[0] in seen:
            return
        function, module = called
        seen.add(function)
        body = function.body


def _trains(resolver: Resolver, statement: ast.stmt, module: Module) -> bool:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    return bool(backward_calls(reached_nodes(resolver, [statement], module)))


def _branch(resolver: Resolver, statement: ast.stmt, module: Module) -> list[ast.stmt] | None:
    """The one block of an ``if``, ``try`` or ``with`` that trains."""
    if not isinstance(statement, ast.If | ast.Try | ast.With):
        return None
    blocks = [statement.body, getattr(statement, "orelse", [])]
    training = [b for b in blocks if any(_trains(resolver, inner, module) for inner in b)]
    return training[0] if len(training) == 1 else None


def _called(
    resolver: Resolver, statement: ast.stmt, module: Module, methods: bool
) -> tuple[FunctionNode, Module] | None:
    """The function that a statement ``main(args)`` runs, when nothing else calls it; of ``trainer.fit()``, with ``methods``."""
    if not isinstance(statement, ast.Expr | ast.Assign):
        return None
    call = statement.value
    if not isinstance(call, ast.Call):
        return None
    callees = resolver.callees(call, module)
    if len(callees) != 1 or not isinstance(callees[0].node, ast.FunctionDef):
        return None
    function = callees[0].node
    if (callees[0].bound and not methods) or len(resolver.call_sites(function)) != 1:
        return None
    return function, callees[0].module


def _seeded(resolver: Resolver, block: Block) -> ast.stmt | None:
    """The last of the statements that seed PyTorch, and of those next to them that seed others."""
    for statement in block.before:
        if _seeds(resolver, statement, block.module, _TORCH_SEEDS):
            return _last_setting(resolver, block, statement)
    return None


def _last_setting(resolver: Resolver, block: Block, statement: ast.stmt) -> ast.stmt:
    """``statement``, or the last of the seeds and settings right below it."""
    for following in block.before[block.before.index(statement) + 1 :]:
        if not (
            _seeds(resolver, following, block.module, _SEEDS)
            or _sets(resolver, following, block.module)
        ):
            break
        statement = following
    return statement


def _seeds(resolver: Resolver, statement: ast.stmt, module: Module, wanted: frozenset[str]) -> bool:
    """Whether ``statement`` seeds, by itself, under a condition, or by calling the script's ``set_seed``."""
    if isinstance(statement, ast.If):
        return any(_seeds(resolver, inner, module, wanted) for inner in statement.body)
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
        return False
    call = statement.value
    if resolver.names(call.func, module) & wanted:
        return True
    callees = resolver.callees(call, module)
    return any(
        "seed" in getattr(callee.node, "name", "").lower()
        and any(
            isinstance(inner, ast.Call) and resolver.names(inner.func, callee.module) & wanted
            for inner in walk(callee.node)
        )
        for callee in callees
    )


def _sets(resolver: Resolver, statement: ast.stmt, module: Module) -> bool:
    """Whether ``statement`` is itself a setting of PyTorch's."""
    match statement:
        case ast.Assign(targets=[ast.Attribute() as target]):
            names = resolver.names(target.value, module)
        case ast.Expr(value=ast.Call(func=function)):
            names = frozenset(
                name for name in resolver.names(function, module) if name.startswith("torch.set_")
            )
        case _:
            return False
    return any(name.startswith(("torch.backends", "torch.set_")) for name in names)


def _device(script: TrainingScript, block: Block) -> ast.stmt | None:
    """The statement of ``block`` that chooses the device; flags count when there is no device."""
    found: list[tuple[bool, ast.stmt]] = []
    for name in script.devices:
        if name.module is not block.module or name.kind is DeviceKind.CPU:
            continue
        chain = {name.module.statement(name.node), *name.module.ancestors(name.node)}
        statement = next((s for s in block.before if s in chain), None)
        if statement is not None and isinstance(statement, ast.Assign | ast.AnnAssign | ast.If):
            found.append((name.is_flag, statement))
    return min(found, key=lambda each: each[0])[1] if found else None


def _first_made(script: TrainingScript, block: Block) -> ast.stmt | None:
    """The first statement that makes a network, a loader or its dataset, or an optimizer."""
    datasets = [dataset for found in script.datasets.values() for dataset in found]
    facts = [*script.models, *script.loaders, *datasets, *script.optimizers]
    made = {fact.node for fact in facts}
    for statement in block.before:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if any(r.node in made for r in reached_nodes(script.resolver, [statement], block.module)):
            return statement
    return None
