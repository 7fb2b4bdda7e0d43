"""Command-line options whose default the rewrite changes: their printed value is no result of the training.

Raising the default of ``--workers`` is an edit a rewrite may make. A script that prints its options, or saves them in a
checkpoint, then shows another number there. What the option does to the training is judged; what it reads is not.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import replace

from ..analysis.calls.signatures import call_argument
from ..analysis.program.project import load_project
from ..analysis.values.options import destination
from ..comparison.findings import Finding, Kind, note
from ..comparison.lines import STAND_IN, without_options
from ..execution.observations import Checkpoint, CheckpointEntry, Observations
from ..execution.runner import ScriptVersion
from ..source import Sources


def changed_defaults(original: ScriptVersion, rewritten: ScriptVersion) -> frozenset[str]:
    """The names of the options of both versions whose default is written otherwise in the second."""
    before, after = _defaults(original), _defaults(rewritten)
    return frozenset(name for name in before.keys() & after.keys() if before[name] != after[name])


def _defaults(version: ScriptVersion) -> dict[str, str]:
    project = load_project(version.entry, Sources().with_texts(version.overrides))
    found: dict[str, str] = {}
    for module in project.modules:
        for call in module.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
                default = call_argument(call, "default")
                found[destination(call) or ""] = ast.unparse(default) if default else "None"
    return found


def without_defaults(run: Observations, names: Collection[str]) -> Observations:
    """``run`` with the values of the options ``names`` blotted out of what was printed, saved and written to files."""
    if not names:
        return run
    checkpoints = tuple(_checkpoint_without(checkpoint, names) for checkpoint in run.checkpoints)
    files = tuple(replace(file, blotted=frozenset(names)) for file in run.files)
    stdout = without_options(run.stdout, names)
    return replace(run, stdout=stdout, checkpoints=checkpoints, files=files)


def changed_defaults_note(names: Collection[str]) -> tuple[Finding, ...]:
    """What to tell the user about the options left out, if any."""
    if not names:
        return ()
    listed = ", ".join(sorted(names))
    return (
        note(
            Kind.NOT_REPEATABLE,
            f"has another default, so its printed value is not compared: {listed}",
        ),
    )


def _checkpoint_without(checkpoint: Checkpoint, names: Collection[str]) -> Checkpoint:
    entries = {
        key: _entry_without(entry, key.rpartition("/")[2], names)
        for key, entry in checkpoint.entries.items()
    }
    return replace(checkpoint, entries=entries)


def _entry_without(entry: CheckpointEntry, key: str, names: Collection[str]) -> CheckpointEntry:
    if entry.value is None:
        return entry
    value = STAND_IN if key in names else without_options(entry.value, names)
    return replace(entry, value=value)
