"""What a comparison found: named facts about two training runs, each with the place where it was first seen."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from ..execution.observations import Step

Value: TypeAlias = "str | float | int | None"


class Severity(str, Enum):
    """``FAILURE`` makes the runs not equivalent; ``NOTE`` is told to the user and decides nothing."""

    FAILURE = "failure"
    NOTE = "note"


class Kind(str, Enum):
    """The name of a finding, causes before consequences; part of the JSON, so names keep their meaning."""

    EXIT_STATUS = "exit-status"
    TIME_LIMIT = "time-limit"
    TOO_FEW_GPUS = "too-few-gpus"
    RESOURCE_LIMIT = "resource-limit"
    MISSING_OBSERVATION = "missing-observation"
    RANKS = "rank-disagreement"
    INITIAL_PARAMETERS = "initial-parameters"
    OPTIMIZER_SETTINGS = "optimizer-settings"
    STEPPED_PARAMETERS = "stepped-parameters"
    FROZEN_PARAMETER = "frozen-parameter"
    SAMPLES = "samples"
    SAMPLE_ORDER = "sample-order"
    WORKER_RANDOMNESS = "worker-randomness"
    EVALUATION = "evaluation"
    EVALUATION_MODE = "evaluation-mode"
    OPTIMIZER_STEPS = "optimizer-steps"
    BACKWARD_CALLS = "backward-calls"
    SCHEDULER_STEPS = "scheduler-steps"
    LEARNING_RATE = "learning-rate"
    SKIPPED_STEPS = "skipped-steps"
    EVALUATION_OUTPUT = "evaluation-output"
    NON_FINITE = "non-finite"
    LOSS_DTYPE = "loss-dtype"
    LOSS = "loss"
    GRADIENT = "gradient"
    UPDATE = "parameter-update"
    PARAMETER = "parameter"
    OPTIMIZER_STATE = "optimizer-state"
    WEIGHT_COPY = "weight-copy"
    BUFFER = "buffer"
    END_LOSS = "end-loss"
    CHECKPOINT_FILES = "checkpoint-files"
    CHECKPOINT_KEYS = "checkpoint-keys"
    CHECKPOINT_SHAPE = "checkpoint-shape"
    CHECKPOINT_DTYPE = "checkpoint-dtype"
    CHECKPOINT_VALUE = "checkpoint-value"
    FILES = "files"
    FILE_VALUE = "file-value"
    STDOUT = "stdout"
    LAYERS = "layers-per-rank"
    NOT_REPEATABLE = "not-repeatable"
    LITTLE_POWER = "little-power"


_ORDER = {kind: place for place, kind in enumerate(Kind)}
BETWEEN_STEPS = frozenset({Kind.EVALUATION, Kind.EVALUATION_OUTPUT, Kind.STDOUT})
"""What is told by the step that comes next: it is made of the weights that the one before has left."""


@dataclass(frozen=True)
class Finding:
    """One difference between the runs, or one limit of what could be compared.

    ``step`` is the step it was first seen at, counted from 1 (see :func:`step_number`), of what lies between two steps the next; ``tensor`` the parameter, buffer, state-dict key or
    file it concerns. ``original`` and ``rewritten`` are what each run showed, in the unit the message names. ``beyond`` is how many
    times as far apart they are as is allowed, where that is a matter of rounding.
    """

    kind: Kind
    message: str
    severity: Severity = Severity.FAILURE
    step: int | None = None
    tensor: str | None = None
    original: Value = None
    rewritten: Value = None
    beyond: float | None = None

    @property
    def fails(self) -> bool:
        return self.severity is Severity.FAILURE

    @property
    def when(self) -> str:
        """When it was first seen, in words that follow on the kind, with a space before them; empty where that is not known."""
        if not self.step:
            return ""
        if self.kind not in BETWEEN_STEPS:
            return f" at step {self.step}"
        return f" after step {self.step - 1}" if self.step > 1 else " before step 1"


_DIGITS_OF_A_DOUBLE = 17


def step_number(step: Step) -> int:
    """The step as people count: from 1, and the same for the steps of a GAN's two optimizers on one batch."""
    return step.round + 1


def told_apart(value: float, other: float, digits: int = 6) -> tuple[str, str]:
    """Both numbers in as many ``digits``, or more where they would read the same."""
    written = (f"{value:.{digits}g}", f"{other:.{digits}g}")
    if written[0] != written[1] or value == other or digits >= _DIGITS_OF_A_DOUBLE:
        return written
    return told_apart(value, other, digits + 1)


def note(
    kind: Kind, message: str, *, step: int | None = None, tensor: str | None = None
) -> Finding:
    """A finding that informs and does not fail the comparison."""
    return Finding(kind, message, Severity.NOTE, step, tensor)


def by_importance(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Failures before notes, then the first seen, then causes before consequences.

    What has no step was so from the beginning, but for files and output, which are seen at the end. Where one run is
    longer, output that differs before it goes on or ends explains that (a loss that training stops early by). So it does
    where one run saves a file that the other does not (what it is the best so far by). A network that runs in another mode
    before the first step explains what is drawn behind that: its dropout draws, too.
    """
    findings = tuple(findings)
    parting = _first_step(findings, Kind.OPTIMIZER_STEPS)
    saving = _first_step(findings, Kind.CHECKPOINT_FILES)

    def place(finding: Finding) -> tuple[bool, float, int]:
        order = _ORDER[finding.kind]
        at_end = order >= _ORDER[Kind.CHECKPOINT_FILES]
        if finding.kind is Kind.STDOUT and finding.step and finding.step <= parting:
            return not finding.fails, parting, -1
        if finding.kind is Kind.STDOUT and finding.step and finding.step < saving:
            return not finding.fails, math.inf, -1
        if finding.kind is Kind.EVALUATION_MODE and finding.step == 1:
            return not finding.fails, 0, -1
        step = finding.step if finding.step is not None else 0
        return not finding.fails, math.inf if at_end else step, order

    return tuple(sorted(findings, key=place))


def _first_step(findings: Iterable[Finding], kind: Kind) -> int:
    """Of the failures of a kind; 0 where there are none, or none whose step is known."""
    return min((f.step for f in findings if f.kind is kind and f.fails and f.step), default=0)
