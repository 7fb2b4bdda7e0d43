"""Whether a run's float32 products are rounded to TF32, by settings old and new, on a device that is pretended."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from torchopt_cli.optimizer.execution.probe.tf32 import layers_in_tf32  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))


def cudnn(monkeypatch: pytest.MonkeyPatch, **settings: object) -> None:
    monkeypatch.setattr(torch.backends, "cudnn", SimpleNamespace(**settings))


def train() -> None:
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(("precision", "found"), [("tf32", ("tfloat32",)), ("ieee", ())])
def test_the_new_setting_is_asked_where_the_old_one_refuses_to_answer(
    recorded, monkeypatch, precision, found
):
    """torch.get_float32_matmul_precision() raises once a script has used the new setting."""

    def refuses() -> str:
        raise RuntimeError("a mix of the legacy and new APIs")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuses)
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(fp32_precision=precision))
    run = recorded(train)
    assert (run.compute_dtypes, run.unobserved) == (found, ())


@pytest.mark.parametrize(("precision", "found"), [("high", ("tfloat32",)), ("highest", ())])
def test_the_old_setting_is_asked_where_there_is_no_other(recorded, monkeypatch, precision, found):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace())
    assert recorded(train).compute_dtypes == found


def test_nothing_is_rounded_without_a_device_nor_in_full_precision(recorded, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(fp32_precision="tf32"))
    assert recorded(train).compute_dtypes == ()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert recorded(train, full_precision=True).compute_dtypes == ()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "convolution": lambda: nn.Sequential(nn.Linear(4, 4), nn.ConvTranspose1d(2, 3, 1)),
    "recurrent": lambda: nn.Sequential(nn.GRU(2, 3)),
    "linear": lambda: nn.Linear(4, 4),
}


@pytest.mark.parametrize(
    ("settings", "rounded"),
    [
        ({"allow_tf32": True}, {"convolution", "recurrent"}),
        ({"allow_tf32": False}, set()),
        (
            {
                "conv": SimpleNamespace(fp32_precision="tf32"),
                "rnn": SimpleNamespace(fp32_precision="ieee"),
            },
            {"convolution"},
        ),
        (
            {
                "conv": SimpleNamespace(fp32_precision="none"),
                "rnn": SimpleNamespace(fp32_precision="tf32"),
            },
            {"recurrent"},
        ),
    ],
)
def test_cudnn_rounds_what_it_computes_unless_told_otherwise(
    ampere, monkeypatch, settings, rounded
):
    cudnn(monkeypatch, **settings)
    found = {name for name, made in NETWORKS.items() if layers_in_tf32(made().modules(), ())}
    assert found == rounded


def test_weights_of_a_functional_convolution_tell_of_it(ampere, monkeypatch):
    cudnn(monkeypatch, allow_tf32=True)
    weights = [SimpleNamespace(is_cuda=True, dim=lambda: 2)]
    assert not layers_in_tf32((), weights)
    assert layers_in_tf32((), [*weights, SimpleNamespace(is_cuda=True, dim=lambda: 4)])
    assert not layers_in_tf32((), [SimpleNamespace(is_cuda=False, dim=lambda: 4)])


def test_nothing_is_rounded_on_a_device_without_tf32(ampere, monkeypatch):
    cudnn(monkeypatch, allow_tf32=True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert not layers_in_tf32(NETWORKS["convolution"]().modules(), ())


def test_nothing_is_rounded_where_the_script_uses_no_device(monkeypatch):
    assert not layers_in_tf32(NETWORKS["convolution"]().modules(), ())
