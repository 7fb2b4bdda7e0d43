"""Understand, plan, apply: one training script through all transforms until nothing changes.

Transforms run in the order of the registry. Whatever one of them changes is understood anew before
the next one looks; each is asked again as long as the script is not the one it was last asked about.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..transforms.base import Advice, Change, Skip, Transform
from .analysis import understand
from .analysis.cuda_condition import unnamed_device
from .analysis.script import TrainingScript
from .config import suggestion
from .errors import TorchoptError
from .interactive import Questions
from .options import Options, Tier
from .rewrite_result import (
    AppliedChange,
    GivenAdvice,
    RewriteResult,
    RewrittenFile,
    SkippedChange,
    TransformError,
)
from .rewriting.attribution import Provenance
from .rewriting.edits import NewFile, Span
from .shared_code import other_script
from .source import SourceFile, Sources
from .suppression import Suppression, edited_span, suppressions
from .transaction import apply_changes, internal_error, new_files, new_texts

_MOST_ROUNDS = 8
_LINE_IN_MESSAGE = re.compile(r"\bline (?P<line>\d+)(?: of (?P<name>[\w.-]+\.py))?")


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
) -> RewriteResult:
    """Rewrite ``entry`` and its first-party modules as ``sources`` hold them. Nothing is written.

    ``earlier`` tells about files that were already rewritten as part of another script (their text is
    in ``sources``); what it says about them is continued. ``questions`` are put to the user before each change. A transform that fails, or that does not
    come to rest, is reported and the others go on. Raises :class:`TorchoptError` when ``entry``
    cannot be read.
    """
    active = selected_transforms(transforms, options)
    try:
        script = understand(entry, sources)
    except TorchoptError:
        raise
    except Exception as error:
        raise TorchoptError(internal_error(error), entry) from error
    start = _Rewrite(sources, script, dict(earlier or {}), earlier or {}, questions)
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

    A script that turned out to be a module of an earlier one is done with it. ``options_for`` gives the
    options of a script by its path; ``questions`` are put to the user before each change. Nothing is written.
    """
    outcomes = rewrite_each(scripts, transforms, options_for, questions)
    return put_together(outcomes, transforms, options_for)


def rewrite_each(
    scripts: Iterable[Path],
    transforms: Sequence[Transform],
    options_for: Callable[[Path], Options],
    questions: Questions | None = None,
) -> Iterator[RewriteResult | TorchoptError | None]:
    """What :func:`rewrite_all` puts together: the outcome of each script, None for one that was done with another.

    The results have no sources, which would hold the text of all scripts before them as well.
    """
    sources = Sources()
    files: dict[Path, RewrittenFile] = {}
    for script in scripts:
        try:
            if sources.read(script).path in files:
                yield None
                continue
            options = options_for(script)
            result = rewrite_script(script, sources, transforms, options, files, questions)
        except TorchoptError as error:
            yield error
            continue
        sources = result.sources
        files |= {file.path: file for file in result.files}
        yield replace(result, sources=Sources())


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
        replace(file, skips=file.skips + _unused(file, transforms, options_for(file.path)))
        for file in files.values()
    )
    return Rewritten(tuple(results), tuple(complete), tuple(errors.values()))


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


@dataclass(frozen=True)
class _Outcome:
    """What asking one transform once led to, beside changes.

    ``suppressed``: (file, original line of the comment, transform).
    """

    skips: tuple[SkippedChange, ...] = ()
    advice: tuple[GivenAdvice, ...] = ()
    errors: tuple[TransformError, ...] = ()
    suppressed: frozenset[tuple[Path, int, str]] = frozenset()


