"""A distributed rewrite: what must hold between its ranks, and between a rank's share and the original's whole."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction

from ..execution.observations import LoaderPass, Observations
from ..execution.ranks import evaluates_in_shares, shared
from .findings import Finding, Kind, note, step_number
from .scheduling import schedules_of_ranks

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def compare_ranks(original: Observations, other: Observations) -> list[Finding]:
    """What is wrong between the ranks of ``other``; nothing where it ran as one process."""
    if not other.ranks:
        return []
    ranks = other.ranks
    return [
        *_parameters(ranks),
        *schedules_of_ranks(ranks),
        *_division(original, ranks),
        *_epochs(ranks),
        *_evaluation(ranks),
        *_files(ranks),
        *_output(ranks),
        *_dropouts(original, ranks),
        *(note(Kind.LAYERS, message) for message in layers_per_rank(original, other).values()),
    ]


def _parameters(ranks: Sequence[Observations]) -> Iterator[Finding]:
    """The first place where the parameters are not the same on all ranks."""
    ours = ranks[0].snapshot(0)
    for number, rank in enumerate(ranks[1:], start=1):
        theirs = rank.snapshot(0)
        if ours is None or theirs is None or ours.hashes == theirs.hashes:
            continue
        names = sorted({*ours.hashes, *theirs.hashes})
        name = next(n for n in names if ours.hashes.get(n) != theirs.hashes.get(n))
        message = f"rank {number} starts from other values than rank 0"
        yield Finding(Kind.RANKS, message, step=0, tensor=name)
        return
    for steps in zip(*(rank.steps for rank in ranks), strict=False):
        for number, step in enumerate(steps[1:], start=1):
            for name, update in steps[0].parameters.items():
                other = step.parameters.get(name)
                if other is None or other.checksum != update.checksum:
                    message = f"rank {number} has other values after the step than rank 0"
                    yield Finding(Kind.RANKS, message, step=step_number(step), tensor=name)
                    return


def _training_passes(ranks: Sequence[Observations]) -> Iterator[list[LoaderPass]]:
    """Every rank's pass, for the passes that steps were made of."""
    by_place: dict[tuple[int, int], list[LoaderPass]] = defaultdict(list)
    for rank in ranks:
        for one in rank.loader_passes:
            by_place[one.loader, one.epoch].append(one)
    for _, passes in sorted(by_place.items()):
        if len(passes) == len(ranks) and all(one.steps for one in passes):
            yield passes


def _division(original: Observations, ranks: Sequence[Observations]) -> Iterator[Finding]:
    """The first pass that all ranks read whole, and steps of more samples than the original's."""
    for passes in _training_passes(ranks):
        if any(one.order for one in passes) and not shared(passes):
            message = (
                f"loader {passes[0].loader}: every rank trains on the same samples "
                "(no DistributedSampler?), so nothing is divided among them"
            )
            yield Finding(Kind.SAMPLES, message, step=passes[0].rounds + 1)
            return
        seeds = [one.sampler_seed for one in passes]
        if len(set(seeds)) > 1:
            message = (
                f"loader {passes[0].loader}: the ranks' samplers shuffle with different seeds "
                f"({', '.join(map(str, seeds))}), so their shares overlap and leave samples out"
            )
            yield Finding(Kind.SAMPLE_ORDER, message, step=passes[0].rounds + 1)
            return
    per_rank = [rank.step_samples[0] for rank in ranks if rank.step_samples]
    whole = original.step_samples[0] if original.step_samples else 0
    if len(per_rank) == len(ranks) and whole and sum(per_rank) > whole:
        message = (
            f"a step is of {sum(per_rank)} samples, {per_rank[0]} on each of {len(ranks)} ranks, "
            f"not of {whole}: the batch is not divided by the number of ranks"
        )
        yield Finding(Kind.SAMPLES, message, step=1, original=whole, rewritten=sum(per_rank))


def _epochs(ranks: Sequence[Observations]) -> Iterator[Finding]:
    """A DistributedSampler that shuffles, and is never told that an epoch has begun."""
    passes: dict[int, list[LoaderPass]] = defaultdict(list)
    for one in ranks[0].loader_passes:
        if one.steps and one.sampler_epoch is not None:
            passes[one.loader].append(one)
    for loader, of_loader in passes.items():
        for before, after in itertools.pairwise(of_loader):
            shuffled = any(one.order and not one.order[-1].ascending for one in (before, after))
            if shuffled and before.sampler_epoch == after.sampler_epoch:
                message = (
                    f"loader {loader}: epoch {after.epoch} is read in the order of the one before: "
                    "sampler.set_epoch(epoch) is not called"
                )
                yield Finding(Kind.SAMPLE_ORDER, message, step=after.rounds + 1)
                return


