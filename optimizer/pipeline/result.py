"""What a rewrite gives back: files, changes, what was left alone, advice, and faults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import TorchoptError
from ..options import Tier
from ..rewriting.attribution import Provenance
from ..source import SourceFile, Sources


@dataclass(frozen=True)
class AppliedChange:
    """A change that was made; lines are those of the original file, 1-based.

    ``launch`` is the command that starts the script from then on, None where it stays ``python``. ``on_cpu`` says of a change
    for CUDA that it works on a CPU as well.
    """

    transform: str
    tier: Tier
    path: Path
    line: int
    end_line: int
    message: str
    reason: str
    launch: str | None = None
    on_cpu: bool = False


@dataclass(frozen=True)
class SkippedChange:
    """A place that was left alone, and why; the line is that of the original file, 1-based.

    ``unreached`` says that the script which it is told of is not seen to come there.
    """

    transform: str
    path: Path
    line: int
    message: str
    unreached: bool = False


@dataclass(frozen=True)
class GivenAdvice:
    """Something the user may want to know; the line is that of the original file, 1-based."""

    transform: str
    path: Path
    line: int
    message: str


@dataclass(frozen=True)
class TransformError:
    """A fault of a transform; what it wanted to change was dropped."""

    transform: str
    path: Path
    message: str


@dataclass(frozen=True)
class RewrittenFile:
    """One file of a training script: as it was, as it is now, and all there is to say about it.

    ``suppressed`` holds which transforms a comment kept off: (original line of the comment, name).
    """

    original: SourceFile
    text: str
    provenance: Provenance
    changes: tuple[AppliedChange, ...] = ()
    skips: tuple[SkippedChange, ...] = ()
    advice: tuple[GivenAdvice, ...] = ()
    errors: tuple[TransformError, ...] = ()
    suppressed: frozenset[tuple[int, str]] = frozenset()

    @property
    def path(self) -> Path:
        return self.original.path

    @property
    def changed(self) -> bool:
        return self.text != self.original.text

    @property
    def created(self) -> bool:
        """Whether there was no such file before."""
        return self.original.is_new


@dataclass(frozen=True)
class RewriteResult:
    """What became of one script: its files, the entry first, and the sources after the rewrite.

    ``unreadable`` are first-party modules that could not be read and so were not rewritten. ``trains`` says that a
    training step, or a framework that owns one, is seen in it. ``unnamed_device`` is the code of a device that may be a
    GPU, where no target is given and the script names none.
    """

    entry: Path
    files: tuple[RewrittenFile, ...]
    sources: Sources
    unreadable: tuple[TorchoptError, ...] = ()
    trains: bool = True
    unnamed_device: str | None = None

    @property
    def launch(self) -> str | None:
        """The command that starts the rewritten script, None where that is ``python`` as before."""
        changes = (change for file in self.files for change in file.changes)
        return next((change.launch for change in changes if change.launch is not None), None)