@dataclass(frozen=True)
class _Rewrite:
    """A rewrite on its way: the script as it is understood now, and the files touched so far.

    ``earlier`` are those of ``files`` that come from other scripts, as they were then. ``questions`` are put to the
    user before each change.
    """

    sources: Sources
    script: TrainingScript
    files: Mapping[Path, RewrittenFile]
    earlier: Mapping[Path, RewrittenFile]
    questions: Questions | None = None

    def file(self, path: Path) -> RewrittenFile:
        source = self.sources.read(path)
        known = self.files.get(source.path)
        return known or RewrittenFile(source, source.text, Provenance.of(source.text))

    def skipped(self, skip: Skip) -> SkippedChange:
        file = self.file(skip.path)
        line = file.provenance.original_line(skip.span.line)
        message = self.in_original_lines(skip.message, file)
        return SkippedChange(skip.transform, file.path, line, message)

    def given(self, advice: Advice) -> GivenAdvice:
        file = self.file(advice.path)
        line = file.provenance.original_line(advice.span.line)
        message = self.in_original_lines(advice.message, file)
        return GivenAdvice(advice.transform, file.path, line, message)

    def in_original_lines(self, message: str, file: RewrittenFile) -> str:
        """``message`` with the lines it names (``line 7``, ``line 7 of data.py``) as they are numbered in the original."""
        by_name = {path.name: known for path, known in self.files.items()}

        def original(match: re.Match[str]) -> str:
            place = by_name.get(match["name"]) if match["name"] else file
            line = int(match["line"])
            number = place.provenance.original_line(line) if place else line
            return match[0].replace(match["line"], str(number), 1)

        return _LINE_IN_MESSAGE.sub(original, message)

    def applied(self, change: Change) -> AppliedChange:
        file = self.file(change.path)
        return AppliedChange(
            change.transform,
            change.tier,
            file.path,
            file.provenance.original_line(change.span.line),
            file.provenance.original_line(change.span.end_line),
            self.in_original_lines(change.message, file),
            self.in_original_lines(change.reason, file),
            change.launch,
            change.on_cpu,
        )

    def after(
        self, transform: Transform, changes: Sequence[Change], texts: Mapping[Path, str]
    ) -> _Rewrite:
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
        return _Rewrite(sources, script, files, self.earlier, self.questions)

    def wanted(self, change: Change) -> bool:
        """Whether the user wants ``change``; one that cannot be made is not asked about."""
        if self.questions is None:
            return True
        try:
            texts = new_texts(self.sources, [change])
        except Exception:
            return True  # told as what it is when it is applied
        return self.questions.wanted(self.applied(change), self.sources, texts)

    def result(self, outcomes: Sequence[_Outcome]) -> RewriteResult:
        """The files as they are now, each with what the last ``outcomes`` say about it."""
        paths = [self.file(module.path).path for module in self.script.modules]
        touched = [path for path, file in self.files.items() if self.earlier.get(path) is not file]
        files = [
            self._told(self.file(path), outcomes) for path in dict.fromkeys([*paths, *touched])
        ]
        unreadable = self.script.project.unreadable
        trains = bool(self.script.step_code or self.script.frameworks)
        return RewriteResult(self.script.entry.path, tuple(files), self.sources, unreadable, trains)

    def _told(self, file: RewrittenFile, outcomes: Sequence[_Outcome]) -> RewrittenFile:
        # Asked about its own result, a transform may say that there is nothing left to do.
        changed = {(change.transform, change.line) for change in file.changes}
        skips = [skip for skip in file.skips if (skip.transform, skip.line) not in changed]
        advice = list(file.advice)
        errors = list(file.errors)
        suppressed = set(file.suppressed)
        for outcome in outcomes:
            skips += [
                skip
                for skip in outcome.skips
                if skip.path == file.path and (skip.transform, skip.line) not in changed
            ]
            advice += [given for given in outcome.advice if given.path == file.path]
            errors += [error for error in outcome.errors if error.path == file.path]
            suppressed |= {
                (line, name) for path, line, name in outcome.suppressed if path == file.path
            }
        return replace(
            file,
            skips=tuple(dict.fromkeys(skips)),
            advice=tuple(dict.fromkeys(advice)),
            errors=tuple(dict.fromkeys(errors)),
            suppressed=frozenset(suppressed),
        )


def _created(new: NewFile) -> RewrittenFile:
    """``new`` as a file that has no text yet."""
    source = SourceFile(new.path, "", is_new=True, executable=new.executable)
    return RewrittenFile(source, "", Provenance.of(""))


