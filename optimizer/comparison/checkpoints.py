"""Files written with ``torch.save``: their names, keys, shapes, dtypes and values other than tensors."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from ..execution.observations import Checkpoint, CheckpointEntry, Observations
from .arrays import compare_arrays
from .findings import Finding, Kind, note
from .live_weights import OtherWeights, neighbours_needed
from .text import compare_text
from .tolerance import Precision

if TYPE_CHECKING:
    from .arrays import Arrays

_DIGITS = re.compile(r"\d+(?:\.\d+)?")
_ATTRIBUTE = re.compile(r"(?:.*/)?\w+\(\)\.[^/]+")
"""Of an object that is saved whole. A rewrite may need others: compared are those that both versions have."""
_FILE_AND_KEY = ": "
_SHOWN = 3
_LONGEST = 200
"""Characters of a value that are told whole."""
_WRAPPERS = {
    "_orig_mod.": "torch.compile",
    "module.": "DataParallel or DistributedDataParallel",
}
"""What each wrapper puts into the names of parameters."""
_KERNEL = re.compile(r"(?:^|/)param_groups/\d+/(?:fused|foreach)$")
"""Which kernel an optimizer uses, kept beside its settings; what it does to the numbers is seen in the numbers."""


def compare_checkpoints(original: Observations, other: Observations) -> list[Finding]:
    """Files missing, added or removed, saved another number of times, and entries whose key, shape or dtype changed."""
    findings: list[Finding] = []
    before, after = _by_name(original.checkpoints), _by_name(other.checkpoints)
    for name in sorted(before.keys() | after.keys()):
        ours, theirs = before.get(name, []), after.get(name, [])
        if len(ours) != len(theirs):
            paths = {checkpoint.path for checkpoint in (*ours, *theirs)}
            shown = paths.pop() if len(paths) == 1 else name
            findings.append(
                Finding(
                    Kind.CHECKPOINT_FILES,
                    f"{shown} is saved {_times(len(theirs))}, not {_times(len(ours))}",
                    step=_first_other_save(ours, theirs),
                    tensor=name,
                    original=len(ours),
                    rewritten=len(theirs),
                )
            )
        for a, b in zip(ours, theirs, strict=False):
            if a.path != b.path:
                message = f"saved as {b.path}, not {a.path}"
                findings.append(
                    Finding(
                        Kind.CHECKPOINT_FILES,
                        message,
                        tensor=name,
                        original=a.path,
                        rewritten=b.path,
                    )
                )
            findings.extend(_entries(a, b))
    findings.extend(_removed(original, other))
    return _first_few(findings)


def _first_other_save(ours: Sequence[Checkpoint], theirs: Sequence[Checkpoint]) -> int | None:
    """The step before which one version first saves a file where the other does not."""
    for saves in zip_longest(ours, theirs):
        rounds = [save.rounds for save in saves if save is not None]
        if len(rounds) == 1 or rounds[0] != rounds[1]:
            return min(rounds) + 1
    return None


def _removed(original: Observations, other: Observations) -> Iterator[Finding]:
    """Files that both versions save, and that only one has removed in the end."""
    ours, theirs = ({one.path for one in run.checkpoints} for run in (original, other))
    for path in sorted(ours & theirs & ({*original.removed} ^ {*other.removed})):
        told = "removed in the end" if path in other.removed else "not removed any more"
        yield Finding(Kind.CHECKPOINT_FILES, f"{path} is {told}", tensor=path)


def compare_checkpoint_values(
    original: Observations,
    other: Observations,
    neighbours: Sequence[Observations],
    precision: Precision | None,
) -> list[Finding]:
    """Saved values other than tensors (epoch, best accuracy), with the tolerance of printed numbers.

    A saved parameter or buffer is judged by being it: what it may be by then is judged where it lives.
    """
    findings: list[Finding] = []
    near = [_by_name(run.checkpoints) for run in neighbours]
    after = _by_name(other.checkpoints)
    for name, saves in _by_name(original.checkpoints).items():
        for index, (ours, theirs) in enumerate(zip(saves, after.get(name, []), strict=False)):
            samples = [run[name][index] for run in near if len(run.get(name, [])) > index]
            findings.extend(_values(ours, theirs, samples, precision))
            if precision is not None:
                live = OtherWeights(original, other, precision, neighbours_needed(neighbours))
                findings.extend(live.found(ours, theirs, samples))
    if precision is not None:
        findings.extend(_tensors(original, other, neighbours, precision))
    return _first_few(findings)


def _tensors(
    original: Observations,
    other: Observations,
    neighbours: Sequence[Observations],
    precision: Precision,
) -> list[Finding]:
    """Saved tensors that are no parameter or buffer of the moment: averaged weights, an optimizer's state, predictions."""
    ours = _stored(original)
    if not ours:
        return []
    made = Counter(save for run in neighbours for save in {*_saves(run)})
    unknown = {save for save in _saves(original) if made[save] < neighbours_needed(neighbours)}

    def known(run: Observations) -> Arrays:
        stored = _stored(run)
        return {name: stored[name] for name in stored if _save_of(name) not in unknown}

    found = compare_arrays(
        Kind.CHECKPOINT_VALUE,
        "saved tensors",
        _group,
        known(original),
        known(other),
        [_stored(run) for run in neighbours],
        precision,
    )
    return [*found, *_unknown(unknown & {_save_of(name) for name in ours})]


