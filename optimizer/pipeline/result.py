"""What a rewrite gives back: files, changes, what was left alone, advice, and faults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import TorchoptError
from ..options import Tier
from ..rewriting.attribution import Provenance
from ..rewriting.edits import FileEdit
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
class SharedUse:
    """That files beside those of a script use what a change edits in ``path``, one of its modules.

    ``definition`` is the function or class of that name, None for the module as a whole; ``method`` the one of the class, where
    nothing but its name leads there. ``users`` are those files, ``path`` itself where it may be started. ``words`` name one of them.
    """

    path: Path
    definition: str | None
    method: str | None
    users: tuple[Path, ...]
    words: str

    @property
    def names(self) -> frozenset[str]:
        """The names that code which comes to the change reads."""
        return frozenset(name for name in (self.definition, self.method) if name is not None)


@dataclass(frozen=True)
class SharedEdits:
    """What two scripts have to want alike for a change of code that they share: the transform, its tier, and every edit."""

    transform: str
    tier: Tier
    edits: tuple[FileEdit, ...]


@dataclass(frozen=True)
class Proposal:
    """A change that was refused for nothing but other scripts' sake; ``skip`` says so."""

    edits: SharedEdits
    uses: tuple[SharedUse, ...]
    skip: SkippedChange


@dataclass(frozen=True)
class Outcome:
    """What asking one transform once led to, beside changes.

    ``suppressed``: (file, original line of the comment, transform). ``proposals`` are those of ``skips`` that other scripts
    may lift.
    """

    skips: tuple[SkippedChange, ...] = ()
    advice: tuple[GivenAdvice, ...] = ()
    errors: tuple[TransformError, ...] = ()
    suppressed: frozenset[tuple[Path, int, str]] = frozenset()
    proposals: tuple[Proposal, ...] = ()


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

    def told(self, outcomes: Iterable[Outcome]) -> RewrittenFile:
        """This file with what ``outcomes`` say about it, after what is said already."""
        # Asked about its own result, a transform may say that there is nothing left to do.
        changed = {(change.transform, change.line) for change in self.changes}
        skips = [skip for skip in self.skips if (skip.transform, skip.line) not in changed]
        advice = list(self.advice)
        errors = list(self.errors)
        suppressed = set(self.suppressed)
        for outcome in outcomes:
            skips += [
                skip
                for skip in outcome.skips
                if skip.path == self.path and (skip.transform, skip.line) not in changed
            ]
            advice += [given for given in outcome.advice if given.path == self.path]
            errors += [error for error in outcome.errors if error.path == self.path]
            suppressed |= {
                (line, name) for path, line, name in outcome.suppressed if path == self.path
            }
        return replace(
            self,
            skips=tuple(dict.fromkeys(skips)),
            advice=tuple(dict.fromkeys(advice)),
            errors=tuple(dict.fromkeys(errors)),
            suppressed=frozenset(suppressed),
        )

    def untold(self) -> RewrittenFile:
        """This file without what is said about it, but for the changes that were made."""
        return replace(self, skips=(), advice=(), errors=(), suppressed=frozenset())


@dataclass(frozen=True)
class RewriteResult:
    """What became of one script: its files, the entry first, and the sources after the rewrite.

    ``unreadable`` are first-party modules that could not be read and so were not rewritten. ``trains`` says that a
    training step, or a framework that owns one, is seen in it. ``unnamed_device`` is the code of a device that may be a
    GPU, where no target is given and the script names none. ``outcomes`` are what the files are told of by this script.
    """

    entry: Path
    files: tuple[RewrittenFile, ...]
    sources: Sources
    unreadable: tuple[TorchoptError, ...] = ()
    trains: bool = True
    unnamed_device: str | None = None
    outcomes: tuple[Outcome, ...] = ()

    @property
    def launch(self) -> str | None:
        """The command that starts the rewritten script, None where that is ``python`` as before."""
        changes = (change for file in self.files for change in file.changes)
        return next((change.launch for change in changes if change.launch is not None), None)
