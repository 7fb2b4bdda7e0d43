"""What only one of two runs does, and what may be left out of both before they are compared.

A rewrite need not do all that the original does: a teacher whose weights never change may be asked once for what it is
asked for every epoch, an optimizer need not be given what never has a gradient, a gradient that the script takes for
itself shows in what is made of it. Each is told as a note. What depends on them (losses, gradients, parameters, output) is
compared all the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ..execution.observations import EvalCall, Observations, OptimizerInfo, Snapshot, Step
from .backpropagated import FurtherLosses
from .findings import Finding, Kind, note

_SHOWN = 3

Place: TypeAlias = "tuple[str, int]"
"""A module, and the number of rounds done before it is called."""


@dataclass(frozen=True)
class Counterparts:
    """What is left out of the runs of either version before they are compared, and what is told about it.

    ``untrained`` are parameters that one version's optimizers have and that never have a gradient; ``taken``: the
    gradients that a script takes for itself; ``losses``: those that only one version backpropagates; ``elsewhere``: modules, and the rounds after which they are evaluated in
    another mode, or inside of other modules; ``repeated``: those after which one version has them evaluate batches again,
    and whether that was after earlier rounds (a best model, loaded back);
    ``rows``: those after which a part of a network is evaluated on another number of rows; ``by_function``: those after which one
    version calls a layer of torch's, for which the other may call its function; ``in_whole``: those after which one version calls a part of a
    network by itself that is evaluated as a whole there;
    ``constant``: modules whose weights never change; ``ends``: what runs of different lengths leave at their ends.
    """

    untrained: frozenset[str] = frozenset()
    taken: bool = False
    losses: FurtherLosses = field(default_factory=FurtherLosses)
    elsewhere: Mapping[Place, str] = field(default_factory=dict[Place, str])
    repeated: Mapping[Place, bool] = field(default_factory=dict[Place, bool])
    rows: frozenset[Place] = frozenset()
    by_function: frozenset[Place] = frozenset()
    in_whole: frozenset[Place] = frozenset()
    constant: frozenset[str] = frozenset()
    ends: bool = False

    @classmethod
    def of(cls, original: Observations, other: Observations) -> Counterparts:
        """What these two runs do not have in common for no reason that matters."""
        elsewhere = _elsewhere(original, other)
        taken = _more_taken(original, other)
        told = [_with_further_calls(run, elsewhere) for run in (original, other)]
        repeated = _repeated(*told)
        told = [_without_repeats(run, repeated) for run in told]
        rows = _other_rows(*told)
        told = [_without_places(run, rows) for run in told]
        by_function = _by_function(*told)
        told = [_without_places(run, by_function) for run in told]
        in_whole = _in_whole(*told)
        told = [_without_places(run, in_whole) for run in told]
        return cls(
            _untrained(original, other),
            taken,
            FurtherLosses() if taken else FurtherLosses.of(original, other),
            elsewhere,
            repeated,
            rows,
            by_function,
            in_whole,
            _constant(*told),
            original.rounds != other.rounds,
        )

    def in_common(self, run: Observations) -> Observations:
        """``run`` without it."""
        if self.untrained:
            run = _without_parameters(run, self.untrained)
        if self.taken:
            run = replace(run, steps=tuple(map(_accumulated, run.steps)))
        run = self.losses.without(run)
        run = _without_repeats(_with_further_calls(run, self.elsewhere), self.repeated)
        run = _without_places(run, self.rows | self.by_function | self.in_whole)
        if self.constant:
            run = _without_calls(run, self.constant)
        if self.ends:
            run = replace(run, buffers_file=None, optimizer_state_file=None, last_copies_file=None)
        return run

    def notes(self) -> list[Finding]:
        """What was left out."""
        told: list[Finding] = []
        if self.untrained:
            names = sorted(self.untrained)
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            message = f"only one version's optimizers have {', '.join(names[:_SHOWN])}{more}, without a gradient in any step"
            told.append(note(Kind.STEPPED_PARAMETERS, message))
        if self.taken:
            message = "gradients are taken by torch.autograd.grad another number of times"
            told.append(note(Kind.BACKWARD_CALLS, message))
        told.extend(self.losses.notes())
        for module, how in sorted({(place[0], how) for place, how in self.elsewhere.items()}):
            told.append(note(Kind.EVALUATION_MODE, f"{module} {how}", tensor=module))
        for module in sorted({module for module, _ in self.repeated}):
            message = f"{module} evaluates batches again in one version, with the same result"
            told.append(note(Kind.EVALUATION, message, tensor=module))
        for module in sorted({module for module, _ in self.rows}):
            message = f"{module}, a part of a network, is evaluated on another number of rows; what it leads to is compared"
            told.append(note(Kind.EVALUATION, message, tensor=module))
        for module in sorted({module for module, _ in self.by_function}):
            message = f"{module}, a layer, is called by itself in one version only; what it leads to is compared"
            told.append(note(Kind.EVALUATION, message, tensor=module))
        for module in sorted({module for module, _ in self.in_whole}):
            message = f"{module}, a part of a network that is evaluated as a whole there, is called by itself in one version only"
            told.append(note(Kind.EVALUATION, message, tensor=module))
        for module in sorted(self.constant):
            message = f"{module}, whose weights never change, is called another number of times"
            told.append(note(Kind.EVALUATION, message, tensor=module))
        return told


def _untrained(original: Observations, other: Observations) -> frozenset[str]:
    ours, theirs = _given(original), _given(other)
    if not ours or not theirs:
        return frozenset()
    only = (original, ours - theirs), (other, theirs - ours)
    without = [names - _with_gradients(run) for run, names in only]
    # An optimizer's group of nothing else has settings of its own, which then have no counterpart.
    found = frozenset(without[0] | without[1])
    return frozenset() if any(_empties_a_group(run, found) for run, _ in only) else found


def _given(run: Observations) -> set[str]:
    return {name for info in run.optimizers for group in info.groups for name in group}


def _with_gradients(run: Observations) -> set[str]:
    return {
        name
        for step in run.steps
        for name, update in step.parameters.items()
        if update.grad_norm is not None or update.update_norm > 0
    }


def _empties_a_group(run: Observations, names: frozenset[str]) -> bool:
    return any(
        group and names.issuperset(group) for info in run.optimizers for group in info.groups
    )


def _without_parameters(run: Observations, names: frozenset[str]) -> Observations:
    def rest(known: Mapping[str, object]) -> dict[str, object]:
        return {name: value for name, value in known.items() if name not in names}

    def optimizer(info: OptimizerInfo) -> OptimizerInfo:
        groups = tuple(tuple(n for n in group if n not in names) for group in info.groups)
        return replace(info, groups=groups)

    def snapshot(one: Snapshot) -> Snapshot:
        return replace(one, hashes=rest(one.hashes))

    return replace(
        run,
        optimizers=tuple(map(optimizer, run.optimizers)),
        parameters=rest(run.parameters),
        snapshots=tuple(map(snapshot, run.snapshots)),
        steps=tuple(replace(step, parameters=rest(step.parameters)) for step in run.steps),
        left_out=run.left_out | names,
    )


def _more_taken(original: Observations, other: Observations) -> bool:
    """Whether steps have other numbers of losses for no other reason than gradients that the script takes for itself."""
    counts = [
        [(len(_accumulated(step).losses), len(step.losses)) for step in run.steps]
        for run in (original, other)
    ]
    different = [pair for pair in zip(*counts, strict=False) if pair[0] != pair[1]]
    return bool(different) and all(ours[0] == theirs[0] > 0 for ours, theirs in different)


def _accumulated(step: Step) -> Step:
    return replace(step, losses=tuple(loss for loss in step.losses if not loss.taken))


def _elsewhere(original: Observations, other: Observations) -> dict[Place, str]:
    """Where as many samples are evaluated only if calls count in another mode, or inside of other modules; and which of the two.

    Another mode is told by the gradients, of modules that do not heed it. What the calls give is compared all the same.
    """
    runs = (original, other)
    before = [_evaluated(run.eval_calls) for run in runs]
    places = {p for p in before[0].keys() | before[1].keys() if before[0][p] != before[1][p]}
    ours, theirs = (_evaluated(_with_further_calls(run, places).eval_calls) for run in runs)
    inside = {(c.module, c.rounds) for run in runs for c in run.further_calls if c.inside}
    return {
        place: "is called inside of another module in one version, and by itself in the other"
        if place in inside
        else "is evaluated in another mode, which none of its layers heeds"
        for place in places
        if ours[place] == theirs[place]
    }


def _evaluated(calls: Iterable[EvalCall]) -> Counter[Place]:
    samples: Counter[Place] = Counter()
    for call in calls:
        samples[call.module, call.rounds] += call.samples
    return samples


def _with_further_calls(run: Observations, places: Container[Place]) -> Observations:
    """``run`` with all calls that may be evaluations at ``places``, and without those that train."""

    def there(call: EvalCall) -> bool:
        return (call.module, call.rounds) in places

    further = [call for call in run.further_calls if there(call)]
    left = [call for call in run.eval_calls if not (call.trains and there(call))]
    if not further and len(left) == len(run.eval_calls):
        return run
    return run.with_eval_calls(sorted((*left, *further), key=lambda call: call.number))


def _repeated(original: Observations, other: Observations) -> dict[Place, bool]:
    """Where as many samples are evaluated once calls that repeat another one are left out; whether one of earlier rounds."""
    found: dict[Place, bool] = {}
    runs = (original, other)
    ours, theirs = (_evaluated(run.eval_calls) for run in runs)
    places = {place for place in ours.keys() & theirs.keys() if ours[place] != theirs[place]}
    for earlier in (False, True):
        wanted = dict.fromkeys(places - found.keys(), earlier)
        ours, theirs = (_evaluated(_without_repeats(run, wanted).eval_calls) for run in runs)
        found |= {place: earlier for place in wanted if ours[place] == theirs[place] > 0}
    return found


def _without_repeats(run: Observations, places: Mapping[Place, bool]) -> Observations:
    """``run`` without the calls at ``places`` on what the module was called on there, or earlier, that gave the same."""
    seen: set[tuple[str, int | None, int, int, object]] = set()
    left: list[EvalCall] = []
    for call in run.eval_calls:
        what = call.samples, call.inputs, call.outputs
        earlier = places.get((call.module, call.rounds))
        before = (call.module, None if earlier else call.rounds, *what)
        if earlier is None or not call.inputs or before not in seen:
            left.append(call)
        seen |= {(call.module, call.rounds, *what), (call.module, None, *what)}
    return run if len(left) == len(run.eval_calls) else run.with_eval_calls(left)


def _other_rows(original: Observations, other: Observations) -> frozenset[Place]:
    """Where only a part of a network sees another number of rows, such as words that its batch is padded with, or not.

    A network called by a method of its own shows in its parts. One that comes behind has to see as many in both versions.
    """
    runs = (original, other)
    ours, theirs = (_evaluated(run.eval_calls) for run in runs)
    whole = {(c.module, c.rounds) for run in runs for c in run.eval_calls if not c.part}
    last = [{(c.module, c.rounds): c.number for c in run.eval_calls} for run in runs]
    alike = {place for place in ours if ours[place] == theirs[place]}

    def leads_on(place: Place) -> bool:
        return any(
            behind[1] == place[1] and all(at[behind] > at[place] for at in last) for behind in alike
        )

    found = {p for p in ours.keys() & theirs.keys() if ours[p] != theirs[p] and p not in whole}
    return frozenset(filter(leads_on, found))


def _by_function(original: Observations, other: Observations) -> frozenset[Place]:
    """Where only one version calls a layer of torch's by itself: the other may call its function (``F.embedding``) on the weights.

    What the layer gives has to go on: the layer is a part of a network, or another module is called on just that; and some module that is
    called behind it there sees as many samples in both versions. What that gives is compared. One without weights (a loss)
    may come last: the weights that are evaluated are those of what comes before.
    """
    runs = (original, other)
    ours, theirs = (_evaluated(run.eval_calls) for run in runs)
    alike = {place for place in ours if ours[place] == theirs[place]}
    found: set[Place] = set()
    for run, other_run, lacking in zip(runs, runs[::-1], (theirs, ours), strict=True):
        last = {(call.module, call.rounds): call.number for call in run.eval_calls}
        for place in last.keys() - lacking.keys():
            calls = [call for call in run.eval_calls if (call.module, call.rounds) == place]
            beside = [one for one in alike & last.keys() if one[1] == place[1]]
            goes_on = any(last[one] > last[place] for one in beside)
            if (
                _in_training(other_run, place) <= _in_training(run, place)
                and all(call.layer for call in calls)
                and (goes_on or (beside and all(call.stateless for call in calls)))
                and all(call.stateless or _leads_on(call, run.eval_calls) for call in calls)
            ):
                found.add(place)
    return frozenset(found)


def _in_training(run: Observations, place: Place) -> int:
    """Samples that the module is called on in training mode there: in eval mode no more, it is not called by its function."""
    return sum(c.samples for c in run.training_calls if (c.module, c.rounds) == place)


def _in_whole(original: Observations, other: Observations) -> frozenset[Place]:
    """Where only one version calls a part of the network by itself (block by block, to leave early) that both evaluate as a whole, on no fewer samples.

    What the part gives is known there as it comes from the whole, and what is made of it is compared. Of several networks
    nobody knows which one it is a part of.
    """
    runs = (original, other)
    if len({name.partition(".")[0] for run in runs for name in _given(run)}) != 1:
        return frozenset()
    ours, theirs = (_evaluated(run.eval_calls) for run in runs)
    calls = [call for run in runs for call in run.eval_calls]
    whole = {call.rounds: ours[call.module, call.rounds] for call in calls if call.trained_as}
    parts = {(call.module, call.rounds) for call in calls if call.part}
    parts -= {(call.module, call.rounds) for call in calls if not call.part}
    return frozenset(
        place
        for place in parts
        if not (ours[place] and theirs[place])
        and max(ours[place], theirs[place]) <= whole.get(place[1], 0)
    )


def _leads_on(call: EvalCall, calls: Iterable[EvalCall]) -> bool:
    """Whether what ``call`` gives is known to go into a network, or into another of the ``calls``."""
    given = {output.checksum % 2**64 for output in call.outputs}
    return call.part or any(c.inputs in given for c in calls if c.number > call.number)


def _without_places(run: Observations, places: Container[Place]) -> Observations:
    left = [call for call in run.eval_calls if (call.module, call.rounds) not in places]
    return run if len(left) == len(run.eval_calls) else run.with_eval_calls(left)


def _constant(original: Observations, other: Observations) -> frozenset[str]:
    """Modules that are called another number of times, all calls too many of weights that never change.

    That they do not is known of those that some run calls in several rounds; one that is called at one place alone may
    be an average of weights, evaluated at the end. Networks of one class that each come with weights of their own, loaded
    from the checkpoint of an epoch, say, are as many of the latter.
    """
    found: set[str] = set()
    runs = (original, other)
    for module in {call.module for run in runs for call in run.eval_calls if call.constant}:
        rounds = [len({c.rounds for c in _constant_calls(run, module)}) for run in runs]
        counts = [_samples(_constant_calls(run, module)) for run in runs]
        steady = all(_with_the_same_weights(_constant_calls(run, module)) for run in runs)
        if steady and max(rounds) > 1 and all(rounds) and counts[0] != counts[1]:
            found.add(module)
    return frozenset(found)


def _with_the_same_weights(calls: Iterable[EvalCall]) -> bool:
    """Whether the ``calls`` of every round are those of the same weights."""
    weights: defaultdict[int, set[int]] = defaultdict(set)
    for call in calls:
        weights[call.rounds].add(call.weights)
    return len(set(map(frozenset, weights.values()))) <= 1


def _constant_calls(run: Observations, module: str) -> list[EvalCall]:
    return [call for call in run.eval_calls if call.constant and call.module == module]


def _samples(calls: Iterable[EvalCall]) -> Counter[int]:
    samples: Counter[int] = Counter()
    for call in calls:
        samples[call.rounds] += call.samples
    return samples


def _without_calls(run: Observations, modules: frozenset[str]) -> Observations:
    """``run`` without its calls of these."""
    left = [c for c in run.eval_calls if not (c.constant and c.module in modules)]
    return run.with_eval_calls(left)