def _save_of(name: str) -> str:
    """Of a saved tensor's name the file and the number of the save."""
    return name.partition(_FILE_AND_KEY)[0]


def _saves(run: Observations) -> Iterator[str]:
    for name, saves in _by_name(run.checkpoints).items():
        yield from (f"{name}, save {number}" for number in range(1, len(saves) + 1))


def _unknown(saves: Iterable[str]) -> Iterator[Finding]:
    """A note on saves that the original makes only as it happens to be rounded: how far rounding takes what is saved there is not known."""
    if told := ", ".join(sorted(saves)[:_SHOWN]):
        yield note(
            Kind.CHECKPOINT_VALUE,
            f"saved tensors of {told}: not compared, rounded otherwise the original does not save there",
        )


def _stored(run: Observations) -> Arrays:
    """The tensors kept of all saves, by file, number of the save, and key."""
    if run.saved_file is None:
        return {}
    tensors = run.saved_tensors()
    return {
        _FILE_AND_KEY.join(filter(None, (f"{name}, save {number}", key))): tensors[entry.stored_as]
        for name, saves in _by_name(run.checkpoints).items()
        for number, save in enumerate(saves, start=1)
        for key, entry in save.entries.items()
        if entry.stored_as is not None
    }


def _group(name: str) -> str:
    """What belongs together: the tensors of one dict, or those of one kind of an optimizer's state."""
    save, _, key = name.partition(_FILE_AND_KEY)
    parent, _, last = key.rpartition("/")
    if _DIGITS.fullmatch(parent.rpartition("/")[2]):
        group = f"{parent.rpartition('/')[0]}/*/{last}"
    else:
        group = parent or key
    return f"{save}: {group}" if group else save


def _by_name(checkpoints: Iterable[Checkpoint]) -> Mapping[str, list[Checkpoint]]:
    """Saves per file, in order; ``epoch1.pt`` and ``epoch2.pt`` are one name, ``epoch#.pt``, saved twice."""
    saves: dict[str, list[Checkpoint]] = defaultdict(list)
    for checkpoint in checkpoints:
        saves[_DIGITS.sub("#", checkpoint.path)].append(checkpoint)
    return saves


