"""A rewrite as patches, one per transform, that ``git apply`` takes one after the other.

The patches go from the original to the rewrite as the transforms are added one by one, in the order they are applied;
the last goes to the whole rewrite, whatever a transform makes of what those before it wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ..rewriting.attribution import Provenance, unified_diff
from ..terminal import display_path
from .diff_paths import DiffPaths
from .report import as_git_diff
from .result import RewrittenFile
from .rewrite import Rewritten

Rewrite: TypeAlias = Callable[[Iterable[Path], frozenset[str]], Rewritten]
"""The rewrite of some scripts without the transforms that are named."""
_Texts: TypeAlias = Mapping[Path, str | None]  # None: there is no such file yet


@dataclass(frozen=True)
class Patch:
    """What ``transforms`` change once those of the patches before it have been applied.

    Several transforms are in one patch where the earlier ones only do something beside the last.
    """

    transforms: tuple[str, ...]
    content: bytes

    def file_name(self, number: int) -> str:
        """Its name as the patch ``number`` of a series, counted from 1."""
        return f"{number:02}-{'+'.join(self.transforms)}.patch"


def split_patches(
    whole: Rewritten,
    groups: Sequence[Rewritten],
    rewrite: Rewrite,
    transforms: Sequence[str],
    paths: DiffPaths,
) -> Iterator[Patch]:
    """The patches that lead from the original files to ``whole``, with the ``paths`` that they have in it.

    ``groups`` are the parts of ``whole`` that were rewritten by themselves, each perhaps with fewer ``transforms``;
    these are all there are, in order.
    """
    files = {file.path: file for file in whole.changed}
    labels = {path: paths.label(path) for path in files}
    names = _applied(whole, transforms)
    before = {path: None if file.created else file.original.text for path, file in files.items()}
    waiting: tuple[str, ...] = ()
    for count, name in enumerate(names, 1):
        waiting += (name,)
        after = (
            {path: file.text for path, file in files.items()}
            if count == len(names)
            else _texts(files, _partial(groups, rewrite, transforms, frozenset(names[:count])))
        )
        if after == before:
            continue
        diffs = (
            _diff(labels[path], file, before[path], after[path], waiting)
            for path, file in files.items()
        )
        yield Patch(waiting, _preamble(whole, waiting) + b"".join(diffs))
        before, waiting = after, ()


def _applied(rewritten: Rewritten, transforms: Sequence[str]) -> tuple[str, ...]:
    made = {change.transform for file in rewritten.files for change in file.changes}
    return tuple(name for name in transforms if name in made)


def _partial(
    groups: Iterable[Rewritten],
    rewrite: Rewrite,
    transforms: Sequence[str],
    wanted: frozenset[str],
) -> Iterator[RewrittenFile]:
    """The files with only the ``wanted`` transforms, each group with no others than it has in the end."""
    for group in groups:
        kept = wanted & frozenset(_applied(group, transforms))
        if kept:
            scripts = [result.entry for result in group.results]
            yield from rewrite(scripts, frozenset(transforms) - kept).files


def _texts(files: Mapping[Path, RewrittenFile], partial: Iterable[RewrittenFile]) -> _Texts:
    """The text of the ``files`` that change in the end, as it is in a ``partial`` rewrite."""
    texts = {path: None if file.created else file.original.text for path, file in files.items()}
    return texts | {file.path: file.text for file in partial if file.path in files}


def _diff(
    label: str, file: RewrittenFile, before: str | None, after: str | None, names: tuple[str, ...]
) -> bytes:
    if after is None or after == before:  # a file that is made is not taken away again
        return b""
    provenance = Provenance.of(before or "").after(after, ", ".join(names))
    diff = unified_diff(label, provenance, file.original.bom)
    mode = file.original.executable if before is None else None
    return as_git_diff(label, diff, mode).encode(file.original.encoding)


def _preamble(whole: Rewritten, names: tuple[str, ...]) -> bytes:
    """What the patch does and why; ``git apply`` and ``patch`` skip it."""
    changes = [
        change for file in whole.files for change in file.changes if change.transform in names
    ]
    lines = dict.fromkeys(
        f"# {display_path(change.path)}:{change.line} {change.transform} [{change.tier.label}] "
        f"{' '.join(change.message.split())}; {' '.join(change.reason.split())}\n"
        for change in sorted(changes, key=lambda change: (str(change.path), change.line))
    )
    return "".join([*lines, "\n"]).encode(errors="backslashreplace")
