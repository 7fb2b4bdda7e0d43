"""What was read from the loaders: how many samples, which, in which order, and what their workers drew from."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

from ..execution.observations import LoaderPass, Observations, ReadMark, WorkerStart
from ..execution.shuffled_passes import shuffled_in_training
from .findings import Finding, Kind, note
from .loader_pairs import by_loader, loader_numbers, read_in_turns

READ_AHEAD = 2
"""Batches that a hand-written prefetcher may hold when the run is ended: one on its way to the device while the step
runs on the batch before it, and the next one that its thread has taken from the loader."""


def compare_reading(original: Observations, other: Observations) -> list[Finding]:
    """Samples missing or added, read in another order, or augmented by workers that all draw the same."""
    return [*_passes(original, other), *_repeated(original, other), *_workers(original, other)]


def _passes(original: Observations, other: Observations) -> Iterator[Finding]:
    number = loader_numbers(original, other)
    told = read_in_turns(original, other, number)
    passes = {told.get(id(p), (number[p.loader], p.epoch)): p for p in other.loader_passes}
    read = defaultdict(list, by_loader(other, number))
    pairs: list[tuple[LoaderPass, LoaderPass]] = []
    kept: set[int] = set()
    for ours in original.loader_passes:
        theirs = passes.pop((ours.loader, ours.epoch), None)
        where = f"loader {ours.loader}, epoch {ours.epoch}"
        if theirs is None and _kept(ours, read[ours.loader], original, other):
            if ours.loader not in kept:
                yield note(Kind.SAMPLES, f"{where}: not read again, what was read before is kept")
            kept.add(ours.loader)
        elif theirs is None and not read[ours.loader] and _evaluated_alike(ours, original, other):
            message = f"{where}: not read; as many samples are evaluated all the same"
            yield note(Kind.SAMPLES, message)
        elif theirs is None and not read[ours.loader] and _trained_alike(ours, original, other):
            message = f"{where}: not read; as many samples are trained on all the same"
            yield note(Kind.SAMPLES, message)
            yield from _shuffled_once(ours, original, other)
        elif theirs is None:
            yield Finding(
                Kind.SAMPLES,
                f"{where}: never read",
                step=ours.rounds + 1,
                original=ours.samples,
                rewritten=0,
            )
        else:
            yield from _samples(where, ours, theirs, original, other)
            yield from _order(where, ours, theirs, original, other)
            pairs.append((ours, theirs))
    yield from _batches(pairs)
    for (loader, epoch), extra in passes.items():
        yield note(
            Kind.SAMPLES,
            f"loader {loader}, epoch {epoch}: {extra.samples} samples read that the original does not read",
        )


def _kept(
    ours: LoaderPass, read: Sequence[LoaderPass], original: Observations, other: Observations
) -> bool:
    """Whether what this pass read was read before, in the order of the data set, and may have been kept since then.

    What is made of it is compared by itself. A shuffle gives another order each time, and would not be the kept one.
    """
    if not any(_holds(one, ours) for one in read):
        return False
    if ours.steps:
        return bool(ours.order) and ours.order[-1].ascending
    return _evaluated_alike(ours, original, other)


def _holds(whole: LoaderPass, part: LoaderPass) -> bool:
    """Whether ``whole`` went on to the end and read what ``part`` did, in its order."""
    if not whole.finished or not part.order:
        return whole.finished and whole.samples == part.samples
    last = part.order[-1]
    return any((mark.samples, mark.order) == (last.samples, last.order) for mark in whole.order)


def _evaluated_alike(ours: LoaderPass, original: Observations, other: Observations) -> bool:
    """Whether what this pass read was evaluated, in the order of the data set, and so it is without the loader.

    What the models make of it is compared by itself. Another order that is drawn would not be the loader's.
    """
    in_order = not ours.order or ours.order[-1].ascending
    return in_order and not ours.steps and _evaluated_as_much(ours, original, other)


def _evaluated_as_much(ours: LoaderPass, original: Observations, other: Observations) -> bool:
    """Whether both versions evaluate as many samples where this pass is read, and no fewer than it has."""
    evaluated = [_evaluated(run, ours.rounds) for run in (original, other)]
    enough = any(samples >= ours.samples for samples in evaluated[0].values())
    return enough and evaluated[0] == evaluated[1]


def _trained_alike(ours: LoaderPass, original: Observations, other: Observations) -> bool:
    """Whether as many samples go through each model in training mode as went there of this pass, without the loader.

    Which ones they are shows in the losses: a script that shuffles by itself is given the orders of a loader. What the
    original evaluates was not trained on.
    """
    if _evaluated_alike(ours, original, original):
        return False
    trained = [_in_training(run, ours) for run in (original, other)]
    return bool(trained[0]) and trained[0] == trained[1]


def _shuffled_once(
    ours: LoaderPass, original: Observations, other: Observations
) -> Iterator[Finding]:
    """That the rewrite shuffles by itself, but not for each pass; where loaders are built anew, the passes have one order in an aligned run."""
    drawn = other.own_shuffles.get(ours.shuffled or 0, 0)
    passes = [one for one in shuffled_in_training(original) if one.shuffled == ours.shuffled]
    if 0 < drawn < len(passes) and ours == passes[drawn]:
        often = "once" if drawn == 1 else f"{drawn} times"
        message = f"the samples are shuffled {often}, and in the original before each of {len(passes)} passes"
        yield Finding(Kind.SAMPLE_ORDER, message, step=ours.rounds + 1)


def _in_training(run: Observations, read: LoaderPass) -> dict[tuple[str, int], tuple[int, int]]:
    """What each module was called on in training mode before each step that was made of ``read``, or at that place."""
    rounds = range(read.rounds, read.rounds + max(read.steps, 1))
    calls = (call for call in run.training_calls if call.rounds in rounds)
    return {(c.module, c.rounds): (c.samples, c.without_gradients) for c in calls}


def _evaluated(run: Observations, rounds: int) -> Counter[str]:
    """How many samples each module was evaluated on after so many rounds."""
    samples: Counter[str] = Counter()
    for call in run.eval_calls:
        if call.rounds == rounds:
            samples[call.module] += call.samples
    return samples


def _batches(pairs: Sequence[tuple[LoaderPass, LoaderPass]]) -> Iterator[Finding]:
    """The loaders that cut the same samples into other batches."""
    cut = dict.fromkeys(
        (ours.loader, theirs.batches, ours.batches)
        for ours, theirs in pairs
        if ours.samples == theirs.samples and ours.batches != theirs.batches
    )
    for loader, batches, before in cut:
        message = f"loader {loader}: a pass's samples come in {batches} batches, not in {before}"
        yield note(Kind.SAMPLES, message)


def _left_out(
    ours: LoaderPass, theirs: LoaderPass, original: Observations, other: Observations
) -> bool:
    """Whether what only one version reads at the end of a pass goes through no model: the other need not read it.

    As many samples go through every model, in either mode, at each place of the pass and behind it, and through one of them
    all that both versions read, once or several times. What else is made of samples shows in its own numbers.
    """
    alike = (ours.rounds, ours.steps) == (theirs.rounds, theirs.steps)
    fewer = min(ours.samples, theirs.samples)
    if not (alike and fewer and ours.finished and theirs.finished):
        return False
    *during, behind = range(ours.rounds, ours.rounds + ours.steps + 1)
    seen = [[_called(run, place) for place in (*during, behind)] for run in (original, other)]
    of_this_pass = [_called(original, place) for place in during or [behind]]
    totals = sum(of_this_pass, Counter[tuple[str, str]]()).values()
    return seen[0] == seen[1] and any(total % fewer == 0 for total in totals)


def _called(run: Observations, rounds: int) -> Counter[tuple[str, str]]:
    """How many samples each module was called on after so many rounds, by its mode."""
    trained = Counter[tuple[str, str]]()
    for call in run.training_calls:
        if call.rounds == rounds:
            trained["training", call.module] += call.samples
    return trained + Counter({("eval", m): n for m, n in _evaluated(run, rounds).items()})


def _samples(
    where: str,
    ours: LoaderPass,
    theirs: LoaderPass,
    original: Observations,
    other: Observations,
) -> Iterator[Finding]:
    if theirs.samples == ours.samples:
        return
    batch = ours.samples / ours.batches if ours.batches else 0
    ahead = theirs.samples - ours.samples
    if not ours.finished and 0 < ahead <= READ_AHEAD * batch:
        yield note(Kind.SAMPLES, f"{where}: {ahead} samples read ahead when the run was ended")
        return
    which = "fewer" if ahead < 0 else "more"
    message = f"{where}: {abs(ahead)} samples {which}"
    if _left_out(ours, theirs, original, other):
        yield note(Kind.SAMPLES, f"{message}, which go through no model")
        return
    if ours.order and theirs.order and ours.order[-1].samples == theirs.order[-1].samples:
        if _differs(ours.order[-1], theirs.order[-1]):  # which hold more than others may
            return
        message = f"{where}: {abs(ahead)} rows {which} in its batches, of as many samples"
    if ours.finished and theirs.finished and theirs.batches == ours.batches - 1:
        message += "; is the last, smaller batch dropped?"
    yield Finding(
        Kind.SAMPLES,
        message,
        step=ours.rounds + 1,
        original=ours.samples,
        rewritten=theirs.samples,
    )


def _order(
    where: str,
    ours: LoaderPass,
    theirs: LoaderPass,
    original: Observations,
    other: Observations,
) -> Iterator[Finding]:
    common = _common(ours, theirs)
    batch = next((batch for mark, batch, same in common if _differs(mark, same)), None)
    if batch is None:
        return
    if _only_reordered(ours, theirs, original, other):
        yield note(Kind.SAMPLE_ORDER, f"{where}: the same samples are evaluated in another order")
        return
    last, _, other_last = common[-1]
    yield Finding(
        Kind.SAMPLE_ORDER,
        f"{where}: {_what_changed(last, other_last)}, first in batch {batch}",
        step=ours.rounds + 1,
    )


def _common(ours: LoaderPass, theirs: LoaderPass) -> list[tuple[ReadMark, int, ReadMark]]:
    """Where both have read equally many samples, however they are batched; with the number of the other's batch."""
    read = {mark.samples: (number, mark) for number, mark in enumerate(theirs.order, start=1)}
    return [(mark, *read[mark.samples]) for mark in ours.order if mark.samples in read]


