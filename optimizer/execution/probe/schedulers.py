"""When learning-rate schedulers are stepped."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, cast
from weakref import WeakKeyDictionary

from torch.optim import lr_scheduler

from .patches import Patches
from .rounds import Rounds

_STATE = frozenset(
    {"base_lrs", "best", "cooldown_counter", "last_epoch", "num_bad_epochs", "T_cur", "verbose"}
)
"""Attributes of torch's schedulers that are no settings; the rates they begin with are the optimizer's."""


class Schedulers:
    """Notes every call of a scheduler's ``step`` by the script: not those of schedulers on each other, nor those that move nothing.

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
                self._noted[self._number(scheduler)]["settings"] = _settings(scheduler)

        return wrapper

    def _step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(scheduler, *args, **kwargs):
            if not self._inside:
                noted = self._noted[self._number(scheduler)]
                if not noted["steps"]:
                    # Until then a class of the script's own has set some, or a checkpoint.
                    noted["settings"] = _settings(scheduler)
                if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                    self._metric(
                        f"<{type(scheduler).__name__}>", "metric", _metric(*args, **kwargs)
                    )
            outermost, before, place = not self._inside, _rates(scheduler), _place(scheduler)
            self._inside += 1
            try:
                return original(scheduler, *args, **kwargs)
            finally:
                self._inside -= 1
                noted = self._noted[self._number(scheduler)]
                if outermost and (place is None or _place(scheduler) != place):
                    noted["steps"].append(self._rounds.begun)
                if outermost and _rates(scheduler) != before:
                    noted["changes"].append(self._rounds.begun)

        return wrapper

    def _number(self, scheduler: Any) -> int:
        """Its place in the order of building."""
        if scheduler not in self._numbers:
            self._numbers[scheduler] = len(self._noted)
            noted = {"class_name": type(scheduler).__name__, "steps": [], "changes": []}
            self._noted.append({**noted, "settings": {}})
        return self._numbers[scheduler]

    def finish(self) -> dict[str, Any]:
        """What the record says of schedulers."""
        return {"schedulers": self._noted}


def _rates(scheduler: Any) -> list[float]:
    """The learning rates that ``scheduler`` may set, now."""
    groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", ())
    return [float(group["lr"]) for group in groups if "lr" in group]


def _place(scheduler: Any) -> dict[str, Any] | None:
    """Where in its schedule ``scheduler`` is: the rates, and the numbers it keeps but that of its calls.

    ``step(epoch)`` with the epoch it is at already, such as ``step(0)`` before the first one, leaves that as it is. None of one
    with a ``step`` of the script's own, which may keep anything.
    """
    if type(scheduler).step.__module__ != lr_scheduler.__name__:
        return None
    kept = {
        name: value for name, value in vars(scheduler).items() if isinstance(value, (int, float))
    }
    return {**kept, "_step_count": None, "rates": _rates(scheduler)}


def _settings(scheduler: Any) -> dict[str, str]:
    """Numbers and words that ``scheduler`` keeps and does not change by itself; of one for each group, those that there are."""
    found: dict[str, str] = {}
    for name, value in vars(scheduler).items():
        several = isinstance(value, (list, tuple, dict))
        values = value.items() if isinstance(value, dict) else value if several else (value,)
        shown = [_shown(one) for one in values]
        if shown and None not in shown and name not in _STATE and not name.startswith("_"):
            found[name] = ", ".join(sorted(set(cast("list[str]", shown))))
    return found


def _shown(value: Any) -> str | None:
    """A word, a number, 3 and 3.0 alike, or a pair of them; None where it is anything else."""
    if isinstance(value, tuple):
        parts = [_shown(one) for one in value]
        return None if None in parts else f"({', '.join(cast('list[str]', parts))})"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(int(value) if float(value).is_integer() else float(value))
    return repr(value) if value is None or isinstance(value, (bool, str)) else None


def _metric(metrics: Any = None, *_: Any, **__: Any) -> Any:
    return metrics


def _schedulers(kind: type) -> Iterator[type]:
    """The scheduler classes that ``kind`` is made of, itself included."""
    bases = (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau)  # no LRScheduler before 2.2
    return (one for one in kind.__mro__ if issubclass(one, bases))
