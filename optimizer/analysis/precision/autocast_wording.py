"""What is said of steps and evaluations under autocast, and of those that are not."""

from __future__ import annotations

from collections.abc import Sequence

from ..facts import Fact, seen_at
from ..obstacles import Obstacle
from ..script import TrainingScript
from ..training.steps import EvaluationCode, StepCode
from ..values.resolver import Resolver
from .half_steps import NO_NETWORK, HalfCode
from .half_values import HalfUse
from .not_scalable import NotScalable
from .precision import FrameworkUse, PrecisionUse


def left_out(resolver: Resolver, codes: Sequence[HalfCode]) -> str:
    """The forward passes of the steps that no region covers."""
    covered = {call for half in codes for call in half.forwards}
    steps = {half.code.node for half in codes}
    calls = [
        call
        for half in codes
        for call in half.code.loop.forwards
        if call.node not in covered
        # The `forward` of a meta-learner is the step itself.
        and not any(run.node in steps for run in resolver.callees(call.node, call.module))
    ]
    if not calls:
        return ""
    function = calls[0].module.function(calls[0].node)
    place = f" in `{function.name}`" if function is not None else ""
    return f"; `{calls[0].excerpt}`{place} stays in float32"


def network_given(
    script: TrainingScript, code: StepCode | EvaluationCode, obstacle: Fact | str
) -> str | None:
    """What is said where no network is known because nothing is seen to lead to ``code``: its callers know it."""
    unknown = isinstance(obstacle, Obstacle) and obstacle.message == NO_NETWORK
    if not unknown or script.is_called(code):
        return None
    return "nothing in this file calls this step: which network it runs, its callers know"


def counted(codes: Sequence[HalfCode]) -> str:
    """The training steps and the evaluations among ``codes``, in words."""
    evaluations = sum(isinstance(half.code, EvaluationCode) for half in codes)
    steps = "the training step" if len(codes) - evaluations == 1 else "the training steps"
    if not evaluations:
        return steps
    return (
        f"{steps} and of {'the evaluation' if evaluations == 1 else f'{evaluations} evaluations'}"
    )


def said(reason: Fact | str, code: StepCode | EvaluationCode) -> str:
    """The reason in words, with the place where it was seen if that is another than ``code``."""
    if isinstance(reason, str):
        return reason
    match reason:
        case Obstacle():
            text = reason.message
        case NotScalable():
            text = reason.why
        case FrameworkUse():
            text = f"{reason.framework} runs the step in its own way"
        case PrecisionUse():
            text = f"{reason.what} is in use already"
        case _:
            raise AssertionError(type(reason))
    return f"{text}{seen_at(reason, code, text)}"


def leaves(use: HalfUse | None) -> Obstacle:
    assert use is not None
    message = f"what the network returns goes to {use.taker}, where half precision does not belong"
    return Obstacle(use.module, use.node, message)
