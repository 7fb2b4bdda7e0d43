"""What ranks compute from their share of a batch, computed from the whole batch as one process does.

BatchNorm's statistics, and the number that a mean over weighted or ignored targets is divided by. With these aligned,
ranks must train as one process does, to rounding; without, nothing tells a mistake from the statistics of a share.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from .functions import Functions
from .patches import Patches

distributed_c10d: Any = (
    torch.distributed.distributed_c10d if torch.distributed.is_available() else None
)
_PATIENCE = timedelta(seconds=60)
"""How long a rank waits for the others, in a place that they may not come to."""


class WeightedMeans:
    """Finds cross entropies that weigh or ignore targets; with ``whole`` they are means over all ranks' targets."""

    def __init__(self, whole: WholeBatch | None) -> None:
        self._whole = whole
        self._found = False

    def install(self, functions: Functions) -> None:
        """Replace the losses."""
        for name in ("cross_entropy", "nll_loss"):
            functions.wrap(name, self._loss)

    def _loss(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(
            input,
            target,
            weight=None,
            size_average=None,
            ignore_index=-100,
            reduce=None,
            reduction="mean",
            *more,
            **named,
        ):
            given = (weight, size_average, ignore_index, reduce)
            mean = reduction == "mean" and size_average is None and reduce is None
            if torch.compiler.is_compiling() or not (mean and _trains(input) and _indices(target)):
                return original(input, target, *given, reduction, *more, **named)
            divisor = _weights(target, weight, ignore_index)
            if float(divisor) != target.numel():
                self._found = True
            group = self._whole.group if self._whole is not None else None
            if group is None:
                return original(input, target, *given, reduction, *more, **named)
            total = original(input, target, *given, "sum", *more, **named)
            # the mean of the ranks' losses, which is what their gradients become, is then that of the whole batch
            share = _SumOfRanks.apply(divisor, group) / torch.distributed.get_world_size()
            return total / share.to(total)

        return wrapper

    def finish(self) -> dict[str, Any]:
        """What the record says of them."""
        return {"weighted_means": self._found}


def _trains(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _indices(target: Tensor) -> bool:
    return not target.is_floating_point()


def _weights(target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """What the mean over these targets is divided by, on the host."""
    counted = target[target != ignore_index]
    sum_of = (
        counted.numel() if weight is None else weight.detach()[counted].sum(dtype=torch.float64)
    )
    return torch.as_tensor(sum_of, dtype=torch.float64).cpu()


class WholeBatch:
    """Has BatchNorm normalize by all ranks' shares together, in the forward of a DistributedDataParallel."""

    def __init__(self) -> None:
        self.group: Any = None
        """Of our own, so that nothing we exchange is taken for what the script does; None before there are several ranks."""
        self._inside = threading.local()

    def install(self, patches: Patches, functions: Functions) -> None:
        """Replace BatchNorm, and the wrapper in whose calls all ranks take part."""
        if distributed_c10d is None:
            return
        patches.wrap(nn.parallel.DistributedDataParallel, "__init__", self._wrapped)
        patches.wrap(nn.parallel.DistributedDataParallel, "forward", self._forward)
        functions.wrap("batch_norm", self._batch_norm)

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            distributed = torch.distributed
            if (
                self.group is None
                and distributed.is_initialized()
                and distributed.get_world_size() > 1
            ):
                self.group = distributed.new_group(backend="gloo", timeout=_PATIENCE)
            return original(*args, **kwargs)

        return wrapper

    def _forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            self._inside.yes = True
            try:
                return original(*args, **kwargs)
            finally:
                self._inside.yes = False

        return wrapper

    def _batch_norm(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(
            input,
            running_mean,
            running_var,
            weight=None,
            bias=None,
            training=False,
            momentum=0.1,
            eps=1e-5,
        ):
            alone = self.group is None or not getattr(self._inside, "yes", False)
            if alone or not (training and torch.is_grad_enabled()):
                return original(
                    input, running_mean, running_var, weight, bias, training, momentum, eps
                )
            running = (running_mean, running_var, momentum)
            return normalized_over_ranks(input, weight, bias, eps, running, self.group)

        return torch.compiler.disable(wrapper)


class _SumOfRanks(torch.autograd.Function):
    """The sum over the ranks of a group; every rank's losses hang on it, so gradients are summed as well."""

    @staticmethod
    def forward(ctx, values, group):
        ctx.group = group
        total = values.clone()
        # Not torch.distributed's, whose calls are taken for the script's.
        distributed_c10d.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, *gradients):
        return _SumOfRanks.apply(gradients[0].contiguous(), ctx.group), None


def normalized_over_ranks(
    values: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: tuple[Tensor | None, Tensor | None, float],
    group: Any,
) -> Tensor:
    """BatchNorm over the shares of all ranks of ``group``, in float64; its gradients are those of all ranks' losses."""

    def of_all(sums: Tensor) -> Tensor:
        # exchanged on the host, whichever device the shares are on
        return _SumOfRanks.apply(sums.cpu(), group).to(sums.device)

    wide = values.double()
    dimensions = [n for n in range(wide.dim()) if n != 1]
    shape = [-1 if n == 1 else 1 for n in range(wide.dim())]
    own = wide.new_tensor([wide.numel() / wide.shape[1]])
    sums = of_all(torch.cat([wide.sum(dimensions), own]))
    count = sums[-1].detach()
    mean = sums[:-1] / count
    centred = wide - mean.view(shape)
    variance = of_all(centred.square().sum(dimensions)) / count
    running_mean, running_var, momentum = running
    with torch.no_grad():
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean), momentum)
        if running_var is not None:
            unbiased = variance * count / (count - 1)
            running_var.lerp_(unbiased.to(running_var), momentum)
    result = centred * torch.rsqrt(variance + eps).view(shape)
    if weight is not None:
        result = result * weight.view(shape)
    if bias is not None:
        result = result + bias.view(shape)
    return result.to(values.dtype)
