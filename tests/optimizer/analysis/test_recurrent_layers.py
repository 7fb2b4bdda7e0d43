"""What is assumed of cuDNN's recurrent layers, asked of torch itself: its kernels, on tensors without data."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.skipif(torch.version.cuda is None, reason="a torch without CUDA's kernels")
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16])
def test_autocast_takes_them_to_float16(given: torch.dtype) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def new(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
        return torch.empty(*shape, device="cuda", dtype=dtype)

    lstm = 2
    # Autocast's kernels come to these as to tensors on a GPU, and what they call computes shapes and types only. Weights that are
    # float16 already need no buffer of cuDNN's.
    with FakeTensorMode(), torch.no_grad():
        weights = [new(64, 8), new(64, 16), new(64), new(64)]
        flat = new(sum(weight.numel() for weight in weights))
        x, state = new(5, 3, 8, dtype=given), new(1, 3, 16, dtype=given)
        before = torch.get_autocast_dtype("cuda")
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        torch.set_autocast_enabled("cuda", True)
        try:
            settings = (lstm, 16, 0, 1, False, 0.0, True, False, [], None)
            output = torch.ops.aten._cudnn_rnn(x, weights, 4, flat, state, state, *settings)[0]
            assert (x.view(15, 8) @ new(8, 8)).dtype is torch.bfloat16
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.set_autocast_dtype("cuda", before)
    assert output.dtype is torch.float16
