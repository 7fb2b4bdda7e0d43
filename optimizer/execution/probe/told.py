"""What a script tells elsewhere than on stdout: on stderr, by log messages or itself, metrics handed to a tracker, and beside progress bars."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from .patches import Patches
from .protection import Protection
from .variables import is_library

LOGGING, STDERR, BARS = "<logging>", "<stderr>", "<progress bars>"
_BARS = {
    "set_postfix": "postfix",
    "set_postfix_str": "postfix",
    "set_description": "desc",
    "set_description_str": "desc",
}
"""The methods of a bar of tqdm that put something beside it, and the attribute that has it."""
_TRACKERS = {
    "torch.utils.tensorboard.writer": ("SummaryWriter.add_scalar", "SummaryWriter.add_scalars"),
    "tensorboardX.writer": ("SummaryWriter.add_scalar", "SummaryWriter.add_scalars"),
    "wandb.sdk.wandb_run": ("Run.log",),
    "mlflow": ("log_metric", "log_metrics"),
}
"""Functions that are given metrics, by module."""
_MOST = 1 << 20
"""Characters kept of each text."""


class Told:
    """Keeps what is told, as texts below ``folder``; ``rounds`` gives how many have begun."""

    def __init__(self, folder: Path, rounds: Callable[[], int]) -> None:
        self._folder, self._rounds = folder, rounds
        self._bars: dict[tuple[int, str], str] = {}
        self._messages: list[str] = []
        self._stderr, self._room = [""], _MOST
        self._metrics: dict[str, dict[str, list[str]]] = {}

    def install(self, patches: Patches, protection: Protection) -> None:
        """Listen from here on; trackers once they are imported."""
        patches.wrap(logging.StreamHandler, "emit", self._emit)
        if sys.stderr is not None and hasattr(sys.stderr, "__dict__"):  # pyright: ignore[reportUnnecessaryComparison]
            patches.wrap(sys.stderr, "write", self._write)
        for module, functions in _TRACKERS.items():
            for function in functions:
                listen = functools.partial(self._listen, patches, function)
                protection.importer.after_import(module, listen)
        listen = functools.partial(self._listen_to_bars, patches)
        protection.importer.after_import("tqdm.std", listen)

    def metric(self, to: str, name: str, value: Any) -> None:
        """The metric ``name`` is told ``to`` something."""
        for known, number in _numbers([name, value]):
            self._metrics.setdefault(to, {}).setdefault(known, []).append(f"{known}: {number!r}")

    def finish(self) -> dict[str, Any]:
        """What the record says of it: names of texts, and the files they are in."""
        given = {
            LOGGING: self._messages,
            STDERR: "".join(self._stderr).splitlines(),
            BARS: [f"step {begun} {what}: {text}" for (begun, what), text in self._bars.items()],
        }
        texts = {name: lines for name, lines in given.items() if lines}
        for tracker, metrics in self._metrics.items():
            # By metric: which is told first in a step is a matter of style.
            texts[tracker] = [line for name in sorted(metrics) for line in metrics[name]]
        told: list[list[str]] = []
        for number, (name, lines) in enumerate(texts.items()):
            file = f"told{number}.txt"
            text = "".join(f"{line}\n" for line in lines)
            (self._folder / file).write_text(text[:_MOST], encoding="utf-8")
            told.append([name, file])
        return {"told": told}

    def _emit(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def wrapper(handler, record):
            elsewhere = isinstance(handler, logging.FileHandler) or handler.stream is sys.stdout
            if not elsewhere and not is_library(record.pathname):
                with suppress(Exception):  # the handler tells what is wrong with it
                    self._messages.append(record.getMessage())
            return original(handler, record)

        return wrapper

    def _write(self, original: Callable[[str], int]) -> Callable[[str], int]:
        """What the script writes to stderr itself; progress bars and warnings are libraries'."""

        def write(text: str) -> int:
            if self._room > 0 and not is_library(sys._getframe(1).f_code.co_filename):
                self._stderr.append(text)
                self._room -= len(text)
            return original(text)

        return write

    def _listen_to_bars(self, patches: Patches, module: ModuleType) -> None:
        for method, attribute in _BARS.items():
            patches.wrap(module.tqdm, method, functools.partial(self._beside_bar, attribute))

    def _beside_bar(self, attribute: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """What is last put there in each step: how far a bar has come is not known before it is drawn."""

        @functools.wraps(original)
        def wrapper(bar, *args, **kwargs):
            result = original(bar, *args, **kwargs)
            text = " ".join(str(getattr(bar, attribute, "")).split())
            self._bars[self._rounds(), attribute] = text
            return result

        return wrapper

    def _listen(self, patches: Patches, function: str, module: ModuleType) -> None:
        owner: Any = module
        *owners, name = function.split(".")
        for part in owners:
            owner = getattr(owner, part, None)
        if not callable(getattr(owner, name, None)):
            return
        tracker = f"<{(owners or [module.__name__])[-1]}>"
        patches.wrap(owner, name, functools.partial(self._tracked, tracker))

    def _tracked(self, tracker: str, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            result = original(*args, **kwargs)
            given = dict(signature.bind(*args, **kwargs).arguments)
            given.pop("self", None)
            step = next((given.pop(key) for key in ("global_step", "step") if key in given), None)
            for name, value in _numbers(list(given.values())):
                at = "" if step is None else f" at {step}"
                lines = self._metrics.setdefault(tracker, {}).setdefault(name, [])
                lines.append(f"{name}{at}: {value!r}")
            return result

        return wrapper


def _numbers(given: list[Any]) -> Iterator[tuple[str, float]]:
    """The metrics among the arguments of a call: a name and a number, or a name and numbers by name, or only these."""
    first: Any = given[0] if given else None
    pairs: list[tuple[Any, Any]]
    if isinstance(first, str):
        rest: Any = given[1] if len(given) > 1 else None
        named = rest.items() if isinstance(rest, Mapping) else [("", rest)]
        pairs = [(f"{first}/{key}" if key else first, value) for key, value in named]
    else:
        pairs = list(first.items()) if isinstance(first, Mapping) else []
    for name, value in pairs:
        if isinstance(value, (str, bytes)):
            continue
        try:
            yield str(name), float(value)
        except Exception:  # an image, a table, a tensor of several numbers
            continue
