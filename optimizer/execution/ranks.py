"""The ranks of one distributed run, seen as one run: what they did together, to compare with one process.

Sums and means are over ranks where each has a share (samples, losses, evaluated outputs). What must be the same on
all of them (parameters, gradients after reduction, learning rates) is rank 0's; whether it is the same is for the
comparison, which finds each rank's own observations in :attr:`Observations.ranks`.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from .observations import (
    EvalCall,
    LayerOutput,
    LoaderPass,
    Loss,
    Memory,
    Observations,
    ReadMark,
    Status,
    Step,
    TensorSummary,
    TrainingCalls,
)

KEPT_CALLS = 4
"""Evaluation calls whose outputs are kept whole, as in the probe."""
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
"""Of torchrun's summary of failures: the rank that failed first, and its exit status."""


def merged(ranks: Sequence[Observations], whole: Observations) -> Observations:
    """The run of all ``ranks``; ``whole`` is what the process that started them showed: its status, output and time.

    That is torchrun's, or the script's own, which may have saved something, too.
    """
    ended = _ending(ranks, whole)
    first = ranks[0]
    return replace(
        first,
        status=ended.status,
        exit_code=ended.exit_code,
        traceback=ended.traceback,
        failed_rank=ended.failed_rank,
        exceeded=whole.exceeded,
        stdout=whole.stdout,
        stderr=whole.stderr,
        stdout_cut=whole.stdout_cut,
        stderr_cut=whole.stderr_cut,
        rounds=min(rank.rounds for rank in ranks),
        memory=_memory(ranks),
        compute_dtypes=tuple(sorted({dtype for rank in ranks for dtype in rank.compute_dtypes})),
        rounds_by_itself=any(rank.rounds_by_itself for rank in ranks),
        steps=_steps(ranks),
        step_samples=tuple(map(sum, zip(*(rank.step_samples for rank in ranks), strict=False))),
        loader_passes=_passes(ranks),
        training_calls=_training_calls(ranks),
        layer_outputs=_layer_outputs(ranks),
        weighted_means=any(rank.weighted_means for rank in ranks),
        checkpoints=_checkpoints((*ranks, whole)),
        unobserved=tuple(dict.fromkeys(what for run in (*ranks, whole) for what in run.unobserved)),
        ranks=tuple(ranks),
        **_evaluations(ranks),
    )


def _ending(ranks: Sequence[Observations], whole: Observations) -> Observations:
    """How the run ended: as the rank that failed first, if one did."""
    if whole.exceeded is not None:
        return whole
    ended_badly = [
        n for n, rank in enumerate(ranks) if rank.status in (Status.FAILED, Status.KILLED)
    ]
    if ended_badly:
        rank, code = _failed_first(ranks, ended_badly, whole)
        return replace(ranks[rank], failed_rank=rank, exit_code=code)
    if whole.status is Status.FAILED:
        return whole
    if whole.exit_code:
        return replace(whole, status=Status.KILLED)
    stopped = any(rank.status is Status.STOPPED for rank in ranks)
    return replace(ranks[0], status=Status.STOPPED if stopped else Status.COMPLETED)


def _failed_first(
    ranks: Sequence[Observations], ended_badly: Sequence[int], whole: Observations
) -> tuple[int, int | None]:
    """The rank that others ended because of, and its exit status.

    The first to fail by itself: its peers fail when they no longer reach it. torchrun tells of one that was killed, and
    which leaves no record; of those that raise it tells the first to be found dead, which may be a peer.
    """
    cause = _ROOT_CAUSE.search(whole.stderr)
    if cause:
        told, code = int(cause[1]), int(cause[2])
        if told in ended_badly and ranks[told].status is Status.KILLED:
            return told, code
    failed = [n for n in ended_badly if ranks[n].status is Status.FAILED]
    if not failed:
        return ended_badly[0], int(cause[2]) if cause else whole.exit_code
    first = min(failed, key=lambda n: ranks[n].ended_at)
    return first, ranks[first].exit_code


def _memory(ranks: Sequence[Observations]) -> Memory:
    def total(name: str) -> int | None:
        sizes = [getattr(rank.memory, name) for rank in ranks]
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None

    return Memory(device=total("device"), host=total("host"), worker=total("worker"))


