"""The observed runs of an original script, each made once, for as many rewrites as are judged against it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..execution.observations import Observations
from ..execution.runner import RunSettings, ScriptVersion


@dataclass(frozen=True)
class _KeptRun:
    settings: RunSettings
    repeat: int
    observations: Observations


class OriginalRuns:
    """What the script ``version`` did when it was run, by how it was run.

    A run is made when it is first asked for, and kept with its tensors below ``folder``, whose owner removes it. A run
    that failed is kept like any other. Timed runs have no place here: they only mean something beside the run of the
    rewrite they are compared with.
    """

    def __init__(self, version: ScriptVersion, folder: Path) -> None:
        self.version = version
        self._folder = folder
        self._kept: list[_KeptRun] = []

    @property
    def count(self) -> int:
        """How many runs were made so far."""
        return len(self._kept)

    @property
    def compiled(self) -> Path:
        """Where kernels compiled in observed runs are kept, those of the rewrites among them."""
        return self._folder / "compiled"

    def observed(
        self, settings: RunSettings, repeat: int, start: Callable[[Path], Observations]
    ) -> Observations:
        """The run with ``settings``; ``repeat`` counts further runs with the same, from 0.

        ``start`` makes it in the folder it is given, unless it was made before. Whatever ``start`` raises is not kept.
        """
        for kept in self._kept:
            if (kept.settings, kept.repeat) == (settings, repeat):
                return kept.observations
        observations = start(self._folder / f"run{len(self._kept)}")
        self._kept.append(_KeptRun(settings, repeat, observations))
        return observations


@contextmanager
def original_runs(version: ScriptVersion) -> Generator[OriginalRuns, None, None]:
    """The runs of ``version``, in a temporary folder that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="torchopt-", ignore_cleanup_errors=True) as folder:
        yield OriginalRuns(version, Path(folder))
