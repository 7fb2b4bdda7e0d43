"""Leaves out the last, shorter batch of each epoch of training: `drop_last=True`.

A last batch of another size makes compiled code compile again (or fall back to dynamic shapes), makes cuDNN and the
caching allocator look for new plans and new memory, and disturbs BatchNorm, which fails on a single sample. When it is left
out, every step has the same shapes. Training changes a little: of each epoch the samples of that batch are not seen. As
the loader shuffles, they are others every time.

It is never done by default: ask for it with `--tier semantic --select drop-last`. Where the dataset may be shorter than
one batch the script asks (`drop_last=len(train_set) >= args.batch_size`), so that it never trains on nothing. Averages
that the script divides by `len(loader.dataset)` count samples that are no longer used.

Left alone: loaders that are not shuffled (they would leave out the same samples every time) or have a sampler; loaders
that evaluate, also those that both train and evaluate; those that say `drop_last` themselves; datasets that are only
iterated, or whose length is not known.

Source: https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..optimizer.analysis.facts import Argument, DataLoader
from ..optimizer.analysis.loading.last_batches import full_batches, only_trains
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import FileEdit, SetArgument
from .base import Change, Example, Skip, Stage, Transform


class DropLast(Transform):
    name = "drop-last"
    tier = Tier.SEMANTIC
    stage = Stage.DATA
    rank = 4
    opt_in = True
    example = Example(
        before="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            train_set = datasets.MNIST("data", transform=transforms.ToTensor())
            loader = DataLoader(train_set, batch_size=64, shuffle=True)
            model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for images, labels in loader:
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
            loader = DataLoader(train_set, batch_size=64, shuffle=True, drop_last=True)
            model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for images, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        for loader in script.loaders:
            said = loader.arguments.get("drop_last")
            if said is not None:
                if not (isinstance(said.value, ast.Constant) and said.value.value):
                    code = said.module.code(said.value)
                    yield self._skip(loader, f"the script says `drop_last={code}`")
                continue
            why = _refusal(script, loader)
            if why is not None:
                yield self._skip(loader, why)
                continue
            condition, why = full_batches(script.resolver, loader)
            if condition is None:
                yield self._skip(loader, why)
                continue
            yield self.change(
                loader.path,
                loader.span,
                f"leaves out the last, shorter batch of each epoch (`drop_last={condition}`)",
                "the loader only trains and shuffles, so other samples are left out every time",
                (FileEdit(loader.path, SetArgument(loader.span, "drop_last", condition)),),
            )

    def _skip(self, loader: DataLoader, why: str) -> Skip:
        return self.skip(loader.path, loader.span, f"the last batch stays: {why}")


def _refusal(script: TrainingScript, loader: DataLoader) -> str | None:
    if loader.opaque is not None:
        return f"`{loader.module.code(loader.opaque)}` cannot be resolved, it may say so already"
    if len(loader.node.args) > 8:
        return "the script says so by position"
    why = only_trains(script.resolver, loader, script.loops, script.iterations)
    if why is not None:
        return why
    for name in ("sampler", "batch_sampler"):
        argument = loader.arguments.get(name)
        if argument is not None and not _is(script, argument, None):
            return f"its `{name}` decides which samples come"
    shuffle = loader.arguments.get("shuffle")
    if shuffle is None or not _is(script, shuffle, True):
        return "it may not shuffle, and the same samples would be left out in every epoch"
    return None


def _is(script: TrainingScript, argument: Argument, wanted: object) -> bool:
    return script.resolver.is_always(argument.value, argument.module, wanted)
