"""Lets loaders make their batches in pinned memory: `pin_memory=True`.

A GPU can copy directly only from page-locked ("pinned") host memory. From ordinary memory the driver first copies
each batch into a pinned buffer of its own, while the script waits. With `pin_memory=True` the loader's own thread puts batches
into pinned memory in the background, and the copy to the GPU can run beside computation (see `non-blocking`).

Where the script chooses at run time whether to use CUDA, its own flag or device is asked (`pin_memory=use_cuda`,
`pin_memory=device.type == "cuda"` or `device == "cuda"`) if it is known where the loader is made; `True` is right otherwise: without a
GPU it only warns and changes nothing.

Lightning and Fabric copy the batches of their loaders themselves, and do not wait for those in pinned memory. Accelerate waits, unless
it is told not to, but not as long.

Left alone: scripts for the CPU; loaders whose batches are not copied to a GPU, or are there already (pinning GPU memory
fails); loops that copy something computed from the batch; Lightning scripts with a hook before that copy; batches of a class that has no `pin_memory()` method.

Source: https://docs.pytorch.org/docs/stable/data.html#memory-pinning and
https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..optimizer.analysis.devices.cuda_condition import (
    cuda_condition,
    is_conditional_on_cuda,
    is_without_cuda,
)
from ..optimizer.analysis.devices.network_device import condition_imports
from ..optimizer.analysis.facts import DataLoader
from ..optimizer.analysis.loading.batch_memory import pinning_refused, pins_memory, says_no_pinning
from ..optimizer.analysis.loading.loader_settings import (
    Setting,
    said_later,
    settings_by_place,
    takes_setting,
)
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import FileEdit
from .base import Change, Example, Skip, Stage, StepPart, Transform

_POSITION = 7  # of pin_memory among DataLoader's parameters


class PinMemory(Transform):
    name = "pin-memory"
    tier = Tier.EXACT
    stage = Stage.DATA
    rank = 2
    relieves = StepPart.COPIES
    only_on_cuda = True
    example = Example(
        before="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            train_set = datasets.MNIST("data", transform=transforms.ToTensor())
            loader = DataLoader(train_set, batch_size=64, num_workers=2)
            model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for images, labels in loader:
                images, labels = images.to(device), labels.to(device)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
        """,
        after="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            train_set = datasets.MNIST("data", transform=transforms.ToTensor())
            loader = DataLoader(
                train_set, batch_size=64, num_workers=2, pin_memory=device.type == "cuda"
            )
            model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for images, labels in loader:
                images, labels = images.to(device), labels.to(device)
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        unpinned = [loader for loader in script.loaders if says_no_pinning(loader)]
        if not script.targets_cuda(options):
            for loader in unpinned[:1]:
                yield self.skip(
                    loader.path, loader.span, "memory not pinned: the script does not use a GPU"
                )
            return
        for loader in script.loaders:
            if loader not in unpinned and not pins_memory(script.resolver, loader):
                argument = loader.arguments["pin_memory"]
                said = f"`pin_memory={argument.module.code(argument.value)}` is always False"
                yield self.skip(loader.path, loader.span, f"memory not pinned: {said}")
        refusals = {loader: _refusal(script, loader) for loader in unpinned}
        for setting, loaders in _settings(script, unpinned).items():
            refused = [loader for loader in loaders if refusals[loader] is not None]
            if not refused:
                yield self._pin(script, setting, loaders)
                continue
            for loader in loaders:
                reason = refusals[loader] or "it shares its arguments with a loader that must not"
                yield self.skip(loader.path, loader.span, f"memory not pinned: {reason}")

    def _pin(self, script: TrainingScript, setting: Setting, loaders: list[DataLoader]) -> Change:
        first = loaders[0]
        value = cuda_condition(script, setting.module, setting.node)
        copier = script.copying_frameworks.get(first, "the loop")
        return self.change(
            first.path,
            first.span,
            f"makes batches in pinned memory (`pin_memory={value}`)",
            f"they are ordinary host tensors that {copier} copies to the GPU; their values stay the same",
            (
                FileEdit(setting.module.path, setting.edit("pin_memory", value, _POSITION)),
                *condition_imports(value, setting.module),
            ),
        )


def _settings(script: TrainingScript, loaders: list[DataLoader]) -> dict[Setting, list[DataLoader]]:
    """``loaders`` by where to say so: in a keyword dict that is only used on CUDA, if there is one."""
    found: dict[Setting, list[DataLoader]] = {}
    others: list[DataLoader] = []
    cuda_only: dict[ast.AST, Setting] = {}
    for loader in loaders:
        for argument in loader.arguments.values():
            display = argument.display
            if (
                display is not None
                and is_conditional_on_cuda(script, argument.module, display)
                and takes_setting(script, "pin_memory", display)
            ):
                setting = cuda_only.setdefault(display, Setting(argument.module, display))
                found.setdefault(setting, []).append(loader)
                break
        else:
            others.append(loader)
    return {**found, **settings_by_place(script, "pin_memory", others)}


def _refusal(script: TrainingScript, loader: DataLoader) -> str | None:
    if loader.opaque is not None:
        return f"`{loader.module.code(loader.opaque)}` cannot be resolved, it may say so already"
    added = said_later(loader, "pin_memory")
    if added is not None:
        where = added.module.place(added.value)
        return f"`pin_memory` is put into a keyword dict at {where}; change it there"
    flag = is_without_cuda(script, loader.module, loader.node)
    if flag is not None:
        return f"this loader is made where the script uses no GPU (`{loader.module.code(flag)}`)"
    return pinning_refused(script, loader)
