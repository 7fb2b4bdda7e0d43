"""Which passes would be shuffled alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from torchopt_cli.optimizer.execution.observations import Observations

pytestmark = pytest.mark.torch

DATA = TensorDataset(torch.arange(6.0).view(6, 1))
EPOCHS = 3
Recorded = Callable[..., Observations]
Epoch = Callable[[int], DataLoader[tuple[torch.Tensor, ...]]]


def kinds(recorded: Recorded, epoch: Epoch) -> list[int | None]:
    """For each training pass the number of the first that is drawn alike, over the loader that ``epoch`` gives."""

    def train() -> None:
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(EPOCHS):
            for (x,) in epoch(number):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()

    drawn = [one.drawn_from for one in recorded(train).loader_passes]
    return [None if one is None else drawn.index(one) for one in drawn]


def loader(**chosen: object) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(DATA, **{"batch_size": 3, "shuffle": True, **chosen})  # type: ignore[arg-type]


def test_passes_go_on_drawing(recorded: Recorded) -> None:
    one = loader()
    assert kinds(recorded, lambda _: one) == [0, 1, 2]


def test_loaders_made_anew_go_on_drawing(recorded: Recorded) -> None:
    assert kinds(recorded, lambda _: loader()) == [0, 1, 2]


@pytest.mark.parametrize("module", [torch, torch.random])
def test_the_same_seed_in_every_epoch(recorded: Recorded, module: Any) -> None:
    one = loader()

    def epoch(_: int) -> DataLoader[tuple[torch.Tensor, ...]]:
        module.manual_seed(5)
        return one

    assert kinds(recorded, epoch) == [0, 0, 0]


def test_another_seed_in_every_epoch(recorded: Recorded) -> None:
    one = loader()

    def epoch(number: int) -> DataLoader[tuple[torch.Tensor, ...]]:
        torch.manual_seed(number)
        return one

    assert kinds(recorded, epoch) == [0, 1, 2]


def test_generators_of_the_script_s_own(recorded: Recorded) -> None:
    kept = loader(generator=torch.Generator().manual_seed(1))
    assert kinds(recorded, lambda _: kept) == [0, 1, 2]
    fresh = kinds(recorded, lambda _: loader(generator=torch.Generator().manual_seed(1)))
    assert fresh == [0, 0, 0]


def test_a_generator_of_the_script_s_own_seeded_again(recorded: Recorded) -> None:
    own = torch.Generator().manual_seed(1)
    kept = loader(generator=own)
    state = own.get_state()

    def seeded(_: int) -> DataLoader[tuple[torch.Tensor, ...]]:
        own.manual_seed(1)
        return kept

    def set_back(_: int) -> DataLoader[tuple[torch.Tensor, ...]]:
        own.set_state(state)
        return kept

    def seeded_otherwise(number: int) -> DataLoader[tuple[torch.Tensor, ...]]:
        own.manual_seed(number)
        return kept

    assert kinds(recorded, seeded) == kinds(recorded, set_back) == [0, 0, 0]
    assert kinds(recorded, seeded_otherwise) == [0, 1, 2]


def test_samplers_of_batches(recorded: Recorded) -> None:
    def epoch(_: int) -> DataLoader[tuple[torch.Tensor, ...]]:
        torch.manual_seed(5)
        batches = BatchSampler(RandomSampler(DATA), 3, drop_last=False)
        return loader(batch_size=None, shuffle=None, sampler=batches)

    assert kinds(recorded, epoch) == [0, 0, 0]


def test_without_a_shuffle_nothing_is_said(recorded: Recorded) -> None:
    assert kinds(recorded, lambda _: loader(shuffle=False)) == [None, None, None]