def _until_nothing_changes(
    rewrite: _Rewrite,
    active: Sequence[Transform],
    options: Options,
    errors: tuple[TransformError, ...],
) -> tuple[RewriteResult, frozenset[str]]:
    """The result, and the names of the transforms that still changed things in the last round."""
    asked: dict[str, TrainingScript] = {}
    outcomes: dict[str, _Outcome] = {}
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
            asked[transform.name] = rewrite.script
            before = rewrite
            rewrite, outcome = _ask(transform, rewrite, options)
            errors += outcome.errors
            outcomes[transform.name] = outcome
            if rewrite is not before:
                restless.add(transform.name)
        if not restless:
            break
    last = [*outcomes.values(), _Outcome(errors=errors)]
    unnamed = unnamed_device(rewrite.script, options)
    return replace(rewrite.result(last), unnamed_device=unnamed), frozenset(restless)


def _ask(transform: Transform, rewrite: _Rewrite, options: Options) -> tuple[_Rewrite, _Outcome]:
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
        permitted, refused, suppressed = _permitted(rewrite, changes, tier)
        advice, unwanted = _wanted(rewrite, (a for a in planned if isinstance(a, Advice)))
    except Exception as error:
        fault = TransformError(transform.name, entry, internal_error(error))
        return rewrite, _Outcome(errors=(fault,))
    transaction = apply_changes(rewrite.sources, permitted)
    skips += [rewrite.skipped(skip) for skip in (*refused, *transaction.conflicts)]
    errors = transaction.errors
    if transaction.changes:
        try:
            rewrite = rewrite.after(transform, transaction.changes, transaction.texts)
        except Exception as error:
            errors += (TransformError(transform.name, entry, internal_error(error)),)
    return rewrite, _Outcome(tuple(skips), advice, errors, suppressed | unwanted)


def _permitted(
    rewrite: _Rewrite, changes: Iterable[Change], tier: Tier
) -> tuple[list[Change], list[Skip], frozenset[tuple[Path, int, str]]]:
    """The changes that tier, comments, other scripts and the user allow, and skips for the others."""
    permitted: list[Change] = []
    refused: list[Skip] = []
    used: set[tuple[Path, int, str]] = set()
    for change in changes:
        comments = list(_comments_against(rewrite, change, _touched(change)))
        if change.tier > tier:
            label = change.tier.label
            message = f"{change.message}: only with --tier {label}"
        elif comments:
            reason = comments[0][1].reason
            message = f"suppressed: {reason}" if reason else "suppressed"
        elif (user := other_script(rewrite.script, change)) is not None:
            message = f"{change.message}: not done, {user}"
        elif not rewrite.wanted(change):
            message = f"{change.message}: declined"
        else:
            permitted.append(change)
            continue
        refused.append(Skip(change.transform, change.path, change.span, message))
        used.update(_used(rewrite, change, comments))
    return permitted, refused, frozenset(used)


def _wanted(
    rewrite: _Rewrite, advice: Iterable[Advice]
) -> tuple[tuple[GivenAdvice, ...], frozenset[tuple[Path, int, str]]]:
    """The advice that none of the user's comments forbids, and the comments that forbid some."""
    wanted: list[GivenAdvice] = []
    used: set[tuple[Path, int, str]] = set()
    for item in advice:
        comments = list(_comments_against(rewrite, item, {item.path: [item.span]}))
        used.update(_used(rewrite, item, comments))
        wanted += [] if comments else [rewrite.given(item)]
    return tuple(wanted), frozenset(used)


def _used(
    rewrite: _Rewrite, item: Change | Advice, comments: Iterable[tuple[Path, Suppression]]
) -> Iterator[tuple[Path, int, str]]:
    """How ``_Outcome.suppressed`` names the ``comments`` that keep ``item`` off."""
    for path, comment in comments:
        file = rewrite.file(path)
        yield file.path, file.provenance.original_line(comment.line), item.transform


def _touched(change: Change) -> dict[Path, list[Span]]:
    spans: dict[Path, list[Span]] = {change.path: [change.span]}
    for file_edit in change.edits:
        span = edited_span(file_edit.edit)
        spans.setdefault(file_edit.path, []).extend([span] if span else [])
    return spans


def _comments_against(
    rewrite: _Rewrite, item: Change | Advice, spans: Mapping[Path, list[Span]]
) -> Iterator[tuple[Path, Suppression]]:
    for path, touched in spans.items():
        for comment in suppressions(rewrite.sources.read(path).text):
            if comment.keeps_off(item.transform, touched):
                yield path, comment
