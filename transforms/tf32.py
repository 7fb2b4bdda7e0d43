"""Runs the matrix products that stay in float32 on tensor cores: `torch.set_float32_matmul_precision("high")`.

GPUs since Ampere multiply float32 matrices several times faster in TF32, which keeps the range of float32 and rounds
the factors to 10 bits of mantissa; sums stay float32. PyTorch uses it for convolutions and recurrent layers by default
(`torch.backends.cudnn.allow_tf32`), for matrix products only when asked. GPUs and CPUs without TF32 ignore the
setting, so it stands without a condition, beside the seeds or the device, in the function that they run where processes of the script's own
train (`mp.spawn`, `mp.Process`).

It is set where a training step runs linear layers, recurrent cells or attention in float32, which autocast leaves it to do where
half precision is not safe (`autocast` runs first). Parameters, optimizer states and checkpoints do not change.

Left alone: scripts that decide about precision themselves (`allow_tf32`, `fp32_precision`) or ask for determinism; scripts
that compute in float64, decompose matrices, take distances from matrix products, or sines and cosines of them whose angles may
be larger than about eight, subtract Gram
matrices or covariances, differentiate gradients, fit with LBFGS, attack the network (`x.grad.sign()`) or compare numbers
closely; scripts that take matrix products out of autocast (`autocast(enabled=False)`, or `q.float() @ k.float()` beside it);
steps under autocast, unless an option of the script's decides about that (`enabled=args.amp`); networks that the script takes
to half precision itself; networks of convolutions with a linear layer or two at the end, and of linear layers that are small
for their batches, which gain nothing; scripts for the CPU.

Source: https://docs.pytorch.org/docs/stable/generated/torch.set_float32_matmul_precision.html and
https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ..optimizer.analysis.autograd.input_gradients import input_gradient
from ..optimizer.analysis.devices.network_device import network_device
from ..optimizer.analysis.editing.references import quoted, reference
from ..optimizer.analysis.facts import DeviceKind, Fact, Model, seen_at
from ..optimizer.analysis.networks.forward_code import networks_run
from ..optimizer.analysis.networks.network_layers import NetworkLayers, network_layers
from ..optimizer.analysis.networks.small_layers import small_layers
from ..optimizer.analysis.obstacles import Obstacle
from ..optimizer.analysis.precision.backend_settings import BackendSetting, Topic
from ..optimizer.analysis.precision.precision import (
    half_precision_use,
    may_do_without_autocast,
    under_autocast,
)
from ..optimizer.analysis.precision.sensitive_code import needs_float32_products
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.training.setup_place import settings_refused, setup_place
from ..optimizer.analysis.training.steps import StepCode
from ..optimizer.analysis.values.resolver import Resolver
from ..optimizer.options import Options, Tier
from .base import Change, Example, Skip, Stage, StepPart, Transform

_UNCALLED = "nothing in this file calls this step: which network it runs, its callers know"
_FEW_LAYERS = 3
"""So many linear layers end a network of convolutions without a share in its time worth speaking of."""


class Tf32(Transform):
    name: ClassVar[str] = "tf32"
    tier: ClassVar[Tier] = Tier.NUMERIC
    stage: ClassVar[Stage] = Stage.PRECISION
    rank: ClassVar[int] = 1
    relieves: ClassVar[StepPart | None] = StepPart.PRODUCTS
    only_on_cuda = True
    example: ClassVar[Example] = Example(
        before="""
            import torch
            from torch import nn

            torch.manual_seed(0)
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid()).to(device)
            optimizer = torch.optim.Adam(model.parameters())

            for images, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.binary_cross_entropy(model(images.to(device)), labels.to(device))
                loss.backward()
                optimizer.step()
        """,
        after="""
            import torch
            from torch import nn

            torch.manual_seed(0)
            torch.set_float32_matmul_precision("high")
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid()).to(device)
            optimizer = torch.optim.Adam(model.parameters())

            for images, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.binary_cross_entropy(model(images.to(device)), labels.to(device))
                loss.backward()
                optimizer.step()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        if any(s.topic is Topic.MATMUL_PRECISION for s in script.backend_settings):
            return
        steps = [step for step in script.step_code if script.runs(step)]
        if not steps:
            return
        refusal = _refusal(script, options) or _attack(script.resolver, steps)
        reasons = {step: refusal or _step_refusal(script, step, options) for step in steps}
        if all(reasons.values()):
            for step, reason in reasons.items():
                yield self.skip(step.path, step.backwards[0].span, _said(reason, step))
            return
        yield self._set(script, next(step for step in steps if reasons[step] is None))

    def _set(self, script: TrainingScript, step: StepCode) -> Change | Skip:
        place = setup_place(script)
        if place is None:
            why = "TF32 not set: no place is found that every run passes before it trains"
            return self.skip(step.path, step.backwards[0].span, why)
        setting = reference(place.module, "torch.set_float32_matmul_precision")
        code = f"{setting.code}({quoted(place.module, 'high')})"
        return self.change(
            place.module.path,
            place.module.span(place.statement),
            f"float32 matrix products in TF32 (`{code}`)",
            f"{_computed(script.resolver, step)} in float32, and nothing seen depends on their last bits",
            (*setting.edits, place.insertion(code)),
        )


