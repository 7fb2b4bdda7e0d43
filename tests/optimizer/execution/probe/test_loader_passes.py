"""Passes over alike data are counted together, whether the loader is kept or built anew for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler  # noqa: E402

from torchopt_cli.optimizer.execution.probe.loader_passes import LoaderPasses  # noqa: E402

pytestmark = pytest.mark.torch


class Rows(Dataset):
    def __init__(self, rows: object, split: str = "train") -> None:
        self.rows, self.split, self.given = rows, split, 0

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> object:
        self.given += 1
        return self.rows[i]


class Lines(IterableDataset):
    def __len__(self) -> int:
        raise AssertionError("the length of a stream is not asked for")

    def __iter__(self) -> Iterator[int]:
        yield from range(3)


class Shy(Dataset):
    """Cannot be hashed, compared or looked at."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    @property
    def __dict__(self) -> dict[str, object]:
        raise RuntimeError("looked at")

    def __len__(self) -> int:
        return 3


X = torch.arange(12.0)
SAME: dict[str, Callable[[], DataLoader]] = {
    "over one data set": lambda: DataLoader(TensorDataset(X), batch_size=4, shuffle=True),
    "over a new copy": lambda: DataLoader(TensorDataset(X.clone()), shuffle=True),
    "over an array": lambda: DataLoader(Rows(np.arange(12)), shuffle=True),
    "over a list": lambda: DataLoader([[1, 2]] * 12, shuffle=True),
    "over a range": lambda: DataLoader(range(12)),
    "over a part": lambda: DataLoader(Subset(Rows(X), [1, 3, 5])),
    "over a stream": lambda: DataLoader(Lines()),
    "over what cannot be looked at": lambda: DataLoader(Shy()),
    "batches of another size": lambda: DataLoader(Rows(X), batch_size=next(SIZES), shuffle=True),
}
SIZES = iter([2, 3, 4, 6])


@pytest.mark.parametrize("build", SAME.values(), ids=SAME.keys())
def test_a_loader_built_anew_goes_on(build: Callable[[], DataLoader]) -> None:
    passes = LoaderPasses()
    assert [passes.begin(build()) for _ in range(3)] == [(0, 0), (0, 1), (0, 2)]


OTHERS: dict[str, tuple[DataLoader, DataLoader]] = {
    "other values": (DataLoader(TensorDataset(X)), DataLoader(TensorDataset(X + 1))),
    "other array": (DataLoader(Rows(np.arange(4))), DataLoader(Rows(np.arange(4) * 2))),
    "other size": (DataLoader(range(4)), DataLoader(range(5))),
    "other split": (DataLoader(Rows(X)), DataLoader(Rows(X, "test"))),
    "other part": (DataLoader(Subset(Rows(X), [1, 2])), DataLoader(Subset(Rows(X), [2, 3]))),
    "shuffled": (DataLoader(range(4)), DataLoader(range(4), shuffle=True)),
    "other sampler": (
        DataLoader(range(4), sampler=SubsetRandomSampler([0, 1, 2])),
        DataLoader(range(4), sampler=SubsetRandomSampler([3])),
    ),
    "distributed and shuffled": (
        DataLoader(range(4), sampler=DistributedSampler(range(4), 2, 0, shuffle=True)),
        DataLoader(range(4), sampler=DistributedSampler(range(4), 2, 0, shuffle=False)),
    ),
}


@pytest.mark.parametrize("loaders", OTHERS.values(), ids=OTHERS.keys())
def test_other_data_or_another_manner_is_another_loader(
    loaders: tuple[DataLoader, DataLoader],
) -> None:
    passes = LoaderPasses()
    first, second = loaders
    order = [first, second, first, second]
    assert [passes.begin(one) for one in order] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_what_a_data_set_has_become_since_makes_no_other_of_it() -> None:
    passes = LoaderPasses()
    data = Rows(X)
    for epoch in range(3):
        loader = DataLoader(data, shuffle=True)
        assert passes.begin(loader) == (0, epoch)
        list(loader)
    assert data.given == 36
