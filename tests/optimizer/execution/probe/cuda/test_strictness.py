"""What fails on CUDA fails under emulation, with CUDA's error."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
import torch.multiprocessing
from torch import Tensor, nn
from torch.distributions import Dirichlet, MultivariateNormal
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from torchopt_cli.optimizer.execution.probe.cuda.float_only import FLOAT_ONLY
from torchopt_cli.optimizer.execution.probe.recording import recording

_NOT_ASKED = {"broadcast_shapes", "norm", "linalg.matrix_power"}
"""No tensors; the nuclear norm alone; negative powers alone."""
SAME = "Expected all tensors to be on the same device"


class _Seen(TorchDispatchMode):
    """The names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def _halved(thing: object) -> object:
    return (
        thing.detach().cuda().half()
        if isinstance(thing, Tensor) and thing.dtype is torch.float32
        else thing
    )


def _elements(thing: object) -> int:
    return thing.numel() if isinstance(thing, Tensor) else 0


@pytest.mark.parametrize(
    "mix",
    [
        lambda h, d: h + d,
        lambda h, d: d @ h,
        lambda h, d: torch.cat([h, d]),
        lambda h, d: torch.stack([h, d]),
        lambda h, d: torch.where(d > 0, d, h),
        lambda h, d: d.add_(h),
        lambda h, d: F.mse_loss(d, h),
        lambda h, d: torch.equal(d, h),
        lambda h, d: torch._foreach_add([d], [h]),
        lambda h, d: d.cuda(1) + d,
    ],
)
def test_operands_on_different_devices_raise(mix: object) -> None:
    host = torch.ones(2, 2)
    with pytest.raises(RuntimeError, match=SAME):
        mix(host, host.cuda())  # type: ignore[operator]


def test_scalars_of_the_host_are_allowed() -> None:
    x, scalar = torch.ones(2).cuda(), torch.tensor(2.0)
    assert (x * scalar).tolist() == [2.0, 2.0]
    assert x.masked_fill(x > 0, scalar).is_cuda
    assert torch.where(x > 0, x, scalar).is_cuda
    with pytest.raises(RuntimeError, match=SAME):
        scalar.add_(x.sum())


def test_copying_across_devices_is_allowed() -> None:
    x = torch.zeros(2).cuda()
    x.copy_(torch.ones(2))
    assert x.tolist() == [1.0, 1.0]
    host = torch.zeros(2)
    host.copy_(x)
    host[:] = x
    assert host.device == torch.device("cpu")


def test_indexing_rules() -> None:
    host, device = torch.arange(4), torch.arange(4).cuda()
    index, mask = torch.tensor([0, 1]), torch.tensor([True, False, True, False])
    assert device[index].is_cuda
    assert device[mask].is_cuda
    with pytest.raises(RuntimeError, match="indices should be either on cpu"):
        host[index.cuda()]
    with pytest.raises(RuntimeError, match="indices should be either on cpu"):
        host[mask.cuda()]
    device[index] = torch.tensor(5)
    with pytest.raises(RuntimeError, match=SAME):
        device[index] = torch.tensor([5, 6])
    with pytest.raises(RuntimeError, match=SAME):
        device.gather(0, index)
    with pytest.raises(RuntimeError, match=SAME):
        nn.Embedding(4, 2).cuda()(index)


def test_weights_on_the_host_raise() -> None:
    x = torch.ones(1, 3, 8, 8).cuda()
    with pytest.raises(RuntimeError, match="should be the same"):
        nn.Conv2d(3, 2, 3)(x)
    with pytest.raises(RuntimeError, match=SAME):
        nn.Linear(8, 2)(x)
    with pytest.raises(RuntimeError, match=SAME):
        nn.Linear(3, 2).cuda()(torch.ones(1, 3))


def test_loss_against_targets_on_the_host_raises() -> None:
    with pytest.raises(RuntimeError, match=SAME):
        F.cross_entropy(torch.randn(2, 3).cuda(), torch.tensor([0, 1]))


def test_numpy_refuses_tensors_on_the_device() -> None:
    x = torch.ones(2).cuda()
    for use in (lambda: x.numpy(), lambda: np.asarray(x), lambda: np.array([x.sum(), x.sum()])):
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            use()
    assert x.numpy(force=True).tolist() == [1.0, 1.0]
    assert x.tolist() == [1.0, 1.0]


def test_devices_that_are_not_there_raise() -> None:
    for use in (
        lambda: torch.zeros(1).cuda(2),
        lambda: torch.zeros(1, device="cuda:7"),
        lambda: torch.cuda.set_device(2),
        lambda: torch.cuda.get_device_properties(5),
    ):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            use()


def test_pinning_takes_dense_tensors_of_the_host_only() -> None:
    x = torch.ones(2)
    pinned = x.pin_memory()
    assert (x.is_pinned(), pinned.is_pinned()) == (False, True)
    assert torch.zeros(2, pin_memory=True).is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        x.cuda().pin_memory()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.eye(2).to_sparse().pin_memory()


