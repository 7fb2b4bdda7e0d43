"""What a change would do to scripts that are not being rewritten."""

from __future__ import annotations

from ...transforms.base import Change
from ..analysis.program.sharing import (
    Definition,
    in_words,
    other_importer,
    outermost,
    user_of_definition,
)
from ..analysis.program.syntax import Module
from ..analysis.script import TrainingScript
from ..options import Tier
from ..rewriting.edits import FileEdit
from .suppression import edited_span


def other_script(script: TrainingScript, change: Change) -> str | None:
    """Which other script's numbers ``change`` would alter, in words; None where it alters none.

    Exact changes alter nobody's. The entry script is the one that was asked for, whoever else imports it.
    """
    if change.tier is Tier.EXACT:
        return None
    modules = {module.path: module for module in script.modules[1:]}
    for edit in change.edits:
        if edit.path in modules:
            user = _user(script, modules[edit.path], edit)
            if user is not None:
                return user
    return None


def _user(script: TrainingScript, module: Module, edit: FileEdit) -> str | None:
    span = edited_span(edit.edit)
    if span is None:
        return None
    if isinstance(outermost(module, span.line), Definition):
        return user_of_definition(script.project, module, span.line)
    return in_words(other_importer(script.project, module), module.path.name)
