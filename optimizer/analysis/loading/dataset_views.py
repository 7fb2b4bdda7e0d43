"""Whether the loop over a loader writes to what the dataset itself holds: batches that are no copies, changed in place.

Without workers such a write is there in the next epoch; a worker sends a copy, and it would be lost.
"""

from __future__ import annotations

import ast

from ...options import Options
from ..calls.reach import lexical_nodes
from ..calls.signatures import first_parameter
from ..facts import DataLoader, Fact
from ..program.classes import class_attribute
from ..script import TrainingScript
from ..values.access_paths import holders
from ..values.values import Function
from .batches import Place
from .datasets import Dataset, function_code

_COPIES = frozenset(
    {
        *(f"torch.{name}" for name in ("stack", "cat", "concat", "tensor", "vstack", "hstack")),
        *(f"numpy.{name}" for name in ("stack", "array", "concatenate", "vstack")),
        "torch.nn.utils.rnn.pad_sequence",
        "torch.nn.utils.rnn.pack_sequence",
        "torch.utils.data.default_collate",
        "torch.utils.data.dataloader.default_collate",
        "torch.utils.data._utils.collate.default_collate",
    }
)


def write_to_dataset(
    script: TrainingScript, loader: DataLoader, datasets: tuple[Dataset, ...], options: Options
) -> Fact | None:
    """What writes through a batch of ``loader`` into one of its ``datasets``; None where nothing does."""
    if _are_copies(script, loader) or not any(_hands_out_its_own(script, d) for d in datasets):
        return None
    here = {Place.LOADED} if script.targets_cuda(options) else {Place.LOADED, Place.DEVICE}
    for write in script.batch_writes:
        if any(p is not None and p.loader is loader and p.place in here for p in write.parts):
            return write
    return None


def _are_copies(script: TrainingScript, loader: DataLoader) -> bool:
    """Whether making a batch copies the items: the default does, unless it makes none (``batch_size=None``)."""
    resolver = script.resolver
    if "collate_fn" not in loader.arguments:
        size = loader.arguments.get("batch_size")
        return size is None or not resolver.is_always(size.value, size.module, None)
    collate = loader.arguments["collate_fn"]
    if resolver.names(collate.value, collate.module) & _COPIES:
        return True
    return any(
        isinstance(node, ast.Call) and resolver.names(node.func, module) & _COPIES
        for node, module, _ in function_code(resolver, collate) or ()
    )


def _hands_out_its_own(script: TrainingScript, dataset: Dataset) -> bool:
    """Whether an item is, or has in it, a part of what the dataset keeps: ``return self.images[i]``."""
    if dataset.cls is None:
        return False
    for method in class_attribute(script.resolver, dataset.cls, "__getitem__"):
        if not isinstance(method, Function) or isinstance(method.node, ast.Lambda):
            continue
        mine = first_parameter(method.node)
        for node in lexical_nodes(method.node.body):
            if not isinstance(node, ast.Return) or node.value is None:
                continue
            value = node.value
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
            for part in value.values if isinstance(value, ast.Dict) else parts:
                for holder in holders(script.resolver, part, method.module):
                    if isinstance(holder.node, ast.Name) and holder.node.id == mine:
                        return True
    return False
