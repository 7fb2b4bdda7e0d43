"""A verification as JSON: :class:`ReportJson`. Numbers that are not finite are null; keys are only ever added."""

from __future__ import annotations

import math

from ..comparison.figures import StepFigures
from ..comparison.findings import Finding
from ..comparison.seeds import SeedComparison
from ..comparison.verdict import Verdict
from ..execution.observations import said_last
from ..failure_hints import device_hint, input_hint
from ..measuring.measurement import Measurement, VersionSpeed
from .report_types import (
    ArithmeticJson,
    FailureJson,
    FindingJson,
    ReportJson,
    ScriptJson,
    SeedsJson,
    SpeedJson,
    StepJson,
    VectorJson,
    VersionSpeedJson,
)
from .result import VerificationReport, exit_code

ORIGINAL_FAILED = "original failed"


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
    return f"the original script fails by itself: {original_failure(report)}"


def original_failure(report: VerificationReport) -> str:
    """What the original said when it failed, in one line, with what may help."""
    details = report.original_failure.details if report.original_failure else ""
    last = said_last(details) or "it wrote nothing"
    hint = "" if report.settings.emulated_gpus else device_hint(details)
    return f"{last}{hint or input_hint(details, report.original.entry)}"


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