def test_generators_draw_for_their_own_device() -> None:
    generator = torch.Generator(device="cuda")
    assert generator.device == torch.device("cuda:0")
    generator.manual_seed(1)
    assert torch.randn(2, generator=generator, device="cuda").is_cuda
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator"):
        torch.randn(2, generator=generator)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.randn(2, generator=torch.Generator(), device="cuda")


def test_products_of_whole_numbers_raise() -> None:
    x = torch.ones(2, 2, dtype=torch.int64)
    assert (x @ x).tolist() == [[2, 2], [2, 2]]
    with pytest.raises(RuntimeError, match="\"addmm_cuda\" not implemented for 'Long'"):
        x.cuda() @ x.cuda()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_decompositions_in_half_precision_raise(dtype: torch.dtype) -> None:
    matrix = (torch.eye(3) * 2).cuda()
    half = matrix.to(dtype)
    for decompose in (
        torch.linalg.cholesky,
        torch.linalg.svd,
        torch.linalg.det,
        torch.linalg.inv,
        torch.linalg.eigh,
        torch.linalg.qr,
        lambda x: torch.linalg.solve(x, x),
        lambda x: torch.histc(x, 4),
        lambda x: MultivariateNormal(x[0], x, validate_args=False),
        lambda x: Dirichlet((x + 1).requires_grad_()).rsample().sum().backward(),
    ):
        decompose(matrix)
        with pytest.raises(RuntimeError, match=r"not implemented for|Low precision"):
            decompose(half)
    with torch.autocast("cuda", dtype=dtype):
        torch.linalg.cholesky(matrix)
        with pytest.raises(RuntimeError, match="linalg_cholesky_ex_cuda"):
            torch.linalg.cholesky(matrix @ matrix)


