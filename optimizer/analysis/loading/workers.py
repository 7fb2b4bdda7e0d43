"""Whether a loader's batches may be made in worker processes, and whether those may live on between passes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ...options import Options
from ..calls.reach import Reached
from ..devices.placement import default_device_call
from ..distributed.training_processes import start_of_several
from ..facts import DataLoader, Fact
from ..frameworks.lightning_passes import TrainerRun
from ..program.run_order import runs_before
from ..program.trees import walk
from ..script import TrainingScript
from ..values.composition import composed_of
from ..values.resolver import Resolver
from ..values.values import External, Made
from ..wording import listed
from .dataset_changes import DatasetChange, changes_of_dataset
from .dataset_views import write_to_dataset
from .datasets import Dataset, DatasetKind, find_datasets, function_code
from .held_objects import Holding, holding_of
from .item_cost import only_indexes, only_looks_up, only_reads
from .iterations import (
    Iteration,
    batches_of_pass,
    loops_around,
    may_end_early,
    runs_when_imported,
)
from .kept_copies import kept_for_good
from .loader_settings import other_taker
from .made_again import made_for_each, making_reasons
from .passes import ends_early, in_batch_loop, is_under_way, overlapping, repeats
from .samplers import sampler_obstacle
from .spawning import names_set_in, starts_workers_by_fork, top_level_statement, unpicklable
from .worker_state import (
    Hazard,
    WorkerObstacle,
    code_obstacles,
    dataset_obstacles,
    given_on_gpu,
)

NO_GUARD = (
    "worker processes that are not forked import the script anew, and the loop over it is not under an "
    '`if __name__ == "__main__":` guard'
)


@dataclass(frozen=True, eq=False)
class WorkerCode:
    """The project's code that workers of ``loader`` run, and the obstacles in it."""

    datasets: tuple[Dataset, ...]
    collate: tuple[Reached, ...] | None
    obstacles: tuple[WorkerObstacle, ...]

    @property
    def code(self) -> tuple[Reached, ...]:
        return (*(r for d in self.datasets for r in d.item_code), *(self.collate or ()))


def worker_code(script: TrainingScript, loader: DataLoader) -> WorkerCode:
    """What workers of ``loader`` would run, also of one that a framework makes."""
    resolver = script.resolver
    datasets = script.datasets.get(loader) or find_datasets(resolver, loader)
    collate = function_code(resolver, loader.arguments.get("collate_fn"))
    found = [o for dataset in datasets for o in dataset_obstacles(resolver, dataset)]
    found += code_obstacles(resolver, collate or ())
    given = loader.arguments.get("dataset")
    if given is not None and any(dataset.kind is DatasetKind.IN_MEMORY for dataset in datasets):
        found += given_on_gpu(resolver, given.value, given.module)
    found.sort(key=lambda o: (str(o.path), o.span, o.message))
    return WorkerCode(datasets, collate, tuple(found))


def workers_refused(script: TrainingScript, loader: DataLoader, options: Options) -> str | None:
    """Why ``loader`` must go on without workers; None when nothing speaks against them.

    A missing main guard is not counted: see :func:`spawning_refused`.
    """
    work = worker_code(script, loader)
    reasons = (
        _dataset_reasons(script, loader, work),
        _code_reasons(script, loader, work),
        _use_reasons(script, loader, work, options),
        _memory_reasons(script, loader, work, options),
        _cost_reasons(script, work, options),
        _process_reasons(script, loader, options),
        _setting_reasons(script, loader),
    )
    return next((reason for group in reasons for reason in group), None)


def _process_reasons(script: TrainingScript, loader: DataLoader, options: Options) -> Iterator[str]:
    """Whether several processes make ``loader``, of which nobody knows how many share the cores."""
    start = start_of_several(script.resolver, loader.node) if options.workers is None else None
    if start is not None:
        yield f"each of the processes that `{start.excerpt}` starts would have as many workers, which share the cores (`--workers N`)"


def _setting_reasons(script: TrainingScript, loader: DataLoader) -> Iterator[str]:
    """Whether the number of workers is said to something else in the same breath."""
    taker = other_taker(script, loader, "num_workers")
    if taker is not None:
        yield f"`{taker.excerpt}` ({taker.place}) takes its `num_workers`, too"


def copies_refused(script: TrainingScript, loader: DataLoader) -> str | None:
    """What in sight keeps copies of the datasets and the collate function of ``loader`` from making its batches."""
    on_gpu = next(_made_on_gpu(script, loader), None)
    if on_gpu is not None:
        return on_gpu
    obstacle = next(iter(worker_code(script, loader).obstacles), None)
    return None if obstacle is None else f"{obstacle.message} ({obstacle.place})"


def _made_on_gpu(script: TrainingScript, loader: DataLoader) -> Iterator[str]:
    for module in script.modules:
        call = default_device_call(script.resolver, module)
        if call is not None:
            where = f"({module.place(call)})"
            yield f"new tensors are made on the GPU by default {where}, which a worker process must not do"


