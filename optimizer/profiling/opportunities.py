"""What each transform that would change a script could win, at most, by the script's profile.

These are bounds from what was measured, not promises: a transform cannot save more than the part of the step that it is
about takes. For worker processes there is a model as well, since they win nothing that the other cores are too few or
too busy to do.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ...transforms.base import StepPart, Transform
from ..analysis.loading.worker_count import most_workers
from ..execution.profile_record import Operator, Phase
from ..options import Target
from ..pipeline.result import AppliedChange
from .profile import StepProfile

LAUNCH_BOUND = 0.5
"""A device that is busy for less than this part of the time mostly waits for the host to tell it what to do."""
_CONVOLUTION = re.compile(r"conv", re.IGNORECASE)
_ATTENTION = re.compile(r"(?<!log_)softmax|masked_fill|bmm")
_PRODUCT = re.compile(
    r"conv|mm\b|bmm|addmm|matmul|linear|gemm|dot_product_attention|flash|lstm|gru\b|rnn",
    re.IGNORECASE,
)
NOTHING_ON_A_CPU = "does nothing on a CPU"
_NOT_ON_CPU = (0.0, NOTHING_ON_A_CPU)
_COMPUTE = (Phase.FORWARD, Phase.BACKWARD, Phase.OTHER)


class Bottleneck(str, Enum):
    """What a step mostly consists of."""

    DATA = "waiting for data"
    COPY = "copies from the host to the device"
    COMPUTE = "forward and backward pass"
    LAUNCH = "the host, which starts kernels more slowly than the device runs them"
    OPTIMIZER = "the optimizer"
    SYNC = "waiting for values that the host asks for"
    EVALUATION = "evaluation"
    OTHER = "the rest of the script"


@dataclass(frozen=True)
class Opportunity:
    """A transform that would change the script: where, and how many seconds of a step it could save at most.

    ``at_most`` is None where the profile says nothing about it; ``basis`` is what the bound comes from.
    """

    transform: str
    path: Path
    line: int
    message: str
    at_most: float | None
    basis: str


def bottleneck(profile: StepProfile) -> Bottleneck:
    """The largest part of the step."""
    parts = {
        Bottleneck.DATA: profile.seconds(Phase.DATA),
        Bottleneck.COPY: profile.seconds(Phase.COPY),
        Bottleneck.COMPUTE: profile.seconds(Phase.FORWARD, Phase.BACKWARD),
        Bottleneck.OPTIMIZER: profile.seconds(Phase.OPTIMIZER, Phase.CLEAR),
        Bottleneck.SYNC: profile.seconds(Phase.SYNC),
        Bottleneck.EVALUATION: profile.seconds(Phase.EVALUATION),
        Bottleneck.OTHER: profile.seconds(Phase.OTHER),
    }
    largest = max(parts, key=parts.__getitem__)
    busy = profile.device_busy_share
    idle = busy is not None and busy < LAUNCH_BOUND
    if idle and largest not in (Bottleneck.DATA, Bottleneck.COPY, Bottleneck.SYNC):
        return Bottleneck.LAUNCH
    return largest


def opportunities(
    profile: StepProfile,
    changes: Iterable[AppliedChange],
    transforms: Sequence[Transform],
    target: Target = Target.AUTO,
) -> tuple[Opportunity, ...]:
    """One for each transform among ``changes``, the one that could win most first.

    ``target`` is what the script is rewritten for: on a CPU that is not, transforms for CUDA win nothing but with changes that
    work there, too.
    """
    parts = {transform.name: transform.relieves for transform in transforms}
    idle: set[str] = set()
    if profile.on_cpu and target is not Target.CPU:
        idle = {transform.name for transform in transforms if transform.only_on_cuda}
    first: dict[str, AppliedChange] = {}
    for change in changes:
        first.setdefault(change.transform, change)
    found = [
        Opportunity(
            name,
            change.path,
            change.line,
            change.message,
            *(
                _NOT_ON_CPU
                if name in idle and not change.on_cpu
                else _bound(profile, parts.get(name))
            ),
        )
        for name, change in first.items()
    ]
    return tuple(sorted(found, key=lambda one: (one.at_most is None, -(one.at_most or 0.0))))


def usable_cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def workers_needed(profile: StepProfile, cores: int) -> int:
    """The fewest workers that keep up with the rest of the step: 0 when none are, at most ``cores`` and as many as
    ``dataloader-workers`` asks for."""
    loader, rest = profile.loader, _rest(profile)
    if loader is None or loader.workers or workers_save(profile, cores) <= 0.0:
        return 0
    most = min(cores, most_workers(beside_gpu=not profile.on_cpu))
    wanted = math.ceil(loader.batch_seconds / rest) if rest > 0.0 else most
    return max(1, min(wanted, most))


def workers_save(profile: StepProfile, cores: int) -> float:
    """Seconds of a step that worker processes on ``cores`` cores could save; all the waiting, where there are some already.

    With workers a batch is made in ``batch_seconds / workers`` beside the rest of the step, and on a CPU what the rest
    computes with has to be shared: no step is shorter than all its CPU time over all cores.
    """
    loader = profile.loader
    if loader is None:
        return 0.0
    if loader.workers:
        return profile.seconds(Phase.DATA)
    rest = _rest(profile)
    step = rest + profile.seconds(Phase.DATA)
    bounds = [rest, loader.batch_seconds / min(cores, most_workers(beside_gpu=not profile.on_cpu))]
    if profile.on_cpu:
        computing = sum(
            part.processor_seconds for part in profile.phases if part.phase is not Phase.DATA
        )
        bounds.append((computing + loader.processor_seconds) / cores)
    return max(0.0, step - max(bounds))


def _rest(profile: StepProfile) -> float:
    """The step without waiting for data."""
    return sum(part.seconds for part in profile.phases if part.phase is not Phase.DATA)


def _bound(profile: StepProfile, part: StepPart | None) -> tuple[float | None, str]:
    if part is None:
        return None, "the profile says nothing about it"
    if part is StepPart.LOADING:
        cores = usable_cores()
        shared = "the batches are made beside the rest of the step"
        return workers_save(profile, cores), f"{shared}, on {cores} CPU cores"
    if part is StepPart.PRODUCTS:
        return _operators(profile, _PRODUCT), "matrix products and convolutions"
    if part is StepPart.CONVOLUTIONS:
        return _operators(profile, _CONVOLUTION), "convolutions"
    if part is StepPart.ATTENTION:
        return _operators(profile, _ATTENTION), part.value
    if part is StepPart.SMALL_OPERATORS:
        products = _operators(profile, _PRODUCT)
        seconds = profile.seconds(*_COMPUTE)
        return max(0.0, seconds - products), "forward and backward pass without products"
    phases, basis = _PHASES_OF[part]
    if part is StepPart.EVALUATION and not profile.seconds(*phases):
        return None, "no evaluation was seen"
    return profile.seconds(*phases), basis


_PHASES_OF: dict[StepPart, tuple[tuple[Phase, ...], str]] = {
    StepPart.DATA: ((Phase.DATA,), "waiting for data"),
    StepPart.COPIES: ((Phase.COPY,), "copies to the device"),
    StepPart.OPTIMIZER: ((Phase.OPTIMIZER,), "the optimizer's step"),
    StepPart.CLEARING: ((Phase.CLEAR,), "clearing gradients"),
    StepPart.SYNCS: ((Phase.SYNC,), "waiting for values"),
    StepPart.EVALUATION: ((Phase.EVALUATION,), "evaluation"),
    StepPart.SCRIPT: ((Phase.OTHER,), "the rest of the script"),
}


def _operators(profile: StepProfile, name: re.Pattern[str]) -> float:
    """Seconds per step in operators whose name matches, on the device where there is one."""

    def taken(operator: Operator) -> float:
        return operator.self_seconds if profile.on_cpu else operator.device_seconds

    return sum(taken(operator) for operator in profile.operators if name.search(operator.name))