def _steps(ranks: Sequence[Observations]) -> tuple[Step, ...]:
    """Rank 0's, with the mean of all ranks' losses, by their shares of samples where these are known."""
    found: list[Step] = []
    for index, steps in enumerate(zip(*(rank.steps for rank in ranks), strict=False)):
        samples = [rank.step_samples[index] for rank in ranks if index < len(rank.step_samples)]
        known = len(samples) == len(ranks) and all(samples)
        weights = samples if known else [1] * len(ranks)
        losses = zip(*(step.losses for step in steps), strict=False)
        found.append(replace(steps[0], losses=tuple(_mean(one, weights) for one in losses)))
    return tuple(found)


def _mean(losses: Sequence[Loss], weights: Sequence[int]) -> Loss:
    total = math.fsum(loss.value * weight for loss, weight in zip(losses, weights, strict=True))
    return Loss(total / sum(weights), losses[0].dtype)


def shared(passes: Sequence[LoaderPass]) -> bool:
    """Whether the ranks' ``passes`` over one loader read different samples, each a share."""
    if _of_parts(passes):
        return True
    orders = {tuple((mark.samples, mark.order) for mark in one.order) for one in passes}
    if any(one.order for one in passes):
        return len(orders) > 1
    return any(one.sampler_epoch is not None for one in passes)


def _of_parts(passes: Sequence[LoaderPass]) -> bool:
    """Whether every rank reads a ``Subset`` of its own."""
    return len({one.part for one in passes}) > 1 and all(one.part for one in passes)


def _passes(ranks: Sequence[Observations]) -> tuple[LoaderPass, ...]:
    """Shares put together; a loader that only some ranks read, or that all read whole, as the first of them has it."""
    by_place: dict[tuple[int, int], list[LoaderPass]] = defaultdict(list)
    for rank in ranks:
        for one in rank.loader_passes:
            by_place[one.loader, one.epoch].append(one)
    return tuple(_together(passes) for _, passes in sorted(by_place.items()))


def _together(passes: Sequence[LoaderPass]) -> LoaderPass:
    if len(passes) == 1 or not shared(passes):
        return passes[0]
    if _of_parts(passes):
        passes = [replace(one, order=one.order_in_whole) for one in passes]
    return replace(
        passes[0],
        batches=max(one.batches for one in passes),
        samples=sum(one.samples for one in passes),
        finished=all(one.finished for one in passes),
        order=tuple(_mark(marks) for marks in zip(*(one.order for one in passes), strict=False)),
    )


def _mark(marks: Sequence[ReadMark]) -> ReadMark:
    """All that was read: in no order that one process could have."""
    contents = sum(int(mark.contents, 16) for mark in marks) % 2**64
    return ReadMark(
        samples=sum(mark.samples for mark in marks),
        order="",
        contents=f"{contents:016x}",
        distinct=sum(mark.distinct for mark in marks),
        ascending=all(mark.ascending for mark in marks),
    )


def _training_calls(ranks: Sequence[Observations]) -> tuple[TrainingCalls, ...]:
    samples: Counter[tuple[str, int]] = Counter()
    without: Counter[tuple[str, int]] = Counter()
    for rank in ranks:
        for call in rank.training_calls:
            samples[call.module, call.rounds] += call.samples
            without[call.module, call.rounds] += call.without_gradients
    return tuple(TrainingCalls(*key, count, without[key]) for key, count in samples.items())


def _layer_outputs(ranks: Sequence[Observations]) -> tuple[LayerOutput, ...]:
    """Of layers that are done in the same order by all ranks, the rows of all of them together."""
    rows = list(zip(*(rank.layer_outputs for rank in ranks), strict=False))
    return tuple(
        replace(row[0], output=_one_summary([one.output for one in row], [1] * len(row)))
        for row in rows
        if len({one.layer for one in row}) == 1
    )


def _checkpoints(ranks: Sequence[Observations]) -> tuple[Any, ...]:
    """Rank 0's files, and those that only another rank writes."""
    found = list(ranks[0].checkpoints)
    for rank in ranks[1:]:
        known = {one.path for one in found}
        found += [one for one in rank.checkpoints if one.path not in known]
    return tuple(found)


