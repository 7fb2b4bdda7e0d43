"""Changes of code that several scripts share, where all of them are rewritten and want the same.

A script by itself makes only exact changes of what scripts beside it use, too. Once each script of a run is done, what was
left for the others' sake is compared: where every script that uses the code wants the same edits of the files as they
are by then, they are made, one transform at a time, and those scripts are asked again. So it comes to the same whichever
script is first.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

from ..analysis.program.sharing import (
    Definition,
    in_words,
    names_reached,
    names_used_when_started,
)
from ..errors import TorchoptError
from ..source import Sources, parse
from ..syntax_tree import syntax_tree
from .result import (
    Outcome,
    Proposal,
    RewriteResult,
    RewrittenFile,
    SharedEdits,
    SharedUse,
    SkippedChange,
)

_MOST_ROUNDS = 8
"""So often one transform may change what scripts share in one file, and so often all are asked until they come to rest."""


class RewriteAgain(Protocol):
    """Rewrites a script on what was made of its files so far, with what is agreed."""

    def __call__(
        self,
        entry: Path,
        sources: Sources,
        files: Mapping[Path, RewrittenFile],
        agreed: frozenset[SharedEdits],
        /,
    ) -> RewriteResult: ...


def joint_changes(
    results: Sequence[RewriteResult],
    files: Mapping[Path, RewrittenFile],
    sources: Sources,
    again: RewriteAgain,
    transforms: Sequence[str],
) -> Sequence[RewriteResult]:
    """The ``results`` of all scripts of a run once they have made the changes of shared code that they agree on.

    ``files`` and ``sources`` are what the scripts made of their files, ``transforms`` the names of all, in the order they run. What a
    script could not be understood with is undone.
    """
    run = _Run(results, files, sources)
    if not run.members() or not _done(run, run.settle, again):
        return results
    rounds: Counter[tuple[str, Path]] = Counter()
    tried: set[SharedEdits] = set()
    failed: set[SharedEdits] = set()
    while chosen := _chosen(run, tried | failed, rounds, transforms):
        rounds.update({(edits.transform, edits.edits[0].path) for edits in chosen})
        before = run.texts()
        if not _done(run, partial(run.make, chosen), again):
            failed |= chosen
        tried = tried | chosen if run.texts() == before else set()
    return run.told(tried)


def _done(run: _Run, step: Callable[[RewriteAgain], None], again: RewriteAgain) -> bool:
    """Whether ``step`` led to files that every script is understood with; without that it is undone."""
    before = run.state
    try:
        step(again)
    except TorchoptError:
        run.state = before
        return False
    return True


def _chosen(
    run: _Run,
    tried: set[SharedEdits],
    rounds: Mapping[tuple[str, Path], int],
    transforms: Sequence[str],
) -> frozenset[SharedEdits]:
    """What is made next: of what is agreed on, that of the first transform and of one set of scripts."""
    agreed = {
        edits: voters
        for edits, voters in run.agreed().items()
        if edits not in tried
        and rounds.get((edits.transform, edits.edits[0].path), 0) < _MOST_ROUNDS
    }
    if not agreed:
        return frozenset()

    def rank(edits: SharedEdits) -> tuple[int, list[str]]:
        return transforms.index(edits.transform), sorted(map(str, agreed[edits]))

    first = min(map(rank, agreed))
    return frozenset(edits for edits in agreed if rank(edits) == first)


@dataclass(frozen=True)
class _Against:
    """The script that stands against a change, in words; no ``script``: one that is not rewritten."""

    script: Path | None = None
    words: str = ""


@dataclass(frozen=True)
class _State:
    """What has become of the scripts, each with the text of its files when it was last asked, and of the files."""

    results: Mapping[Path, RewriteResult]
    files: Mapping[Path, RewrittenFile]
    sources: Sources

    def after(self, result: RewriteResult) -> _State:
        return _State(
            {**self.results, result.entry: replace(result, sources=Sources())},
            {**self.files, **{file.path: file.untold() for file in result.files}},
            result.sources,
        )


class _Run:
    """The scripts of a run and their files, as far as they have come."""

    def __init__(
        self,
        results: Sequence[RewriteResult],
        files: Mapping[Path, RewrittenFile],
        sources: Sources,
    ) -> None:
        untold = {path: file.untold() for path, file in files.items()}
        self.state = _State({result.entry: result for result in results}, untold, sources)

    @property
    def _results(self) -> Mapping[Path, RewriteResult]:
        return self.state.results

    @property
    def _files(self) -> Mapping[Path, RewrittenFile]:
        return self.state.files

    def texts(self) -> Mapping[Path, str]:
        return {path: file.text for path, file in self._files.items()}

    def members(self) -> frozenset[Path]:
        """The scripts that have a file in which there may be something to agree on."""
        shared = {
            use.path
            for result in self._results.values()
            for proposal in _proposals(result)
            if all(map(self._is_among_us, proposal.uses))
            for use in proposal.uses
        }
        return frozenset(
            result.entry
            for result in self._results.values()
            if not shared.isdisjoint(_paths(result))
        )

    def settle(self, again: RewriteAgain) -> None:
        """Ask each of the members again whose files others have changed since it was last asked, until none is left."""
        for _ in range(_MOST_ROUNDS):
            stale = [entry for entry in sorted(self.members()) if self._is_stale(entry)]
            if not stale:
                return
            for entry in stale:
                self._rewrite(entry, again, frozenset())

    def make(self, agreed: frozenset[SharedEdits], again: RewriteAgain) -> None:
        """Make the changes that were ``agreed`` on, by the first of the scripts that want them, and let all settle."""
        voters = {
            result.entry
            for result in self._results.values()
            if any(proposal.edits in agreed for proposal in _proposals(result))
        }
        self._rewrite(min(voters), again, agreed)  # one alone, so that the user is asked once
        self.settle(again)

    def agreed(self) -> Mapping[SharedEdits, frozenset[Path]]:
        """What all scripts want that use the code it is about, and who they are."""
        found: dict[SharedEdits, frozenset[Path]] = {}
        refused: set[SharedEdits] = set()
        for result in self._results.values():
            for proposal in _proposals(result):
                if self._against(result, proposal) is not None:
                    refused.add(proposal.edits)
                known = found.get(proposal.edits, frozenset())
                found[proposal.edits] = known | self._voters(proposal)
        return {edits: voters for edits, voters in found.items() if edits not in refused}

    def told(self, tried: Set[SharedEdits]) -> Sequence[RewriteResult]:
        """The results, each file with what the scripts last said about it, and why what they do not agree on was not done.

        Why what was ``tried`` was not done is said by the script that was to do it.
        """
        outcomes = [
            self._explained(result, outcome, tried)
            for result in self._results.values()
            for outcome in result.outcomes
        ]
        files = {path: file.told(outcomes) for path, file in self._files.items()}
        return [
            replace(result, files=tuple(files[file.path] for file in result.files))
            for result in self._results.values()
        ]

    def _rewrite(self, entry: Path, again: RewriteAgain, agreed: frozenset[SharedEdits]) -> None:
        self.state = self.state.after(again(entry, self.state.sources, self._files, agreed))

    def _is_stale(self, entry: Path) -> bool:
        files = self._results[entry].files
        return any(self._files[file.path].text != file.text for file in files)

    # -- who uses what

    def _is_among_us(self, use: SharedUse) -> bool:
        """Whether every file that is known to use the code is a script of this run, or part of one that has the code."""
        return all(self._comes_with_us(user, use) for user in use.users)

    def _comes_with_us(self, user: Path, use: SharedUse) -> bool:
        """Whether ``user`` runs with a script that is asked; not where it uses the code when it is started, and is no script here."""
        real = os.path.realpath(user)
        having = [r for r in self._results.values() if use.path in _paths(r)]
        if any(os.path.realpath(r.entry) == real for r in having):
            return True
        parts = [r for r in having if real in {os.path.realpath(p) for p in _paths(r)}]
        if real == os.path.realpath(use.path) or not any(self._may_use(r, use) for r in parts):
            return False
        started = names_used_when_started(parse(self.state.sources.read(user)))
        return use.definition not in started

    def _voters(self, proposal: Proposal) -> frozenset[Path]:
        """The scripts of this run that may use what ``proposal`` is about."""
        return frozenset(
            result.entry
            for result in self._results.values()
            if any(self._may_use(result, use) for use in proposal.uses)
        )

    def _may_use(self, result: RewriteResult, use: SharedUse) -> bool:
        paths = _paths(result)
        if use.path not in paths:
            return False
        if use.definition is None or result.unreadable:
            return True
        own = self.state.sources.read(result.entry).path
        modules = (self._files[path] for path in sorted(paths) if path != own)
        texts = tuple((str(file.path), file.text) for file in modules if not file.created)
        names = _names(str(own), self._files[own].text, texts)
        return names.issuperset(use.names)

    # -- who stands against what

    def _against(self, result: RewriteResult, proposal: Proposal) -> _Against | None:
        """Who stands against ``proposal``, which ``result``'s script wants."""
        if not all(map(self._is_among_us, proposal.uses)):
            return _Against()
        for entry in sorted(self._voters(proposal) - {result.entry}):
            other = self._results[entry]
            if all(proposal.edits != wanted.edits for wanted in _proposals(other)):
                return _Against(entry, self._words(other, proposal))
        return None

    def _words(self, other: RewriteResult, proposal: Proposal) -> str:
        """Why ``proposal`` is not made for the sake of the script of ``other``."""
        use = next((u for u in proposal.uses if u.path in _paths(other)), proposal.uses[0])
        words = in_words(other.entry, use.definition or use.path.name)
        place = proposal.skip
        wanted = {own.skip for own in _proposals(other)}
        skips = [
            skip
            for outcome in other.outcomes
            for skip in outcome.skips
            if (skip.transform, skip.path) == (place.transform, place.path)
        ]
        here = [skip for skip in skips if skip.line == place.line]
        for skip in here or [skip for skip in skips if self._is_about(skip, use)]:
            if skip in wanted:
                return f"{words}, and asks for another change there"
            return f"{words}: {skip.message}"
        return f"{words}, and does not ask for it"

    def _is_about(self, skip: SkippedChange, use: SharedUse) -> bool:
        original = self._files[use.path].original
        return skip.path == use.path and any(
            isinstance(statement, Definition)
            and statement.name == use.definition
            and statement.lineno <= skip.line <= (statement.end_lineno or statement.lineno)
            for statement in parse(original).body
        )

    def _explained(
        self, result: RewriteResult, outcome: Outcome, tried: Set[SharedEdits]
    ) -> Outcome:
        skips = {skip: skip for skip in outcome.skips}
        for proposal in outcome.proposals:
            if proposal.edits in tried:
                del skips[proposal.skip]
                continue
            against = self._against(result, proposal)
            if against is not None and against.script is not None:
                message = proposal.skip.message.removesuffix(proposal.uses[0].words)
                skips[proposal.skip] = replace(proposal.skip, message=message + against.words)
        return replace(outcome, skips=tuple(skips.values()))


def _proposals(result: RewriteResult) -> Iterator[Proposal]:
    return (proposal for outcome in result.outcomes for proposal in outcome.proposals)


def _paths(result: RewriteResult) -> frozenset[Path]:
    return frozenset(file.path for file in result.files)


@lru_cache(maxsize=256)
def _names(path: str, text: str, modules: tuple[tuple[str, str], ...]) -> frozenset[str]:
    trees = (syntax_tree(text, path) for path, text in modules)
    return names_reached(syntax_tree(text, path), trees)