def _evaluation(ranks: Sequence[Observations]) -> Iterator[Finding]:
    """Evaluation in shares whose results no rank ever gets together."""
    places = dict.fromkeys((call.module, call.rounds) for rank in ranks for call in rank.eval_calls)
    for module, rounds in places:
        reduced = any(_exchanges_after(rank, module, rounds) for rank in ranks)
        if not reduced and evaluates_in_shares(ranks, module, rounds):
            message = (
                f"each rank evaluates its own share of the samples after round {rounds} and nothing is "
                "reduced or gathered: what a rank tells is about its share alone"
            )
            yield Finding(Kind.EVALUATION, message, step=rounds + 1, tensor=module)
            return


def _exchanges_after(rank: Observations, module: str, rounds: int) -> bool:
    """Whether ``rank`` exchanges something between that evaluation of ``module`` and the next step."""
    calls = [
        number
        for number, call in enumerate(rank.eval_calls, start=1)
        if (call.module, call.rounds) == (module, rounds)
    ]
    return bool(calls) and any(
        begun == rounds and evaluated >= calls[-1] for begun, evaluated in rank.collectives
    )


def _files(ranks: Sequence[Observations]) -> Iterator[Finding]:
    writers: dict[str, list[int]] = defaultdict(list)
    for number, rank in enumerate(ranks):
        for path in dict.fromkeys(one.path for one in rank.checkpoints):
            writers[path].append(number)
    for path, numbers in writers.items():
        if len(numbers) > 1:
            told = " and ".join(map(str, numbers))
            message = f"ranks {told} save {path}: they write over each other's file"
            yield Finding(Kind.CHECKPOINT_FILES, message, tensor=path)


def _output(ranks: Sequence[Observations]) -> Iterator[Finding]:
    """Lines that another rank prints as well as rank 0, whatever their numbers."""
    told = {_NUMBER.sub("#", line) for line in ranks[0].stdout.splitlines()}
    for number, rank in enumerate(ranks[1:], start=1):
        lines = rank.stdout.splitlines()
        again = [line for line in lines if _NUMBER.sub("#", line) in told]
        if again:
            message = f"rank {number} prints what rank 0 prints, too: {again[0]!r}"
            yield Finding(Kind.STDOUT, message, original=0, rewritten=len(again))
            return
        if lines:
            yield note(Kind.STDOUT, f"rank {number} prints {len(lines)} lines: {lines[0]!r}")


def _dropouts(original: Observations, ranks: Sequence[Observations]) -> Iterator[Finding]:
    """Elements that a rank drops in training otherwise than by chance: with another probability, or elsewhere."""
    ours = _shares_of_calls(original)
    for number, rank in enumerate(ranks):
        theirs = _shares_of_calls(rank)
        for name, p in sorted({*ours, *theirs}):
            if ours.get((name, p)) != theirs.get((name, p)):
                message = (
                    f"{name} with p={p:g} is {_part(theirs.get((name, p)))} of what drops elements on rank {number}, "
                    f"{_part(ours.get((name, p)))} in the original"
                )
                yield Finding(Kind.LAYERS, message)
                return


def _shares_of_calls(run: Observations) -> dict[tuple[str, float], Fraction]:
    """Of all calls that drop elements: DataParallel makes each of them on every GPU."""
    total = sum(count for _, _, count in run.dropouts)
    return {(name, p): Fraction(count, total) for name, p, count in run.dropouts}


def _part(share: Fraction | None) -> str:
    return f"{float(share):.0%}" if share else "none"


def layers_per_rank(original: Observations, other: Observations) -> dict[str, str]:
    """What gives something else where ranks see their share of a batch, by name, and in what it differs."""
    if not other.ranks:
        return {}
    layers = sorted(set(original.layers) & set(other.ranks[0].layers))
    found: dict[str, str] = {}
    normalizing = ", ".join(name for name in layers if re.fullmatch(r"(Lazy)?BatchNorm\dd", name))
    if normalizing:
        found[normalizing] = (
            f"{normalizing}: each rank normalizes by the statistics of its share of the batch, "
            "the original by the whole batch's; SyncBatchNorm does so, too"
        )
    dropping = ", ".join(dict.fromkeys(name for name, _, _ in original.dropouts))
    if dropping:
        found[dropping] = f"{dropping}: ranks drop other elements than one process does"
    if original.noises:
        found["noise"] = (
            "noise drawn for each sample: each rank draws its own, which is other noise than one process's"
        )
    if original.weighted_means:
        found["cross entropy"] = (
            "cross entropy with weighted or ignored targets: each rank divides by what its share of the targets "
            "weighs, the original by what the whole batch's do"
        )
    return found
