"""What can be tuned: which transforms run, and the numbers that they write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...transforms.base import Stage, Transform
from ..errors import TorchoptError
from ..options import AmpDtype, Options
from ..pipeline import Rewritten, rewrite_all

WORKERS, HALF = "dataloader-workers", "autocast"
TOGETHER = ({WORKERS, "main-guard"}, {"pin-memory", "non-blocking"})
"""Transforms that only pay beside each other: workers need the guard where they are spawned, a copy is only
asynchronous from pinned memory (https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html)."""


@dataclass(frozen=True)
class Configuration:
    """A rewrite: the transforms that run, in no order, and what they write; None for what a plain rewrite writes."""

    transforms: frozenset[str] = frozenset()
    workers: int | None = None
    amp: AmpDtype | None = None

    @property
    def label(self) -> str:
        """A short name, the same for the same configuration."""
        parts = sorted(self.transforms)
        if self.workers is not None:
            parts.append(f"{self.workers} workers")
        if self.amp is not None:
            parts.append(self.amp.value)
        return ", ".join(parts) or "original"


class Rewriter:
    """Makes the rewrites of one script."""

    def __init__(self, script: Path, transforms: Sequence[Transform], options: Options) -> None:
        self._script, self._transforms, self._options = script, transforms, options
        self._made: dict[Configuration, Rewritten] = {}

    def plain(self) -> Configuration:
        """What ``torchopt rewrite`` does. Raises TorchoptError when the script cannot be read."""
        done = rewrite_all([self._script], self._transforms, lambda _: self._options)
        if not done.results:
            raise done.errors[0]
        plain = Configuration(applied(done, self._transforms))
        self._made[plain] = done
        return plain

    def rewrite(self, configuration: Configuration) -> Rewritten:
        """The script rewritten by ``configuration``."""
        if configuration not in self._made:
            known = frozenset(transform.name for transform in self._transforms)
            wanted = replace(
                self._options,
                select=self._options.select & configuration.transforms,
                ignore=self._options.ignore | (known - configuration.transforms),
                workers=self._options.workers
                if configuration.workers is None
                else configuration.workers,
                amp=configuration.amp or self._options.amp,
            )
            done = rewrite_all([self._script], self._transforms, lambda _: wanted)
            if not done.results:
                raise TorchoptError("could not be rewritten", self._script)
            self._made[configuration] = done
        return self._made[configuration]


def applied(rewritten: Rewritten, transforms: Sequence[Transform]) -> frozenset[str]:
    """The transforms that change something in ``rewritten``."""
    silent = {transform.name for transform in transforms if transform.stage is Stage.ADVICE}
    made = {change.transform for file in rewritten.files for change in file.changes}
    return frozenset(made - silent)


def groups(names: frozenset[str], bound: Callable[[str], float | None]) -> list[frozenset[str]]:
    """``names`` in the order to try them: those that could win most first, those that pay only together together.

    ``bound`` gives the most a transform could save, None where nobody knows; those come last.
    """
    found: list[frozenset[str]] = []
    left = set(names)
    for together in TOGETHER:
        if len(together & left) > 1:
            found.append(frozenset(together & left))
            left -= together
    found += [frozenset({name}) for name in left]

    def rank(group: frozenset[str]) -> tuple[bool, float, str]:
        bounds = [b for b in map(bound, group) if b is not None]
        return (not bounds, -max(bounds, default=0.0), min(group))

    return sorted(found, key=rank)


def alternatives(
    configuration: Configuration, workers: int | None, cores: int
) -> list[Configuration]:
    """Other numbers for what ``configuration`` runs, the ones worth trying first.

    ``workers`` is how many a profile found to be enough, None when it did not say.
    """
    found: list[Configuration] = []
    if WORKERS in configuration.transforms:
        counts = [workers, *(n for n in (1, 2, 4, 8, 16) if n <= cores)]
        wanted = dict.fromkeys(n for n in counts if n is not None and n > 0)
        found += [replace(configuration, workers=n) for n in wanted]
    if HALF in configuration.transforms:
        found += [replace(configuration, amp=amp) for amp in (AmpDtype.BF16, AmpDtype.FP16)]
    return [one for one in found if one != configuration]
