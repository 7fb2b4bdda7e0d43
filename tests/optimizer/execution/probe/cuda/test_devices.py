"""Which device a tensor is on, through everything that makes or moves one."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

CUDA = torch.device("cuda:0")


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, CUDA, torch.device("cuda")])
def test_devices_are_named_in_every_way_torch_has(device: object) -> None:
    assert torch.zeros(2).to(device).device == CUDA
    assert torch.zeros(2, device=device).device == CUDA  # type: ignore[call-overload]
    assert torch.zeros(2).cuda(device).device == CUDA  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, device="cuda"),
        lambda: torch.empty(2, device="cuda"),
        lambda: torch.full((2,), 1.0, device="cuda"),
        lambda: torch.arange(3, device="cuda"),
        lambda: torch.linspace(0, 1, 3, device="cuda"),
        lambda: torch.eye(2, device="cuda"),
        lambda: torch.randn(2, device="cuda"),
        lambda: torch.randperm(3, device="cuda"),
        lambda: torch.tensor([1.0], device="cuda"),
        lambda: torch.as_tensor(np.ones(2), device="cuda"),
        lambda: torch.zeros(2).cuda().new_zeros(3),
        lambda: torch.zeros(2).cuda().new_tensor([1.0]),
        lambda: torch.zeros(2).cuda().new(3),
        lambda: torch.zeros_like(torch.zeros(2).cuda()),
        lambda: torch.ones_like(torch.zeros(2), device="cuda"),
        lambda: torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (2,), device="cuda"),
    ],
)
def test_factories_put_tensors_on_the_device(make: object) -> None:
    assert make().device == CUDA  # type: ignore[operator]


def test_results_and_views_are_where_their_operands_are() -> None:
    x = torch.randn(4, 3).cuda()
    made = (x + 1, x @ x.T, x[0], x.T, x.detach(), x.data, x.clone(), x.view(3, 4), x.sum(), x > 0)
    assert {tensor.device for tensor in made} == {CUDA}
    assert F.one_hot(torch.tensor([0, 1]).cuda()).device == CUDA
    assert x.cpu().device == torch.device("cpu")
    assert (x.cpu() + 1).device == torch.device("cpu")


def test_what_tells_the_device_agrees() -> None:
    host, device = torch.zeros(2), torch.zeros(2).cuda(1)
    assert (host.is_cuda, host.is_cpu, host.get_device()) == (False, True, -1)
    assert (device.is_cuda, device.is_cpu, device.get_device()) == (True, False, 1)
    assert (host.type(), device.type()) == ("torch.FloatTensor", "torch.cuda.FloatTensor")
    assert "device='cuda:1'" in repr(device)
    assert "device" not in repr(host)
    assert device.untyped_storage().device == torch.device("cuda:1")


def test_moving_to_where_it_is_copies_nothing() -> None:
    x = torch.zeros(2).cuda()
    assert x.cuda() is x
    assert x.to("cuda") is x
    assert x.to("cuda", copy=True) is not x
    y = x.to("cpu")
    assert y.cpu() is y
    y += 1
    assert x.tolist() == [0.0, 0.0]


def test_to_takes_dtypes_and_other_tensors() -> None:
    x = torch.zeros(2)
    assert x.to("cuda", torch.float16).dtype is torch.float16
    assert x.to(device="cuda", dtype=torch.float64, non_blocking=True).device == CUDA
    other = torch.zeros(1, dtype=torch.int64).cuda()
    assert (x.to(other).device, x.to(other).dtype) == (CUDA, torch.int64)
    assert other.to(torch.float32).device == CUDA


def test_type_as_also_moves() -> None:
    x, other = torch.zeros(2), torch.zeros(1, dtype=torch.int64).cuda()
    assert (x.type_as(other).device, x.type_as(other).dtype) == (CUDA, torch.int64)
    assert other.type_as(other) is other
    assert torch.zeros(2).type_as(torch.zeros(1).cuda()).device == CUDA
    assert (other.type_as(x).device, other.type_as(x).dtype) == (torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("place", ["cpu", "cuda"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_lengths_of_a_ctc_loss_may_be_on_either_side(place: str, reduction: str) -> None:
    scores = torch.randn(5, 2, 4).log_softmax(2).cuda().requires_grad_()
    lengths = torch.tensor([5, 4], device=place), torch.tensor([2, 1], device=place)
    loss = F.ctc_loss(scores, torch.ones(2, 2).long().cuda(), *lengths, reduction=reduction)
    loss.sum().backward()
    assert loss.device == CUDA
    assert scores.grad is not None
    assert scores.grad.device == CUDA


def test_float64_stays_float64_on_the_device() -> None:
    x = torch.from_numpy(np.zeros(3)).cuda()
    assert x.dtype is torch.float64
    with pytest.raises(RuntimeError, match="dtype"):
        nn.Linear(3, 1).cuda()(x)


def test_modules_move_in_place_and_keep_their_parameters() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    weight = model[0].weight
    moved = model.to("cuda")
    assert moved is model
    assert model[0].weight is weight
    assert weight.is_cuda
    assert isinstance(weight, nn.Parameter)
    assert model[1].running_mean.device == CUDA
    assert {p.device for p in model.cpu().parameters()} == {torch.device("cpu")}


def test_lazy_modules_come_to_be_on_their_device() -> None:
    layer = nn.LazyLinear(2).cuda()
    assert layer(torch.ones(1, 3).cuda()).is_cuda
    assert layer.weight.device == CUDA


def test_deep_copies_stay_on_the_device() -> None:
    model = nn.Linear(2, 2).cuda()
    assert copy.deepcopy(model).weight.device == CUDA
    assert copy.deepcopy(model.weight.data).device == CUDA


def test_gradients_are_where_their_leaves_are() -> None:
    on_host = torch.ones(3, requires_grad=True)
    on_device = torch.ones(3, device="cuda", requires_grad=True)
    (on_host.cuda() * on_device).sum().backward()
    assert (on_host.grad.device, on_device.grad.device) == (torch.device("cpu"), CUDA)  # type: ignore[union-attr]
    assert on_host.grad.tolist() == [1.0, 1.0, 1.0]  # type: ignore[union-attr]


def test_gradients_of_indexing_are_on_the_device() -> None:
    weight = torch.ones(4, 2, device="cuda", requires_grad=True)
    (
        weight[[0, 2]].sum()
        + weight[1:3].sum()
        + weight.gather(0, torch.zeros(1, 2).long().cuda()).sum()
    ).backward()
    assert weight.grad.device == CUDA  # type: ignore[union-attr]


def test_optimizer_state_follows_its_parameters() -> None:
    model = nn.Linear(2, 1).cuda()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    model(torch.ones(3, 2).cuda()).sum().backward()
    optimizer.step()
    state = optimizer.state[model.weight]
    assert {value.device for value in state.values()} == {CUDA}
    other = torch.optim.Adam(nn.Linear(2, 1).cuda().parameters())
    other.load_state_dict(optimizer.state_dict())
    assert next(iter(other.state.values()))["exp_avg"].device == CUDA


def test_optimizer_built_before_the_move_has_its_parameters_on_the_device() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.cuda()
    assert optimizer.param_groups[0]["params"][0].is_cuda


def test_default_device_of_new_tensors() -> None:
    with torch.device("cuda"):
        assert torch.ones(2).device == CUDA
        assert torch.tensor([1.0]).device == CUDA
        assert nn.Linear(1, 1).weight.device == CUDA
    assert torch.ones(2).device == torch.device("cpu")
    torch.set_default_device("cuda:1")
    try:
        assert torch.ones(2).device == torch.device("cuda:1")
    finally:
        torch.set_default_device(None)


def test_old_tensor_types_make_and_name_tensors_on_the_device() -> None:
    kind = torch.cuda.FloatTensor
    assert kind([1, 2]).tolist() == [1.0, 2.0]
    assert kind(2, 3).shape == (2, 3)
    assert kind(np.zeros(2)).device == CUDA
    assert torch.zeros(2, dtype=torch.int64).type(kind).type() == "torch.cuda.FloatTensor"
    assert torch.zeros(2).type("torch.cuda.HalfTensor").dtype is torch.float16
    assert isinstance(torch.zeros(2).cuda(), kind)
    assert not isinstance(torch.zeros(2), kind)
    assert torch.zeros(2).cuda().type(torch.FloatTensor).device == torch.device("cpu")


def test_threads_see_the_devices() -> None:
    found: list[torch.device] = []

    def work() -> None:
        found.append((torch.ones(2, device="cuda") * 2).device)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [CUDA]


def test_packed_sequences_keep_their_lengths_on_the_host() -> None:
    network = nn.LSTM(3, 2).cuda()
    padded, lengths = torch.randn(4, 2, 3).cuda(), torch.tensor([4, 2])
    packed = nn.utils.rnn.pack_padded_sequence(padded, lengths)
    output, hidden = network(packed)
    unpacked, back = nn.utils.rnn.pad_packed_sequence(output)
    assert (unpacked.device, hidden[0].device, back.device) == (CUDA, CUDA, torch.device("cpu"))


def test_sparse_gradients_are_on_the_device() -> None:
    embedding = nn.Embedding(5, 2, sparse=True).cuda()
    embedding(torch.tensor([1, 2]).cuda()).sum().backward()
    assert embedding.weight.grad.device == CUDA  # type: ignore[union-attr]


def test_functional_transforms_keep_the_device() -> None:
    x = torch.ones(3, 2).cuda()

    def squares(row: Tensor) -> Tensor:
        return (row * row).sum()

    assert torch.func.vmap(torch.func.grad(squares))(x).device == CUDA
