"""Understanding a training script: from source files to a :class:`~.script.TrainingScript`."""

from __future__ import annotations

import sys
from pathlib import Path

from ..source import Sources
from .program.project import load_project
from .script import TrainingScript
from .values.resolver import Resolver

_DEEPEST = 10_000
"""Frames: what an expression is may hang on a hundred others, each asked about within the one before and some eight
calls deeper. A frame takes half a kilobyte of the stack's eight megabytes at most."""


def understand(
    entry: Path, sources: Sources, earlier: TrainingScript | None = None
) -> TrainingScript:
    """Understand the script at ``entry`` and the first-party modules it imports.

    ``earlier`` is what was understood of it before some of its files changed; the others are not parsed again.
    Raises :class:`TorchoptError` when ``entry`` cannot be read or parsed.
    """
    sys.setrecursionlimit(max(_DEEPEST, sys.getrecursionlimit()))
    project = load_project(entry, sources, earlier.modules if earlier else ())
    return TrainingScript(project, Resolver(project))
