"""Understanding a training script: from source files to a :class:`~.script.TrainingScript`."""

from __future__ import annotations

from pathlib import Path

from ..source import Sources
from .project import load_project
from .resolver import Resolver
from .script import TrainingScript


def understand(entry: Path, sources: Sources) -> TrainingScript:
    """Understand the script at ``entry`` and the first-party modules it imports.

    Raises :class:`TorchoptError` when ``entry`` cannot be read or parsed.
    """
    project = load_project(entry, sources)
    return TrainingScript(project, Resolver(project))