def _dataset_reasons(script: TrainingScript, loader: DataLoader, work: WorkerCode) -> Iterator[str]:
    yield from _made_on_gpu(script, loader)
    for dataset in work.datasets:
        if dataset.kind is DatasetKind.UNKNOWN:
            yield f"what {dataset.name} is cannot be traced"
        if dataset.kind is DatasetKind.FOREIGN:
            yield f"whether {dataset.name} works in worker processes is not known"
    for obstacle in work.obstacles:
        if obstacle.hazard is Hazard.STREAM or obstacle.hazard is Hazard.CUDA:
            yield f"{obstacle.message} ({obstacle.place})"
    if all(only_indexes(script.resolver, dataset) for dataset in work.datasets):
        yield (
            f"{_names(work)}: items are only looked up in memory, which costs less than sending them from one process "
            "to another"
        )


def _cost_reasons(script: TrainingScript, work: WorkerCode, options: Options) -> Iterator[str]:
    asked = options.workers is not None or script.targets_cuda(options)
    if not asked and all(only_reads(script.resolver, dataset) for dataset in work.datasets):
        yield (
            f"{_names(work)}: items are only read, and the training itself needs the CPU's cores (`--workers N` where "
            "reading takes long)"
        )


def _names(work: WorkerCode) -> str:
    return listed(dataset.name for dataset in work.datasets)


def _code_reasons(script: TrainingScript, loader: DataLoader, work: WorkerCode) -> Iterator[str]:
    if work.collate is None:
        yield "its collate_fn cannot be traced"
    foreign = _foreign_collate(script, loader)
    if foreign is not None:
        yield f"whether `{foreign}` works in worker processes is not known"
    for obstacle in work.obstacles:
        yield f"{obstacle.message} ({obstacle.place})"
    sampler = sampler_obstacle(script.resolver, loader)
    if isinstance(sampler, Fact):
        yield (
            f"`{sampler.code}` ({sampler.place}) depends on the sampler, "
            "which workers would run ahead of the loop"
        )
    elif sampler is not None:
        yield sampler


def _foreign_collate(script: TrainingScript, loader: DataLoader) -> str | None:
    """A library function or object in ``collate_fn`` that may not work in a worker."""
    argument = loader.arguments.get("collate_fn")
    if argument is None:
        return None
    for value in composed_of(script.resolver, script.values(argument.value, argument.module)):
        maker = value.maker if isinstance(value, Made) else value
        if isinstance(maker, External) and holding_of(maker.name) is not Holding.COPYABLE:
            return maker.name
    return None


def _is_one_batch(script: TrainingScript, loader: DataLoader) -> bool:
    """Whether its batches are as large as its dataset: ``batch_size=len(dataset)``."""
    size, dataset = loader.arguments.get("batch_size"), loader.arguments.get("dataset")
    if size is None or dataset is None:
        return False
    values = script.values(size.value, size.module)
    return bool(values) and all(
        isinstance(value, Made)
        and value.maker == External("builtins.len")
        and [ast.unparse(given) for given in value.call.args] == [ast.unparse(dataset.value)]
        for value in values
    )


def _use_reasons(
    script: TrainingScript, loader: DataLoader, work: WorkerCode, options: Options
) -> Iterator[str]:
    passes = [i for i in script.iterations if loader in i.loaders]
    if not passes:
        yield "no loop over it was found"
    elif all(i.takes_one and not repeats(script, loader, i) for i in passes):
        yield "a single batch is drawn from it"
    elif _is_one_batch(script, loader):
        yield "all of its dataset is one batch, which a single worker would make"
    elif all(ends_early(iteration) for iteration in passes):
        count = max(batches_of_pass(iteration) or 0 for iteration in passes)
        batches = "1 batch" if count == 1 else f"{count} batches"
        yield f"each pass over it ends after {batches}, of which workers would make more ahead than are used"
    for iteration in passes:
        if iteration.takes_one and repeats(script, loader, iteration):
            yield (
                f"`next(iter(..))` ({iteration.place}) starts a new pass for every batch, "
                "and would start the workers anew each time"
            )
        elif batches_of_pass(iteration) == 1 and in_batch_loop(script, loader, iteration):
            yield (
                f"the loop ({iteration.place}) starts a new pass for every batch of another, "
                "and would start the workers anew each time"
            )
        elif (
            isinstance(iteration.node, ast.For)
            and may_end_early(iteration)
            and in_batch_loop(script, loader, iteration)
            and all(only_looks_up(script.resolver, dataset) for dataset in work.datasets)
            and (why := persistence_refused(script, loader)) is not None
        ):
            yield (
                f"the loop ({iteration.place}) takes some batches in the midst of another pass, and would start the "
                f"workers anew each time: {why}"
            )
    yield from making_reasons(script, loader, passes, options)
    changes = list(dataset_changes(script, loader, work))
    for change in changes:
        if is_under_way(script, loader, passes, change):
            yield (
                f"`{change.code}` ({change.place}) changes {change.part} while the loop runs, "
                "which the workers' copies would not see"
            )
    change = script.trainer_runs.change_under_way(loader, changes)
    if change is not None:
        yield (
            f"`{change.code}` ({change.place}) may change the dataset while the Trainer goes over it, "
            "which the workers' copies would not see"
        )


