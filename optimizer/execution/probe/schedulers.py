"""When learning-rate schedulers are stepped."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from torch.optim import lr_scheduler

from .patches import Patches
from .rounds import Rounds


class Schedulers:
    """Notes every call of a scheduler's ``step`` by the script: not those of schedulers on each other.

    ``metric`` is told what a plateau is looked for in.
    """

    def __init__(self, rounds: Rounds, metric: Callable[[str, str, Any], None]) -> None:
        self._rounds = rounds
        self._metric = metric
        self._numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._noted: list[dict[str, Any]] = []
        self._wrapped: set[type] = set()
        self._inside = 0
        self._patches: Patches | None = None

    def install(self, patches: Patches) -> None:
        """Patch the schedulers of torch; classes of the script's own are patched as they are first used."""
        self._patches = patches
        for kind in vars(lr_scheduler).values():
            if isinstance(kind, type):
                self._wrap_steps(kind)
                if "__init__" in vars(kind) and kind in _schedulers(kind):
                    patches.wrap(kind, "__init__", self._init)

    def _wrap_steps(self, kind: type) -> None:
        for one in _schedulers(kind):
            if "step" in vars(one) and one not in self._wrapped and self._patches is not None:
                self._wrapped.add(one)
                self._patches.wrap(one, "step", self._step)

    def _init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Building a scheduler sets the first learning rate by a step of its own."""

        @functools.wraps(original)
        def wrapper(scheduler, *args, **kwargs):
            self._wrap_steps(type(scheduler))
            self._number(scheduler)
            self._inside += 1
            try:
                return original(scheduler, *args, **kwargs)
            finally:
                self._inside -= 1

        return wrapper

    def _step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(scheduler, *args, **kwargs):
            if not self._inside:
                self._noted[self._number(scheduler)]["steps"].append(self._rounds.begun)
                if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                    self._metric(
                        f"<{type(scheduler).__name__}>", "metric", _metric(*args, **kwargs)
                    )
            outermost, before = not self._inside, _rates(scheduler)
            self._inside += 1
            try:
                return original(scheduler, *args, **kwargs)
            finally:
                self._inside -= 1
                if outermost and _rates(scheduler) != before:
                    self._noted[self._number(scheduler)]["changes"].append(self._rounds.begun)

        return wrapper

    def _number(self, scheduler: Any) -> int:
        """Its place in the order of building."""
        if scheduler not in self._numbers:
            self._numbers[scheduler] = len(self._noted)
            self._noted.append({"class_name": type(scheduler).__name__, "steps": [], "changes": []})
        return self._numbers[scheduler]

    def finish(self) -> dict[str, Any]:
        """What the record says of schedulers."""
        return {"schedulers": self._noted}


def _rates(scheduler: Any) -> list[float]:
    """The learning rates that ``scheduler`` may set, now."""
    groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", ())
    return [float(group["lr"]) for group in groups if "lr" in group]


def _metric(metrics: Any = None, *_: Any, **__: Any) -> Any:
    return metrics


def _schedulers(kind: type) -> Iterator[type]:
    """The scheduler classes that ``kind`` is made of, itself included."""
    bases = (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau)  # no LRScheduler before 2.2
    return (one for one in kind.__mro__ if issubclass(one, bases))
