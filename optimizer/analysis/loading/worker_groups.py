"""The loaders that take their number of workers from one place, and whether that number may be raised."""

from __future__ import annotations

from dataclasses import dataclass

from ...options import Options, Tier
from ..facts import DataLoader, Fact
from ..script import TrainingScript
from .datasets import is_iterable
from .item_cost import only_reads
from .loader_settings import said_later, setting_of
from .worker_count import CountKind, WorkerCount, most_workers, other_use, worker_count
from .workers import NO_GUARD, spawning_refused, workers_refused

SHARES_OF_A_STREAM = "each worker cuts its own share of the stream into batches, which are others then, and ends with a smaller one"


@dataclass(frozen=True, eq=False)
class WorkerGroup:
    """Loaders that take their ``num_workers`` from one place."""

    loaders: tuple[DataLoader, ...]
    count: WorkerCount


def held_back_by_missing_guard(script: TrainingScript, options: Options) -> list[DataLoader]:
    """The loaders that would get workers if the script had a main guard."""
    held: list[DataLoader] = []
    for group in worker_groups(script):
        if group.count.kind is not CountKind.CHOSEN:
            refusals = refusals_of(script, group, options)
            if refusals and set(refusals.values()) == {NO_GUARD}:
                held += group.loaders
    return held


def worker_groups(script: TrainingScript) -> list[WorkerGroup]:
    """The loaders by the place that says how many workers they have."""
    grouped: dict[object, list[tuple[DataLoader, WorkerCount]]] = {}
    for loader in script.loaders:
        count = worker_count(script.resolver, loader)
        key = (
            count.zero.node
            if count.zero is not None
            else setting_of(script, "num_workers", loader).node
        )
        grouped.setdefault(key, []).append((loader, count))
    return [
        WorkerGroup(tuple(x for x, _ in members), members[0][1]) for members in grouped.values()
    ]


def count_place(script: TrainingScript, group: WorkerGroup) -> Fact:
    """Where the count of ``group`` is written: the 0 that says it now, or the arguments of its loaders."""
    zero = group.count.zero
    if zero is not None and zero.holder is not None:
        return zero
    setting = setting_of(script, "num_workers", group.loaders[0])
    return Fact(setting.module, setting.node)


def refusals_of(
    script: TrainingScript, group: WorkerGroup, options: Options
) -> dict[DataLoader, str]:
    """Why loaders of ``group`` must not get workers; empty when all may."""
    if group.count.kind is CountKind.OPAQUE:
        loader = group.loaders[0]
        opaque = loader.module.code(loader.opaque) if loader.opaque is not None else "its arguments"
        return {loader: f"`{opaque}` cannot be resolved, it may say how many workers there are"}
    found: dict[DataLoader, str] = {}
    for loader in group.loaders:
        reason = workers_refused(script, loader, options) or spawning_refused(
            script, loader, options
        )
        added = said_later(loader, "num_workers")
        if reason is None and added is not None:
            where = added.module.place(added.value)
            reason = f"its num_workers is put into a keyword dict at {where}; raise it there"
        if reason is not None:
            found[loader] = reason
    zero = group.count.zero
    use = other_use(script.resolver, zero, script.loaders) if zero is not None else None
    if use is not None and not found:
        where = f"({use.place})"
        said = f"its num_workers is the 0 {where}, which is not followed further; raise it there"
        if use is not zero:
            said = f"the 0 of its num_workers is also used elsewhere {where}"
        found[group.loaders[0]] = said
    return found


def unwanted(group: WorkerGroup, options: Options) -> dict[DataLoader, str]:
    """Why no loader of ``group`` shall have workers."""
    reason = "on this machine workers would not make it faster, says --workers or --profile"
    return dict.fromkeys(group.loaders, reason) if options.workers == 0 else {}


def too_few(script: TrainingScript, group: WorkerGroup, options: Options) -> int | None:
    """How many workers are written for ``group``, where the cores beside a GPU would make its batches faster; None elsewhere.

    Who writes 2 wrote it on some machine, or copied it. More of them give the same batches, unless ``worker_init_fn`` knows better.
    """
    written = group.count.written
    most = most_workers(beside_gpu=True) if options.workers is None else options.workers
    if written is None or written >= most or not script.targets_cuda(options):
        return None
    if any("worker_init_fn" in loader.arguments for loader in group.loaders):
        return None
    if refusals_of(script, group, options) or shared_out(script, group, options):
        return None
    datasets = [d for loader in group.loaders for d in script.datasets[loader]]
    computed = not any(only_reads(script.resolver, dataset) for dataset in datasets)
    return written if computed else None


def shared_with_refused(
    group: WorkerGroup, refusals: dict[DataLoader, str], loader: DataLoader
) -> str:
    other = next(iter(refusals))
    where = f"({other.place})"
    return f"it shares its num_workers with another loader {where} that must not have workers"


def shared_out(
    script: TrainingScript, group: WorkerGroup, options: Options
) -> dict[DataLoader, str]:
    """The loaders of streams, whose batches are others with workers, unless a change of training is asked for."""
    if options.tier >= Tier.SEMANTIC:
        return {}
    return {
        loader: f"{SHARES_OF_A_STREAM} (`--tier semantic`)"
        for loader in group.loaders
        if reads_stream(script, loader)
    }


def reads_stream(script: TrainingScript, loader: DataLoader) -> bool:
    """Whether the dataset of ``loader`` is an ``IterableDataset``."""
    return any(is_iterable(script.resolver, dataset) for dataset in script.datasets[loader])
