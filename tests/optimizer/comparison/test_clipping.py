import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from torchopt_cli.optimizer.comparison.clipping import unseen_clipping
from torchopt_cli.optimizer.comparison.findings import Finding, Kind
from torchopt_cli.optimizer.comparison.layers import explain
from torchopt_cli.optimizer.execution.observations import Clip, Observations

Run = Callable[..., Observations]


def clips(
    limit: float,
    rounds: tuple[int, ...] = (0, 1, 2, 3),
    *,
    by: str = "norm",
    norm_type: float | None = 2.0,
    acts: tuple[int, ...] = (),
) -> tuple[Clip, ...]:
    """By ``limit`` after each of ``rounds``, where gradients are larger after those of ``acts``."""
    return tuple(Clip(by, limit, norm_type, begun, begun in acts) for begun in rounds)


@pytest.fixture
def told(run: Run) -> Callable[..., str | None]:
    one = run(steps=4)

    def go(ours: tuple[Clip, ...], theirs: tuple[Clip, ...], optimizers: int = 1) -> str | None:
        several = tuple(one.optimizers[:1] * optimizers)
        runs = (replace(one, clips=clip, optimizers=several) for clip in (ours, theirs))
        return unseen_clipping(*runs)

    return go


Told = Callable[..., "str | None"]


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ((), ["from step 1", "only the original is seen to clip gradients to a norm of 0.5"]),
        (clips(1.0), ["from step 1", "a norm of 0.5", "a norm of 1;"]),
        (clips(0.5, (0, 1)), ["from step 3", "only the original is seen to clip gradients"]),
        (clips(0.5, by="value"), ["a value of 0.5"]),
        (clips(0.5, norm_type=1.0), ["from step 1"]),
    ],
    ids=["lost", "another limit", "lost later", "by value", "another norm"],
)
def test_what_no_gradient_comes_to_is_not_seen(
    told: Told, theirs: tuple[Clip, ...], words: list[str]
) -> None:
    message = told(clips(0.5), theirs)
    assert message is not None
    assert all(word in message for word in words)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (clips(0.5), clips(0.5)),
        (clips(0.5), clips(0.5, norm_type=None)),
        (clips(0.5), clips(0.5) * 2),
        (clips(0.5), clips(0.5 * (1 + 1e-7))),
        (clips(0.5, acts=(1,)), ()),
        (clips(float("inf")), ()),
        (clips(0.5, (0, 1, 2, 3, 9)), clips(0.5)),
    ],
    ids=["alike", "of a known norm", "twice", "rounded", "by hand", "a norm only", "after the end"],
)
def test_nothing_is_said(told: Told, ours: tuple[Clip, ...], theirs: tuple[Clip, ...]) -> None:
    assert told(ours, theirs) is None


def of(clipped: tuple[Clip, ...], *elements: int) -> tuple[Clip, ...]:
    """``clipped``, of parameters with so many elements each time."""
    return tuple(replace(clip, elements=size) for clip in clipped for size in elements)


def test_of_other_parameters(told: Told) -> None:
    ours, theirs = of(clips(0.5), 400), of(clips(0.5), 350)
    message = told(ours, theirs)
    assert message is not None
    assert "other gradients to a norm of 0.5 than the original: 350 elements, not 400" in message
    assert "not 350" in (told(theirs, ours) or "")
    assert told(ours, of(clips(0.5, acts=(0, 1, 2, 3)), 350)) is None


def test_values_may_be_clipped_part_by_part(told: Told) -> None:
    whole, parts = of(clips(0.5, by="value"), 400), of(clips(0.5, by="value"), 300, 100)
    assert told(whole, parts) is None
    assert told(parts, whole) is None
    twins = of(clips(0.5, by="value"), 200, 200)
    assert told(whole, twins) is None
    fewer = of(clips(0.5, by="value"), 200, 100)
    assert "a value of 0.5 than the original: 300 elements, not 400" in (told(twins, fewer) or "")