def _differs(mark: ReadMark, other: ReadMark) -> bool:
    # The ranks of a distributed run have read the same samples in no order that one process could have.
    return mark.order != other.order if other.order else mark.contents != other.contents


def _only_reordered(
    ours: LoaderPass, theirs: LoaderPass, original: Observations, other: Observations
) -> bool:
    """Whether the same samples were evaluated: what is made of them all hangs on no order, or shows in its numbers."""
    if ours.steps or theirs.steps or not ours.order or not theirs.order:
        return False
    last, other_last = ours.order[-1], theirs.order[-1]
    same = (last.samples, last.contents) == (other_last.samples, other_last.contents)
    return same and _evaluated_as_much(ours, original, other)


def reordered_evaluations(original: Observations, other: Observations) -> frozenset[int]:
    """The rounds after which samples are evaluated in another order."""
    number = loader_numbers(original, other)
    passes = {(number[p.loader], p.epoch): p for p in other.loader_passes}
    pairs = (
        (p, passes[p.loader, p.epoch])
        for p in original.loader_passes
        if (p.loader, p.epoch) in passes
    )
    return frozenset(
        ours.rounds
        for ours, theirs in pairs
        if any(_differs(mark, same) for mark, _, same in _common(ours, theirs))
    )


def _repeated(original: Observations, other: Observations) -> Iterator[Finding]:
    """The first training pass that only one version would read in the order of an earlier one, were it run as it is."""
    trained = [[one for one in run.loader_passes if one.steps] for run in (original, other)]
    firsts = [_first_alike(passes) for passes in trained]
    for number, (ours, theirs) in enumerate(zip(*firsts, strict=False)):
        if ours is None or theirs is None or ours == theirs:
            continue
        if theirs < number:
            message = f"is shuffled like pass {theirs + 1}, and not in the original: its generator is seeded again"
        else:
            message = f"is shuffled anew, and in the original like pass {ours + 1}: there its generator is seeded again"
        yield Finding(
            Kind.SAMPLE_ORDER,
            f"training pass {number + 1} {message}",
            step=trained[0][number].rounds + 1,
        )
        return


