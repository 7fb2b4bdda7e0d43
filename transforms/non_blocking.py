"""Copies batches to the GPU without waiting: `x.to(device, non_blocking=True)`.

A copy from pinned memory can run while the script goes on and launches kernels; the GPU itself keeps the order, so
whatever uses the copy there waits for it. `.to(..)` and `.cuda(..)` of tensors that come straight from a loader that
pins its memory (see `pin-memory`) get `non_blocking=True`, also inside calls (`model(x.to(device))`), comprehensions over
dicts and lists, and helper functions. A view of the batch (`x.view(n, -1)`, `x[0]`, `x.permute(..)`) is still pinned. One
that is converted first, `x.float().to(device)`, is copied as it is and converted there, which gives the same numbers.
On the CPU the argument is ignored.

Left alone: copies from the device to the host, where the script could read the result before it has arrived;
tensors computed on the host first (`x / 255`), whose new memory is not pinned; batches that the script
writes to in place afterwards, while the copy may still be reading; loaders that do not pin; objects of a `collate_fn`
whose own `to` may not take the argument; `x.type(..)`, models and everything that is not known to be a batch.

Source: https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html and
https://docs.pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..optimizer.analysis.calls.signatures import call_argument
from ..optimizer.analysis.loading.batch_memory import host_write_after, pins_memory
from ..optimizer.analysis.loading.batch_objects import refuses_argument
from ..optimizer.analysis.loading.batches import BatchCopy, Place
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import Edit, FileEdit, ReplaceExpression, SetArgument
from .base import Change, Example, Skip, Stage, StepPart, Transform

_REASON = (
    "the batch lies in pinned memory that nothing writes to before the next one is loaded, and the GPU runs the copy before "
    "whatever uses it"
)


class NonBlocking(Transform):
    name = "non-blocking"
    tier = Tier.EXACT
    stage = Stage.DATA
    rank = 3
    relieves = StepPart.COPIES
    only_on_cuda = True
    example = Example(
        before="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            train_set = datasets.MNIST("data", transform=transforms.ToTensor())
            loader = DataLoader(train_set, batch_size=64, num_workers=2, pin_memory=True)
            model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for images, labels in loader:
                images = images.to("cuda")
                labels = labels.cuda()
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
        """,
        after="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            train_set = datasets.MNIST("data", transform=transforms.ToTensor())
            loader = DataLoader(train_set, batch_size=64, num_workers=2, pin_memory=True)
            model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for images, labels in loader:
                images = images.to("cuda", non_blocking=True)
                labels = labels.cuda(non_blocking=True)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        if not script.targets_cuda(options):
            return
        for copy in script.batch_copies:
            if _says_non_blocking(copy.node):
                continue
            converted = script.converted_copies.get(copy)
            reason = _refusal(script, copy if converted is None else converted.copy)
            if reason is not None:
                yield self.skip(copy.path, copy.span, f"the copy still waits: {reason}")
                continue
            edit: Edit = SetArgument(copy.span, "non_blocking", "True")
            message = "copies the batch to the GPU without waiting (`non_blocking=True`)"
            if converted is not None:
                edit = ReplaceExpression(copy.span, converted.code)
                message += ", and converts it there"
            yield self.change(copy.path, copy.span, message, _REASON, (FileEdit(copy.path, edit),))


def _says_non_blocking(call: ast.Call) -> bool:
    positional = any(isinstance(a, ast.Constant) and isinstance(a.value, bool) for a in call.args)
    return positional or call_argument(call, "non_blocking") is not None


def _refusal(script: TrainingScript, copy: BatchCopy) -> str | None:
    """Why ``copy`` must wait, or gains nothing by not waiting."""
    for loader in copy.loaders:
        if loader in script.copying_frameworks:
            return f"{script.copying_frameworks[loader]} has copied the batch already"
    unpinned = [x for x in copy.loaders if not pins_memory(script.resolver, x)]
    if unpinned:
        loader, where = unpinned[0], f"({unpinned[0].place})"
        if loader.opaque is not None and "pin_memory" not in loader.arguments:
            code = loader.module.code(loader.opaque)
            return f"the loader {where} is not known to pin its memory, which `{code}` may say"
        return f"the loader {where} does not pin its memory"
    if copy.method == "type":
        return "`.type(..)` converts while it copies; only `.to(..)` and `.cuda(..)` are changed"
    if None in copy.parts:
        return f"`{copy.module.code(copy.source)}` may be something else than a batch of a loader"
    if any(part is not None and part.place is Place.DEVICE for part in copy.parts):
        return f"`{copy.module.code(copy.source)}` may be on the device already"
    if not copy.copies_loaded_memory:
        return f"`{copy.module.code(copy.source)}` is computed from the batch, and its new memory is not pinned"
    refused = refuses_argument(script, copy, "non_blocking")
    if refused is not None:
        return refused
    written = host_write_after(script, copy)
    if written is not None:
        return f"the batch is written to while the copy may still read it ({written.place})"
    return None
