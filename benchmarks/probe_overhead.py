"""What the timing probe adds to a training step: ``make probe-overhead``.

Each workload trains in this process in blocks of steps, with the probe's hooks for timing runs installed or with none at
all, in the order A B B A A B ..., so that both see the same machine. The workload takes its own times, wall clock and
processor time of the process, which a busy machine disturbs less. A pair of neighbouring blocks gives one ratio of
median step times; told are the median over the pairs and its 95 % bootstrap interval. The bar is 2 % of the step.

The hooks cost the same whatever the step computes: they count calls of ``step``, ``backward`` and ``next``. So a step that
computes next to nothing, with two optimizers, three backward passes and a loader, shows that cost in microseconds and far
more sharply. It is told as a part of a step of 5 ms, the shortest that is worth measuring.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torchopt_cli.optimizer.execution.probe.clock import Clock
from torchopt_cli.optimizer.execution.probe.hooks import Hooks
from torchopt_cli.optimizer.execution.probe.patches import Patches
from torchopt_cli.optimizer.execution.probe.session import Session

BAR = 0.02
SHORTEST = 0.005
"""Seconds of the shortest step that the bar is about."""
BLOCK = 8
WARM_UP = 3
RESAMPLES = 2000


@dataclass(frozen=True)
class Overhead:
    """What the probe adds, as a part of the step: the median over pairs of blocks, and its 95 % interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:+7.2%} [{self.low:+.2%}, {self.high:+.2%}]"


def batches(*shape: int, size: int = 32) -> Iterator[list[torch.Tensor]]:
    """Batches from a DataLoader without end."""
    data = TensorDataset(torch.randn(size * 64, *shape), torch.randint(0, 10, (size * 64,)))
    loader = DataLoader(data, batch_size=size, shuffle=True)
    while True:
        yield from loader


def classifier(net: nn.Module, data: Iterator[list[torch.Tensor]]) -> Callable[[], None]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        inputs, labels = next(data)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(inputs), labels).backward()
        optimizer.step()

    return step


def mlp() -> Callable[[], None]:
    layers = [nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10)]
    return classifier(nn.Sequential(*layers), batches(784, size=128))


def deep_convolutions() -> Callable[[], None]:
    """Many small parameters: 40 convolutions with BatchNorm."""
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, padding=1)]
    for _ in range(40):
        layers += [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
    return classifier(nn.Sequential(*layers, *head), batches(3, 16, 16, size=8))


def gan(width: int = 512, pixels: int = 784, size: int = 64) -> Callable[[], None]:
    """Two optimizers and three backward passes a step."""
    generator = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, pixels), nn.Tanh())
    critic = nn.Sequential(nn.Linear(pixels, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))
    adams = [torch.optim.Adam(net.parameters(), lr=2e-4) for net in (critic, generator)]
    data = batches(pixels, size=size)
    loss = nn.BCEWithLogitsLoss()

    def step() -> None:
        real, _ = next(data)
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = generator(torch.randn(len(real), 64))
        adams[0].zero_grad()
        loss(critic(real), ones).backward()
        loss(critic(fake.detach()), zeros).backward()
        adams[0].step()
        adams[1].zero_grad()
        loss(critic(fake), ones).backward()
        adams[1].step()

    return step


WORKLOADS = {"mlp": mlp, "deep convolutions": deep_convolutions, "gan": gan}


@contextmanager
def probed() -> Iterator[None]:
    """With the hooks of a timing run."""

    def give_up() -> None:
        raise AssertionError("the probe ended the run")

    spec: dict[str, Any] = {
        "output": tempfile.gettempdir(),
        "mode": "time",
        "seed": 0,
        "steps": 10**9,
        "snapshot_bytes": 0,
        "perturb": None,
        "full_precision": False,
        "emulated_gpus": 0,
    }
    patches = Patches()
    clock = Clock(time.perf_counter(), block_steps=10, device_block_steps=10)
    session = Session(spec, clock, give_up)
    Hooks(session, patches).install()
    try:
        yield
    finally:
        patches.undo()


def block(step: Callable[[], None]) -> tuple[float, float]:
    """Median seconds per step of one block: wall clock, processor time. The first steps of it are left out."""
    walls: list[float] = []
    processors: list[float] = []
    for number in range(WARM_UP + BLOCK):
        wall, processor = time.perf_counter(), time.process_time()
        step()
        if number >= WARM_UP:
            walls.append(time.perf_counter() - wall)
            processors.append(time.process_time() - processor)
    return statistics.median(walls), statistics.median(processors)


def interleaved(step: Callable[[], None], pairs: int) -> tuple[list[Any], list[Any]]:
    """The blocks without and with the probe, A B B A A B ..."""
    bare: list[tuple[float, float]] = []
    hooked: list[tuple[float, float]] = []

    def with_probe() -> None:
        with probed():
            hooked.append(block(step))

    for pair in range(pairs):
        turns = (lambda: bare.append(block(step)), with_probe)
        for turn in turns if pair % 2 == 0 else reversed(turns):
            turn()
    return bare, hooked


def overhead(
    bare: Sequence[float], hooked: Sequence[float], of_seconds: float | None = None
) -> Overhead:
    """What pairs of step times say of the probe: as a part of the bare step, or of one of ``of_seconds``."""
    ours = np.asarray(bare)
    ratios = (np.asarray(hooked) - ours) / (of_seconds or ours)
    drawn = np.random.default_rng(0).choice(ratios, (RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    return Overhead(float(np.median(ratios)), float(low), float(high))


def main() -> int:
    start = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60, help="pairs of blocks per workload")
    pairs = parser.parse_args().pairs
    torch.set_num_threads(1)
    print(f"{'':20} {'step':>9}  {'wall clock':>28}  {'processor time':>28}")
    told = [
        told_of("smallest, of 5 ms", lambda: gan(2, 2, 2), 3 * pairs, SHORTEST),
        *(told_of(name, make, pairs) for name, make in WORKLOADS.items()),
    ]
    over = any(one.low > BAR for both in told for one in both)
    print(
        f"bar: {BAR:.0%} of the step, {'broken' if over else 'kept as far as the intervals tell'}"
    )
    print(f"{time.perf_counter() - start:.0f} s")
    return int(over)


def told_of(
    name: str, make: Callable[[], Callable[[], None]], pairs: int, of_seconds: float | None = None
) -> tuple[Overhead, Overhead]:
    """Measure one workload and print its line."""
    torch.manual_seed(0)
    step = make()
    with probed():  # the first hooks import what they need
        block(step)
    bare, hooked = interleaved(step, pairs)
    wall, processor = (
        overhead([one[i] for one in bare], [one[i] for one in hooked], of_seconds) for i in (0, 1)
    )
    middle = statistics.median(one[0] for one in bare)
    print(f"{name:20} {middle * 1000:6.2f} ms  {wall!s:>28}  {processor!s:>28}", flush=True)
    return wall, processor


if __name__ == "__main__":
    sys.exit(main())
