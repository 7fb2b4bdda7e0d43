"""The generators that loading workers start with: aligned randomness would hide it if they were all alike.

Each worker writes down, before its first sample and so after ``worker_init_fn``, a digest of the state of every
generator it can draw from: the global ones and those that the data set holds. Then, for some samples, which of them
the data set really draws from.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import get_worker_info

FOLDER = "workers"
_WATCHED_SAMPLES = 64
_DEPTH = 5


class WorkerWatch:
    """What samples are made through in every process: in a worker, it notes which generators they draw from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: _WorkerGenerators | None = (
            None  # of this process: a worker that lives on starts once
        )

    def of(self, loader: int, epoch: int, dataset: Any) -> Callable[[Callable[[], Any]], Any]:
        """What calls a function that makes a sample of ``dataset`` for the pass ``epoch`` of ``loader``."""
        if get_worker_info() is None:
            return _as_it_is
        if self._known is None:
            self._known = _WorkerGenerators(self._folder, loader, epoch, dataset)
        return self._known.sample


def _as_it_is(make: Callable[[], Any]) -> Any:
    return make()


class _WorkerGenerators:
    """What one worker knows of its generators; told in a file of ``folder`` of its own."""

    def __init__(self, folder: Path, loader: int, epoch: int, dataset: Any) -> None:
        info = get_worker_info()
        self._worker = 0 if info is None else info.id
        self._file = folder / f"{loader}-{epoch}-{self._worker}.json"
        self._loader, self._epoch = loader, epoch
        self._generators = dict(generators(dataset))
        self._states = {name: state() for name, state in self._generators.items()}
        self._drawn: set[str] = set()
        self._watched = 0
        self._write()

    def sample(self, make: Callable[[], Any]) -> Any:
        """Make a sample; of the first ones, notes which generators they draw from."""
        if self._watched >= _WATCHED_SAMPLES or len(self._drawn) == len(self._generators):
            return make()
        self._watched += 1
        rest = [(n, state) for n, state in self._generators.items() if n not in self._drawn]
        before = [state() for _, state in rest]
        sample = make()
        drawn = {n for (n, state), old in zip(rest, before, strict=True) if state() != old}
        if drawn:
            self._drawn |= drawn
            self._write()
        return sample

    def _write(self) -> None:
        noted = {
            "loader": self._loader,
            "epoch": self._epoch,
            "worker": self._worker,
            "states": self._states,
            "drawn": sorted(self._drawn),
        }
        self._file.parent.mkdir(exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(noted), encoding="utf-8")
        os.replace(new, self._file)


def read_workers(folder: Path) -> list[dict[str, Any]]:
    """What the workers of a run left in ``folder`` (the fields of a ``WorkerStart``)."""
    noted = [json.loads(file.read_text(encoding="utf-8")) for file in folder.glob("*.json")]
    return sorted(noted, key=lambda one: (one["loader"], one["epoch"], one["worker"]))


def generators(dataset: Any) -> Iterator[tuple[str, Callable[[], str]]]:
    """The global generators and those in the attributes of ``dataset``: a name, and what gives its state's digest."""
    yield "torch", lambda: digest_of(torch.default_generator)
    yield "random", lambda: _digest(random.getstate())
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        yield "numpy.random", lambda: _digest(_numpy_state(numpy.random.get_state()))
    yield from _held(dataset, "dataset", set(), 0)


def _held(
    thing: Any, path: str, seen: set[int], depth: int
) -> Iterator[tuple[str, Callable[[], str]]]:
    if id(thing) in seen or depth > _DEPTH:
        return
    seen.add(id(thing))
    state = _state_of(thing)
    if state is not None:
        yield path, state
        return
    if isinstance(thing, Mapping):
        parts = [(f"{path}[{key!r}]", value) for key, value in list(thing.items())[:64]]
    elif type(thing) in (list, tuple):
        parts = [(f"{path}[{place}]", value) for place, value in enumerate(thing[:64])]
    elif isinstance(thing, (torch.Tensor, type)) or not hasattr(thing, "__dict__"):
        return
    else:
        parts = [(f"{path}.{name}", value) for name, value in vars(thing).items()]
    for name, value in parts:
        yield from _held(value, name, seen, depth + 1)


def _state_of(thing: Any) -> Callable[[], str] | None:
    """What gives the digest of a generator's state; None for anything else."""
    if isinstance(thing, random.SystemRandom):
        return None
    if isinstance(thing, random.Random):
        return lambda: _digest(thing.getstate())
    if isinstance(thing, torch.Generator):
        return lambda: digest_of(thing)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        if isinstance(thing, numpy.random.RandomState):
            return lambda: _digest(_numpy_state(thing.get_state()))
        if isinstance(thing, numpy.random.Generator):
            return lambda: _digest(_numpy_state(thing.bit_generator.state))
    return None


def digest_of(generator: torch.Generator) -> str:
    """A digest of the generator's state."""
    return _digest(generator.get_state().cpu().numpy().tobytes())


def digest_of_state(state: Any) -> str:
    """A digest of the ``state`` of a generator of Python's or numpy's."""
    return _digest(_numpy_state(state))


def _numpy_state(state: Any) -> Any:
    """A state of numpy's with its arrays as bytes, since their ``repr`` leaves out most of them."""
    if isinstance(state, Mapping):
        return {key: _numpy_state(value) for key, value in state.items()}
    if isinstance(state, tuple):
        return tuple(map(_numpy_state, state))
    return state.tobytes() if hasattr(state, "tobytes") else state


def _digest(state: object) -> str:
    data = state if isinstance(state, bytes) else repr(state).encode()
    return hashlib.blake2b(data, digest_size=8).hexdigest()