def _first_alike(passes: Sequence[LoaderPass]) -> list[int | None]:
    """For each pass the first one that its order is drawn for in the same way; None where that is not known."""
    first: dict[str, int] = {}
    return [
        None if one.drawn_from is None else first.setdefault(one.drawn_from, number)
        for number, one in enumerate(passes)
    ]


def _what_changed(ours: ReadMark, theirs: ReadMark) -> str:
    if theirs.ascending and not ours.ascending:
        return "the shuffle is lost: samples are read in the data set's order"
    if ours.ascending and not theirs.ascending:
        return "samples are shuffled, and not in the original"
    if ours.contents == theirs.contents:
        return "the same samples are read in another order"
    if theirs.distinct < ours.distinct == ours.samples:
        return (
            f"samples are read more than once: {theirs.distinct} different ones "
            f"of {theirs.samples}, not {ours.distinct}"
        )
    return "other samples are read"


def _workers(original: Observations, other: Observations) -> Iterator[Finding]:
    """Generators that are alike in two workers, or in two passes, where the original's are not."""
    known = {(loader, name, what) for loader, name, what, _ in _alike(original)}
    told: set[tuple[int, str, str]] = set()
    for loader, name, what, message in _alike(other):
        if (loader, name, what) in known | told:
            continue
        told.add((loader, name, what))
        first = min((p.rounds for p in other.loader_passes if p.loader == loader), default=0)
        yield Finding(Kind.WORKER_RANDOMNESS, message, step=first + 1, tensor=name)


