"""A verification as JSON: :class:`ReportJson`. Numbers that are not finite are null; keys are only ever added."""

from __future__ import annotations

import math
from typing import TypedDict

from ..comparison.figures import StepFigures
from ..comparison.findings import Finding
from ..comparison.seeds import SeedComparison
from ..comparison.verdict import Verdict
from ..execution.observations import said_last
from ..failure_hints import device_hint, input_hint
from ..measuring.measurement import Measurement, VersionSpeed
from .result import VerificationReport, exit_code

ORIGINAL_FAILED = "original failed"


class ScriptJson(TypedDict):
    """A version of the script: its path, its arguments, and the files that stand in for those on disk.

    ``processes`` are as many as torchrun has started; null without torchrun.
    """

    path: str
    args: list[str]
    overridden: list[str]
    processes: int | None


class RunJson(TypedDict):
    """What was run, ``runs`` runs in all, and how much of the original's training one observed run covers.

    It has ``steps`` optimizer steps; ``samples`` were read from the loaders, ``evaluated`` of them or others went through a
    network in eval mode; ``checkpoints`` counts calls of ``torch.save``, ``passes`` those begun over the loader that training
    read most often. ``completed`` says that the script came to its own end: nothing lies beyond. ``emulated``: the CUDA
    device was one emulated on the CPU.
    """

    device: str | None
    emulated: bool
    torch: str | None
    python: str | None
    interpreter: str
    cwd: str
    steps: int
    samples: int
    evaluated: int
    checkpoints: int
    passes: int
    completed: bool
    seed: int
    runs: int


class FindingJson(TypedDict):
    """One difference between the runs, or one limit of what could be compared.

    ``severity`` is ``failure`` for what makes the versions not equivalent, else what it is told for. ``step`` is the optimizer step it was first seen at, counted
    from 1; ``tensor`` the parameter, buffer, key of a state dict or file it is about. ``original`` and ``rewritten`` are what
    each run showed, in the unit that ``message`` names.
    """

    kind: str
    severity: str
    message: str
    step: int | None
    tensor: str | None
    original: str | float | int | None
    rewritten: str | float | int | None


class StepJson(TypedDict):
    """One call of ``optimizer.step()`` in both runs.

    ``step`` counts from 1; the steps that several optimizers (``optimizer``, from 0) make on one batch have the same number. ``loss`` and
    ``rewritten_loss`` are sums over the backward passes of the step, null where there were none. ``allowed`` is the largest
    difference of the losses that passes; 0 where they are compared bit for bit. ``grad_norm`` and ``rewritten_grad_norm`` are the
    norms of all gradients together.
    """

    step: int
    optimizer: int
    loss: float | None
    rewritten_loss: float | None
    allowed: float | None
    grad_norm: float | None
    rewritten_grad_norm: float | None


class VectorJson(TypedDict):
    """Many tensors taken as one vector: an optimizer's first gradient, or how far its parameters have moved.

    ``what`` says which of the two, ``group`` whose (``optimizer 0``), ``round`` after how many steps. ``distance``, between the versions, and ``allowed`` are relative to the
    original's length; ``norm_ratio`` is the rewritten length over the original's; ``cosine`` is between the two,
    ``neighbour_cosine`` the lowest between the original and runs of it that started from slightly other numbers, null where there was none.
    """

    what: str
    group: str
    round: int
    cosine: float | None
    neighbour_cosine: float | None
    norm_ratio: float | None
    distance: float | None
    allowed: float | None


class ArithmeticJson(TypedDict):
    """The verdict on the rewrite with its reduced precision switched off."""

    outcome: str
    reason: str


class FailureJson(TypedDict):
    """A script that failed: ``script`` is ``original`` or ``rewritten``; ``details`` its traceback."""

    script: str
    status: str
    exit_code: int | None
    details: str


class VersionSpeedJson(TypedDict):
    """The speed of one version over its ``runs``; times are in seconds, peaks of memory in bytes.

    ``step_seconds`` is a step; ``round_seconds`` one with its part of ``interlude_seconds``, which is what an evaluation or the
    start of an epoch takes beyond a step, and comes every ``interlude_rounds``, both null where the runs are too short to tell.
    ``first_round_seconds`` is the first step of the first run, with nothing compiled before; ``warm_first_round_seconds`` the median of that of
    the later runs. ``warm_up_rounds`` are the steps left out at the start, the most of any run; ``settled`` says that step times no longer changed behind them.
    ``data_wait_share`` is the part of the time in which the training waited for data.
    """

    step_seconds: float | None
    round_seconds: float | None
    interlude_seconds: float | None
    interlude_rounds: float | None
    samples_per_second: float | None
    startup_seconds: float | None
    first_round_seconds: float | None
    warm_first_round_seconds: float | None
    warm_up_rounds: int
    settled: bool
    data_wait_share: float | None
    device_memory: int | None
    host_memory: int | None
    runs: int