def evaluates_in_shares(ranks: Sequence[Observations], module: str, rounds: int) -> bool:
    """Whether more than one rank evaluates ``module`` there, and not all of them the same samples.

    What goes in tells, not what comes out: ranks with BatchNorm statistics of their own give other outputs for the same
    samples. What such a call has given may go into the next one; then the indices that were read tell.
    """
    evaluating = [rank for rank in ranks if _calls(rank, module, rounds)]
    inputs = {tuple(call.inputs for _, call in _calls(rank, module, rounds)) for rank in evaluating}
    if len(inputs) < 2:
        return False
    return _read_in_shares(evaluating, rounds) or _given_shares(evaluating, module, rounds)


def _read_in_shares(ranks: Sequence[Observations], rounds: int) -> bool:
    """Whether a loader that was read after that round, and not to train, gave the ranks different samples."""
    by_place: dict[tuple[int, int], list[LoaderPass]] = defaultdict(list)
    for rank in ranks:
        for one in rank.loader_passes:
            if one.rounds == rounds and not one.steps:
                by_place[one.loader, one.epoch].append(one)
    return any(len(passes) > 1 and shared(passes) for passes in by_place.values())


def _given_shares(ranks: Sequence[Observations], module: str, rounds: int) -> bool:
    """Whether the first evaluation call in which the ranks differ differs by what goes in."""
    counts = [
        Counter(call.module for call in rank.eval_calls if call.rounds == rounds) for rank in ranks
    ]
    common = {name for name in counts[0] if len({count[name] for count in counts}) == 1} | {module}
    own = [[c for c in r.eval_calls if c.rounds == rounds and c.module in common] for r in ranks]
    for row in zip(*own, strict=False):
        if len({(call.module, call.inputs) for call in row}) > 1:
            return True
        if len({tuple(output.checksum for output in call.outputs) for call in row}) > 1:
            return False
    return False


def _calls(rank: Observations, module: str, rounds: int) -> list[tuple[int, EvalCall]]:
    """The evaluation calls of that place, with their number in the rank's run."""
    numbered = enumerate(rank.eval_calls)
    return [(n, call) for n, call in numbered if (call.module, call.rounds) == (module, rounds)]


def batches_in_turn(run: Observations, original: Observations) -> Observations:
    """``run`` with the batches that its ranks evaluated in turn in the order in which ``original`` has all of them.

    Without the original nothing tells two whole batches from the halves of one.
    """
    if not run.ranks:
        return run
    return replace(run, **_evaluations(run.ranks, original.eval_calls))


def _taken_in_turn(
    own: Mapping[int, Sequence[tuple[int, EvalCall]]], whole: Sequence[EvalCall]
) -> list[tuple[int, int, EvalCall]] | None:
    """Each rank's calls by its rank and number in turn, if these are of as many samples each as those of one process."""
    rows = list(zip_longest(*([(r, *pair) for pair in own[r]] for r in own)))
    turns = [one for row in rows for one in row if one is not None]
    samples = [call.samples for call in whole]
    together = [sum(one[2].samples for one in row if one is not None) for row in rows]
    if samples == [call.samples for _, _, call in turns] and samples != together:
        return turns
    return None


def _evaluations(ranks: Sequence[Observations], whole: Sequence[EvalCall] = ()) -> dict[str, Any]:
    """``eval_calls``, ``eval_file``: of each place rank 0's (or the only one's), or the shares put together.

    ``whole`` are the calls of one process, where they are known.
    """
    places = dict.fromkeys((c.module, c.rounds) for rank in ranks for c in rank.eval_calls)
    calls: list[EvalCall] = []
    parts: list[list[tuple[int, int]]] = []  # for each: the ranks it is from, and its number there
    for place in sorted(places, key=lambda place: place[1]):
        own = {r: numbered for r, rank in enumerate(ranks) if (numbered := _calls(rank, *place))}
        if not evaluates_in_shares(ranks, *place):
            rank, numbered = next(iter(own.items()))
            calls += [call for _, call in numbered]
            parts += [[(rank, number)] for number, _ in numbered]
            continue
        turns = _taken_in_turn(own, [c for c in whole if (c.module, c.rounds) == place])
        if turns is not None:
            calls += [call for _, _, call in turns]
            parts += [[(rank, number)] for rank, number, _ in turns]
            continue
        for row in zip_longest(*([(r, *pair) for pair in own[r]] for r in own)):
            present = [one for one in row if one is not None]
            calls.append(_one_call([call for _, _, call in present]))
            parts.append([(r, number) for r, number, _ in present])
    return {"eval_calls": tuple(calls), "eval_file": _kept_outputs(ranks, parts)}


