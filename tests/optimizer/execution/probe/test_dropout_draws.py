"""Dropout drops the same elements in every layout, type and kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from torchopt_cli.optimizer.execution.probe.dropout_draws import draw_dropout_alike  # noqa: E402
from torchopt_cli.optimizer.execution.probe.patches import Patches  # noqa: E402

ONES = torch.ones(4, 6, 5, 7)


@pytest.fixture
def alike() -> Iterator[None]:
    patches = Patches()
    draw_dropout_alike(patches)
    yield
    patches.undo()


def kept(dropout: Callable[[Any], Any], x: Any) -> Any:
    torch.manual_seed(3)
    return dropout(x) != 0


@pytest.mark.parametrize(
    "x",
    [
        ONES.contiguous(memory_format=torch.channels_last),
        ONES.bfloat16(),
        ONES.double(),
        ONES.transpose(0, 1).contiguous().transpose(0, 1),
    ],
)
@pytest.mark.parametrize(
    "dropout",
    [nn.Dropout(0.4), lambda x: torch.native_dropout(x, 0.4, True)[0]],
)
def test_the_mask_hangs_on_neither_layout_nor_type(
    alike: None, dropout: Callable[[Any], Any], x: Any
) -> None:
    expected = kept(dropout, ONES)
    assert torch.equal(kept(dropout, x), expected)
    assert expected.float().mean() == pytest.approx(0.6, abs=0.05)
    assert dropout(x).stride() == x.stride()
    assert dropout(x).dtype == x.dtype


def test_dropping_in_place_drops_the_same(alike: None) -> None:
    x = ONES.clone()
    assert torch.equal(kept(nn.Dropout(0.4, inplace=True), x), kept(nn.Dropout(0.4), ONES))
    assert torch.equal(x != 0, kept(nn.Dropout(0.4), ONES))


def test_gradients_pass_where_nothing_was_dropped(alike: None) -> None:
    x = torch.ones(9, 9, requires_grad=True)
    dropped = functional.dropout(x, 0.25)
    dropped.sum().backward()
    assert torch.equal(x.grad, dropped.detach())
    assert dropped.max().item() == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    ("p", "training", "value"), [(0.5, False, 1.0), (0.0, True, 1.0), (1.0, True, 0.0)]
)
def test_what_draws_nothing_is_left_to_torch(
    alike: None, p: float, training: bool, value: float
) -> None:
    assert torch.equal(functional.dropout(ONES, p, training), torch.full_like(ONES, value))
    assert torch.equal(torch.native_dropout(ONES, p, training)[0], torch.full_like(ONES, value))


@pytest.mark.slow
def test_compiled_dropout_drops_the_same(alike: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config, "fallback_random", True)
    dropout = nn.Dropout(0.4)
    compiled = torch.compile(lambda x: dropout(x.relu()), fullgraph=True)
    assert torch.equal(kept(compiled, ONES), kept(dropout, ONES))


def test_attention_that_drops_on_a_gpu_is_computed_by_plain_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fused: list[bool] = []

    def attention(*args: Any, **kwargs: Any) -> None:
        fused.append(torch.backends.cuda.flash_sdp_enabled())

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", attention)
    patches = Patches()
    draw_dropout_alike(patches)
    for is_cuda, p in [(True, 0.1), (True, 0.0), (False, 0.1)]:
        query: Any = SimpleNamespace(is_cuda=is_cuda)
        functional.scaled_dot_product_attention(query, query, query, dropout_p=p)
    patches.undo()
    assert fused == [False, True, True]
    assert torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.parametrize(
    ("layers", "p", "fused"), [(2, 0.5, False), (2, 0.0, True), (1, 0.0, True)]
)
def test_recurrent_layers_that_drop_do_without_cudnn(
    monkeypatch: pytest.MonkeyPatch, layers: int, p: float, fused: bool
) -> None:
    seen: list[bool] = []
    own = nn.LSTM.forward

    def forward(*args: Any) -> Any:
        seen.append(torch.backends.cudnn.enabled)
        return own(*args)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(nn.LSTM, "forward", forward)
    patches = Patches()
    draw_dropout_alike(patches)
    nn.LSTM(4, 4, layers, dropout=p)(torch.randn(3, 2, 4))
    patches.undo()
    assert seen == [fused]
    assert torch.backends.cudnn.enabled


def test_all_is_put_back() -> None:
    def state() -> tuple[Any, ...]:
        mask = kept(
            lambda x: torch.native_dropout(x, 0.4, True)[0],
            ONES.contiguous(memory_format=torch.channels_last),
        )
        functions = functional.dropout, functional.scaled_dot_product_attention
        return (*functions, nn.LSTM.forward, mask.tolist())

    before = state()
    patches = Patches()
    draw_dropout_alike(patches)
    patches.undo()
    assert state() == before
