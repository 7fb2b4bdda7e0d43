"""Worker processes that only carry what lies in memory from one process to another."""

from __future__ import annotations

import ast

from ..calls.signatures import call_argument
from ..facts import DataLoader
from ..script import TrainingScript
from ..values.values import External, Made, Value
from .indexed_batches import GOES_OVER, is_given, other_use
from .iterations import goes_over_one
from .loaders import DATALOADER
from .tensor_datasets import indexed_tensors
from .workers import dataset_changes, worker_code

WORKER_ARGUMENTS = (
    "num_workers",
    "persistent_workers",
    "prefetch_factor",
    "multiprocessing_context",
    "timeout",
)
"""What DataLoader takes for the sake of its workers; most of it is an error without them."""
_GENERATORS = {
    "torch.utils.data.RandomSampler": 3,
    "torch.utils.data.SubsetRandomSampler": 1,
    "torch.utils.data.WeightedRandomSampler": 3,
    "torch.utils.data.SequentialSampler": None,
    "torch.utils.data.distributed.DistributedSampler": None,
}
"""Samplers that draw all their random numbers when a pass starts, unless they are given a generator, at this position."""

_IMAGE_LAYERS = frozenset(
    {f"torch.nn.Conv{n}d" for n in (2, 3)} | {f"torch.nn.functional.conv{n}d" for n in (2, 3)}
)
_IMAGE_LIBRARIES = frozenset({"torchvision", "timm", "segmentation_models_pytorch", "monai"})
_LARGEST_ROW = 50_000
"""In numbers. Measured on two cores, with two workers: batches of 64 rows of 12,288 float32 come in a third of the time without
them, 64 of 49,152 (12 MiB) in the same time, and 64 of 150,528 take 20 ms to copy, which more workers would hide."""


def are_needless(script: TrainingScript, loader: DataLoader) -> bool:
    """Whether workers of ``loader`` only look up rows of tensors in memory, which takes less than to send them.

    Large rows take long to copy, which workers do beside the step. Where the script does not say how large they are, images
    count as large.
    """
    tensors = indexed_tensors(script.resolver, loader)
    if tensors is None:
        return False
    return tensors.row <= _LARGEST_ROW if tensors.row else not _sees_images(script)


def _sees_images(script: TrainingScript) -> bool:
    """Whether a network of ``script`` may be one for images or volumes."""
    return any(
        name in _IMAGE_LAYERS or name.partition(".")[0] in _IMAGE_LIBRARIES
        for module in script.modules
        for call in module.calls
        for name in script.names(call.func, module)
    )


def removal_refused(script: TrainingScript, loader: DataLoader) -> str | None:
    """Why a ``loader`` whose workers are needless must keep them; None when the run is the same without."""
    for find in (_arguments, _order, _changes, _uses):
        reason = find(script, loader)
        if reason is not None:
            return reason
    return None


def _arguments(script: TrainingScript, loader: DataLoader) -> str | None:
    if loader.opaque is not None:
        return f"`{loader.module.code(loader.opaque)}` is not known"
    if script.names(loader.node.func, loader.module) != frozenset({DATALOADER}):
        return "its class is the script's own"
    written = [keyword.value for keyword in loader.node.keywords]
    for name in WORKER_ARGUMENTS:
        given = loader.arguments.get(name)
        if given is not None and not (
            given.value in written and isinstance(given.value, ast.Constant)
        ):
            return f"its `{name}` is chosen elsewhere (`{given.module.code(given.value)}`)"
    for name in ("worker_init_fn", "collate_fn", "batch_sampler"):
        if is_given(script.resolver, loader.arguments.get(name)):
            return f"its `{name}` may do something else in the training process"
    size = loader.arguments.get("batch_size")
    if size is not None and script.resolver.is_always(size.value, size.module, None):
        return "its items are not copied into batches, and the loop would get the dataset's own"
    return None


def _order(script: TrainingScript, loader: DataLoader) -> str | None:
    """Whether the order of the samples is drawn at once: workers ask the sampler ahead of the loop."""
    sampler = loader.arguments.get("sampler")
    if sampler is None or not is_given(script.resolver, sampler):
        return None
    for value in script.values(sampler.value, sampler.module):
        if not _draws_at_once(value):
            return f"when its sampler draws is not known (`{sampler.module.code(sampler.value)}`)"
    return None


def _draws_at_once(sampler: Value) -> bool:
    match sampler:
        case Made(call, _, External(name)) if name in _GENERATORS:
            position = _GENERATORS[name]
            return position is None or call_argument(call, "generator", position) is None
        case _:
            return False


def _changes(script: TrainingScript, loader: DataLoader) -> str | None:
    for change in dataset_changes(script, loader, worker_code(script, loader)):
        where = f"({change.place})"
        return f"`{change.code}` {where} changes {change.part}, of which workers have a copy"
    return None


def _uses(script: TrainingScript, loader: DataLoader) -> str | None:
    passes = [i for i in script.iterations if loader in i.loaders]
    if not passes:
        return "no loop over it was found"
    for iteration in passes:
        alone = goes_over_one(script.resolver, iteration)
        if (iteration.by_hand and not iteration.takes_one) or not alone:
            where = f"({iteration.place})"
            return f"random numbers may be drawn between its start and its first batch {where}"
    use = other_use(script.resolver, loader, GOES_OVER)
    return None if use is None else f"what `{use.excerpt}` does with it is not known"