def _one_call(calls: Sequence[EvalCall]) -> EvalCall:
    outputs = zip(*(call.outputs for call in calls), strict=False)
    samples = [call.samples for call in calls]
    known = all(len(call.each) == call.samples for call in calls)
    return replace(
        calls[0],
        samples=sum(samples),
        outputs=tuple(_one_summary(of_all, samples) for of_all in outputs),
        each=tuple(calls[rank].each[row] for row, rank in _places(samples)) if known else (),
    )


def _one_summary(outputs: Sequence[TensorSummary], samples: Sequence[int]) -> TensorSummary:
    """Of the rows of all; a number of each, such as a loss, is taken to be a mean over its ``samples``."""
    if not outputs[0].shape and sum(samples):
        weighted = zip(outputs, samples, strict=True)
        mean = math.fsum(o.mean * n for o, n in weighted) / sum(samples)
        finite = all(output.finite for output in outputs)
        return replace(
            outputs[0], checksum=0, mean=mean, norm=abs(mean), largest=abs(mean), finite=finite
        )
    sizes = [math.prod(output.shape) for output in outputs]
    shape = outputs[0].shape
    return TensorSummary(
        shape=(sum(output.shape[0] for output in outputs), *shape[1:]) if shape else (),
        dtype=outputs[0].dtype,
        checksum=0,  # of no tensor that any rank had
        mean=math.fsum(o.mean * n for o, n in zip(outputs, sizes, strict=True)) / (sum(sizes) or 1),
        norm=math.hypot(*(output.norm for output in outputs)),
        largest=max(output.largest for output in outputs),
        finite=all(output.finite for output in outputs),
    )


def _kept_outputs(ranks: Sequence[Observations], parts: list[list[tuple[int, int]]]) -> str | None:
    """The file of the first calls' outputs; of shares the rows in turn, as a DistributedSampler deals them out."""
    import numpy as np
    from safetensors import numpy as safetensors_numpy

    own = [rank.eval_outputs() for rank in ranks]
    kept: dict[str, Any] = {}
    for number, of_call in enumerate(parts[:KEPT_CALLS]):
        rank, first = of_call[0]
        for key in own[rank]:
            call, _, position = key.partition(".")
            names = [(r, f"{n}.{position}") for r, n in of_call]
            if int(call) != first or any(name not in own[r] for r, name in names):
                continue
            tensors = [own[r][name] for r, name in names]
            if len({tensor.shape[1:] for tensor in tensors}) == 1:
                samples = [ranks[r].eval_calls[n].samples for r, n in of_call]
                kept[f"{number}.{position}"] = np.asarray(_dealt(tensors, samples), order="C")
    if not kept:
        return None
    file = Path(ranks[0].folder) / "eval-of-all-ranks.safetensors"
    safetensors_numpy.save_file(kept, str(file))  # pyright: ignore[reportUnknownMemberType]
    return str(file)


def _dealt(tensors: Sequence[Any], samples: Sequence[int]) -> Any:
    import numpy as np

    if len(tensors) == 1:
        return tensors[0]
    if tensors[0].ndim == 0:
        mean = np.average(tensors, axis=0, weights=samples if sum(samples) else None)
        return np.asarray(mean, dtype=tensors[0].dtype)
    return np.stack([tensors[rank][row] for row, rank in _places([len(t) for t in tensors])])


def _places(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Row and rank of all that is in shares of these ``sizes``: in turn, or of quite other sizes one after the other."""
    places = [(row, rank) for rank, size in enumerate(sizes) for row in range(size)]
    return places if max(sizes) - min(sizes) > 1 else sorted(places)
