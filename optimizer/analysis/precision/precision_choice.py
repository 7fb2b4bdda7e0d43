"""In which half-precision type steps can run, and how their gradients are scaled for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...options import AmpDtype, Options, Target
from ..facts import Fact, Loop
from ..networks.forward_code import networks_run
from ..obstacles import KeptRatio, Obstacle
from ..training.steps import StepCode
from ..values.resolver import Resolver
from .autocast_edits import Precision
from .autocast_wording import said
from .half_steps import HalfCode, data_parallel, half_code
from .loss_scaling import LossScaling, loss_scaling
from .precision import under_autocast


def cpu_refusal(options: Options, *, is_for_cuda: bool) -> str | None:
    """Why a script that runs on the CPU, unless it is ``is_for_cuda``, stays in float32."""
    if is_for_cuda:
        return None
    if options.amp is AmpDtype.FP16:
        return "float16 is no gain on a CPU"
    if options.target is Target.CPU and options.amp is AmpDtype.BF16:
        return None
    return (
        "the script runs on the CPU, where bfloat16 pays only on processors with units for it "
        "(`--target cpu --amp bf16`)"
    )


def by_fitness(
    resolver: Resolver, steps: Sequence[StepCode]
) -> tuple[list[HalfCode], list[HalfCode], list[tuple[StepCode, Obstacle]]]:
    """The steps that can run in half precision, those that do, and those that cannot, and why."""
    codes: list[HalfCode] = []
    done: list[HalfCode] = []
    stopped: list[tuple[StepCode, Obstacle]] = []
    for step in steps:
        found = half_code(resolver, step)
        if under_autocast(resolver, step):
            done += [found] if isinstance(found, HalfCode) else []
        elif isinstance(found, HalfCode):
            codes.append(found)
        else:
            stopped.append((step, found))
    for step, obstacle in stopped[:]:
        if isinstance(obstacle, KeptRatio):
            kept = {
                n.node for n in networks_run(resolver, [*step.nodes(resolver, into_forward=True)])
            }
            alike = [h for h in codes if not kept.isdisjoint(n.node for n in h.networks)]
            stopped += [(half.code, obstacle) for half in alike if isinstance(half.code, StepCode)]
            codes = [half for half in codes if half not in alike]
    return codes, done, stopped


def chosen_precision(
    resolver: Resolver, codes: Sequence[HalfCode], loops: Iterable[Loop], options: Options
) -> tuple[Precision, LossScaling | None, str] | Fact:
    """The precision ``codes`` can run in, with the loss scaling that takes, and what is to be said about it.

    ``loops`` are those of the project.
    """
    steps = [half.code for half in codes if isinstance(half.code, StepCode)]
    replicas = data_parallel(resolver)
    coarse = [o for half in codes if half.code in steps for o in half.bfloat16_obstacles]
    only_float16 = replicas or (coarse[0] if coarse else None)
    if options.amp is AmpDtype.BF16:
        return only_float16 or (Precision.BFLOAT16, None, "")
    obstacles = [obstacle for half in codes for obstacle in half.float16_obstacles]
    scaling = obstacles[0] if obstacles else loss_scaling(resolver, steps, loops)
    if isinstance(scaling, LossScaling):
        if options.amp is AmpDtype.FP16:
            return Precision.FLOAT16, scaling, ""
        if replicas is not None:
            return Precision.FLOAT16, scaling, " (DataParallel replicas know no other type)"
        if coarse:
            return Precision.FLOAT16, scaling, f" ({coarse[0].in_float16})"
        return Precision.PORTABLE, scaling, ""
    if options.amp is AmpDtype.FP16 or only_float16 is not None:
        return scaling
    return Precision.NATIVE_BFLOAT16, None, f"; not in float16: {said(scaling, steps[0])}"
