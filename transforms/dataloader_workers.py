"""Makes batches in worker processes: `num_workers=`, kept alive between epochs with `persistent_workers=True`.

A `DataLoader` without workers reads, decodes and augments every batch in the training process, while the device waits.
With workers the next batches are made while the current one is computed. Loaders that leave `num_workers` out, or say
0 (also through a keyword dict, a constant or the default of a command-line option), get as many workers as this
process may use CPU cores, at most 16 beside a GPU and at most 8 where the CPU has to train as well, or as many as `--workers N`
or the measurement in `--profile FILE` says; 0 leaves them without. Beside a GPU so do loaders whose call or keyword dict says a smaller
number (`num_workers=2` becomes `num_workers=max(2, min(16, cores))`), if their items are decoded or computed; not those of an option or a
variable, nor with a `worker_init_fn`. Where several processes train, those that torchrun starts (`LOCAL_WORLD_SIZE`) or
one for each GPU (`mp.spawn`, Horovod), they share the cores. They are counted where the script runs, so that it can be shared between machines. `os.cpu_count()` alone would be
shorter, but counts all of the machine: a job that Slurm or `docker run --cpuset-cpus` gives 2 of 64 cores would start 8 or 16 workers,
which take turns with the training process, need memory each, and make PyTorch warn. Only Linux says which cores a process may use.
Where a loader is gone over again in every epoch, `persistent_workers`
saves starting them anew each time, unless many loaders are there at once (`[DataLoader(d) for d in domains]`), or the script changes between passes what workers have copies of: the dataset (`random.shuffle(dataset.pairs)`,
`dataset.transform = ..`, a method that stores something), what it was given, and the attributes of classes and the settings that its items read. `prefetch_factor` is left alone, since its default of 2 batches per worker is seldom too few:
`--prefetch N` writes it, also for loaders that have workers already, and `torchopt tune` tries 4 and 8 where the step still waits.

Loaders that a Lightning Trainer goes over count as well: given to `fit`, or returned by a data module's `train_dataloader`; and those that Accelerate or Fabric wraps (`accelerator.prepare(loader)`). A hook that
may change their datasets through the Trainer keeps them without workers.

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
sampler that the loop reads or changes; a loader that each of the processes makes which the script starts in a loop (`Process(target=train)`; how many share
the cores is not known, `--workers N` says how many workers each gets); a loader made, or started by `next(iter(loader))`, in every step; one made
in each turn of an inner loop that goes on with the same training, or one of many that take turns, as those of the clients in federated learning, whose
passes may be too short for a start of workers (`--workers N`); one whose dataset is a single batch (`batch_size=len(dataset)`); a dataset, or what its items read, that is changed while the loop runs; batches that are kept for a whole pass as they come (`batches = list(loader)`), since
each from a worker holds a file open, of which a process may have 1024 on most systems (moved to the GPU or cloned first they hold none; `labels.append(y)`
becomes `labels.append(y.clone())` where `y` can only be a tensor); batches that are no copies of what the dataset holds and are
written to in place (`batch_size=None` and `x.mul_(2)`); everything that cannot be traced. Where workers are not forked (macOS, Windows,
Python 3.14 and later), what they need must pickle, and the script needs a main guard (see `main-guard`).

Source: https://docs.pytorch.org/docs/stable/data.html#single-and-multi-process-data-loading and
https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#enable-asynchronous-data-loading-and-augmentation
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..optimizer.analysis.editing.free_names import (
    common_statement,
)
from ..optimizer.analysis.facts import DataLoader
from ..optimizer.analysis.loading.datasets import function_code
from ..optimizer.analysis.loading.kept_copies import kept_copies
from ..optimizer.analysis.loading.loader_settings import said_later, settings_by_place
from ..optimizer.analysis.loading.needless_workers import (
    WORKER_ARGUMENTS,
    are_needless,
    removal_refused,
)
from ..optimizer.analysis.loading.passes import passes_repeat
from ..optimizer.analysis.loading.random_draws import code_draws, draws_random_numbers
from ..optimizer.analysis.loading.worker_count import CountKind
from ..optimizer.analysis.loading.worker_edits import (
    above_loops,
    assignments,
    count_edits,
    is_positive,
    number_of_workers,
    prefetches,
    shared_variable,
)
from ..optimizer.analysis.loading.worker_groups import (
    SHARES_OF_A_STREAM,
    WorkerGroup,
    count_place,
    reads_stream,
    refusals_of,
    shared_out,
    shared_with_refused,
    too_few,
    unwanted,
    worker_groups,
)
from ..optimizer.analysis.loading.workers import persistence_refused
from ..optimizer.analysis.program.syntax import Module
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.wording import listed
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import (
    FileEdit,
    RemoveArgument,
)
from .base import Change, Example, Skip, Stage, StepPart, Transform

_NOT_MOVED = "batches are still made in the training process"
_ONE_SEED = (
    "; the loader draws its workers' seed once instead of in every pass, so from the second pass on the same seed "
    "gives other draws, such as the order of a shuffle"
)
_EVERY_SEED = (
    "; the loader draws a seed in every pass instead of once, so from the second pass on the same seed gives other "
    "draws, such as the order of a shuffle"
)


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
        ready: list[WorkerGroup] = []
        chosen: list[DataLoader] = []
        for group in worker_groups(script):
            if group.count.kind is CountKind.CHOSEN:
                if too_few(script, group, options) is None:
                    chosen += group.loaders
                else:
                    ready.append(group)
                continue
            refusals = (
                refusals_of(script, group, options)
                or unwanted(group, options)
                or shared_out(script, group, options)
            )
            if not refusals:
                ready.append(group)
            for loader in group.loaders:
                if refusals:
                    reason = refusals.get(loader) or shared_with_refused(group, refusals, loader)
                    yield self.skip(loader.path, loader.span, f"{_NOT_MOVED}: {reason}")
        for module in script.modules:
            here = [group for group in ready if count_place(script, group).module is module]
            yield from self._start(script, module, options, here)
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
        self, script: TrainingScript, module: Module, options: Options, groups: list[WorkerGroup]
    ) -> Iterator[Change | Skip]:
        """Give the loaders of ``module`` workers, or more; those that say so in their own calls share one variable."""
        if not groups:
            return
        places = [count_place(script, group).node for group in groups]
        first = above_loops(script, module, common_statement(module, places))
        count = number_of_workers(script, module, first, options)
        codes = [count.at_least(group.count.written or 0) for group in groups]
        held = any(g.count.zero is not None and g.count.zero.holder is not None for g in groups)
        shared = len(groups) > 1 and not held and len(set(codes)) == 1
        variable = shared_variable(module, first) if shared else None
        if count.setup is None and variable is None:
            for group, code in zip(groups, codes, strict=True):
                edits = list(self._group_edits(script, group, code, count.words, None, options))
                yield self._change(script, [group], [code], edits, options)
        else:
            assigned = f"{variable} = {codes[0]}" if variable is not None else None
            lines = [line for line in (count.setup, assigned) if line is not None]
            is_setting = variable is not None
            placed = assignments(module, groups, first, "\n".join(lines), is_setting=is_setting)
            edits = [placed, *count.edits]
            for group, code in zip(groups, codes, strict=True):
                edits += self._group_edits(script, group, code, count.words, variable, options)
            yield self._change(script, groups, codes, edits, options)
        for group in groups:
            yield from self._kept_short(script, group.loaders)

    def _group_edits(
        self,
        script: TrainingScript,
        group: WorkerGroup,
        code: str,
        words: str,
        variable: str | None,
        options: Options,
    ) -> Iterator[FileEdit]:
        """The edits that give ``group`` its workers: as many as ``variable``, if there is one, or ``code`` says, ``words`` in a
        help text."""
        yield from count_edits(script, group, variable or code, words)
        zero = group.count.zero
        known_positive = "True" if zero is None or zero.holder is None else None
        condition = f"{variable} > 0" if variable is not None else known_positive
        yield from self._persistent(script, group, condition)
        for setting, value, _ in prefetches(script, group.loaders, condition, options):
            yield FileEdit(setting.module.path, setting.edit("prefetch_factor", value))

    def _change(
        self,
        script: TrainingScript,
        groups: Sequence[WorkerGroup],
        codes: Sequence[str],
        edits: list[FileEdit],
        options: Options,
    ) -> Change:
        loaders = [loader for group in groups for loader in group.loaders]
        loaders.sort(key=lambda loader: (str(loader.path), loader.span))
        first = loaders[0]
        more = all(group.count.written for group in groups)
        counts = listed(f"`num_workers={code}`" for code in codes)
        kept = any(_sets(edit, "persistent_workers") for edit in edits)
        message = f"makes batches in {'more ' * more}worker processes ({counts})"
        if kept:
            some = not all(_wants_persistence(script, [loader]) for loader in loaders)
            message += f"{', some of which' if some else ' that'} live on between passes"
        if len(loaders) > 1:
            message += f", {len(loaders)} loaders alike"
        reason = _reason(script, loaders, more) + (_ONE_SEED if kept else "")
        copies = [e for loader in loaders for e in kept_copies(script, loader, options)]
        if copies:
            message += ", and keeps copies of what the script keeps of each"
            reason += "; what comes from a worker holds a file open as long as it is kept, a copy does not"
        edits += dict.fromkeys(copies)
        change = self.change(first.path, first.span, message, reason, tuple(edits))
        if not any(reads_stream(script, loader) for loader in loaders):
            return change
        return replace(change, tier=Tier.SEMANTIC, reason=f"{reason}; {SHARES_OF_A_STREAM}")

    def _persistent(
        self, script: TrainingScript, group: WorkerGroup, condition: str | None
    ) -> Iterator[FileEdit]:
        """The edits that let the workers of ``group`` live on; ``condition`` None means: where the count is positive."""
        for setting, loaders in settings_by_place(script, "num_workers", group.loaders).items():
            said = group.count.written and any("persistent_workers" in x.arguments for x in loaders)
            if not said and _wants_persistence(script, loaders):
                value = condition or is_positive(
                    script.resolver, loaders[0].arguments["num_workers"]
                )
                if value is not None:
                    yield FileEdit(setting.module.path, setting.edit("persistent_workers", value))

    def _keep_alive(
        self, script: TrainingScript, loaders: list[DataLoader]
    ) -> Iterator[Change | Skip]:
        """Let workers that the script already asks for live on between passes."""
        loaders = [loader for loader in loaders if said_later(loader, "num_workers") is None]
        for setting, users in settings_by_place(script, "num_workers", loaders).items():
            value = is_positive(script.resolver, users[0].arguments["num_workers"])
            if any("persistent_workers" in x.arguments for x in users):
                continue
            if not _wants_persistence(script, users):
                yield from self._kept_short(script, users)
                continue
            if value is None:
                yield from self._untold(users)
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

    def _untold(self, loaders: Iterable[DataLoader]) -> Iterator[Skip]:
        """Why workers end whose number may be zero, and is not written so that it could be asked twice."""
        for loader in loaders:
            count = loader.arguments["num_workers"]
            code = count.module.unindented_code(count.value)
            message = f"its workers end with each pass: `persistent_workers=` would compute `{code}` a second time"
            if not isinstance(count.value, ast.Constant):
                yield self.skip(loader.path, loader.span, message)

    def _make_ahead(
        self, script: TrainingScript, loaders: list[DataLoader], options: Options
    ) -> Iterator[Change]:
        """Let workers that the script already asks for make more batches ahead."""
        loaders = [loader for loader in loaders if said_later(loader, "num_workers") is None]
        for setting, value, users in prefetches(script, loaders, None, options):
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


def _wants_persistence(script: TrainingScript, loaders: list[DataLoader]) -> bool:
    """Whether workers that ``loaders`` alike have shall live on: it pays for one, and is right for all."""
    return any(passes_repeat(script, loader) for loader in loaders) and not any(
        persistence_refused(script, loader) for loader in loaders
    )


def _lived_on(script: TrainingScript, loader: DataLoader) -> bool:
    kept = loader.arguments.get("persistent_workers")
    return kept is not None and script.resolver.is_always(kept.value, kept.module, True)


def _reason(script: TrainingScript, loaders: list[DataLoader], more: bool) -> str:
    datasets = list(dict.fromkeys(d for loader in loaders for d in script.datasets[loader]))
    names = listed(dataset.name for dataset in datasets)
    reason = (
        f"making an item of {names} needs and changes nothing that a worker's copy would not have"
    )
    collated = [
        reached
        for loader in loaders
        for reached in function_code(script.resolver, loader.arguments.get("collate_fn")) or ()
    ]
    if code_draws(script.resolver, collated) or any(
        draws_random_numbers(script.resolver, dataset) for dataset in datasets
    ):
        drawn = "other workers' generators" if more else "the workers' generators now"
        return f"{reason}; its random draws come from {drawn}: the same distribution, other draws"
    return f"{reason}; it draws no random numbers, so the items are the same"


def _sets(edit: FileEdit, key: str) -> bool:
    return key in {getattr(edit.edit, "keyword", None), getattr(edit.edit, "key", None)}
