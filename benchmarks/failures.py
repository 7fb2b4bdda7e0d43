"""Corpus scripts that could not be measured, and why."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

from torchopt_cli.optimizer.errors import TorchoptError

from .results import read_failures, write_failures
from .scripts import CorpusScript

_T = TypeVar("_T")


class Failures:
    """Why scripts could not be measured, written down. One that cannot be leaves the others to be."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.known = read_failures(device)

    def attempt(self, script: CorpusScript, work: Callable[[], _T]) -> _T | None:
        """What ``work`` gives; None, once it is said and written why, where the script cannot be measured."""
        if script.missing:
            return self._failed(script, f"needs {', '.join(script.missing)}")
        try:
            return work()
        except (TorchoptError, RuntimeError) as error:
            return self._failed(script, str(error))
        except Exception:
            return self._failed(script, traceback.format_exc())

    def forget(self, script: CorpusScript) -> None:
        """It was measured."""
        if self.known.pop(script.name, None) is not None:
            write_failures(self._device, self.known)

    def _failed(self, script: CorpusScript, why: str) -> None:
        print(f"{script.name}: {why}", file=sys.stderr)
        self.known[script.name] = why
        write_failures(self._device, self.known)
