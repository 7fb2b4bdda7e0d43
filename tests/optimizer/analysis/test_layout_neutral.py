"""What `channels-last` takes to be blind to how images lie in memory, tried with PyTorch itself."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any

import pytest

from torchopt_cli.optimizer.analysis.networks.layout_neutral import _FUNCTIONS, _METHODS

torch = pytest.importorskip("torch")

SHAPE = (2, 4, 6, 6)
_PAIRS = (
    "add sub mul div maximum minimum add_ mul_ sub_ div_ matmul expand_as type_as "
    "mse_loss l1_loss smooth_l1_loss huber_loss kl_div equal"
)
_ALONG_CHANNELS = "argmax argmin softmax log_softmax cumsum unbind unsqueeze"
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(_PAIRS.split(), lambda f, x: f(x.clone(), x.abs() + 1)),
    **dict.fromkeys(_ALONG_CHANNELS.split(), lambda f, x: f(x, 1)),
    "adaptive_avg_pool2d": lambda f, x: f(x, 2),
    "adaptive_max_pool2d": lambda f, x: f(x, 2),
    "addcmul": lambda f, x: f(x, x, x),
    "affine_grid": lambda f, x: f(x[:, 0, :2, :3], list(SHAPE)),
    "avg_pool2d": lambda f, x: f(x, 2),
    "baddbmm": lambda f, x: f(x[0], x[0], x[0]),
    "batch_norm": lambda f, x: f(x, None, None, training=True),
    "binary_cross_entropy": lambda f, x: f(x.sigmoid(), x.sigmoid()),
    "binary_cross_entropy_with_logits": lambda f, x: f(x, x.sigmoid()),
    "bmm": lambda f, x: f(x[0], x[1]),
    "cat": lambda f, x: f([x, x], 1),
    "chunk": lambda f, x: f(x, 2, 1),
    "clamp": lambda f, x: f(x, 0.5),
    "clamp_": lambda f, x: f(x.clone(), 0.5),
    "concat": lambda f, x: f([x, x], 1),
    "conv2d": lambda f, x: f(x, torch.ones(3, 4, 3, 3)),
    "cross_entropy": lambda f, x: f(x, torch.arange(72).view(2, 6, 6) % 4),
    "einsum": lambda f, x: f("nchw,ndhw->ncd", x, x),
    "embedding": lambda f, x: f(x.long(), torch.ones(4, 3)),
    "expand": lambda f, x: f(x, *SHAPE),
    "flatten": lambda f, x: f(x, 1),
    "flip": lambda f, x: f(x, (1,)),
    "gather": lambda f, x: f(x, 1, x.argsort(1)),
    "grid_sample": lambda f, x: f(x, x.movedim(1, -1)[..., :2], align_corners=False),
    "group_norm": lambda f, x: f(x, 2),
    "index_select": lambda f, x: f(x, 1, torch.tensor([2, 0])),
    "interpolate": lambda f, x: f(x, scale_factor=2),
    "item": lambda f, x: f(x.max()),
    "layer_norm": lambda f, x: f(x, SHAPE[1:]),
    "lerp": lambda f, x: f(x, x * 2, 0.3),
    "linear": lambda f, x: f(x, torch.ones(3, 6)),
    "masked_fill": lambda f, x: f(x, x > 0.5, 0.0),
    "max_pool2d": lambda f, x: f(x, 2),
    "mean": lambda f, x: f(x, (2, 3)),
    "mm": lambda f, x: f(x[0, 0], x[1, 1]),
    "movedim": lambda f, x: f(x, 1, -1),
    "nll_loss": lambda f, x: f(x, torch.arange(72).view(2, 6, 6) % 4),
    "one_hot": lambda f, x: f(x.long()),
    "pad": lambda f, x: f(x, (1, 1, 1, 1)),
    "permute": lambda f, x: f(x, (0, 2, 3, 1)),
    "pixel_shuffle": lambda f, x: f(x, 2),
    "pixel_unshuffle": lambda f, x: f(x, 2),
    "pow": lambda f, x: f(x, 2),
    "repeat": lambda f, x: f(x, 1, 2, 1, 1),
    "repeat_interleave": lambda f, x: f(x, 2, 1),
    "reshape": lambda f, x: f(x, (2, -1)),
    "roll": lambda f, x: f(x, 1, 1),
    "split": lambda f, x: f(x, 2, 1),
    "stack": lambda f, x: f([x, x]),
    "sum": lambda f, x: f(x, (1, 2)),
    "swapaxes": lambda f, x: f(x, 1, 2),
    "tile": lambda f, x: f(x, (2, 1)),
    "topk": lambda f, x: f(x, 2, 1),
    "transpose": lambda f, x: f(x, 1, 3),
    "where": lambda f, x: f(x > 1, x, x * 2),
}
OF_CONTAINERS = frozenset(
    "append pop extend items keys values get insert reverse clear size".split()
)
DRAW = frozenset({"dropout", "dropout2d"})
"""Let through behind what is flat only; in two dimensions whole channels are dropped."""


@pytest.mark.torch
def test_what_is_taken_to_be_neutral_is() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(SHAPE, generator=generator) * 3 + 0.1
    laid_out = images.contiguous(memory_format=torch.channels_last)
    assert images.stride() != laid_out.stride()
    untried = set((_FUNCTIONS | _METHODS) - OF_CONTAINERS - DRAW)
    for name in sorted(untried):
        call = CALLS.get(name, lambda f, x: f(x.clone()))
        for home in (torch.nn.functional, torch, torch.Tensor):
            function = getattr(home, name, None)
            if isinstance(function, FunctionType | BuiltinFunctionType | MethodDescriptorType):
                results = [call(function, x) for x in (images, laid_out)]
                torch.testing.assert_close(*results, check_stride=False, msg=name)
                untried.discard(name)
                break
    assert not untried