def _alike(run: Observations) -> Iterator[tuple[int, str, str, str]]:
    """Loader, generator, between what it is alike, and the message, for the generators that samples draw from."""
    by_loader: dict[int, list[WorkerStart]] = defaultdict(list)
    for start in run.workers:
        by_loader[start.loader].append(start)
    for loader, starts in by_loader.items():
        drawn = sorted({name for start in starts for name in start.drawn})
        for name in drawn:
            for a, b in combinations([s for s in starts if name in s.states], 2):
                if a.states[name] != b.states[name]:
                    continue
                if a.epoch == b.epoch:
                    yield loader, name, "workers", _same_workers(loader, name, a, b)
                else:
                    yield loader, name, "passes", _same_passes(loader, name, a, b)


def _same_workers(loader: int, name: str, a: WorkerStart, b: WorkerStart) -> str:
    return (
        f"loader {loader}, epoch {a.epoch}: workers {a.worker} and {b.worker} start with {name} in the same "
        f"state, so their samples are augmented alike ({_remedy(name)})"
    )


def _same_passes(loader: int, name: str, a: WorkerStart, b: WorkerStart) -> str:
    return (
        f"loader {loader}: the workers of epoch {b.epoch} start with {name} in the state it had in epoch "
        f"{a.epoch}, so every epoch is augmented alike ({_remedy(name)})"
    )


def _remedy(name: str) -> str:
    if name.startswith("dataset"):
        return "every worker has a copy of it"
    return "does worker_init_fn seed by a constant?"
