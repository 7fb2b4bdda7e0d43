"""The exact tier: losses, parameters, buffers and evaluation outputs are the same bit for bit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice, zip_longest

from ..execution.observations import EvalCall, Observations
from .clipped_norms import compare_clipped_norms
from .findings import Finding, Kind, step_number, told_apart
from .kept_state import compare_state_bits
from .tolerance import precision_of


def compare_bits(original: Observations, other: Observations) -> list[Finding]:
    """Values that differ at all, each kind where it is first seen, in the order of the run.

    Parameters are compared after every step by a checksum over their bits and in the snapshots by SHA-256; tensors
    saved to checkpoints by SHA-256. NaN equals NaN. The norm that gradients are clipped by is summed up in any order.
    """
    kinds = (
        _initial_parameters(original, other),
        _losses(original, other),
        compare_clipped_norms(original, other, (), precision_of(original, other)),
        _parameters(original, other),
        _snapshots(original, other),
        _buffers(original, other),
        _evaluation_outputs(original, other),
        compare_state_bits(original, other),
        _checkpoints(original, other),
    )
    first: dict[tuple[Kind, bool], Finding] = {}
    for found in kinds:
        for finding in islice(found, 4):
            first.setdefault((finding.kind, finding.fails), finding)
    return list(first.values())


def _initial_parameters(original: Observations, other: Observations) -> Iterator[Finding]:
    ours, theirs = original.snapshot(0), other.snapshot(0)
    if ours and theirs:
        for name in _unequal(ours.hashes, theirs.hashes):
            yield initial_parameter(original, other, name)


def initial_parameter(original: Observations, other: Observations, name: str) -> Finding:
    """The finding that ``name`` is not initialised as in the original; says so when it is the dtype or shape, or no optimizer has it."""
    ours, theirs = original.parameters.get(name), other.parameters.get(name)
    what = "the initial value differs"
    if ours and theirs and (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        what = f"is {theirs.dtype} {list(theirs.shape)}, not {ours.dtype} {list(ours.shape)}"
    elif not _given_at_first(other, name):
        later = " at first" if theirs else ""
        what = f"is not among the parameters that the optimizers have{later}"
    elif not _given_at_first(original, name):
        later = " from the first" if ours else ""
        what = f"is among the parameters that the optimizers have{later}, and not in the original"
    return Finding(Kind.INITIAL_PARAMETERS, what, step=0, tensor=name)


def _given_at_first(run: Observations, name: str) -> bool:
    """Whether the optimizers have ``name`` before the first step, as far as that is known."""
    snapshot = run.snapshot(0)
    return snapshot is None or not snapshot.hashes or name in snapshot.hashes


def _losses(original: Observations, other: Observations) -> Iterator[Finding]:
    for ours, theirs in zip(original.steps, other.steps, strict=False):
        for before, after in zip(ours.losses, theirs.losses, strict=False):
            if before.value != after.value and not (
                math.isnan(before.value) and math.isnan(after.value)
            ):
                shown, expected = told_apart(after.value, before.value, digits=9)
                yield Finding(
                    Kind.LOSS,
                    f"loss {shown}, not {expected}",
                    step=step_number(ours),
                    original=before.value,
                    rewritten=after.value,
                )


def _parameters(original: Observations, other: Observations) -> Iterator[Finding]:
    for ours, theirs in zip(original.steps, other.steps, strict=False):
        for name, update in ours.parameters.items():
            changed = theirs.parameters.get(name)
            if changed is None or changed.checksum != update.checksum:
                yield Finding(
                    Kind.PARAMETER,
                    _other_bits(update.update_norm, changed.update_norm)
                    if changed
                    else "not among the optimizer's parameters",
                    step=step_number(ours),
                    tensor=name,
                    original=update.update_norm,
                    rewritten=changed.update_norm if changed else None,
                )


def _other_bits(before: float, now: float) -> str:
    """That a parameter is another, and its update where that is longer or shorter to the eye."""
    lengths = f"{now:.6g}", f"{before:.6g}"
    said = f": the norm of the update is {lengths[0]}, not {lengths[1]}"
    return f"the bits differ after the step{said if lengths[0] != lengths[1] else ''}"


def _snapshots(original: Observations, other: Observations) -> Iterator[Finding]:
    for ours in original.snapshots:
        theirs = other.snapshot(ours.round)
        if ours.round > 0 and theirs:
            for name in _unequal(ours.hashes, theirs.hashes):
                yield Finding(
                    Kind.PARAMETER,
                    f"differs after round {ours.round}",
                    tensor=name,
                    step=ours.round,
                )


def _unequal(ours: Mapping[str, str], theirs: Mapping[str, str]) -> Iterator[str]:
    return (
        name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)
    )


def _buffers(original: Observations, other: Observations) -> Iterator[Finding]:
    ours, theirs = original.buffers(), other.buffers()
    for name in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(name), theirs.get(name)
        if (
            a is None
            or b is None
            or a.dtype != b.dtype
            or a.shape != b.shape
            or a.tobytes() != b.tobytes()
        ):
            message = "differs at the end of the run"
            if b is None:
                message = "is not among the models' buffers any more"
            yield Finding(Kind.BUFFER, message, step=original.rounds, tensor=name)


def _first_other_call(original: Observations, other: Observations) -> int | None:
    """The step before which one run first calls a model in eval mode where the other does not."""
    calls = zip_longest(original.eval_calls, other.eval_calls)
    for ours, theirs in calls:
        places = [(call.rounds, call.module) for call in (ours, theirs) if call is not None]
        if len(places) == 1 or places[0] != places[1]:
            return min(places)[0] + 1
    return None


def _evaluation_outputs(original: Observations, other: Observations) -> Iterator[Finding]:
    """Outputs that differ while both runs make the same calls, then that one makes others, then outputs that differ later."""
    parting = _first_other_call(original, other)
    pairs = zip(original.eval_calls, other.eval_calls, strict=False)
    differing = [
        _other_output(number, ours, theirs)
        for number, (ours, theirs) in enumerate(pairs, start=1)
        if _bits(ours) != _bits(theirs)
    ]
    before, after = len(original.eval_calls), len(other.eval_calls)
    if before != after:
        number_of_calls = Finding(
            Kind.EVALUATION_OUTPUT,
            "another number of calls",
            step=parting,
            original=before,
            rewritten=after,
        )
        early = sum((finding.step or 0) < (parting or 0) for finding in differing)
        differing.insert(early, number_of_calls)
    yield from differing


def _other_output(number: int, ours: EvalCall, theirs: EvalCall) -> Finding:
    """The finding that an evaluation gives something else; with the lengths of the first output of another length."""
    finding = Finding(
        Kind.EVALUATION_OUTPUT,
        f"output of evaluation call {number} differs",
        step=ours.rounds + 1,
        tensor=ours.module,
    )
    for before, after in zip(ours.outputs, theirs.outputs, strict=False):
        if before.shape == after.shape and before.norm != after.norm:
            shown, expected = told_apart(after.norm, before.norm)
            message = f"{finding.message}: its norm is {shown}, not {expected}"
            return replace(finding, message=message, original=before.norm, rewritten=after.norm)
    return finding


def _bits(call: EvalCall) -> list[tuple[object, ...]]:
    return [(output.checksum, output.dtype, output.shape) for output in call.outputs]


def _checkpoints(original: Observations, other: Observations) -> Iterator[Finding]:
    for ours, theirs in zip(original.checkpoints, other.checkpoints, strict=False):
        for key, entry in ours.entries.items():
            other_entry = theirs.entries.get(key)
            if other_entry and entry.sha256 != other_entry.sha256:
                yield Finding(
                    Kind.CHECKPOINT_VALUE, f"{ours.path}: saved tensor differs", tensor=key
                )
