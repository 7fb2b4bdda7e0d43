"""Replaced functions of torch, and ``torch.jit.script``, which only knows torch's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from torchopt_cli.optimizer.execution.probe.dropout_draws import draw_dropout_alike  # noqa: E402
from torchopt_cli.optimizer.execution.probe.patches import Patches  # noqa: E402
from torchopt_cli.optimizer.execution.probe.randomness import draw_on_host  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")]


class Noisy(nn.Module):
    """Calls replaced functions one after the other: of torch.nn.functional, in layers, and those that draw."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):  # type: ignore[no-untyped-def]
        hidden = self.drop(self.linear(x))
        hidden = nn.functional.dropout(hidden, 0.25) + torch.rand_like(hidden)
        return hidden + torch.rand(hidden.shape) + torch.bernoulli(torch.sigmoid(hidden))


@pytest.fixture
def replaced() -> Iterator[None]:
    patches = Patches()
    draw_on_host(patches)
    draw_dropout_alike(patches)
    yield
    patches.undo()


def test_scripted_modules_may_call_what_is_replaced(replaced: None) -> None:
    wrapped = torch.rand, torch.rand_like, torch.bernoulli, nn.functional.dropout
    scripted = torch.jit.script(Noisy())
    assert scripted(torch.ones(2, 4)).shape == (2, 4)
    assert (torch.rand, torch.rand_like, torch.bernoulli, nn.functional.dropout) == wrapped
    torch.jit.script(Noisy())


def test_what_cannot_be_scripted_leaves_them_replaced(replaced: None) -> None:
    wrapped = torch.rand

    def unknown(x):  # type: ignore[no-untyped-def]
        return torch.rand(2) + not_there(x)  # noqa: F821  # pyright: ignore

    with pytest.raises(RuntimeError):
        torch.jit.script(unknown)
    assert torch.rand is wrapped
