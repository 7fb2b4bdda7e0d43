"""What must agree whatever the numbers do: the process, the optimizers' conduct, coverage, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..execution.observations import Observations
from .checkpoints import compare_checkpoints
from .coverage import compare_coverage
from .findings import Finding, Kind, Severity, step_number
from .optimization import compare_optimization
from .process import compare_process
from .ranks import compare_ranks
from .reading import compare_reading
from .scheduling import compare_scheduling
from .tolerance import Precision


def compare_structure(
    original: Observations,
    other: Observations,
    neighbours: Sequence[Observations] = (),
    precision: Precision = Precision.FLOAT32,
) -> list[Finding]:
    """Differences that are not a matter of tolerance.

    What the original shows against its own ``neighbours`` (repeated or perturbed runs) too, such as a learning rate
    that hangs on a loss, is a note. When the other run did not end well, that is the only finding.
    """
    findings = _differences(original, other, precision)
    if not any(finding.fails for finding in findings):
        return findings
    own = {
        _claim(finding)
        for neighbour in neighbours
        for finding in _differences(original, neighbour, precision)
        if finding.fails
    }
    return [_as_note(f) if f.fails and _claim(f) in own else f for f in findings]


def _claim(finding: Finding) -> tuple[Kind, str | None, bool]:
    """What it says, but for how much: that a file has another name in every run is not that it is saved more or less often.

    Nor is that one loader reads what the network has chosen anything about another.
    """
    about = finding.tensor
    if finding.kind in (Kind.SAMPLES, Kind.SAMPLE_ORDER):
        about = finding.message.partition(",")[0]
    return finding.kind, about, isinstance(finding.original, str)


def _differences(
    original: Observations, other: Observations, precision: Precision
) -> list[Finding]:
    return compare_process(original, other) or [
        *_missing(original, other),
        *compare_ranks(original, other),
        *compare_optimization(original, other, precision),
        *compare_scheduling(original, other),
        *compare_reading(original, other),
        *compare_coverage(original, other),
        *compare_checkpoints(original, other),
    ]


def _missing(original: Observations, other: Observations) -> list[Finding]:
    """Observations that only the original has: never taken for equal."""
    lacking = [
        what
        for what, ours, theirs in (
            ("steps", original.steps, other.steps),
            ("gradients", original.gradients_file, other.gradients_file),
            # Of calls that were found elsewhere none is kept.
            (
                "evaluation outputs",
                original.eval_file and other.eval_calls and other.kept_calls is None,
                other.eval_file,
            ),
            *(
                (f"parameters after round {s.round}", s.hashes, _hashes(other, s.round))
                for s in original.snapshots
                if s.round <= other.rounds and not _ends_earlier(original, other, s.round)
            ),
        )
        if ours and not theirs
    ]
    if "gradients" in lacking and _starts_without_gradients(other):
        # What else is missing then follows from that.
        message = "no gradient reaches the optimizer's parameters by its first step"
        return [Finding(Kind.FROZEN_PARAMETER, message, step=step_number(other.steps[0]))]
    return [
        Finding(Kind.MISSING_OBSERVATION, f"the rewritten run shows no {what}; the original's does")
        for what in lacking
    ]


def _starts_without_gradients(run: Observations) -> bool:
    """Whether the first step was seen, and none of its parameters had a gradient: nothing is missing but that."""
    first = run.steps[0].parameters.values() if run.steps else ()
    return bool(first) and all(update.grad_norm is None for update in first)


def _ends_earlier(original: Observations, other: Observations, after_round: int) -> bool:
    """Whether this snapshot was taken because the original's run ends there, and the other's goes on."""
    return after_round == original.rounds < other.rounds


def _hashes(run: Observations, after_round: int) -> object:
    snapshot = run.snapshot(after_round)
    return snapshot.hashes if snapshot else None


def _as_note(finding: Finding) -> Finding:
    message = finding.message + " (the original does not agree with itself here either)"
    return replace(finding, message=message, severity=Severity.NOTE)