def test_gradients_that_are_nothing_but_rounding_need_not_be_there(run: Run) -> None:
    one = run(steps=4)
    without = [
        replace(
            step, parameters={**step.parameters, "Net.fc1.bias": replace(update, grad_norm=0.0)}
        )
        for step in one.steps
        for update in [step.parameters["Net.fc1.bias"]]
    ]
    ours = replace(one, clips=of(clips(0.5), 100), steps=tuple(without))
    bias = math.prod(one.parameters["Net.fc1.bias"].shape)
    assert unseen_clipping(ours, replace(one, clips=of(clips(0.5), 100 - bias))) is None
    assert unseen_clipping(ours, replace(one, clips=of(clips(0.5), 99 - bias))) is not None


def test_before_the_last_loss_is_backpropagated(run: Run) -> None:
    one = run(steps=4)
    twice = tuple(replace(step, losses=step.losses * 2) for step in one.steps)

    def clipped_behind(*losses: int) -> Observations:
        each = tuple(replace(clip, losses=n) for clip in clips(0.5) for n in losses)
        return replace(one, clips=each, steps=twice)

    message = unseen_clipping(clipped_behind(2), clipped_behind(1, 2))
    assert message is not None
    assert "before all losses of a step are backpropagated, in one version only" in message
    assert unseen_clipping(clipped_behind(1, 2), clipped_behind(1, 2)) is None
    assert unseen_clipping(clipped_behind(2), replace(one, clips=clips(0.5))) is None


@pytest.mark.parametrize("optimizers", [1, 2])
def test_behind_its_step_it_is_done_for_the_next_one(told: Told, optimizers: int) -> None:
    message = told(clips(0.5), clips(0.5, (1, 2, 3, 4)), optimizers=optimizers)
    assert message is not None
    assert "a norm of 0.5 for other steps than the original" in message


@pytest.mark.parametrize(
    ("norm", "told"),
    [(0.5 / 65536, "0.5 / 65536: is it clipped before scaler.unscale_()?"), (0.3, ""), (0.0, "")],
)
def test_a_limit_that_is_divided_by_the_scale_is_told(run: Run, norm: float, told: str) -> None:
    one = run(steps=2)
    other = replace(one, clips=clips(0.5, acts=(0,)))
    first = Finding(Kind.GRADIENT, "gradient norm", step=1, original=0.4, rewritten=norm)
    (finding,) = explain([first], one, other)
    assert finding.message.endswith(told)
    assert bool(told) == (finding.message != first.message)
    (quiet,) = explain([first], one, replace(one, clips=clips(0.5)))
    assert quiet.message == first.message


def test_before_the_last_loss_of_a_training_that_another_optimizer_resumes(run: Run) -> None:
    one = run(steps=6)
    # as it is built again, the optimizer of the last steps is another one
    steps = [replace(s, losses=s.losses * 2, optimizer=int(s.round > 3)) for s in one.steps]
    steps[4:] = [replace(step, round=step.round - 1) for step in steps[4:]]
    resumed = replace(one, steps=tuple(steps), optimizers=one.optimizers[:1] * 2)

    def clipped_behind(*losses: int) -> Observations:
        each = (replace(clip, losses=n) for clip in clips(0.5, (0, 1, 2, 3, 4)) for n in losses)
        return replace(resumed, clips=tuple(each))

    message = unseen_clipping(clipped_behind(2), clipped_behind(1, 2))
    assert message is not None
    assert "before all losses of a step are backpropagated, in one version only" in message
    assert unseen_clipping(clipped_behind(1, 2), clipped_behind(1, 2)) is None


def test_of_optimizers_that_take_turns_the_loss_is_not_known(run: Run) -> None:
    one = run(steps=4)
    steps = [replace(s, losses=s.losses * 2, optimizer=s.round % 2) for s in one.steps]
    turns = replace(one, steps=tuple(steps), optimizers=one.optimizers[:1] * 2)
    early, late = (tuple(replace(c, losses=n) for c in clips(0.5)) for n in (1, 2))
    assert unseen_clipping(replace(turns, clips=early), replace(turns, clips=late)) is None
