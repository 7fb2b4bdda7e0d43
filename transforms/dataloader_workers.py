"""Makes batches in worker processes: `num_workers=`, kept alive between epochs with `persistent_workers=True`.

A `DataLoader` without workers reads, decodes and augments every batch in the training process, while the device waits.
With workers the next batches are made while the current one is computed. Loaders that leave `num_workers` out, or say
0 (also through a keyword dict, a constant or the default of a command-line option), get as many workers as this
process may use CPU cores, at most 8, or as many as `--workers N` or the measurement in `--profile FILE` says; 0 leaves
them without. The cores are counted where the script runs, so that it can be shared between machines. `os.cpu_count()` alone would be
shorter, but counts all of the machine: a job that Slurm or `docker run --cpuset-cpus` gives 2 of 64 cores would start 8 workers,
which take turns with the training process, need memory each, and make PyTorch warn. Only Linux says which cores a process may use.
Where a loader is gone over again in every epoch, `persistent_workers`
saves starting them anew each time. `prefetch_factor` is left alone, since its default of 2 batches per worker is seldom too few:
`--prefetch N` writes it, also for loaders that have workers already, and `torchopt tune` tries 4 and 8 where the step still waits.

Workers hand batches over in shared memory (`/dev/shm`), which containers often limit (`docker run --shm-size`).

Items are the same. Random augmentation draws from the workers' generators instead of the main process's: the same
distribution, other draws. A loader takes the seed of its workers from the main process's generator when they start:
with workers that live on, once instead of in every epoch. So from the second epoch on a seeded script shuffles in another
order than before; nothing else about the run changes, and the rewritten script repeats itself as the original did.

Workers that a loader has already are taken away where its items are only rows of tensors in memory, such as those of a `TensorDataset`:
a batch takes longer to receive from another process than to make. Samples and their order are the same. Large rows stay with their
workers, which copy them beside the step: those that the script says have more than fifty thousand numbers, and those of unknown size
that may be images. `--workers N` leaves all workers.

Left alone: datasets whose items are only looked up in memory (a `TensorDataset`: workers would only slow it down), and, in scripts
for a CPU, those whose items are only read from files (the training needs the cores itself; `--workers N` asks for them);
datasets or collate functions that store something (a cache, a counter), use a file, a lock or a random generator
opened before, or put tensors on the GPU; an `IterableDataset`, since each worker cuts its own share into batches (with
`--tier semantic` only one that does not ask `get_worker_info()` for its share); a
sampler that the loop reads or changes; a loader made, or started by `next(iter(loader))`, in every step; a dataset
that is changed while the loop runs; everything that cannot be traced. Where workers are not forked (macOS, Windows,
Python 3.14 and later), what they need must pickle, and the script needs a main guard (see `main-guard`).

Source: https://docs.pytorch.org/docs/stable/data.html#single-and-multi-process-data-loading and
https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#enable-asynchronous-data-loading-and-augmentation
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ..optimizer.analysis.datasets import is_iterable
from ..optimizer.analysis.facts import Argument, DataLoader, Fact
from ..optimizer.analysis.free_names import (
    assignment_beside,
    common_statement,
    free_name,
    names_constants_in_capitals,
)
from ..optimizer.analysis.loader_settings import Setting, said_later, setting_of, settings_by_place
from ..optimizer.analysis.needless_workers import (
    WORKER_ARGUMENTS,
    are_needless,
    removal_refused,
)
from ..optimizer.analysis.random_draws import draws_random_numbers
from ..optimizer.analysis.references import quoted, reference
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.signatures import call_argument
from ..optimizer.analysis.syntax import FunctionNode, Module
from ..optimizer.analysis.worker_count import CountKind, WorkerCount, other_use, worker_count
from ..optimizer.analysis.workers import (
    NO_GUARD,
    passes_repeat,
    persistence_refused,
    place,
    spawning_refused,
    workers_refused,
)
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import (
    FileEdit,
    InsertAfter,
    InsertBefore,
    RemoveArgument,
    ReplaceExpression,
)
from .base import Change, Example, Skip, Stage, StepPart, Transform

_MOST_WORKERS = 8
_POSITION = 5  # of num_workers among DataLoader's parameters
_NOT_MOVED = "batches are still made in the training process"
_SHARES = "each worker cuts its own share of the stream into batches, which are others then, and ends with a smaller one"
_ONE_SEED = (
    "; the loader draws its workers' seed once instead of in every pass, so from the second pass on the same seed "
    "shuffles in another order"
)
_EVERY_SEED = (
    "; the loader draws a seed in every pass instead of once, so from the second pass on the same seed shuffles in "
    "another order"
)


@dataclass(frozen=True, eq=False)
class _Group:
    """Loaders that take their ``num_workers`` from one place."""

    loaders: tuple[DataLoader, ...]
    count: WorkerCount


@dataclass(frozen=True)
class _Count:
    """``code`` is the number of workers; ``setup``, if any, the statement before it, and ``edits`` their imports."""

    code: str
    setup: str | None
    edits: tuple[FileEdit, ...]


class DataLoaderWorkers(Transform):
    name = "dataloader-workers"
    tier = Tier.EXACT
    stage = Stage.DATA
    rank = 1
    relieves = StepPart.LOADING
    example = Example(
        before="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            train_set = datasets.ImageFolder("data", transforms.Compose([transforms.Resize(64), transforms.ToTensor()]))
            train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
            model = nn.Sequential(nn.Flatten(), nn.Linear(64 * 64 * 3, 10))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for epoch in range(10):
                for images, labels in train_loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(images), labels).backward()
                    optimizer.step()
        """,
        after="""\
            import os

            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            train_set = datasets.ImageFolder("data", transforms.Compose([transforms.Resize(64), transforms.ToTensor()]))
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            train_loader = DataLoader(
                train_set, batch_size=64, shuffle=True, num_workers=min(8, cores), persistent_workers=True
            )
            model = nn.Sequential(nn.Flatten(), nn.Linear(64 * 64 * 3, 10))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for epoch in range(10):
                for images, labels in train_loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(images), labels).backward()
                    optimizer.step()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        ready: list[_Group] = []
        chosen: list[DataLoader] = []
        for group in _groups(script):
            kind = group.count.kind
            if kind is CountKind.CHOSEN:
                chosen += group.loaders
                continue
            refusals = (
                _refusals(script, group, options)
                or _unwanted(group, options)
                or _shared_out(script, group, options)
            )
            if not refusals:
                ready.append(group)
            for loader in group.loaders:
                if refusals:
                    reason = refusals.get(loader) or _shared(group, refusals, loader)
                    yield self.skip(loader.path, loader.span, f"{_NOT_MOVED}: {reason}")
        for module in script.modules:
            yield from self._start(
                script, module, options, [g for g in ready if _place(script, g).module is module]
            )
        needless = [] if options.workers else [x for x in chosen if are_needless(script, x)]
        refusals = {loader: removal_refused(script, loader) for loader in needless}
        yield from self._take_away(script, refusals)
        removed = {loader for loader, reason in refusals.items() if reason is None}
        chosen = [loader for loader in chosen if loader not in removed]
        yield from self._keep_alive(script, chosen)
        yield from self._make_ahead(script, chosen, options)

    def _take_away(
        self, script: TrainingScript, refusals: Mapping[DataLoader, str | None]
    ) -> Iterator[Change | Skip]:
        """Take their needless workers from the loaders of ``refusals`` that have no reason to keep them."""
        for loader, reason in refusals.items():
            if reason is not None:
                message = f"its workers stay, though items are only looked up in memory: {reason}"
                yield self.skip(loader.path, loader.span, message)
                continue
            count = loader.module.code(loader.arguments["num_workers"].value)
            names = [name for name in WORKER_ARGUMENTS if name in loader.arguments]
            yield self.change(
                loader.path,
                loader.span,
                f"makes batches without worker processes (`num_workers={count}` before)",
                "an item is a row of tensors in memory, and a batch of them takes less to make than to receive from another process; "
                "they draw no random numbers, so the batches are the same"
                + (_EVERY_SEED if _lived_on(script, loader) else ""),
                tuple(FileEdit(loader.path, RemoveArgument(loader.span, name)) for name in names),
            )

    def _start(
        self, script: TrainingScript, module: Module, options: Options, groups: list[_Group]
    ) -> Iterator[Change | Skip]:
        """Give the loaders of ``module`` workers; those that say so in their own calls share one variable."""
        if not groups:
            return
        unheld = [g for g in groups if g.count.zero is None or g.count.zero.holder is None]
        first = common_statement(module, [_place(script, group).node for group in groups])
        variable = _variable(module, first) if len(unheld) > 1 and unheld == groups else None
        count = _count(module, first, options)
        if count.setup is None and variable is None:
            for group in groups:
                edits = list(self._group_edits(script, group, count.code, None, options))
                yield self._change(script, group.loaders, count.code, edits)
        else:
            assigned = f"{variable} = {count.code}" if variable is not None else None
            lines = [line for line in (count.setup, assigned) if line is not None]
            edits = [_assignments(module, groups, first, "\n".join(lines)), *count.edits]
            for group in groups:
                edits += self._group_edits(script, group, count.code, variable, options)
            yield self._change(script, [x for g in groups for x in g.loaders], count.code, edits)
        for group in groups:
            yield from self._kept_short(script, group.loaders)

    def _group_edits(
        self,
        script: TrainingScript,
        group: _Group,
        code: str,
        variable: str | None,
        options: Options,
    ) -> Iterator[FileEdit]:
        """The edits that give ``group`` its workers: as many as ``variable``, if there is one, or ``code`` says."""
        yield from _count_edits(script, group, variable or code)
        zero = group.count.zero
        known_positive = "True" if zero is None or zero.holder is None else None
        condition = f"{variable} > 0" if variable is not None else known_positive
        yield from self._persistent(script, group, condition)
        for setting, value, _ in _prefetches(script, group.loaders, condition, options):
            yield FileEdit(setting.module.path, setting.edit("prefetch_factor", value))

    def _change(
        self,
        script: TrainingScript,
        loaders: Iterable[DataLoader],
        value: str,
        edits: list[FileEdit],
    ) -> Change:
        loaders = sorted(loaders, key=lambda loader: (str(loader.path), loader.span))
        first = loaders[0]
        kept = any(_sets(edit, "persistent_workers") for edit in edits)
        message = f"makes batches in worker processes (`num_workers={value}`)"
        if kept:
            message += " that live on between passes"
        if len(loaders) > 1:
            message += f", {len(loaders)} loaders alike"
        reason = _reason(script, loaders) + (_ONE_SEED if kept else "")
        change = self.change(first.path, first.span, message, reason, tuple(edits))
        if not any(_reads_stream(script, loader) for loader in loaders):
            return change
        return replace(change, tier=Tier.SEMANTIC, reason=f"{reason}; {_SHARES}")

    def _persistent(
        self, script: TrainingScript, group: _Group, condition: str | None
    ) -> Iterator[FileEdit]:
        """The edits that let the workers of ``group`` live on; ``condition`` None means: where the count is positive."""
        for setting, loaders in settings_by_place(script, "num_workers", group.loaders).items():
            if _wants_persistence(script, loaders):
                value = condition or _is_positive(loaders[0].arguments["num_workers"])
                if value is not None:
                    yield FileEdit(setting.module.path, setting.edit("persistent_workers", value))

    def _keep_alive(
        self, script: TrainingScript, loaders: list[DataLoader]
    ) -> Iterator[Change | Skip]:
        """Let workers that the script already asks for live on between passes."""
        loaders = [loader for loader in loaders if said_later(loader, "num_workers") is None]
        for setting, users in settings_by_place(script, "num_workers", loaders).items():
            value = _is_positive(users[0].arguments["num_workers"])
            if value is None or any("persistent_workers" in x.arguments for x in users):
                continue
            if not _wants_persistence(script, users):
                yield from self._kept_short(script, users)
                continue
            first = users[0]
            yield self.change(
                first.path,
                first.span,
                "keeps the workers alive between passes (`persistent_workers`)",
                "the loader is gone over again and again, and nothing in its workers or its dataset changes between "
                f"passes; they no longer start anew each time{_ONE_SEED}",
                (FileEdit(setting.module.path, setting.edit("persistent_workers", value)),),
            )

    def _make_ahead(
        self, script: TrainingScript, loaders: list[DataLoader], options: Options
    ) -> Iterator[Change]:
        """Let workers that the script already asks for make more batches ahead."""
        loaders = [loader for loader in loaders if said_later(loader, "num_workers") is None]
        for setting, value, users in _prefetches(script, loaders, None, options):
            yield self.change(
                users[0].path,
                users[0].span,
                f"each worker makes {options.prefetch} batches ahead (`prefetch_factor={value}`)",
                "the same batches in the same order, more of them in memory at a time",
                (FileEdit(setting.module.path, setting.edit("prefetch_factor", value)),),
            )

    def _kept_short(self, script: TrainingScript, loaders: Iterable[DataLoader]) -> Iterator[Skip]:
        for loader in loaders:
            if passes_repeat(script, loader) and "persistent_workers" not in loader.arguments:
                reason = persistence_refused(script, loader)
                if reason is not None:
                    yield self.skip(
                        loader.path, loader.span, f"its workers end with each pass: {reason}"
                    )


def held_back_by_missing_guard(script: TrainingScript, options: Options) -> list[DataLoader]:
    """The loaders that would get workers if the script had a main guard."""
    held: list[DataLoader] = []
    for group in _groups(script):
        if group.count.kind is not CountKind.CHOSEN:
            refusals = _refusals(script, group, options)
            if refusals and set(refusals.values()) == {NO_GUARD}:
                held += group.loaders
    return held


def _groups(script: TrainingScript) -> list[_Group]:
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
    return [_Group(tuple(x for x, _ in members), members[0][1]) for members in grouped.values()]


def _place(script: TrainingScript, group: _Group) -> Fact:
    """Where the count of ``group`` is written: the 0 that says it now, or the arguments of its loaders."""
    zero = group.count.zero
    if zero is not None and zero.holder is not None:
        return zero
    setting = setting_of(script, "num_workers", group.loaders[0])
    return Fact(setting.module, setting.node)


def _refusals(script: TrainingScript, group: _Group, options: Options) -> dict[DataLoader, str]:
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
            line = added.module.span(added.value).line
            reason = f"its num_workers is put into a keyword dict at line {line}; raise it there"
        if reason is not None:
            found[loader] = reason
    zero = group.count.zero
    use = other_use(script.resolver, zero, script.loaders) if zero is not None else None
    if use is not None and not found:
        where = place(use, group.loaders[0].path)
        said = f"its num_workers is the 0 {where}, which is not followed further; raise it there"
        if use is not zero:
            said = f"the 0 of its num_workers is also used elsewhere {where}"
        found[group.loaders[0]] = said
    return found


def _unwanted(group: _Group, options: Options) -> dict[DataLoader, str]:
    """Why no loader of ``group`` shall have workers."""
    reason = "on this machine workers would not make it faster, says --workers or --profile"
    return dict.fromkeys(group.loaders, reason) if options.workers == 0 else {}


def _shared(group: _Group, refusals: dict[DataLoader, str], loader: DataLoader) -> str:
    other = next(iter(refusals))
    where = place(other, loader.path)
    return f"it shares its num_workers with another loader {where} that must not have workers"


def _count(module: Module, first: ast.stmt, options: Options) -> _Count:
    """The number of workers: the CPU cores this process may use, at most 8, if nobody chose."""
    if options.workers is not None:
        return _Count(str(options.workers), None, ())
    system = reference(module, "os")
    names = ["cores", "cpu_cores", "usable_cores"]
    if _is_constant(module, first):
        names = [name.upper() for name in names]
    cores = free_name(module, names) or "usable_cpu_cores"
    has_affinity = f"hasattr({system.code}, {quoted(module, 'sched_getaffinity')})"
    granted = f"len({system.code}.sched_getaffinity(0))"
    setup = f"{cores} = {granted} if {has_affinity} else {system.code}.cpu_count() or 1"
    return _Count(f"min({_MOST_WORKERS}, {cores})", setup, system.edits)


def _assignments(module: Module, groups: list[_Group], first: ast.stmt, code: str) -> FileEdit:
    """Inserts ``code`` above ``first``, if possible beside the batch size of ``groups``."""
    for loader in (loader for group in groups for loader in group.loaders):
        batch_size = loader.arguments.get("batch_size")
        if batch_size is not None and batch_size.module is module:
            beside = assignment_beside(module, batch_size.value, first)
            if beside is not None:
                return FileEdit(module.path, InsertAfter(module.span(beside), code))
    return FileEdit(module.path, InsertBefore(module.span(first), code))


def _is_constant(module: Module, first: ast.stmt) -> bool:
    """Whether a variable that is set above ``first`` is one that the file would spell in capitals."""
    shared_by_functions = isinstance(first, FunctionNode | ast.ClassDef)
    return shared_by_functions or (
        first in module.tree.body and names_constants_in_capitals(module)
    )


def _variable(module: Module, first: ast.stmt) -> str | None:
    """A name for the number of workers that several loaders share."""
    if _is_constant(module, first):
        return free_name(module, ["NUM_WORKERS", "LOADER_WORKERS"])
    return free_name(module, ["num_workers", "n_workers", "loader_workers"])


def _count_edits(script: TrainingScript, group: _Group, value: str) -> Iterator[FileEdit]:
    """The edits that make ``value`` the number of workers of ``group``."""
    zero = group.count.zero
    if zero is not None and zero.holder is not None:
        yield FileEdit(zero.path, ReplaceExpression(zero.span, value))
        if zero.option is not None:
            yield from _help_edits(zero.module, zero.option)
        return
    for setting in settings_by_place(script, "num_workers", group.loaders):
        yield FileEdit(setting.module.path, setting.edit("num_workers", value, _POSITION))


def _help_edits(module: Module, option: ast.Call) -> Iterator[FileEdit]:
    """Corrects a help text that states the default: ``"(default: 0)"``."""
    text = call_argument(option, "help")
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        code = module.code(text)
        new = re.sub(
            r"(default\s*[:=]?\s*)0\b", rf"\g<1>one per CPU core, up to {_MOST_WORKERS}", code
        )
        if new != code:
            yield FileEdit(module.path, ReplaceExpression(module.span(text), new))


def _wants_persistence(script: TrainingScript, loaders: list[DataLoader]) -> bool:
    """Whether workers that ``loaders`` alike have shall live on: it pays for one, and is right for all."""
    return any(passes_repeat(script, loader) for loader in loaders) and not any(
        persistence_refused(script, loader) for loader in loaders
    )


def _prefetches(
    script: TrainingScript,
    loaders: Iterable[DataLoader],
    condition: str | None,
    options: Options,
) -> Iterator[tuple[Setting, str, list[DataLoader]]]:
    """Where ``--prefetch`` is to be written, and as what: without workers DataLoader takes None only.

    ``condition`` says whether there are workers; None means: where the count is positive.
    """
    if options.prefetch is None:
        return
    for setting, users in settings_by_place(script, "num_workers", loaders).items():
        said = any("prefetch_factor" in x.arguments or x.opaque is not None for x in users)
        test = condition or _is_positive(users[0].arguments["num_workers"])
        if not said and test is not None:
            count = str(options.prefetch)
            yield setting, count if test == "True" else f"{count} if {test} else None", users


def _lived_on(script: TrainingScript, loader: DataLoader) -> bool:
    kept = loader.arguments.get("persistent_workers")
    return kept is not None and script.resolver.is_always(kept.value, kept.module, True)


def _is_positive(argument: Argument) -> str | None:
    """An expression that says whether the number of workers is positive; None where none can be written."""
    value = argument.value
    if isinstance(value, ast.Constant):
        return "True" if isinstance(value.value, int) and value.value > 0 else None
    if isinstance(value, ast.Name | ast.Attribute):
        return f"{argument.module.code(value)} > 0"
    return None


def _shared_out(script: TrainingScript, group: _Group, options: Options) -> dict[DataLoader, str]:
    """The loaders of streams, whose batches are others with workers, unless a change of training is asked for."""
    if options.tier >= Tier.SEMANTIC:
        return {}
    return {
        loader: f"{_SHARES} (`--tier semantic`)"
        for loader in group.loaders
        if _reads_stream(script, loader)
    }


def _reads_stream(script: TrainingScript, loader: DataLoader) -> bool:
    return any(is_iterable(script.resolver, dataset) for dataset in script.datasets[loader])


def _reason(script: TrainingScript, loaders: list[DataLoader]) -> str:
    datasets = list(dict.fromkeys(d for loader in loaders for d in script.datasets[loader]))
    names = " and ".join(dict.fromkeys(dataset.name for dataset in datasets))
    reason = (
        f"making an item of {names} needs and changes nothing that a worker's copy would not have"
    )
    if any(draws_random_numbers(script.resolver, dataset) for dataset in datasets):
        return f"{reason}; its random draws come from the workers' generators now: the same distribution, other draws"
    return f"{reason}; it draws no random numbers, so the items are the same"


def _sets(edit: FileEdit, key: str) -> bool:
    return key in {getattr(edit.edit, "keyword", None), getattr(edit.edit, "key", None)}
