"""Other batch sizes: how many samples a second they would make of the script.

They change the training (fewer or more steps an epoch, gradients of other batches, at the same learning rate), so that nothing
verifies them, and they are no transform that a rewrite could choose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from ...transforms.base import Change, Skip, Stage, Transform
from ..analysis.facts import seen_at
from ..analysis.loading.batch_size import BatchSize, find_batch_size
from ..analysis.script import TrainingScript
from ..execution.observations import Timing
from ..execution.runner import RunSettings
from ..measuring.measurement import pace, read_run
from ..options import Options, Tier
from ..rewriting.edits import FileEdit, ReplaceExpression

FEWEST_ROUNDS = 30


class SetBatchSize(Transform):
    """Writes ``Options.batch_size`` for a script that is started with ``arguments``."""

    name: ClassVar[str] = "batch-size"
    tier: ClassVar[Tier] = Tier.SEMANTIC
    stage: ClassVar[Stage] = Stage.DATA
    asked_by: ClassVar[str | None] = "batch_size"

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = arguments

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        found = find_batch_size(script)
        if options.batch_size is None:
            return
        if not isinstance(found, BatchSize):
            message = f"{found.message}{seen_at(found, found)}"
            yield self.skip(found.path, found.span, message)
            return
        flag = next(filter(self._is_given, found.flags), None)
        if flag is not None:
            message = f"`{flag}` is given on the command line: leave it out, or try sizes there"
            yield self.skip(found.path, found.span, message)
        elif found.number != options.batch_size:
            edit = ReplaceExpression(found.span, str(options.batch_size))
            yield self.change(
                found.path,
                found.span,
                f"batches of {options.batch_size} samples instead of {found.number}",
                "asked for by --batch-sizes: it trains differently, at the same learning rate",
                (FileEdit(found.path, edit),),
            )

    def _is_given(self, flag: str) -> bool:
        return any(said == flag or said.startswith(f"{flag}=") for said in self._arguments)


def for_as_many_samples(settings: RunSettings, samples: Sequence[float]) -> list[RunSettings]:
    """``settings``, made for the first, for runs whose rounds read so many ``samples`` each: all read as many in the end.

    So they go over the data as often, and evaluate as often.
    """
    wanted = max(settings.steps * samples[0], FEWEST_ROUNDS * max(samples))

    def as_many(rounds: int, one: float) -> int:
        return max(1, round(rounds * samples[0] / one))

    return [
        replace(
            settings,
            steps=round(wanted / one),
            block_steps=as_many(settings.block_steps, one),
            device_block_steps=as_many(settings.device_block_steps, one),
        )
        for one in samples
    ]


def log_throughput_ratio(best: Timing, candidate: Timing, samples: Sequence[float]) -> float:
    """The logarithm of how many times as many samples a second ``candidate`` reads.

    ``samples`` are those of a mean round of each. All rounds count but for the first fifth, with what lies between steps.
    Raises :class:`TooShort` as :func:`read_run` does.
    """
    ours, theirs = (
        _mean_round(timing) / read for timing, read in zip((best, candidate), samples, strict=True)
    )
    return math.log(ours / theirs)


def _mean_round(timing: Timing) -> float:
    read_run(timing)
    return pace(timing)
