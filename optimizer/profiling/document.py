"""The profile file: what ``torchopt profile`` measured, as JSON, for programs and for ``rewrite --profile``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict, cast

from ..errors import TorchoptError
from .opportunities import Opportunity, bottleneck, usable_cores, workers_needed
from .profile import StepProfile

SCHEMA = 1


class PhaseJson(TypedDict):
    phase: str
    seconds: float
    share: float
    processor_seconds: float
    memory: int | None


class OperatorJson(TypedDict):
    name: str
    calls: float
    self_seconds: float
    device_seconds: float


class SyncJson(TypedDict):
    path: str
    line: int
    call: str
    calls: float
    seconds: float


class LoaderJson(TypedDict):
    workers: int
    batch_samples: float
    batch_seconds: float
    workers_needed: int


class OpportunityJson(TypedDict):
    transform: str
    path: str
    line: int
    message: str
    at_most_seconds: float | None
    basis: str


class ProfileJson(TypedDict):
    """One profile; times in seconds per step, sizes in bytes."""

    schema: int
    script: str
    args: list[str]
    device: str | None
    torch: str | None
    cores: int
    steps: int
    step_seconds: float
    round_seconds: float
    samples_per_second: float | None
    bottleneck: str
    phases: list[PhaseJson]
    operators: list[OperatorJson]
    syncs: list[SyncJson]
    loader: LoaderJson | None
    device_busy_share: float | None
    resident_step_seconds: float | None
    device_memory: int | None
    host_memory: int | None
    opportunities: list[OpportunityJson]


def to_json(
    script: Path, args: tuple[str, ...], profile: StepProfile, found: tuple[Opportunity, ...]
) -> ProfileJson:
    """The document of ``profile`` of ``script`` with ``args``, and of what was ``found`` to do about it."""
    cores = usable_cores()
    loader = profile.loader
    samples = profile.batch_samples
    return {
        "schema": SCHEMA,
        "script": str(script),
        "args": list(args),
        "device": profile.versions.device if profile.versions else None,
        "torch": profile.versions.torch if profile.versions else None,
        "cores": cores,
        "steps": profile.steps,
        "step_seconds": profile.step_seconds,
        "round_seconds": profile.round_seconds,
        "samples_per_second": samples / profile.step_seconds if samples else None,
        "bottleneck": bottleneck(profile).value,
        "phases": [
            {
                "phase": part.phase.value,
                "seconds": part.seconds,
                "share": part.share,
                "processor_seconds": part.processor_seconds,
                "memory": part.memory,
            }
            for part in profile.phases
        ],
        "operators": [
            {
                "name": operator.name,
                "calls": operator.calls,
                "self_seconds": operator.self_seconds,
                "device_seconds": operator.device_seconds,
            }
            for operator in profile.operators
        ],
        "syncs": [
            {
                "path": point.path,
                "line": point.line,
                "call": point.call,
                "calls": point.calls,
                "seconds": point.seconds,
            }
            for point in profile.syncs
        ],
        "loader": None
        if loader is None
        else {
            "workers": loader.workers,
            "batch_samples": loader.batch_samples,
            "batch_seconds": loader.batch_seconds,
            "workers_needed": workers_needed(profile, cores),
        },
        "device_busy_share": profile.device_busy_share,
        "resident_step_seconds": profile.resident_step_seconds,
        "device_memory": profile.device_memory,
        "host_memory": profile.host_memory,
        "opportunities": [
            {
                "transform": one.transform,
                "path": str(one.path),
                "line": one.line,
                "message": one.message,
                "at_most_seconds": one.at_most,
                "basis": one.basis,
            }
            for one in found
        ],
    }


def measured_workers(path: Path) -> int | None:
    """The worker processes that the profile in ``path`` found to keep up with the step; None if it says nothing.

    Raises TorchoptError when it is no profile of ours.
    """
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TorchoptError(f"cannot be read: {error.strerror}", path) from None
    except ValueError:
        raise TorchoptError("is not a profile: not JSON", path) from None
    try:
        known = document["schema"] == SCHEMA
        loader = cast("dict[str, Any] | None", document["loader"])
        wanted = loader["workers_needed"] if loader else None
    except (TypeError, KeyError):
        known, loader, wanted = False, None, None
    if not known or (loader is not None and type(wanted) is not int):
        raise TorchoptError("is no profile that `torchopt profile --format json` wrote", path)
    return None if loader is None or loader["workers"] else wanted
