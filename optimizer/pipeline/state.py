"""A rewrite on its way: the script as it is understood now, and what has become of its files so far."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ...transforms.base import Advice, Change, Skip, Transform
from ..analysis import understand
from ..analysis.script import TrainingScript
from ..rewriting.attribution import Provenance
from ..rewriting.edits import FileEdit, NewFile
from ..source import SourceFile, Sources
from .interactive import Questions
from .result import (
    AppliedChange,
    GivenAdvice,
    Outcome,
    RewriteResult,
    RewrittenFile,
    SharedEdits,
    SkippedChange,
)
from .transaction import new_files, new_texts

_PLACE = re.compile(r"\bline \d+ of ")


@dataclass(frozen=True)
class RewriteState:
    """A rewrite on its way: the script as it is understood now, and the files touched so far.

    ``earlier`` are those of ``files`` that come from other scripts, as they were then. ``questions`` are put to the
    user before each change. ``agreed`` are the edits in shared code that every script which uses that code wants.
    """

    sources: Sources
    script: TrainingScript
    files: Mapping[Path, RewrittenFile]
    earlier: Mapping[Path, RewrittenFile]
    questions: Questions | None = None
    agreed: frozenset[SharedEdits] = frozenset()

    def file(self, path: Path) -> RewrittenFile:
        """What has become of a file so far; of one that nothing has touched, the file as it is."""
        source = self.sources.read(path)
        known = self.files.get(source.path)
        return known or RewrittenFile(source, source.text, Provenance.of(source.text))

    def skipped(self, skip: Skip) -> SkippedChange:
        """``skip`` with its lines as they are numbered in the original."""
        file = self.file(skip.path)
        line = file.provenance.original_line(skip.span.line)
        message = self._in_original_lines(skip.message, file)
        return SkippedChange(skip.transform, file.path, line, message, skip.unreached)

    def given(self, advice: Advice) -> GivenAdvice:
        """``advice`` with its lines as they are numbered in the original."""
        file = self.file(advice.path)
        line = file.provenance.original_line(advice.span.line)
        message = self._in_original_lines(advice.message, file)
        return GivenAdvice(advice.transform, file.path, line, message)

    def _in_original_lines(self, message: str, file: RewrittenFile) -> str:
        """``message`` with the places it names (:meth:`.Module.place`) as a reader of ``file``'s original finds them."""

        def told(match: re.Match[str]) -> str:
            path = Path(match["path"])
            place = self.file(path)
            line = place.provenance.original_line(int(match["line"]))
            return (
                f"line {line}" if place.path == file.path else f"line {line} of {self._name(path)}"
            )

        return self._places.sub(told, message) if _PLACE.search(message) else message

    @cached_property
    def _paths(self) -> tuple[Path, ...]:
        return tuple({module.path: None for module in self.script.modules})

    @cached_property
    def _places(self) -> re.Pattern[str]:
        paths = sorted(map(str, self._paths), key=len, reverse=True)
        return re.compile(rf"\bline (?P<line>\d+) of (?P<path>{'|'.join(map(re.escape, paths))})")

    def _name(self, path: Path) -> str:
        """What tells ``path`` from the other files: its name, with as many folders as that takes."""
        others = [other.parts for other in self._paths if other != path]
        tails = (path.parts[-count:] for count in range(1, len(path.parts)))
        named = (tail for tail in tails if all(other[-len(tail) :] != tail for other in others))
        return "/".join(next(named, path.parts[-1:]))

    def applied(self, change: Change) -> AppliedChange:
        """``change`` with its lines as they are numbered in the original."""
        file = self.file(change.path)
        return AppliedChange(
            change.transform,
            change.tier,
            file.path,
            file.provenance.original_line(change.span.line),
            file.provenance.original_line(change.span.end_line),
            self._in_original_lines(change.message, file),
            self._in_original_lines(change.reason, file),
            change.launch,
            change.on_cpu,
        )

    def after(
        self, transform: Transform, changes: Sequence[Change], texts: Mapping[Path, str]
    ) -> RewriteState:
        """The rewrite once ``changes`` have given the files in ``texts`` new text.

        Raises whatever the analysis raises when it does not understand the result.
        """
        sources = self.sources.with_texts(texts)
        script = understand(self.script.entry.path, sources, self.script)
        files = dict(self.files)
        for change in changes:
            applied = self.applied(change)
            file = files.get(applied.path) or self.file(applied.path)
            files[file.path] = replace(file, changes=(*file.changes, applied))
        files |= {new.path: _created(new) for new in new_files(changes)}
        for path, text in texts.items():
            file = files.get(path) or self.file(path)
            provenance = file.provenance.after(text, transform.name)
            files[path] = replace(file, text=text, provenance=provenance)
        return replace(self, sources=sources, script=script, files=files)

    def shared_edits(self, change: Change) -> SharedEdits:
        """What of ``change`` another script has to want, too, each file spelt as all scripts spell it."""
        edits = tuple(
            FileEdit(self.sources.read(edit.path).path, edit.edit) for edit in change.edits
        )
        return SharedEdits(change.transform, change.tier, edits)

    def wanted(self, change: Change) -> bool:
        """Whether the user wants ``change``; one that cannot be made is not asked about."""
        if self.questions is None:
            return True
        try:
            texts = new_texts(self.sources, [change])
        except Exception:
            return True  # told as what it is when it is applied
        return self.questions.wanted(self.applied(change), self.sources, texts)

    def result(self, outcomes: Sequence[Outcome]) -> RewriteResult:
        """The files as they are now, each with what the last ``outcomes`` say about it."""
        paths = [self.file(module.path).path for module in self.script.modules]
        touched = [path for path, file in self.files.items() if self.earlier.get(path) is not file]
        files = [self.file(path).told(outcomes) for path in dict.fromkeys([*paths, *touched])]
        unreadable = self.script.project.unreadable
        trains = bool(self.script.step_code or self.script.frameworks)
        return RewriteResult(
            self.script.entry.path,
            tuple(files),
            self.sources,
            unreadable,
            trains,
            outcomes=tuple(outcomes),
        )


def _created(new: NewFile) -> RewrittenFile:
    """``new`` as a file that has no text yet."""
    source = SourceFile(new.path, "", is_new=True, executable=new.executable)
    return RewrittenFile(source, "", Provenance.of(""))