class SpeedJson(TypedDict):
    """How much faster the rewritten version is: ``factor`` is original over rewritten time, [``low``, ``high``] its 95 % interval.

    ``break_even_rounds`` is the number of steps after which a longer start has paid, null where that cannot be told.
    """

    verdict: str
    factor: float | None
    low: float | None
    high: float | None
    break_even_rounds: int | None
    original: VersionSpeedJson
    rewritten: VersionSpeedJson


class SeedPairJson(TypedDict):
    """The end losses of both versions with one seed."""

    seed: int
    original: float | None
    rewritten: float | None


class EndLossJson(TypedDict):
    """The losses at the end of one optimizer's steps, over the seeds; ``verdict``: ``no worse``, ``worse`` or ``cannot tell``.

    ``difference`` is the mean of rewritten minus original, [``low``, ``high``] its one-sided 95 % limits. ``high`` has to be below
    ``margin`` to be no worse, ``low`` above ``worse_from`` to be worse; ``two_sided`` says that a lower loss counts as well.
    """

    optimizer: int
    verdict: str
    two_sided: bool
    difference: float | None
    low: float | None
    high: float | None
    margin: float | None
    worse_from: float | None
    pairs: list[SeedPairJson]


class SeedsJson(TypedDict):
    """The losses at the end over several seeds, each the mean of the last ``smoothed`` steps."""

    verdict: str
    reason: str
    smoothed: int
    ends: list[EndLossJson]


class ReportJson(TypedDict):
    """One verification. ``outcome``: ``equivalent``, ``not equivalent``, ``inconclusive`` or ``original failed``."""

    schema: int
    outcome: str
    exit_code: int
    reason: str
    tier: str | None
    precision: str | None
    original: ScriptJson
    rewritten: ScriptJson
    run: RunJson
    findings: list[FindingJson]
    steps: list[StepJson]
    vectors: list[VectorJson]
    same_arithmetic: ArithmeticJson | None
    failure: FailureJson | None
    speed: SpeedJson | None
    speed_note: str | None
    seeds: SeedsJson | None


def to_json(report: VerificationReport) -> ReportJson:
    """The report as plain values that ``json.dumps(..., allow_nan=False)`` takes."""
    verdict, settings, versions = report.verdict, report.settings, report.versions
    return {
        "schema": 1,
        "outcome": verdict.outcome.value if verdict else ORIGINAL_FAILED,
        "exit_code": int(exit_code(report)),
        "reason": reason(report),
        "tier": verdict.tier.label if verdict else None,
        "precision": verdict.precision.value if verdict and verdict.precision else None,
        "original": _script_json(report, original=True),
        "rewritten": _script_json(report, original=False),
        "run": {
            "device": versions.device if versions else None,
            "emulated": bool(settings.emulated_gpus),
            "torch": versions.torch if versions else None,
            "python": versions.python if versions else None,
            "interpreter": str(settings.python),
            "cwd": str(settings.cwd),
            "steps": report.seen.steps,
            "samples": report.seen.samples,
            "evaluated": report.seen.evaluated,
            "checkpoints": report.seen.checkpoints,
            "passes": report.seen.passes,
            "completed": report.seen.completed,
            "seed": settings.seed,
            "runs": report.runs,
        },
        "findings": [finding_json(finding) for finding in verdict.findings] if verdict else [],
        "steps": [_step_json(step) for step in verdict.steps] if verdict else [],
        "vectors": _vectors_json(verdict),
        "same_arithmetic": _arithmetic_json(report.same_arithmetic),
        "failure": failure_json(report),
        "speed": _speed_json(report.measurement),
        "speed_note": report.speed_note,
        "seeds": _seeds_json(report.seeds),
    }


