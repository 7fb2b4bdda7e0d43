"""Which layer is the first to give something else: what turns a wrong loss into a place to look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..execution.observations import LayerOutput, Observations
from .clipping import clipped_while_scaled
from .findings import Finding, Kind
from .tolerance import Precision, allowed

_EXPLAINED = frozenset({Kind.LOSS, Kind.GRADIENT, Kind.UPDATE, Kind.PARAMETER})


def explain(
    findings: Sequence[Finding],
    original: Observations,
    other: Observations,
    neighbours: Sequence[Observations] = (),
    precision: Precision | None = None,
) -> tuple[Finding, ...]:
    """``findings``, the first of which tells where it comes from, if it is about numbers of the first step."""
    if not findings or not findings[0].fails or findings[0].step != 1:
        return tuple(findings)
    first = findings[0]
    if first.kind not in _EXPLAINED:
        return tuple(findings)
    near = [_of_the_first_round(run) for run in neighbours]
    said = _told(
        first.kind, _of_the_first_round(original), _of_the_first_round(other), near, precision
    )
    if first.kind is Kind.GRADIENT and isinstance(first.rewritten, float):
        said = said or clipped_while_scaled(first.rewritten, other)
    return (replace(first, message=first.message + said), *findings[1:])


def _of_the_first_round(run: Observations) -> Observations:
    """``run`` without models that are called for the first time later: a trained part by itself, say."""
    return replace(run, layer_outputs=tuple(one for one in run.layer_outputs if not one.rounds))


def _told(
    kind: Kind,
    original: Observations,
    other: Observations,
    neighbours: Sequence[Observations],
    precision: Precision | None,
) -> str:
    theirs = outputs_by_call(other)
    common = [(call, ours) for call, ours in outputs_by_call(original).items() if call in theirs]
    if not common or 2 * len(common) < len(original.layer_outputs):
        return ""
    near = [outputs_by_call(run) for run in neighbours]
    for call, ours in common:
        spread = [one[call] for one in near if call in one]
        if ours.output.shape[:1] != theirs[call].output.shape[:1]:
            return ""  # called on more or fewer samples, which says nothing about the layer
        if _differs(ours, theirs[call], spread, precision):
            before = common[: [one for one, _ in common].index(call)]
            return _first_layer(ours, call[1], original, _gave(before, theirs))
    if kind is not Kind.LOSS:
        return ""
    if _called_again(original) or _called_again(other):
        return f"; in its first call every layer {_gave(common, theirs)}: the difference is in a later one, or in what follows"
    return f"; every layer {_gave(common, theirs)}, so the difference is in what follows"


def _gave(
    common: Sequence[tuple[tuple[str, int], LayerOutput]],
    theirs: Mapping[tuple[str, int], LayerOutput],
) -> str:
    """What is known of layers that do not differ: where their bits do, rows may have come in another order."""
    if all(ours.output.checksum == theirs[call].output.checksum for call, ours in common):
        return "gives what it gave"
    return "gives what it gave by norm and mean (its samples may come in another order)"


def _called_again(run: Observations) -> bool:
    """Whether a model was called to train on more in the first step than in the one call that is known of it."""
    rows: dict[str, int] = {}
    for one in run.layer_outputs:
        model, length = one.layer.partition(".")[0], one.output.shape[:1]
        rows[model] = max(rows.get(model, 0), *length, 0)
    return any(
        0 < rows.get(one.module, 0) < one.samples - one.without_gradients
        for one in run.training_calls
        if not one.rounds
    )  # a loss has no rows


def _first_layer(layer: LayerOutput, earlier: int, run: Observations, before: str) -> str:
    """``earlier``: how many times ``layer`` had run; ``before``: what is known of the layers before it."""
    is_first = layer is run.layer_outputs[0]
    if "." not in layer.layer and not is_first:
        if not any(one.layer.startswith(f"{layer.layer}.") for one in run.layer_outputs):
            return f"; the first output that differs is that of {layer.layer}, whose input may differ already"
        return f"; every layer {before}, but {layer.layer} does not: the difference is in its own forward"
    said = f"; the first layer whose output differs is {layer.layer} ({layer.class_name})"
    if earlier:
        return f"{said}, when it runs again (call {earlier + 1}): its input may differ already"
    return f"{said}, the first that runs: its input may differ already" if is_first else said


def outputs_by_call(run: Observations) -> dict[tuple[str, int], LayerOutput]:
    """The outputs by layer and by how many times it had run before, in their order."""
    calls: Counter[str] = Counter()
    found: dict[tuple[str, int], LayerOutput] = {}
    for one in run.layer_outputs:
        found[one.layer, calls[one.layer]] = one
        calls[one.layer] += 1
    return found


def _differs(
    ours: LayerOutput,
    theirs: LayerOutput,
    near: Sequence[LayerOutput],
    precision: Precision | None,
) -> bool:
    if ours.output.shape != theirs.output.shape:
        return True
    if precision is None:
        return ours.output.checksum != theirs.output.checksum
    return any(
        abs(getattr(theirs.output, figure) - before)
        > allowed((abs(getattr(one.output, figure) - before) for one in near), scale, precision)
        for figure, scale in (("norm", ours.output.norm), ("mean", ours.output.largest))
        for before in [getattr(ours.output, figure)]
    )