def _entries(ours: Checkpoint, theirs: Checkpoint) -> Iterator[Finding]:
    missing, added = _keys_of_one(ours, theirs), _keys_of_one(theirs, ours)
    if missing or added:
        yield Finding(
            Kind.CHECKPOINT_KEYS,
            f"{ours.path}: {_other_keys(missing, added)}",
            step=ours.rounds or None,
            tensor=(missing or added)[0],
            original=", ".join(missing[:_SHOWN]) or None,
            rewritten=", ".join(added[:_SHOWN]) or None,
        )
    for key, entry in ours.entries.items():
        if key in theirs.entries and not _KERNEL.search(key) and not _ATTRIBUTE.fullmatch(key):
            yield from _one_entry(ours, key, entry, theirs.entries[key])


def _keys_of_one(ours: Checkpoint, theirs: Checkpoint) -> list[str]:
    known = {found[0] for key in theirs.entries if (found := _ATTRIBUTE.match(key))}
    return [
        key
        for key in ours.entries
        if key not in theirs.entries
        if not (found := _ATTRIBUTE.match(key)) or (found[0] in known and found[0] != key)
    ]


def _other_keys(missing: Sequence[str], added: Sequence[str]) -> str:
    for name, wrapper in _WRAPPERS.items():
        if sorted(key.replace(name, "", 1) for key in added) == sorted(missing):
            return f"{len(added)} keys have `{name}` in them, as of a network in {wrapper}"
        if sorted(key.replace(name, "", 1) for key in missing) == sorted(added):
            return f"{len(missing)} keys have lost their `{name}`, as of a network in {wrapper}"
    return f"{len(missing)} keys are missing and {len(added)} are new"


def _one_entry(
    save: Checkpoint, key: str, ours: CheckpointEntry, theirs: CheckpointEntry
) -> Iterator[Finding]:
    def differs(kind: Kind, what: str, before: object, after: object) -> Finding:
        message = f"{save.path}: {key} has {what} {after}, not {before}"
        return Finding(kind, message, tensor=key, original=str(before), rewritten=str(after))

    if ours.shape != theirs.shape:
        other = differs(Kind.CHECKPOINT_SHAPE, "shape", ours.shape, theirs.shape)
        # What is no weight may be a list that numbers have chosen, such as the network's mistakes: by those before.
        yield other if ours.same_as else replace(other, step=save.rounds + 1)
    elif ours.dtype != theirs.dtype:
        yield differs(Kind.CHECKPOINT_DTYPE, "dtype", ours.dtype, theirs.dtype)
    elif ours.kind != theirs.kind:
        yield differs(Kind.CHECKPOINT_DTYPE, "type", ours.kind, theirs.kind)


def _values(
    ours: Checkpoint, theirs: Checkpoint, near: Sequence[Checkpoint], precision: Precision | None
) -> Iterator[Finding]:
    for key, entry in ours.entries.items():
        other = theirs.entries.get(key)
        if (
            entry.value is None
            or other is None
            or other.value is None
            or entry.value == other.value
            or _KERNEL.search(key)
        ):
            continue
        spread = [e.value for save in near if (e := save.entries.get(key)) and e.value is not None]
        repeats = spread if precision is None else ()
        for finding in compare_text(entry.value, other.value, repeats, spread, precision):
            if finding.kind is Kind.STDOUT:
                what = f"{ours.path}: {key or 'what is saved'}"
                if max(len(entry.value), len(other.value)) > _LONGEST:
                    told = f"{what}: {finding.message.replace(' of the output', '')}"
                else:
                    told = f"{what} is {other.value}, not {entry.value}"
                yield Finding(
                    Kind.CHECKPOINT_VALUE,
                    told,
                    finding.severity,
                    tensor=key,
                    original=entry.value,
                    rewritten=other.value,
                    beyond=finding.beyond,
                )


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")


def _first_few(findings: Iterable[Finding]) -> list[Finding]:
    """At most a few findings of a kind: a renamed model changes every key."""
    kept: dict[Kind, list[Finding]] = defaultdict(list)
    for finding in findings:
        if len(kept[finding.kind]) < _SHOWN:
            kept[finding.kind].append(finding)
    return [finding for same in kept.values() for finding in same]