def reason(report: VerificationReport) -> str:
    """Why the outcome is what it is, in one line."""
    if report.verdict is not None:
        return report.verdict.reason
    details = report.original_failure.details if report.original_failure else ""
    last = said_last(details) or "it wrote nothing"
    hint = "" if report.settings.emulated_gpus else device_hint(details)
    return f"the original script fails by itself: {last}{hint or input_hint(details)}"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _script_json(report: VerificationReport, *, original: bool) -> ScriptJson:
    version = report.original if original else report.rewritten
    return {
        "path": str(version.entry),
        "args": list(version.args),
        "overridden": [str(path) for path in version.overrides],
        "processes": version.processes,
    }


def finding_json(finding: Finding) -> FindingJson:
    """``finding`` as plain values."""

    def plain(value: str | float | int | None) -> str | float | int | None:
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return {
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "message": finding.message,
        "step": finding.step,
        "tensor": finding.tensor,
        "original": plain(finding.original),
        "rewritten": plain(finding.rewritten),
    }


def _step_json(step: StepFigures) -> StepJson:
    return {
        "step": step.step,
        "optimizer": step.optimizer,
        "loss": _finite(step.loss),
        "rewritten_loss": _finite(step.rewritten_loss),
        "allowed": _finite(step.allowed),
        "grad_norm": _finite(step.grad_norm),
        "rewritten_grad_norm": _finite(step.rewritten_grad_norm),
    }


def _vectors_json(verdict: Verdict | None) -> list[VectorJson]:
    return [
        {
            "what": vector.what,
            "group": vector.group,
            "round": vector.round,
            "cosine": _finite(vector.cosine),
            "neighbour_cosine": _finite(vector.neighbour_cosine),
            "norm_ratio": _finite(vector.norm_ratio),
            "distance": _finite(vector.distance),
            "allowed": _finite(vector.allowed),
        }
        for vector in (verdict.vectors if verdict else ())
    ]


def _arithmetic_json(verdict: Verdict | None) -> ArithmeticJson | None:
    return {"outcome": verdict.outcome.value, "reason": verdict.reason} if verdict else None


def failure_json(report: VerificationReport) -> FailureJson | None:
    """The failure of one of the scripts, the original's first; None when both ran."""
    failure = report.original_failure or report.rewritten_failure
    if failure is None:
        return None
    return {
        "script": "original" if report.original_failure else "rewritten",
        "status": failure.status.value,
        "exit_code": failure.exit_code,
        "details": failure.details,
    }


def _speed_json(measurement: Measurement | None) -> SpeedJson | None:
    if measurement is None:
        return None
    speedup = measurement.speedup
    return {
        "verdict": speedup.verdict.value,
        "factor": _finite(speedup.factor),
        "low": _finite(speedup.low),
        "high": _finite(speedup.high),
        "break_even_rounds": measurement.break_even_rounds,
        "original": _version_json(measurement.original),
        "rewritten": _version_json(measurement.rewritten),
    }


def _seeds_json(seeds: SeedComparison | None) -> SeedsJson | None:
    if seeds is None:
        return None
    return {
        "verdict": seeds.verdict.value,
        "reason": seeds.reason,
        "smoothed": seeds.smoothed,
        "ends": [
            {
                "optimizer": end.optimizer,
                "verdict": end.verdict.value,
                "two_sided": end.two_sided,
                "difference": _finite(end.difference),
                "low": _finite(end.low),
                "high": _finite(end.high),
                "margin": _finite(end.margin),
                "worse_from": _finite(end.worse_from),
                "pairs": [
                    {"seed": p.seed, "original": p.original, "rewritten": p.rewritten}
                    for p in end.pairs
                ],
            }
            for end in seeds.ends
        ],
    }


def _version_json(version: VersionSpeed) -> VersionSpeedJson:
    return {
        "step_seconds": _finite(version.step_seconds),
        "round_seconds": _finite(version.round_seconds),
        "interlude_seconds": _finite(version.interlude_seconds),
        "interlude_rounds": _finite(version.interlude_rounds),
        "samples_per_second": _finite(version.samples_per_second),
        "startup_seconds": _finite(version.startup_seconds),
        "first_round_seconds": _finite(version.first_round_seconds),
        "warm_first_round_seconds": _finite(version.warm_first_round_seconds),
        "warm_up_rounds": version.warm_up_rounds,
        "settled": version.settled,
        "data_wait_share": _finite(version.data_wait_share),
        "device_memory": version.device_memory,
        "host_memory": version.host_memory,
        "runs": len(version.runs),
    }