@pytest.mark.slow
def test_what_raises_is_what_torch_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operation that CUDA has for float32 alone, with halves; and none of the table is part of any other."""
    # What it imports freezes the switches of all backends, which other tests in this process set.
    monkeypatch.setattr(torch.backends, "disable_global_flags", lambda: None)
    op_db = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db
    halves = {torch.float16, torch.bfloat16}
    for op in op_db:
        types = set(op.dtypesIfCUDA)
        if torch.float32 not in types or op.name in _NOT_ASKED:
            continue
        sample = next(
            (s for s in op.sample_inputs("cpu", torch.float32) if _elements(s.input) > 1), None
        )
        if sample is None or (types & halves and not halves <= types):
            continue
        given = tree_map(_halved, (sample.input, sample.args, sample.kwargs))
        seen = _Seen()
        raised = None
        with seen:
            try:
                op(given[0], *given[1], **given[2])
            except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
                raised = error
        if types & halves:
            assert seen.names.isdisjoint(FLOAT_ONLY), op.name
        else:
            assert raised is not None, op.name


def test_lengths_of_packed_sequences_belong_on_the_host() -> None:
    with pytest.raises((RuntimeError, TypeError), match="CPU int64 tensor"):
        nn.utils.rnn.pack_padded_sequence(torch.ones(3, 1, 2).cuda(), torch.tensor([3]).cuda())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_gradients_of_recurrent_layers_in_eval_mode_raise(
    layer: type[nn.RNNBase], packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def output(place: str) -> Tensor:
        x = torch.randn(4, 2, 3, device=place)
        given = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2])) if packed else x
        result, state = recurrent.to(place)(given)
        hidden = state[0] if isinstance(state, tuple) else state
        return (result.data if packed else result).sum() + hidden.sum()

    recurrent = layer(3, 2)
    output("cuda").backward()
    recurrent.eval()
    output("cpu").backward()
    with torch.no_grad():
        assert not output("cuda").requires_grad
    with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training"):
        output("cuda").backward()
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    output("cuda").backward()


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_states_of_recurrent_layers_are_contiguous(layer: type[nn.RNNBase]) -> None:
    def run(place: str, state: Tensor) -> None:
        states = (torch.zeros_like(state).contiguous(), state) if layer is nn.LSTM else state
        recurrent.to(place)(torch.randn(5, 4, 3, device=place), states)

    recurrent = layer(3, 2, num_layers=2)
    turned = torch.zeros(4, 2, 2).transpose(0, 1)
    run("cpu", turned)
    run("cuda", turned.contiguous().cuda())
    with pytest.raises(RuntimeError, match=r"rnn: [hc]x is not contiguous"):
        run("cuda", turned.cuda())


def test_tensors_are_not_handed_to_other_processes() -> None:
    with pytest.raises(RuntimeError, match="not emulated"):
        ForkingPickler.dumps(torch.ones(2).cuda())


def test_cuda_graphs_are_refused() -> None:
    assert torch.cuda.CUDAGraph | None  # as in an annotation
    for use in (torch.cuda.CUDAGraph, lambda: torch.cuda.graph(None)):
        with pytest.raises(RuntimeError, match="CUDA graphs: not emulated"):
            use()


def _there(tensor: torch.Tensor) -> bool:
    return bool(tensor.isfinite().all()) and bool((tensor == 3).all())


def test_copies_that_do_not_wait_come_when_the_host_waits() -> None:
    on_device = torch.full((2,), 3.0, device="cuda")
    pinned = torch.zeros(2).pin_memory()
    event = torch.cuda.Event()
    for wait in (
        torch.cuda.synchronize,
        torch.cuda.current_stream().synchronize,
        event.synchronize,
        lambda: on_device.sum().item(),
        lambda: bool(on_device.any()),
        lambda: on_device.cpu(),
        lambda: torch.ones(1).to("cuda"),
        lambda: torch.zeros(2, device="cuda").copy_(torch.ones(2)),
    ):
        pinned.zero_()
        copies = [on_device.to("cpu", non_blocking=True), pinned]
        pinned.copy_(on_device, non_blocking=True)
        assert [_there(copy) for copy in copies] == [False, False]
        event.record()
        wait()
        assert [_there(copy) for copy in copies] == [True, True]


def test_copies_that_need_not_be_waited_for() -> None:
    on_device = torch.full((2,), 3.0, device="cuda")
    pageable = torch.zeros(2)
    pageable.copy_(on_device, non_blocking=True)
    assert _there(pageable)
    assert _there(on_device.to("cpu"))
    assert _there(on_device.cpu())
    assert (on_device.to("cuda:1", non_blocking=True) == torch.full((2,), 3.0).cuda(1)).all()


def _copied(pinned: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: torch.zeros_like(pinned, device="cuda").copy_(pinned, non_blocking=True)


def test_pinned_memory_stays_as_it_is_until_it_is_copied() -> None:
    pinned = torch.ones(4, 3).pin_memory()
    for copy in (
        lambda: pinned.to("cuda", non_blocking=True),
        lambda: pinned[1:].cuda(non_blocking=True),
        lambda: pinned.t().to("cuda", torch.float64, non_blocking=True),
        _copied(pinned),
    ):
        copy()
        with pytest.raises(RuntimeError, match="is written to while it may still be copied"):
            pinned.add_(1)
        with pytest.raises(RuntimeError, match="shape"):  # nor has anything waited since
            torch.cuda.synchronize()
        pinned.add_(1)
    pinned.to("cuda", non_blocking=True)
    pinned.numpy()[0] = 7
    with pytest.raises(RuntimeError, match="is written to while it may still be copied"):
        torch.cuda.synchronize()


def test_pinned_memory_may_be_written_to_once_it_is_copied() -> None:
    pinned, other = torch.ones(4).pin_memory(), torch.ones(4)
    on_device = torch.ones(4, device="cuda")
    for wait in (
        torch.cuda.synchronize,
        lambda: on_device.sum().item(),
        lambda: on_device[on_device > 0],
        lambda: pinned.to("cuda"),
        lambda: pinned.copy_(on_device),
    ):
        pinned.to("cuda", non_blocking=True)
        wait()
        pinned.add_(1)
    pinned.to("cuda", non_blocking=True)
    pinned.copy_(pinned.clone())  # nothing else is there
    torch.cuda.synchronize()
    pinned[:2].cuda(non_blocking=True)
    pinned[2:].zero_()  # nor was this copied
    torch.cuda.synchronize()
    other.to("cuda", non_blocking=True)  # is copied to pinned memory first
    other.add_(1)
    torch.ones(4).pin_memory().to("cuda", non_blocking=True)  # is gone
    torch.cuda.synchronize()


def test_what_is_observed_is_not_waited_for() -> None:
    on_device = torch.full((2,), 3.0, device="cuda")
    pinned = torch.zeros(2).pin_memory()
    pinned.copy_(on_device, non_blocking=True)
    with recording():
        assert on_device.sum().item() == 6.0
    assert not _there(pinned)
    torch.cuda.synchronize()
    assert _there(pinned)


def test_copies_are_made_in_their_order() -> None:
    pinned = torch.ones(2).pin_memory()
    on_device = torch.full((2,), 3.0, device="cuda")
    first = pinned.to("cuda", non_blocking=True)
    pinned.copy_(on_device, non_blocking=True)
    for second in (
        pinned.to("cuda", non_blocking=True),
        torch.zeros(2).cuda().copy_(pinned, non_blocking=True),
    ):
        assert _there(second)
    torch.cuda.synchronize()
    assert first.tolist() == [1.0, 1.0]
    assert _there(pinned)


def test_a_copy_that_does_not_wait_keeps_its_gradient() -> None:
    on_device = torch.ones(2, device="cuda", requires_grad=True)
    copied = (on_device * 2).to("cpu", non_blocking=True)
    torch.cuda.synchronize()
    copied.square().sum().backward()
    assert on_device.grad is not None
    assert on_device.grad.tolist() == [8.0, 8.0]
