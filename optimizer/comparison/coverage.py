"""What the run went through: samples read from the loaders, evaluations and the samples they saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ..execution.observations import EvalCall, LoaderPass, Observations
from .findings import Finding, Kind, note

READ_AHEAD = 2
"""Batches that a hand-written prefetcher may hold when the run is ended."""


def compare_coverage(original: Observations, other: Observations) -> list[Finding]:
    """Samples and evaluations missing from ``other``, or more than in ``original``."""
    return [*_samples(original, other), *_evaluations(original, other)]


def _samples(original: Observations, other: Observations) -> Iterator[Finding]:
    passes = {(p.loader, p.epoch): p for p in other.loader_passes}
    for ours in original.loader_passes:
        theirs = passes.pop((ours.loader, ours.epoch), None)
        where = f"loader {ours.loader}, epoch {ours.epoch}"
        if theirs is None:
            yield Finding(Kind.SAMPLES, f"{where}: never read", original=ours.samples, rewritten=0)
        else:
            yield from _one_pass(where, ours, theirs)
    for (loader, epoch), extra in passes.items():
        yield note(
            Kind.SAMPLES,
            f"loader {loader}, epoch {epoch}: {extra.samples} samples read that the original does not read",
        )


def _one_pass(where: str, ours: LoaderPass, theirs: LoaderPass) -> Iterator[Finding]:
    if theirs.samples == ours.samples:
        if theirs.batches != ours.batches:
            yield note(Kind.SAMPLES, f"{where}: {theirs.batches} batches, not {ours.batches}")
        return
    batch = ours.samples / ours.batches if ours.batches else 0
    ahead = theirs.samples - ours.samples
    if not ours.finished and 0 < ahead <= READ_AHEAD * batch:
        yield note(Kind.SAMPLES, f"{where}: {ahead} samples read ahead when the run was ended")
        return
    word = "fewer" if ahead < 0 else "more"
    yield Finding(
        Kind.SAMPLES,
        f"{where}: {abs(ahead)} samples {word}",
        original=ours.samples,
        rewritten=theirs.samples,
    )


def _evaluations(original: Observations, other: Observations) -> Iterator[Finding]:
    before, after = _evaluated(original.eval_calls), _evaluated(other.eval_calls)
    for key in sorted(before.keys() | after.keys(), key=lambda k: (k[1], k[0])):
        module, rounds = key
        ours, theirs = before.get(key, 0), after.get(key, 0)
        if ours == theirs and (key in before) == (key in after):
            continue
        if key not in after:
            message = f"evaluation of {module} after round {rounds} is missing"
        elif key not in before:
            message = (
                f"{module} is called in eval mode after round {rounds}, and not in the original"
            )
        else:
            message = (
                f"evaluation of {module} after round {rounds} sees {theirs} samples, not {ours}"
            )
        if theirs > ours:
            message += "; is eval mode left on?"
        yield Finding(
            Kind.EVALUATION,
            message,
            step=rounds + 1,
            tensor=module,
            original=ours,
            rewritten=theirs,
        )
        return


def _evaluated(calls: tuple[EvalCall, ...]) -> Counter[tuple[str, int]]:
    """Samples per module and number of rounds done before."""
    samples: Counter[tuple[str, int]] = Counter()
    for call in calls:
        samples[call.module, call.rounds] += call.samples
    return samples
