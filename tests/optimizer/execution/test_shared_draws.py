"""Noise for each sample: what two ranks draw for their shares is what one process draws for the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torchopt_cli.optimizer.execution.probe.functions import Functions  # noqa: E402
from torchopt_cli.optimizer.execution.probe.patches import Patches  # noqa: E402
from torchopt_cli.optimizer.execution.probe.randomness import seed_everything  # noqa: E402
from torchopt_cli.optimizer.execution.probe.reading import Reading  # noqa: E402
from torchopt_cli.optimizer.execution.probe.shared_draws import SharedDraws  # noqa: E402

pytestmark = pytest.mark.torch

DRAWS: dict[str, Callable[[int], Any]] = {
    "randn": lambda size: torch.randn(size, 5),
    "rand of a tuple": lambda size: torch.rand((size, 5)),
    "randn by name": lambda size: torch.randn(size=(size, 5)),
    "square": lambda size: torch.randn(size, 4),
    "like": lambda size: torch.randn_like(torch.zeros(size, 3)),
    "labels": lambda size: torch.randint(0, 10, (size,)),
    "normal": lambda size: torch.normal(torch.arange(5.0).expand(size, 5), 2.0),
    "filled": lambda size: torch.empty(size, 3).normal_(),
    "uniform": lambda size: torch.empty(size, 3, 2).uniform_(-1, 1),
    "distribution": lambda size: torch.distributions.Normal(torch.zeros(size, 2), 1.0).sample(),
    "multinomial": lambda size: torch.multinomial(torch.ones(size, 7), 3),
    "numpy normal": lambda size: np.random.normal(0, 1, (size, 3)),
    "numpy randn": lambda size: np.random.randn(size, 3),
    "numpy labels": lambda size: np.random.randint(0, 10, size),
    "numpy labels up to 4": lambda size: np.random.randint(4, size=size),
    "numpy by name": lambda size: np.random.uniform(size=(size, 2)),
}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Any, int]]]:
    """``drawn(draw, rank, ranks)``: what is drawn in that rank, and how many draws were counted; whole batches have 8 samples."""
    undone: list[Patches] = []

    def run(
        draw: Callable[[int], Any],
        rank: int = 0,
        ranks: int = 1,
        *,
        align: bool = True,
        is_share: bool = True,
    ) -> tuple[Any, int]:
        distributed = torch.distributed
        monkeypatch.setattr(distributed, "is_initialized", lambda: ranks > 1)
        monkeypatch.setattr(distributed, "get_rank", lambda: rank)
        monkeypatch.setattr(distributed, "get_world_size", lambda: ranks)
        reading, patches = Reading(), Patches()
        reading.batch, reading.is_share = 8 // ranks, is_share
        draws = SharedDraws(reading, 0, align=align)
        draws.install(patches, Functions(patches))
        undone.append(patches)
        try:
            seed_everything(3)
            return draw(8 // ranks), draws.finish()["noises"]
        finally:
            patches.undo()

    yield run
    for patches in undone:
        patches.undo()


@pytest.mark.parametrize("name", DRAWS)
def test_shares_of_the_ranks_make_up_the_whole(
    drawn: Callable[..., tuple[Any, int]], name: str
) -> None:
    whole, count = drawn(DRAWS[name])
    assert count == 1
    for rank in range(2):
        share, counted = drawn(DRAWS[name], rank, 2)
        assert counted == 1
        assert (np.asarray(share) == np.asarray(whole)[rank::2]).all()
    alone, _ = drawn(DRAWS[name], 1, 2, align=False)
    assert not (np.asarray(alone) == np.asarray(whole)[1::2]).all()


@pytest.mark.parametrize(
    "draw",
    [
        lambda _: torch.rand(3, 4),
        lambda _: torch.randn(()),
        lambda _: np.random.beta(0.4, 0.4),
        lambda size: torch.randperm(size),
        lambda size: torch.randn(size, 2, generator=torch.Generator().manual_seed(1)),
    ],
    ids=["of a size of its own", "a number", "a number of numpy's", "order", "a generator's own"],
)
def test_what_is_not_drawn_for_each_sample(
    drawn: Callable[..., tuple[Any, int]], draw: Callable[[int], Any]
) -> None:
    plain, count = drawn(draw, 1, 2)
    seed_everything(3)
    assert count == 0
    assert (np.asarray(plain) == np.asarray(draw(4))).all()


def test_what_follows_is_drawn_alike(drawn: Callable[..., tuple[Any, int]]) -> None:
    def noise_and_more(size: int) -> Any:
        torch.randn(size, 5)
        return torch.rand(3)

    whole, _ = drawn(noise_and_more)
    share, _ = drawn(noise_and_more, 1, 2)
    assert torch.equal(whole, share)


def test_what_every_rank_reads_in_full_is_drawn_by_each_alike(
    drawn: Callable[..., tuple[Any, int]],
) -> None:
    """As an evaluation that is not shared."""
    alone, _ = drawn(lambda size: torch.randn(size, 2), 1, 2, is_share=False)
    seed_everything(3)
    assert torch.equal(alone, torch.randn(4, 2))
