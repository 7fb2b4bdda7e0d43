"""Carries out the changes of one transform: each in all its files or in none."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...transforms.base import Change, Skip
from ..rewriting.apply import apply_edits
from ..rewriting.edits import Edit, NewFile
from ..rewriting.source_tree import SourceTree
from ..rewriting.style import Style
from ..source import SourceFile, Sources
from .result import TransformError
from .undefined_names import undefined_names


@dataclass(frozen=True)
class Transaction:
    """The changes that could be made together, the text they give the files they touch, and the rest."""

    changes: tuple[Change, ...]
    texts: Mapping[Path, str]
    conflicts: tuple[Skip, ...] = ()
    errors: tuple[TransformError, ...] = ()


def apply_changes(sources: Sources, changes: Sequence[Change]) -> Transaction:
    """Apply ``changes``, all planned on the same ``sources``, as many as go together.

    A change that goes on its own but not beside the earlier ones becomes a Skip (it is planned again
    on the result), one that does not even go alone an error of its transform. What is applied parses
    and reads no undefined name that was not read before.
    """
    try:
        return Transaction(tuple(changes), new_texts(sources, changes))
    except Exception as error:
        if len(changes) == 1:
            return Transaction((), {}, errors=(transform_error(changes[0], error),))
    accepted: list[Change] = []
    texts: Mapping[Path, str] = {}
    conflicts: list[Skip] = []
    errors: list[TransformError] = []
    for change in changes:
        try:
            texts = new_texts(sources, [*accepted, change])
            accepted.append(change)
        except Exception:
            try:
                new_texts(sources, [change])
            except Exception as alone:
                errors.append(transform_error(change, alone))
            else:
                message = f"does not go together with another change of {change.transform} (wanted: {change.message})"
                conflicts.append(Skip(change.transform, change.path, change.span, message))
    return Transaction(tuple(accepted), texts, tuple(conflicts), tuple(errors))


def new_files(changes: Sequence[Change]) -> tuple[NewFile, ...]:
    """The files that ``changes`` make."""
    return tuple(new for change in changes for new in change.files)


def transform_error(change: Change, error: Exception) -> TransformError:
    """The fault ``error`` of the transform that wanted ``change``."""
    message = f"{internal_error(error)} (wanted: {change.message})"
    return TransformError(change.transform, change.path, message)


def internal_error(error: Exception) -> str:
    """One line about an exception that is no fault of the user's."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    text = " ".join(str(error).split())
    return f"internal error: {type(error).__name__}{place}: {text}"


def new_texts(sources: Sources, changes: Sequence[Change]) -> dict[Path, str]:
    """The text of the files ``changes`` edit. Raises whatever stands against making them all."""
    edits: dict[Path, list[Edit]] = {}
    for change in changes:
        for file_edit in change.edits:
            edits.setdefault(sources.read(file_edit.path).path, []).append(file_edit.edit)
    texts: dict[Path, str] = {}
    for path, wanted in edits.items():
        source = sources.read(path)
        original = sources.original(path)
        style = Style.of(original.path, SourceTree.parse(original.text, str(original.path)))
        text = apply_edits(source, wanted, style)
        if text != source.text:
            _refuse_broken(source, text)
            texts[path] = text
    for new in new_files(changes):
        if sources.exists(new.path):
            raise ValueError(f"there is a file {new.path.name}")
        texts[new.path] = new.text
    if changes and not texts:
        raise ValueError("the edits change nothing")
    return texts


def _refuse_broken(source: SourceFile, text: str) -> None:
    before = undefined_names(source.text)
    after = undefined_names(text)
    if before is not None and after is not None and (new := after - before):
        raise ValueError(f"the result would read undefined names: {', '.join(sorted(new))}")
