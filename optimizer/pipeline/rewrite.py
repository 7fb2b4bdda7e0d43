"""Understand, plan, apply: one training script through all transforms until nothing changes.

Transforms run in the order of the registry. Whatever one of them changes is understood anew before
the next one looks; each is asked again as long as the script is not the one it was last asked about.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...transforms.base import Advice, Change, Skip, Transform
from ..analysis import understand
from ..analysis.devices.cuda_condition import unnamed_device
from ..analysis.program.sharing import names_used_when_started
from ..analysis.script import TrainingScript
from ..config import suggestion
from ..errors import TorchoptError
from ..options import Options
from ..source import SourceFile, Sources
from .interactive import Questions
from .joint_changes import joint_changes
from .permission import permission, wanted_advice
from .result import (
    Outcome,
    RewriteResult,
    RewrittenFile,
    SharedEdits,
    SkippedChange,
    TransformError,
)
from .state import RewriteState
from .suppression import suppressions
from .transaction import apply_changes, internal_error

_MOST_ROUNDS = 8
_MAIN_GUARD = re.compile(r"^if\s+__name__\s*==", re.MULTILINE)


def selected_transforms(transforms: Sequence[Transform], options: Options) -> tuple[Transform, ...]:
    """Those of ``transforms`` that ``options`` let run, in the same order.

    Raises :class:`TorchoptError` for a name that is no transform's.
    """
    known = {transform.name for transform in transforms}
    for flag, names in (("--select", options.select), ("--ignore", options.ignore)):
        for name in sorted(names - known):
            raise TorchoptError(f"{flag}: no transform is called {name!r}{suggestion(name, known)}")
    return tuple(
        transform
        for transform in transforms
        if transform.name not in options.ignore
        and (
            transform.is_asked_for(options)
            if transform.asked_by is not None
            else (transform.advises or transform.tier <= options.tier)
            and (transform.name in options.select if options.select else not transform.opt_in)
        )
    )


def rewrite_script(
    entry: Path,
    sources: Sources,
    transforms: Sequence[Transform],
    options: Options,
    earlier: Mapping[Path, RewrittenFile] | None = None,
    questions: Questions | None = None,
    agreed: frozenset[SharedEdits] = frozenset(),
) -> RewriteResult:
    """Rewrite ``entry`` and its first-party modules as ``sources`` hold them. Nothing is written.

    ``earlier`` tells about files that were already rewritten as part of another script (their text is
    in ``sources``); what it says about them is continued. ``questions`` are put to the user before each change. What is
    ``agreed`` is changed although other scripts use it, too. A transform that fails, or that does not come to rest, is
    reported and the others go on. Raises :class:`TorchoptError` when ``entry`` cannot be read.
    """
    active = selected_transforms(transforms, options)
    try:
        script = understand(entry, sources)
    except TorchoptError:
        raise
    except Exception as error:
        raise TorchoptError(internal_error(error), entry) from error
    start = RewriteState(sources, script, dict(earlier or {}), earlier or {}, questions, agreed)
    errors: tuple[TransformError, ...] = ()
    while True:
        result, restless = _until_nothing_changes(start, active, options, errors)
        if not restless:
            return result
        message = f"internal error: still changes its own result after {_MOST_ROUNDS} rounds"
        errors += tuple(TransformError(name, entry, message) for name in sorted(restless))
        active = tuple(transform for transform in active if transform.name not in restless)


@dataclass(frozen=True)
class Rewritten:
    """What several scripts came to: the last word on each file, and what could not be read."""

    results: tuple[RewriteResult, ...]
    files: tuple[RewrittenFile, ...]
    errors: tuple[TorchoptError, ...]

    @property
    def changed(self) -> tuple[RewrittenFile, ...]:
        return tuple(file for file in self.files if file.changed)


def rewrite_all(
    scripts: Iterable[Path],
    transforms: Sequence[Transform],
    options_for: Callable[[Path], Options],
    questions: Questions | None = None,
) -> Rewritten:
    """Rewrite ``scripts`` one after the other, each on what those before made of shared modules.

    A script that turned out to be a module of an earlier one is done with it, unless it trains when it is run itself. ``options_for`` gives the
    options of a script by its path; ``questions`` are put to the user before each change. Nothing is written.
    """
    outcomes = rewrite_each(scripts, transforms, options_for, questions)
    return put_together(outcomes, transforms, options_for)


def rewrite_each(
    scripts: Iterable[Path],
    transforms: Sequence[Transform],
    options_for: Callable[[Path], Options],
    questions: Questions | None = None,
) -> list[RewriteResult | TorchoptError | None]:
    """What :func:`rewrite_all` puts together: the outcome of each script, None for one that was done with another.

    Then comes what the scripts agree on in code that they share. The results have no sources, which would hold the text of
    all scripts before them as well.
    """
    sources = Sources()
    files: dict[Path, RewrittenFile] = {}
    outcomes: list[RewriteResult | TorchoptError | None] = []
    for script in scripts:
        try:
            source = sources.read(script)
            if source.path in files and not _trains_when_run(source):
                outcomes.append(None)
                continue
            options = options_for(script)
            result = rewrite_script(script, sources, transforms, options, files, questions)
        except TorchoptError as error:
            outcomes.append(error)
            continue
        sources = result.sources
        files |= {file.path: file for file in result.files}
        outcomes.append(replace(result, sources=Sources()))

    def again(
        entry: Path,
        sources: Sources,
        files: Mapping[Path, RewrittenFile],
        agreed: frozenset[SharedEdits],
    ) -> RewriteResult:
        options = options_for(entry)
        return rewrite_script(entry, sources, transforms, options, files, questions, agreed)

    results = [outcome for outcome in outcomes if isinstance(outcome, RewriteResult)]
    order = [transform.name for transform in transforms]
    joint = {
        result.entry: result for result in joint_changes(results, files, sources, again, order)
    }
    return [
        replace(joint[outcome.entry], sources=Sources(), outcomes=())
        if isinstance(outcome, RewriteResult)
        else outcome
        for outcome in outcomes
    ]


def _trains_when_run(source: SourceFile) -> bool:
    """Whether a module of other scripts is a script that trains, too: rather as one than not at all.

    Its steps may be in other files: a start that makes an optimizer trains, too.
    """
    if _MAIN_GUARD.search(source.text) is None:
        return False
    if ".backward(" in source.text:
        return True
    try:
        used = names_used_when_started(ast.parse(source.text))
    except (SyntaxError, ValueError):
        return False
    return any(name.startswith("optim") for name in used)


def put_together(
    outcomes: Iterable[RewriteResult | TorchoptError | None],
    transforms: Sequence[Transform],
    options_for: Callable[[Path], Options],
) -> Rewritten:
    """The ``outcomes`` of several scripts, in their order, as one."""
    results: list[RewriteResult] = []
    files: dict[Path, RewrittenFile] = {}
    errors: dict[str, TorchoptError] = {}
    for outcome in outcomes:
        if isinstance(outcome, RewriteResult):
            results.append(outcome)
            files |= {file.path: file for file in outcome.files}
            errors |= {str(error): error for error in outcome.unreadable}
        elif outcome is not None:
            errors[str(outcome)] = outcome
    complete = (
        replace(
            file,
            skips=_of_all_scripts(file.skips) + _unused(file, transforms, options_for(file.path)),
        )
        for file in files.values()
    )
    return Rewritten(tuple(results), tuple(complete), tuple(errors.values()))


def _of_all_scripts(skips: tuple[SkippedChange, ...]) -> tuple[SkippedChange, ...]:
    """``skips`` of one file without those of scripts that do not come to a place, where another script does, or has said as much."""
    told = {(skip.transform, skip.line) for skip in skips if not skip.unreached}
    found: list[SkippedChange] = []
    for skip in skips:
        place = (skip.transform, skip.line)
        if not skip.unreached or place not in told:
            found.append(skip)
            told.add(place)
    return tuple(found)


def _unused(
    file: RewrittenFile, transforms: Sequence[Transform], options: Options
) -> tuple[SkippedChange, ...]:
    """The suppressions of ``file`` that nothing needs.

    Only what could have been used is reported: no names of transforms that ``options`` left out.
    """
    known = {transform.name for transform in transforms}
    active = {transform.name for transform in selected_transforms(transforms, options)}
    messages: list[tuple[int, str]] = []
    for found in suppressions(file.original.text):
        used = {name for line, name in file.suppressed if line == found.line}
        kind = "ignore-file" if found.whole_file else "ignore"
        for name in sorted(found.names - known):
            close = suggestion(name, known)
            messages.append((found.line, f"`{kind}[{name}]` names no transform{close}"))
        for name in sorted((found.names & active) - used):
            messages.append((found.line, f"`{kind}[{name}]` suppresses nothing"))
        if not (found.names or used or options.select or options.ignore):
            messages.append((found.line, f"`{kind}` suppresses nothing"))
    return tuple(
        SkippedChange("unused-suppression", file.path, line, message) for line, message in messages
    )


def _until_nothing_changes(
    rewrite: RewriteState,
    active: Sequence[Transform],
    options: Options,
    errors: tuple[TransformError, ...],
) -> tuple[RewriteResult, frozenset[str]]:
    """The result, and the names of the transforms that still changed things in the last round."""
    asked: dict[str, TrainingScript] = {}
    outcomes: dict[str, Outcome] = {}
    restless: set[str] = set()
    for transform in active:
        if transform.looks_at_original:
            _, outcomes[transform.name] = _ask(transform, rewrite, options)
            errors += outcomes[transform.name].errors
    active = tuple(transform for transform in active if not transform.looks_at_original)
    for _ in range(_MOST_ROUNDS):
        restless.clear()
        for transform in active:
            if asked.get(transform.name) is rewrite.script:
                continue
            for _ in range(_MOST_ROUNDS if transform.rests_first else 1):
                asked[transform.name] = rewrite.script
                before = rewrite
                rewrite, outcome = _ask(transform, rewrite, options)
                errors += outcome.errors
                outcomes[transform.name] = outcome
                if rewrite is before:
                    break
                restless.add(transform.name)
        if not restless:
            break
    last = [*outcomes.values(), Outcome(errors=errors)]
    unnamed = unnamed_device(rewrite.script, options)
    return replace(rewrite.result(last), unnamed_device=unnamed), frozenset(restless)


def _ask(
    transform: Transform, rewrite: RewriteState, options: Options
) -> tuple[RewriteState, Outcome]:
    """Let one transform plan once, and carry out what is permitted of it."""
    entry = rewrite.file(rewrite.script.entry.path).path
    try:
        planned = [
            item
            for item in transform.plan(rewrite.script, options)
            if not rewrite.script.is_anothers(item.path, item.span.line)
        ]
        skips = [rewrite.skipped(item) for item in planned if isinstance(item, Skip)]
        changes = [item for item in planned if isinstance(item, Change)]
        tier = transform.tier if transform.is_asked_for(options) else options.tier
        allowed = permission(rewrite, changes, tier)
        advice, unwanted = wanted_advice(rewrite, (a for a in planned if isinstance(a, Advice)))
    except Exception as error:
        fault = TransformError(transform.name, entry, internal_error(error))
        return rewrite, Outcome(errors=(fault,))
    transaction = apply_changes(rewrite.sources, allowed.changes)
    skips += [rewrite.skipped(skip) for skip in (*allowed.refused, *transaction.conflicts)]
    errors = transaction.errors
    if transaction.changes:
        try:
            rewrite = rewrite.after(transform, transaction.changes, transaction.texts)
        except Exception as error:
            errors += (TransformError(transform.name, entry, internal_error(error)),)
    suppressed = allowed.suppressed | unwanted
    return rewrite, Outcome(tuple(skips), advice, errors, suppressed, allowed.proposals)
