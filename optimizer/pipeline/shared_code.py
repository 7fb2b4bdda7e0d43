"""What a change would do to scripts that are not the one being rewritten."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ...transforms.base import Change
from ..analysis.program.sharing import (
    Definition,
    in_words,
    method_called_by_name,
    other_importers,
    other_users,
    outermost,
    started_in_words,
)
from ..analysis.program.syntax import Module
from ..analysis.script import TrainingScript
from ..options import Tier
from ..rewriting.edits import FileEdit
from .result import SharedUse
from .suppression import edited_span

_SEVERAL_PROCESSES = re.compile(
    r"\b(?:torch\.distributed|torchrun|init_process_group|DistributedDataParallel|DistributedSampler|LOCAL_RANK|WORLD_SIZE|"
    r"mp\.spawn|accelerate|deepspeed|horovod|hvd|lightning|ignite|fabric)\b",
    re.IGNORECASE,
)


def shared_uses(script: TrainingScript, change: Change) -> tuple[SharedUse, ...]:
    """What ``change`` would alter the numbers of for other scripts, too; empty where it alters nobody's.

    Exact changes alter none, and those that act under torchrun only scripts that it may start, too. The entry script is the one that
    was asked for, whoever else imports it.
    """
    if change.tier is Tier.EXACT:
        return ()
    modules = {module.path: module for module in script.modules[1:]}
    found = (
        use
        for edit in change.edits
        if edit.path in modules
        for use in _uses(script, modules[edit.path], edit)
        if not change.only_launched or any(map(_may_be_launched, use.users))
    )
    return tuple(dict.fromkeys(found))


def _may_be_launched(path: Path) -> bool:
    """Whether the script at ``path`` may be one of several processes."""
    return _SEVERAL_PROCESSES.search(path.read_text(encoding="utf-8", errors="replace")) is not None


def _uses(script: TrainingScript, module: Module, edit: FileEdit) -> Iterator[SharedUse]:
    span = edited_span(edit.edit)
    if span is None:
        return
    statement = outermost(module, span.line)
    if isinstance(statement, Definition):
        name, users = statement.name, other_users(script.project, statement, module)
    else:
        name, users = None, other_importers(script.project, module)
    found = tuple(users)
    if not found:
        return
    words = in_words(found[0], name or module.path.name)
    if name is not None and found[0] == module.path:
        words = started_in_words(module.path, name)
    yield SharedUse(module.path, name, method_called_by_name(statement, span.line), found, words)
