"""CUDA's autocast: its types, its lists, its refusals. And GradScaler."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchopt_cli.optimizer.execution.probe.cuda import autocast_ops as lists


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_are_in_the_lower_precision(dtype: torch.dtype) -> None:
    x = torch.randn(2, 4).cuda()
    with torch.autocast("cuda", dtype=dtype):
        assert nn.Linear(4, 3).cuda()(x).dtype is dtype
        assert (x @ x.T).dtype is dtype
        assert nn.Conv1d(2, 3, 1).cuda()(x[None]).dtype is dtype
    assert (x @ x.T).dtype is torch.float32


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_in_float16(layer: type[nn.RNNBase]) -> None:
    recurrent, x = layer(4, 3).cuda(), torch.randn(1, 2, 4).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output, state = recurrent(x)
        hidden = state[0] if isinstance(state, tuple) else state
        assert (output.dtype, hidden.dtype) == (torch.float16, torch.float16)
        assert recurrent(x.bfloat16())[0].dtype is torch.bfloat16  # without cuDNN


def test_sensitive_functions_are_in_float32() -> None:
    x = torch.randn(2, 4).cuda().half()
    target = torch.tensor([0, 1]).cuda()
    with torch.autocast("cuda"):
        for result in (
            x.exp(),
            x.pow(2),
            x.sum(),
            x.norm(),
            x.norm(dim=1),
            F.softmax(x, 1),
            F.layer_norm(x, (4,)),
            F.cross_entropy(x, target),
            F.mse_loss(x, x.detach()),
            F.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
        ):
            assert result.dtype is torch.float32
        assert torch.relu(x).dtype is torch.float16
        assert torch.addcmul(x, x, x.float()).dtype is torch.float32
        assert torch.cat([x, x]).dtype is torch.float16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_log_probabilities_near_zero_are_not_lost(dtype: torch.dtype) -> None:
    """``F.cross_entropy`` under autocast takes the logarithm in the type of the logits; a GPU rounds its result only."""
    logits = torch.tensor([[10.0, 0.0, 0.0], [6.0, 0.0, 1.0]]).to(dtype)
    target = torch.tensor([0, 0])
    exact = F.cross_entropy(logits.float(), target, reduction="none")
    with torch.autocast("cuda", dtype=dtype):
        found = F.cross_entropy(logits.cuda(), target.cuda(), reduction="none")
    torch.testing.assert_close(found.cpu(), exact.to(dtype).float(), rtol=0, atol=0)


def test_binary_cross_entropy_is_refused() -> None:
    chances = torch.rand(2, 1).cuda()
    with (
        torch.autocast("cuda", dtype=torch.bfloat16),
        pytest.raises(RuntimeError, match="unsafe to autocast"),
    ):
        nn.BCELoss()(chances, torch.ones_like(chances))
    assert F.binary_cross_entropy(chances, torch.ones_like(chances)).isfinite()


def test_autocast_leaves_the_host_alone() -> None:
    x = torch.randn(2, 4)
    with torch.autocast("cuda"):
        assert (x @ x.T).dtype is torch.float32
        assert torch.is_autocast_enabled()
        with torch.autocast("cuda", enabled=False):
            assert (x.cuda() @ x.T.cuda()).dtype is torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ x.T).dtype is torch.bfloat16
        assert F.mse_loss(x.bfloat16(), x).dtype is torch.float32
        assert (x.cuda() @ x.T.cuda()).dtype is torch.float32


def test_gradients_of_cast_weights_are_float32() -> None:
    model = nn.Linear(4, 3).cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = (model(torch.ones(2, 4).cuda()) + model(torch.ones(2, 4).cuda())).sum()
    loss.backward()
    assert model.weight.grad.dtype is torch.float32  # type: ignore[union-attr]
    assert model.weight.grad.tolist() == [[4.0] * 4] * 3  # type: ignore[union-attr]


def test_float64_is_not_cast() -> None:
    x = torch.randn(2, 2).double().cuda()
    with torch.autocast("cuda"):
        assert (x @ x).dtype is torch.float64


def test_cpu_has_no_kernel_but_cuda_does() -> None:
    """float16 where the CPU may not have it, by way of float32."""
    x = torch.randn(3, 3).cuda().half()
    assert torch.linalg.vector_norm(x).dtype is torch.float16
    assert F.interpolate(x[None, None], scale_factor=2, mode="bicubic").dtype is torch.float16


def test_grad_scaler_scales_and_skips() -> None:
    model = nn.Linear(2, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
    assert scaler.is_enabled()
    scaler.scale(model(torch.ones(1, 2).cuda()).sum()).backward()
    assert model.weight.grad.tolist() == [[4.0, 4.0]]  # type: ignore[union-attr]
    scaler.unscale_(optimizer)
    assert model.weight.grad.tolist() == [[1.0, 1.0]]  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    before = model.weight.detach().clone()
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(1, 2).cuda()).sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before)
    assert scaler.get_scale() == 2.0


def test_the_lists_are_those_of_torch() -> None:
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    text = header.read_text(encoding="utf-8") if header.exists() else ""
    if "AT_FORALL_LOWER_PRECISION_FP" not in text:
        pytest.skip("this torch has its lists in a source file")

    def listed(macro: str) -> set[str]:
        body = re.search(rf"#define {macro}\(_\)(.*?)\n\n", text + "\n\n", re.DOTALL)
        assert body is not None
        return set(re.findall(r"_\((\w+)", body[1]))

    recurrent = {"lstm", "gru", "rnn_tanh", "rnn_relu"}
    not_yet = set() if torch.__version__ >= (2, 12) else {"rms_norm"}
    assert lists.LOWER - recurrent == listed("AT_FORALL_LOWER_PRECISION_FP")
    assert lists.FLOAT32 - {"linalg_matrix_sqrth"} - not_yet == listed("AT_FORALL_FP32")
    assert listed("AT_FORALL_FP32_SET_OPT_DTYPE") == lists.FLOAT32_RESULT
    assert listed("AT_FORALL_PROMOTE") == lists.WIDEST
