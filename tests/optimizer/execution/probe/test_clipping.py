"""Calls that clip gradients are noted, with whether there was something to clip."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from torchopt_cli.optimizer.execution.observations import Clip  # noqa: E402

pytestmark = pytest.mark.torch


def trained(clip, steps: int = 2):
    """Steps on a gradient of (3, 4), which ``clip`` is given with a parameter that has none."""

    def script():
        weight, idle = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            (weight * torch.tensor([3.0, -4.0])).sum().backward()
            clip(iter([weight, idle]))
            optimizer.step()

    return script


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (lambda p: nn.utils.clip_grad_norm_(p, 4.9), ("norm", 4.9, 2.0, True)),
        (lambda p: nn.utils.clip_grad_norm_(p, 5.1), ("norm", 5.1, 2.0, False)),
        (lambda p: nn.utils.clip_grad_norm_(p, 5.1, norm_type=1), ("norm", 5.1, 1.0, True)),
        (
            lambda p: nn.utils.clip_grad.clip_grad_norm_(p, 3.9, math.inf),
            ("norm", 3.9, math.inf, True),
        ),
        (lambda p: nn.utils.clip_grad_norm_(p, torch.tensor(6.0)), ("norm", 6.0, 2.0, False)),
        (lambda p: nn.utils.clip_grad_value_(p, 3.5), ("value", 3.5, None, True)),
        (lambda p: nn.utils.clip_grad_value_(p, 4.5), ("value", 4.5, None, False)),
        (lambda p: nn.utils.clip_grad_value_(p, 4.5, foreach=False), ("value", 4.5, None, False)),
        (lambda p: next(p).grad.data.clamp_(-4.5, 4.5), ("value", 4.5, None, False)),
        (lambda p: next(p).grad.clamp_(min=-3.5, max=3.5), ("value", 3.5, None, True)),
        (lambda p: next(p).grad.clip_(-3.5, max=3.5), ("value", 3.5, None, True)),
    ],
)
def test_each_call_is_noted(recorded, clip, expected):
    by, limit, norm_type, acts = expected
    size = {2.0: 5.0, 1.0: 7.0, math.inf: 4.0, None: 4.0}[norm_type]
    (first, second) = recorded(trained(clip)).clips
    assert first == Clip(by, limit, norm_type, 0, acts, elements=2, losses=1, size=size)
    assert second == Clip(by, limit, norm_type, 1, acts, elements=2, losses=1, size=size)


@pytest.mark.parametrize(
    "clamp",
    [
        lambda p: next(p).grad.clamp_(min=0),
        lambda p: next(p).grad.clamp_(-1, 5),
        lambda p: next(p).data.clamp_(-1, 1),
        lambda p: torch.zeros(2).clamp_(-1, 1),
        lambda p: next(p).grad.clamp(-1, 1),
    ],
)
def test_clamps_of_other_things_clip_no_gradients(recorded, clamp):
    assert recorded(trained(clamp)).clips == ()


def test_where_there_are_no_gradients_none_are_clipped(recorded):
    """Before they are taken, say."""
    script = trained(lambda parameters: nn.utils.clip_grad_norm_(list(parameters)[1:], 1.0))
    assert recorded(script).clips == ()


@pytest.mark.skipif(not hasattr(nn.utils, "clip_grads_with_norm_"), reason="since torch 2.6")
def test_clipping_by_a_norm_that_is_known_is_noted(recorded):
    def clip(parameters):
        parameters = list(parameters)
        total = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        nn.utils.clip_grads_with_norm_(parameters, 2.0, total)

    (noted,) = recorded(trained(clip, steps=1)).clips
    assert noted == Clip("norm", 2.0, None, 0, True, elements=2, losses=1, size=5.0)


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (lambda p: nn.utils.clip_grad_norm_(p, 4.9), ("norm", 4.9, 2.0, True)),
        (lambda p: nn.utils.clip_grad_norm_(p, 5.1), ("norm", 5.1, 2.0, False)),
        (lambda p: nn.utils.clip_grad_value_(p, 4.5), ("value", 4.5, None, False)),
    ],
)
def test_what_compiled_code_clips_is_noted_each_time(recorded, clip, expected):
    by, limit, norm_type, acts = expected

    def script():
        weight = nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)

        @torch.compile(backend="eager")
        def clipped():
            clip([weight])
            return weight.grad.norm()

        for _ in range(3):
            optimizer.zero_grad()
            (weight * torch.tensor([3.0, -4.0])).sum().backward()
            clipped()
            optimizer.step()

    made = [(c.by, c.limit, c.norm_type, c.acts, c.elements) for c in recorded(script).clips]
    assert made == [(by, limit, norm_type, acts, 2)] * 3


def test_the_functions_are_put_back(recorded):
    before = (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_)
    recorded(trained(lambda p: nn.utils.clip_grad_norm_(p, 1.0)))
    assert (nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_) == before


@pytest.mark.parametrize("in_turns", [False, True])
def test_what_is_clipped_between_the_steps_of_a_round_is_clipped_in_that_round(recorded, in_turns):
    def script():
        first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in (first, second)}
        for _ in range(2):
            (first.sum() + second.sum()).backward()
            for p, optimizer in optimizers.items():
                nn.utils.clip_grad_norm_([p], 1.0)
                if in_turns:
                    optimizer.step()
            for optimizer in () if in_turns else optimizers.values():
                optimizer.step()

    clips = recorded(script).clips
    assert [(clip.rounds, clip.elements) for clip in clips] == [(0, 2), (0, 3), (1, 2), (1, 3)]
