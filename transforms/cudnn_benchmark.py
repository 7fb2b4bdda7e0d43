"""Lets cuDNN measure which convolution algorithm is fastest: `torch.backends.cudnn.benchmark = True`.

For every new shape of a convolution's input cuDNN then tries its algorithms once and keeps the best, instead of trusting a
heuristic. That pays when few shapes come back in thousands of steps, and costs time when every batch has another one.
Another algorithm adds up in another order, so results differ by rounding.

It is set beside the seeds or the device, where the networks of the training steps have convolutions and the batches of
the loaders are proven to have one shape: samples are stacked as they are, which fails unless their shapes agree, or
images end in a fixed size. A smaller last batch is one more shape and does no harm. Without CUDA nothing
happens. Where processes of the script's own train (`mp.spawn`, `mp.Process`), it is set in the function they run: what the first
process sets does not reach them.

Left alone: scripts that ask for determinism (`cudnn.deterministic`, `use_deterministic_algorithms`) or set the flag
themselves; loaders with a `collate_fn`, a bucketing sampler or an iterable dataset; detection networks, whose images keep
their own sizes; steps that resize batches by random numbers, or that take their input from elsewhere.

Source: https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.torch.backends.cudnn.benchmark and
https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#enable-cudnn-auto-tuner
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ..optimizer.analysis.devices.network_device import network_device
from ..optimizer.analysis.editing.references import reference
from ..optimizer.analysis.facts import DeviceKind, Fact, seen_at
from ..optimizer.analysis.networks.convolution_shapes import (
    VaryingShape,
    varying_convolution_shapes,
)
from ..optimizer.analysis.networks.forward_code import networks_run
from ..optimizer.analysis.networks.network_layers import network_layers
from ..optimizer.analysis.precision.backend_settings import Topic
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.training.setup_place import settings_refused, setup_place
from ..optimizer.analysis.training.steps import StepCode
from ..optimizer.options import Options, Tier
from .base import Change, Example, Skip, Stage, StepPart, Transform


class CudnnBenchmark(Transform):
    name: ClassVar[str] = "cudnn-benchmark"
    tier: ClassVar[Tier] = Tier.NUMERIC
    stage: ClassVar[Stage] = Stage.MEMORY_FORMAT
    rank: ClassVar[int] = 1
    relieves: ClassVar[StepPart | None] = StepPart.CONVOLUTIONS
    only_on_cuda = True
    example: ClassVar[Example] = Example(
        before="""
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            train_set = datasets.CIFAR10("data", transform=transforms.ToTensor())
            loader = DataLoader(train_set, batch_size=64, shuffle=True)
            model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(28800, 10)).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for images, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
                loss.backward()
                optimizer.step()
        """,
        after="""
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            torch.backends.cudnn.benchmark = True
            train_set = datasets.CIFAR10("data", transform=transforms.ToTensor())
            loader = DataLoader(train_set, batch_size=64, shuffle=True)
            model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(28800, 10)).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for images, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
                loss.backward()
                optimizer.step()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        if any(s.topic is Topic.CUDNN_BENCHMARK for s in script.backend_settings):
            return
        steps = [
            step
            for step in script.step_code
            if script.runs(step) and _has_convolutions(script, step)
        ]
        if not steps:
            return
        refusal = _refusal(script, options, steps)
        if refusal is not None:
            step = steps[0]
            yield self.skip(step.path, step.backwards[0].span, _said(refusal, step))
            return
        yield self._set(script, steps[0])

    def _set(self, script: TrainingScript, step: StepCode) -> Change | Skip:
        place = setup_place(script)
        if place is None:
            why = _said("no place is found that every run passes before it trains", step)
            return self.skip(step.path, step.backwards[0].span, why)
        flag = reference(place.module, "torch.backends.cudnn.benchmark")
        code = f"{flag.code} = True"
        return self.change(
            place.module.path,
            place.module.span(place.statement),
            f"cuDNN measures its algorithms (`{code}`)",
            "the networks have convolutions, and all batches of a loader have one shape",
            (*flag.edits, place.insertion(code)),
        )


def _has_convolutions(script: TrainingScript, step: StepCode) -> bool:
    nodes = step.nodes(script.resolver, into_forward=True)
    networks = networks_run(script.resolver, nodes)
    return bool(network_layers(script.resolver, networks).convolutions)


def _refusal(script: TrainingScript, options: Options, steps: list[StepCode]) -> Fact | str | None:
    refused = settings_refused(script, options)
    if refused is not None:
        return refused
    for step in steps:
        nodes = list(step.nodes(script.resolver, into_forward=True))
        networks = networks_run(script.resolver, nodes)
        if network_device(script.resolver, networks).kind is DeviceKind.CPU:
            return "the network is not seen to be moved to a GPU"
    return varying_convolution_shapes(script, steps)


def _said(reason: Fact | str, step: StepCode) -> str:
    if isinstance(reason, str):
        return f"cuDNN's algorithms not measured: {reason}"
    text = reason.message if isinstance(reason, VaryingShape) else "the script asks for determinism"
    return f"cuDNN's algorithms not measured: {text}{seen_at(reason, step)}"
