"""What can be tuned: which transforms run, and the numbers that they write."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...transforms.base import Stage, Transform
from ..errors import TorchoptError
from ..options import AmpDtype, CompileMode, Options
from ..pipeline.rewrite import Rewritten, rewrite_all
from ..profiling.opportunities import workers_needed
from ..profiling.profile import StepProfile
from .batch_sizes import SetBatchSize

WRITTEN_BY = {
    "workers": "dataloader-workers",
    "prefetch": "dataloader-workers",
    "amp": "autocast",
    "compile_mode": "compile",
    "batch_size": SetBatchSize.name,
}
"""The numbers of a configuration in the order to try them, and the transform that writes each."""
TOGETHER = ({"dataloader-workers", "main-guard"}, {"pin-memory", "non-blocking"})
"""Transforms that only pay beside each other: workers need the guard where they are spawned, a copy is only
asynchronous from pinned memory (https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html)."""
ON_REQUEST = ("channels-last",)
"""Transforms that a plain rewrite for a CPU does without, unless they are selected by name."""

_NO_DIFFERENCE = "it makes no difference here"
_BATCHED_PRODUCT = re.compile(r"\b(bmm|baddbmm)$")


@dataclass(frozen=True)
class Configuration:
    """A rewrite: the transforms that run, in no order, and what they write; None for what a plain rewrite writes."""

    transforms: frozenset[str] = frozenset()
    workers: int | None = None
    prefetch: int | None = None
    amp: AmpDtype | None = None
    compile_mode: CompileMode | None = None
    batch_size: int | None = None

    @property
    def label(self) -> str:
        """A short name, the same for the same configuration."""
        parts = [*sorted(self.transforms), *self.numbers.values()]
        return ", ".join(parts) or "original"

    def with_only(self, transforms: frozenset[str]) -> Configuration:
        """What is left with ``transforms`` alone: those, and the numbers that they write."""
        lost = dict.fromkeys(self.numbers_of(self.transforms - transforms))
        return replace(self, transforms=transforms, **lost)

    def numbers_of(self, transforms: Collection[str]) -> frozenset[str]:
        """The numbers that were chosen and that ``transforms`` write."""
        return frozenset(number for number in self.numbers if WRITTEN_BY[number] in transforms)

    @property
    def numbers(self) -> dict[str, str]:
        """The numbers that are not those of a plain rewrite, in words."""
        found: dict[str, str] = {}
        if self.workers is not None:
            found["workers"] = f"{self.workers} worker{'' if self.workers == 1 else 's'}"
        if self.prefetch is not None:
            found["prefetch"] = f"{self.prefetch} batches ahead"
        if self.amp is not None:
            found["amp"] = self.amp.value
        if self.compile_mode is not None:
            found["compile_mode"] = f"mode {self.compile_mode.value}"
        if self.batch_size is not None:
            found["batch_size"] = f"batch size {self.batch_size}"
        return found


class Rewriter:
    """Makes the rewrites of one script."""

    def __init__(
        self,
        script: Path,
        transforms: Sequence[Transform],
        options: Options,
        arguments: Sequence[str] = (),
    ) -> None:
        self._script, self._transforms, self._options = script, transforms, options
        self._set_batch_size = SetBatchSize(arguments)
        self._made: dict[Configuration, Rewritten] = {}

    def plain(self) -> Configuration:
        """What ``torchopt rewrite`` does. Raises TorchoptError when the script cannot be read."""
        done = rewrite_all([self._script], self._transforms, lambda _: self._options)
        if not done.results:
            raise done.errors[0]
        plain = Configuration(applied(done, self._transforms))
        self._made[plain] = done
        return plain

    def on_request(self) -> tuple[str, ...]:
        """The transforms that a plain rewrite does without, and that would change something where they are selected by name."""
        known = frozenset(transform.name for transform in self._transforms)
        names = [n for n in ON_REQUEST if n in known and _is_allowed(n, self._options)]
        rewritten = ((name, self.rewrite(Configuration(frozenset({name})))) for name in names)
        return tuple(name for name, done in rewritten if applied(done, self._transforms))

    def waits_to_be_asked(self) -> bool:
        """Whether a number would bring in a transform that a plain rewrite does without: compiling, for a CPU."""
        if self._options.compile_mode is not CompileMode.AUTO:
            return False
        compiled = frozenset({WRITTEN_BY["compile_mode"]})
        asked = self.rewrite(Configuration(compiled, compile_mode=CompileMode.DEFAULT))
        return bool(applied(asked, self._transforms))

    def rewrite(self, configuration: Configuration) -> Rewritten:
        """The script rewritten by ``configuration``."""
        if configuration not in self._made:
            known = frozenset(transform.name for transform in self._transforms)
            named = configuration.transforms & frozenset(ON_REQUEST)
            select = configuration.transforms if named else frozenset[str]()
            wanted = replace(
                self._options,
                select=select or self._options.select & configuration.transforms,
                ignore=self._options.ignore | (known - configuration.transforms),
                **{number: getattr(configuration, number) for number in configuration.numbers},
            )
            transforms = self._transforms
            if configuration.batch_size is not None:
                transforms = [self._set_batch_size, *transforms]
            done = rewrite_all([self._script], transforms, lambda _: wanted)
            if not done.results:
                raise TorchoptError("could not be rewritten", self._script)
            self._made[configuration] = done
        return self._made[configuration]

    def refusal(self, best: Configuration, configuration: Configuration) -> str | None:
        """Why a number of ``configuration`` is not written, or makes no difference to ``best``; None where it does."""
        rewritten = self.rewrite(configuration)
        done = applied(rewritten, self._transforms)
        skips = [skip for file in rewritten.files for skip in file.skips]
        for number in configuration.numbers:
            if WRITTEN_BY[number] not in done:
                said = (skip.message for skip in skips if skip.transform == WRITTEN_BY[number])
                return next(said, _NO_DIFFERENCE)
        same = configuration.numbers and _texts(rewritten) == _texts(self.rewrite(best))
        return _NO_DIFFERENCE if same else None


def _texts(rewritten: Rewritten) -> dict[Path, str]:
    return {file.path: file.text for file in rewritten.changed}


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
    best: Configuration,
    plain: Configuration,
    number: str,
    values: Sequence[int | AmpDtype | CompileMode],
) -> list[Configuration]:
    """``best`` with each other of ``values`` for its ``number``, a field of it.

    What writes that number must not have been dropped from the ``plain`` rewrite. Where that does without it, it may have waited
    to be asked for, and is tried with the number.
    """
    writer = WRITTEN_BY[number]
    if writer in plain.transforms - best.transforms:
        return []
    transforms = best.transforms | {writer}
    found = [replace(best, transforms=transforms, **{number: value}) for value in values]
    return [one for one in found if one != best]


def worth_trying(
    options: Options, profile: StepProfile, cores: int
) -> Mapping[str, Sequence[int | AmpDtype | CompileMode]]:
    """The values to try of each number, in that order; none where the user gave one, which stays, or left out what writes it."""
    found: dict[str, Sequence[int | AmpDtype | CompileMode]] = {}
    if options.workers is None:
        counts = [workers_needed(profile, cores), *(n for n in (1, 2, 4, 8, 16) if n <= cores)]
        found["workers"] = list(dict.fromkeys(n for n in counts if n > 0))
    if options.prefetch is None:
        found["prefetch"] = [4, 8]
    if options.amp is AmpDtype.AUTO:
        found["amp"] = [AmpDtype.BF16, AmpDtype.FP16]
    if options.compile_mode is CompileMode.AUTO:
        found["compile_mode"] = _compile_modes(profile)
    return {n: values for n, values in found.items() if _is_allowed(WRITTEN_BY[n], options)}


def _is_allowed(transform: str, options: Options) -> bool:
    return transform not in options.ignore and (not options.select or transform in options.select)


def _compile_modes(profile: StepProfile) -> list[CompileMode]:
    """On a CPU, for which a plain rewrite does not compile, and which has no CUDA graphs, templates are only tried for
    products of batches of matrices.

    Those of single matrices have to be multiplied by constants, which weights in training are not
    (``use_cpp_gemm_template`` and ``use_cpp_bmm_template`` of ``torch._inductor.utils``).
    """
    if not profile.on_cpu:
        return [CompileMode.REDUCE_OVERHEAD, CompileMode.MAX_AUTOTUNE_NO_CUDAGRAPHS]
    batched = any(_BATCHED_PRODUCT.search(operator.name) for operator in profile.operators)
    return [CompileMode.DEFAULT, *([CompileMode.MAX_AUTOTUNE_NO_CUDAGRAPHS] if batched else [])]
