"""How long two runs are bit for bit the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from ..execution.observations import EvalCall, Observations, Step
from .arrays import differing


def rounds_alike(
    original: Observations, repeats: Sequence[Observations], other: Observations
) -> int:
    """After how many rounds the original may be perturbed so that it parts from itself before ``other`` does.

    That is a round before the first that differs: an evaluation right after a step is to be that of a network that has
    moved. 0 for an original that does not repeat itself, for several processes, and where nothing of the training differs.
    """
    if other.ranks or any(
        min(_differing(original, run), default=None) is not None for run in repeats
    ):
        return 0
    return max(min(_differing(original, other), default=0) - 1, 0)


def calls_alike(original: Observations, other: Observations) -> int:
    """How many calls in eval mode give the same bits, from the first on; 0 where all do."""
    for number, (a, b) in enumerate(zip_longest(original.eval_calls, other.eval_calls)):
        if a is None or b is None or _outputs(a) != _outputs(b):
            return number
    return 0


def _differing(original: Observations, other: Observations) -> Iterator[int]:
    """For each thing that differs, the rounds before it; not in order."""
    ours, theirs = original.snapshot(0), other.snapshot(0)
    if (ours and ours.hashes) != (theirs and theirs.hashes):
        yield 0
    if next(iter(differing(original.first_copies(), other.first_copies())), None) is not None:
        yield 0
    for a, b in zip_longest(original.steps, other.steps):
        if a is None or b is None or _bits(a) != _bits(b):
            yield min(step.round for step in (a, b) if step is not None)
            break
    for a, b in zip_longest(original.eval_calls, other.eval_calls):
        if a is None or b is None or _outputs(a) != _outputs(b):
            yield min(call.rounds for call in (a, b) if call is not None)
            break
    for a, b in zip_longest(original.checkpoints, other.checkpoints):
        if a is None or b is None or a.entries != b.entries:
            yield min(save.rounds for save in (a, b) if save is not None)
            break


def _bits(step: Step) -> object:
    losses = [repr(loss.value) for loss in step.losses]
    return step.round, losses, {name: one.checksum for name, one in step.parameters.items()}


def _outputs(call: EvalCall) -> object:
    outputs = [(one.checksum, one.dtype, one.shape) for one in call.outputs]
    return call.module, call.rounds, outputs
