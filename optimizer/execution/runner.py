"""Run one version of a training script under observation, without touching the user's files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from .observations import Observations


class Mode(str, Enum):
    """What a run is for: ``OBSERVE`` records everything under aligned randomness, ``TIME`` alters nothing."""

    OBSERVE = "observe"
    TIME = "time"


@dataclass(frozen=True)
class ScriptVersion:
    """A script to run: the user's own path, the texts that stand in for files of the project, its arguments."""

    entry: Path
    overrides: Mapping[Path, str] = field(default_factory=dict[Path, str])
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Perturbation:
    """Multiply the initial parameters by ``1 ± eps`` of ``dtype`` (``bfloat16``, ``float16``, ``float32``).

    The signs are drawn with ``seed``. Done before the first forward pass of a root module in training mode.
    """

    dtype: str
    seed: int = 0


@dataclass(frozen=True)
class RunSettings:
    """How to run a version.

    ``steps`` is the number of rounds (see :mod:`.observations`) after which the run is ended. ``cwd`` is the
    directory the user would have started the script in. ``env`` is added to our environment. ``block_steps`` is the
    number of rounds between two waits for the device in TIME mode. ``cache`` is a folder that compiled kernels are
    kept in from run to run; without it each run compiles anew.
    """

    python: Path
    cwd: Path
    steps: int = 20
    seed: int = 0
    mode: Mode = Mode.OBSERVE
    timeout_s: float = 600.0
    perturb: Perturbation | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    block_steps: int = 10
    cache: Path | None = None
    snapshot_bytes: int = 1 << 30


def find_python(explicit: str | None) -> Path:
    """The interpreter to run scripts with: ``explicit``, else the active virtual environment's, else our own.

    Raises TorchoptError when ``explicit`` is not an executable.
    """
    raise NotImplementedError(explicit, sys.executable)


def run(version: ScriptVersion, settings: RunSettings, folder: Path) -> Observations:
    """Run ``version`` in a process of its own and tell what it did; what it leaves is written below ``folder``.

    ``folder`` is made if need be, must be empty and belongs to the caller, who removes it when the observations
    (whose tensors are read from it on demand) are no longer wanted. Files the script itself writes are gone
    afterwards. Never raises for what the script does; raises TorchoptError when the interpreter cannot run it.
    """
    raise NotImplementedError(version, settings, folder)