def _said(reason: Fact | str | None, step: StepCode) -> str:
    if isinstance(reason, BackendSetting):
        return f"TF32 not set: the script asks for {reason.topic.value}{seen_at(reason, step)}"
    if isinstance(reason, Obstacle):
        return f"TF32 not set: {reason.message}{seen_at(reason, step, reason.message)}"
    return f"TF32 not set: {reason}"


def _refusal(script: TrainingScript, options: Options) -> Fact | str | None:
    """What about the script as a whole keeps its matrix products as they are."""
    return settings_refused(script, options) or needs_float32_products(script.resolver)


def _attack(resolver: Resolver, steps: list[StepCode]) -> Obstacle | None:
    """A step that goes by gradients of an input: the setting holds for all of them."""
    found = (input_gradient(resolver, step) for step in steps)
    return next((gradient for gradient in found if gradient is not None), None)


def _step_refusal(script: TrainingScript, step: StepCode, options: Options) -> str | None:
    resolver = script.resolver
    if under_autocast(resolver, step) and not may_do_without_autocast(resolver, step):
        return "the step runs under autocast, which takes its matrix products to half precision"
    nodes = list(step.nodes(resolver, into_forward=True))
    networks: tuple[Model, ...] = networks_run(resolver, nodes)
    if not networks:
        return "no network is known to run in the step" if script.is_called(step) else _UNCALLED
    if network_device(resolver, networks).kind is DeviceKind.CPU:
        return "the network is not seen to be moved to a GPU"
    half = half_precision_use(resolver, nodes, networks)
    if half is not None:
        return f"{half.what} is in use, and what stays in float32 beside it is not known{seen_at(half, step)}"
    small = None if Tf32.name in options.select else small_layers(resolver, step)
    if small is not None:
        return f"{small}: a GPU computes them in less time than it takes to launch them"
    return _without_products(network_layers(resolver, networks), len(networks))


def _computed(resolver: Resolver, step: StepCode) -> str:
    layers = network_layers(
        resolver, networks_run(resolver, step.nodes(resolver, into_forward=True))
    )
    if layers.cells and not layers.linear and not layers.products:
        return "the training step computes the matrix products of recurrent cells"
    return "the training step computes matrix products"


def _without_products(layers: NetworkLayers, networks: int) -> str | None:
    products = (*layers.products, *layers.cells)
    if not layers.linear and not products:
        if layers.convolutions:
            return "the networks consist of convolutions, which use TF32 already"
        if layers.recurrent:
            return "the networks consist of recurrent layers, which use TF32 already"
        return "no matrix products are known in the networks of the step"
    if layers.convolutions and not products and len(layers.linear) <= _FEW_LAYERS * networks:
        return "the time goes into convolutions, which use TF32 already"
    return None
