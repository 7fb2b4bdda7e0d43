"""Which runs go on past the rounds that were asked for, and until when."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from torchopt_cli.optimizer.execution.observations import Observations, Status

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset  # noqa: E402

from torchopt_cli.optimizer.execution.probe import extent  # noqa: E402

pytestmark = pytest.mark.torch

Recorded = Callable[..., Observations]


class Training:
    """Epochs of ``batches`` steps, each followed by an evaluation of two calls."""

    def __init__(self, batches: int, epochs: int = 5) -> None:
        self.batches, self.epochs = batches, epochs
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def batches_of(self, epoch: int) -> Iterator[torch.Tensor]:
        yield from self.loader

    def __call__(self) -> None:
        data = TensorDataset(torch.zeros(self.batches, 3))
        self.loader = DataLoader(data, collate_fn=lambda rows: torch.stack([r[0] for r in rows]))
        for epoch in range(self.epochs):
            self.model.train()
            for x in self.batches_of(epoch):
                self.model(x).sum().backward()
                self.optimizer.step()
            self.evaluate()

    def evaluate(self) -> None:
        self.model.eval()
        for _ in range(2):
            self.model(torch.zeros(4, 3))


class ByHand(Training):
    """Without a loader."""

    def batches_of(self, epoch: int) -> Iterator[torch.Tensor]:
        for _ in range(self.batches):
            yield torch.zeros(1, 3)


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.zeros(12, 3)


class Streamed(Training):
    """From a loader that nobody knows the length of."""

    def batches_of(self, epoch: int) -> Iterator[torch.Tensor]:
        yield from DataLoader(Stream())


class Broken(Training):
    """Epochs are broken off."""

    def batches_of(self, epoch: int) -> Iterator[torch.Tensor]:
        for number, x in enumerate(self.loader):
            if number == 12:
                break
            yield x


class Endless(Training):
    """One pass over a loader whose sampler draws on and on."""

    def batches_of(self, epoch: int) -> Iterator[torch.Tensor]:
        if not epoch:
            data = self.loader.dataset
            sampler = RandomSampler(data, replacement=True, num_samples=10**10)
            self.rows = iter(DataLoader(data, sampler=sampler))
        for _ in range(self.batches):
            yield next(self.rows)[0]


@pytest.fixture
def one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks for the end of the script."""
    monkeypatch.setattr(extent, "SEARCH_SHARE", -1.0)


class Watch:
    """A clock that steps forward by what it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(extent, "time", self)

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def told(seen: Observations) -> tuple[int, int, int | None, bool]:
    """Rounds, samples evaluated, rounds by which an epoch was over, and whether it was cut."""
    return seen.rounds, seen.eval_samples, seen.epoch_rounds, seen.cut


@pytest.mark.usefixtures("one_epoch")
@pytest.mark.parametrize("training", [Training(12), Broken(100)])
def test_a_run_goes_on_until_the_second_step_of_the_next_epoch(
    recorded: Recorded, training: Training
) -> None:
    seen = recorded(training, steps=5, epoch_seconds=100.0)
    assert (seen.status, *told(seen)) == (Status.STOPPED, 14, 8, 14, False)


@pytest.mark.usefixtures("one_epoch")
@pytest.mark.parametrize(("steps", "rounds"), [(13, 14), (14, 14), (20, 20), (30, 30)])
def test_it_does_not_go_on_where_the_end_was_seen(
    recorded: Recorded, steps: int, rounds: int
) -> None:
    seen = recorded(Training(12), steps=steps, epoch_seconds=100.0)
    assert told(seen) == (rounds, 8 * ((rounds - 1) // 12), rounds, False)


def test_tells_the_end_of_the_epoch_where_nobody_asked_for_it(recorded: Recorded) -> None:
    assert told(recorded(Training(12), steps=5)) == (5, 0, 14, False)


@pytest.mark.parametrize(
    "training", [Training(12), Broken(100), Streamed(12), ByHand(12), Endless(12)]
)
def test_a_short_script_is_seen_to_its_end(recorded: Recorded, training: Training) -> None:
    seen = recorded(training, steps=5, epoch_seconds=100.0)
    assert (seen.status, *told(seen)) == (Status.COMPLETED, 60, 40, 14, False)


def test_a_longer_one_is_cut_and_tells_when_it_had_seen_an_epoch(
    recorded: Recorded, watch: Watch
) -> None:
    class Slow(Training):
        def batches_of(self, epoch: int) -> Iterator[torch.Tensor]:
            for x in self.loader:
                watch.now += 1.0
                yield x

    assert told(recorded(Slow(12), steps=5, epoch_seconds=60.0)) == (35, 16, 14, True)
    # Nothing is left for that where the epoch has taken as long.
    assert told(recorded(Slow(12), steps=5, epoch_seconds=12.0)) == (14, 8, 14, False)
    # What was asked for is as long as that.
    assert told(recorded(Slow(12), steps=30, epoch_seconds=10.0)) == (35, 16, 30, True)


def test_an_epoch_that_is_too_long_is_not_begun_to_be_looked_at(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told(recorded(Training(1000), steps=5, epoch_seconds=1e-6)) == (5, 0, None, False)
    monkeypatch.setattr(extent, "MOST_ROUNDS", 50)
    assert told(recorded(Training(60), steps=5, epoch_seconds=100.0)) == (5, 0, None, False)
    assert told(recorded(Training(48), steps=5, epoch_seconds=100.0)) == (50, 8, 50, False)


def test_an_epoch_that_gets_slow_is_cut(recorded: Recorded, watch: Watch) -> None:
    class Slowing(Training):
        def batches_of(self, epoch: int) -> Iterator[torch.Tensor]:
            for number, x in enumerate(self.loader):
                watch.now += 1.0 if number < 10 else 100.0
                yield x

    assert told(recorded(Slowing(40), steps=5, epoch_seconds=60.0)) == (11, 0, None, True)


class Thorough(Training):
    """Evaluates twice, before and behind half a minute."""

    def __init__(self, watch: Watch, batches: int) -> None:
        super().__init__(batches)
        self.watch = watch

    def evaluate(self) -> None:
        super().evaluate()
        self.watch.now += 30.0
        super().evaluate()


def test_a_long_evaluation_is_cut(recorded: Recorded, watch: Watch) -> None:
    # Beyond twice the time.
    seen = recorded(Thorough(watch, 12), steps=5, epoch_seconds=14.0)
    assert told(seen) == (12, 8, None, True)
    seen = recorded(Thorough(watch, 12), steps=5, epoch_seconds=18.0)
    assert told(seen) == (14, 16, 14, False)
    # Where nothing goes on there is nothing to cut, however long it takes.
    seen = recorded(Thorough(watch, 4), steps=6, epoch_seconds=1.0)
    assert told(seen) == (8, 24, 6, True)


def test_what_nothing_foretells_is_looked_for_a_while(recorded: Recorded, watch: Watch) -> None:
    class Slow(ByHand):
        def batches_of(self, epoch: int) -> Iterator[torch.Tensor]:
            for x in super().batches_of(epoch):
                watch.now += 1.0
                yield x

    assert told(recorded(Slow(40), steps=5, epoch_seconds=20.0)) == (16, 0, None, True)
    # Foreseen once it has begun: two steps behind the evaluation.
    assert told(recorded(Slow(14), steps=5, epoch_seconds=20.0)) == (16, 8, 16, False)
