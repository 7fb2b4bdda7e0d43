"""Parameters that the rewrite has as one: the weights of three layers as the rows of one (``qkv``).

Such a parameter starts as the original's, one under the other. It is told as these, with its rows as theirs: each gradient,
movement and state is compared as such. How far a step moves each is not known of a part, only of the whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..execution.observations import Observations, ParameterUpdate, Snapshot, Step
from .findings import Finding, Kind, note

if TYPE_CHECKING:
    from .deviation import Tensors


@dataclass(frozen=True)
class Division:
    """For parameters of the rewrite the original's that they consist of, in their order; ``starts``: the hashes of these."""

    parts: Mapping[str, tuple[str, ...]]
    rows: Mapping[str, int]
    starts: Mapping[str, str]

    @classmethod
    def of(cls, original: Observations, other: Observations) -> Division:
        """What ``other`` has as one."""
        first, other_first = original.snapshot(0), other.snapshot(0)
        if (
            first is None
            or other_first is None
            or original.parameters.keys() >= other.parameters.keys()
        ):
            return cls({}, {}, {})
        ours, theirs = original.tensors(first) or {}, other.tensors(other_first) or {}
        parts: dict[str, tuple[str, ...]] = {}
        for info, other_info in zip(original.optimizers, other.optimizers, strict=False):
            free = [n for group in info.groups for n in group if n in ours and n not in theirs]
            for name in (n for group in other_info.groups for n in group):
                if name in theirs and name not in ours:
                    found = _parts(theirs[name], free, ours)
                    free = [one for one in free if one not in found]
                    parts |= {name: found} if found else {}
        names = [name for found in parts.values() for name in found]
        rows = {name: len(ours[name]) for name in names}
        return cls(parts, rows, {name: first.hashes[name] for name in names})

    def undone(self, run: Observations) -> Observations:
        """``run``, of the rewrite, with the original's parameters."""
        if not self.parts:
            return run
        infos = {
            name: replace(
                run.parameters[whole], shape=(self.rows[name], *run.parameters[whole].shape[1:])
            )
            for whole, found in self.parts.items()
            for name in found
            if whole in run.parameters
        }
        kept = {name: info for name, info in run.parameters.items() if name not in self.parts}
        return replace(
            run,
            parameters=kept | infos,
            optimizers=tuple(
                replace(info, groups=tuple(map(self._names, info.groups)))
                for info in run.optimizers
            ),
            steps=tuple(map(self._step, run.steps)),
            snapshots=tuple(map(self._snapshot, run.snapshots)),
            divided={
                whole: tuple((n, self.rows[n]) for n in found)
                for whole, found in self.parts.items()
            },
        )

    def notes(self) -> list[Finding]:
        """What was taken for the same."""
        return [
            note(Kind.INITIAL_PARAMETERS, f"the rewrite has {', '.join(found)} as one, {whole}")
            for whole, found in self.parts.items()
        ]

    def _names(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(part for name in names for part in self.parts.get(name, (name,)))

    def _step(self, step: Step) -> Step:
        updates: dict[str, ParameterUpdate] = {}
        for name, update in step.parameters.items():
            found = self.parts.get(name, (name,))
            share = 1 / math.sqrt(len(found))
            for number, part in enumerate(found):
                norm = None if update.grad_norm is None else update.grad_norm * share
                updates[part] = ParameterUpdate(
                    norm, update.update_norm * share, update.checksum + number
                )
        return replace(step, parameters=updates)

    def _snapshot(self, snapshot: Snapshot) -> Snapshot:
        hashes = {
            part: self.starts.get(part, value) if not snapshot.round else f"{value}/{part}"
            for name, value in snapshot.hashes.items()
            for part in self.parts.get(name, ())
        }
        kept = {name: value for name, value in snapshot.hashes.items() if name not in self.parts}
        return replace(snapshot, hashes=kept | hashes)


def _parts(whole: Any, free: Sequence[str], tensors: Tensors) -> tuple[str, ...]:
    """Those of ``free`` that ``whole`` consists of, each the first that fits; none where they do not make it up."""
    found: list[str] = []
    row = 0
    while whole.ndim and row < len(whole):
        rest = whole[row:]
        fits = (
            name
            for name in free
            if name not in found and tensors[name].ndim and _begins(rest, tensors[name])
        )
        name = next(fits, None)
        if name is None:
            return ()
        found.append(name)
        row += len(tensors[name])
    return tuple(found) if len(found) > 1 else ()


def _begins(rest: Any, part: Any) -> bool:
    head = rest[: len(part)]
    same = len(part) > 0 and head.shape == part.shape and head.dtype == part.dtype
    return same and head.tobytes() == part.tobytes()