def _memory_reasons(
    script: TrainingScript, loader: DataLoader, work: WorkerCode, options: Options
) -> Iterator[str]:
    write = write_to_dataset(script, loader, work.datasets, options)
    if write is not None:
        yield (
            f"`{write.excerpt}` ({write.place}) writes to what the dataset holds, since its batches are no "
            "copies; those of a worker would be"
        )
    kept = kept_for_good(script, loader, options)
    if kept is not None:
        yield (
            f"`{kept.excerpt}` ({kept.place}) keeps the batches of a pass as they come, and each that comes from a "
            "worker holds a file open until it is let go, of which a process may have 1024 on most systems"
        )


def dataset_changes(
    script: TrainingScript, loader: DataLoader, work: WorkerCode
) -> Iterator[DatasetChange]:
    """What changes the datasets of ``loader``, or what they were given, after it was made and may have been gone over."""
    passes = [i for i in script.iterations if loader in i.loaders]
    by_hand = bool(passes) and not any(isinstance(i, TrainerRun) for i in passes)
    for dataset in work.datasets:
        for change in changes_of_dataset(script.resolver, loader, dataset):
            is_early = (
                by_hand
                and not change.handed_on
                and all(runs_before(script.resolver, change.node, change.module, i) for i in passes)
                and not any(_in_turn(script.resolver, loader, change, i) for i in passes)
            )
            if not is_early and not script.trainer_runs.makes_data(change):
                yield change


def _in_turn(resolver: Resolver, loader: DataLoader, change: DatasetChange, start: Fact) -> bool:
    """Whether a loop runs ``change`` and a pass over the same loader in turns: both are in a function that it calls."""
    changes, passes, made = (
        {loop.node for loop in loops_around(resolver, fact.node, fact.module)}
        for fact in (change, start, loader)
    )
    return bool(changes & passes - made)


def persistence_refused(script: TrainingScript, loader: DataLoader) -> str | None:
    """Why the workers of ``loader`` must end with each pass; None when they may live on."""
    if "worker_init_fn" in loader.arguments:
        return "its worker_init_fn would run once, not in every pass"
    taker = other_taker(script, loader, "num_workers")
    if taker is not None:
        return f"`{taker.excerpt}` ({taker.place}) takes what is said beside its `num_workers`, too"
    work = worker_code(script, loader)
    # What the workers do themselves, in the loader's own `collate_fn=dataset.collate`, is among the obstacles below.
    inside = {node for argument in loader.arguments.values() for node in walk(argument.value)}
    changes = (c for c in dataset_changes(script, loader, work) if c.node not in inside)
    change = next(changes, None)
    if change is not None:
        return (
            f"`{change.code}` ({change.place}) changes {change.part} between passes, "
            "which workers that live on would not see"
        )
    overlap = overlapping(script, loader)
    if overlap is not None:
        return overlap
    many = made_for_each(script, loader, [i for i in script.iterations if loader in i.loaders])
    if many is not None:
        return f"those of every loader that `{many.excerpt}` ({many.place}) makes would live side by side"
    for dataset in work.datasets:
        if dataset.kind in {DatasetKind.UNKNOWN, DatasetKind.FOREIGN}:
            return f"what {dataset.name} keeps between passes is not known"
    for obstacle in work.obstacles:
        if obstacle.hazard is Hazard.STATE:
            return f"{obstacle.message} ({obstacle.place})"
        if obstacle.hazard is Hazard.UNSEEN:
            return f"what `{obstacle.excerpt}` keeps between passes is not known ({obstacle.place})"
    return None


def spawning_refused(
    script: TrainingScript,
    loader: DataLoader,
    options: Options,
    guarded: list[ast.stmt] | None = None,
) -> str | None:
    """Why workers of ``loader`` could not start by spawning; None when they can, or when they are forked.

    ``guarded`` are top-level statements of the entry script taken as being under its main guard; by default those
    that are. A missing guard is :data:`NO_GUARD`.
    """
    if starts_workers_by_fork(script.resolver, loader, options):
        return None
    entry, work = script.entry, worker_code(script, loader)
    problem = unpicklable(script.resolver, loader, work.datasets)
    if problem is not None:
        return f"{problem[1]} ({problem[0].place}), and workers that are not forked need that"
    if guarded is None:
        if any(starts_at_import(script, i) for i in script.iterations if loader in i.loaders):
            return NO_GUARD
        guarded = [statement for guard in entry.main_only for statement in guard.body]
    for dataset in work.datasets:
        cls = dataset.cls
        if cls and cls.module is entry and top_level_statement(cls.node, entry) in guarded:
            return f"{dataset.name} is defined under the main guard, where workers do not find it"
    for name, node in names_set_in(script.resolver, guarded, work.code, entry):
        where = f"({entry.place(node)})"
        return f"workers read the global `{name}`, which is set under the main guard {where}"
    return None


def starts_at_import(script: TrainingScript, iteration: Iteration) -> bool:
    """Whether importing the script would start this pass."""
    return runs_when_imported(script.resolver, iteration.node, iteration.module)
