"""Losses, backward passes, updates and the regions that compute them."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.training.steps import StepCode

Script = Callable[..., TrainingScript]

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from data import train_set, test_set

loader, test_loader = DataLoader(train_set), DataLoader(test_set)
model, other = nn.Linear(8, 2), nn.Linear(2, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def only_step(script: Script, body: str) -> StepCode:
    steps = script(HEAD + dedent(body)).step_code
    assert len(steps) == 1
    return steps[0]


def regions(step: StepCode) -> list[tuple[str, str]]:
    """First line of the first and of the last statement of every region."""
    return [
        tuple(step.module.code(s).split("\n")[0] for s in (region.first, region.last))  # type: ignore[misc]
        for region in step.regions
    ]


def test_the_parts_of_a_step(script: Script) -> None:
    step = only_step(
        script,
        """
        for x, y in loader:
            x = x * 2
            out = model(x)
            loss = criterion(out, y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            print(loss.item())
        """,
    )
    assert regions(step) == [("out = model(x)", "loss = criterion(out, y)")]
    assert [b.code for b in step.backwards] == ["loss.backward()"]
    assert not step.backwards[0].computes
    assert [u.code for u in step.updates] == ["optimizer.step()"]
    readers = [step.module.code(reader) for reader in step.gradient_readers]
    assert readers == ["nn.utils.clip_grad_norm_(model.parameters(), 1.0)"]


def test_regions_end_at_backward_and_update(script: Script) -> None:
    step = only_step(
        script,
        """
        for x, y in loader:
            fake = model(x)
            first = criterion(fake, y)
            first.backward()
            optimizer.step()
            second = criterion(other(fake.detach()), y)
            second.backward()
        """,
    )
    assert regions(step) == [
        ("fake = model(x)", "first = criterion(fake, y)"),
        (
            "second = criterion(other(fake.detach()), y)",
            "second = criterion(other(fake.detach()), y)",
        ),
    ]


def test_whole_branches_and_loops_belong_to_a_region(script: Script) -> None:
    step = only_step(
        script,
        """
        for x, y in loader:
            total = 0
            for part in x:
                out = model(part)
                total += criterion(out, y)
            if total > 3:
                total = total / 2
            total.backward()
        """,
    )
    assert regions(step) == [("for part in x:", "if total > 3:")]


def test_what_comes_before_the_network_stays_outside(script: Script) -> None:
    step = only_step(
        script,
        """
        for x, y in loader:
            weights = sum(p.norm() for p in model.parameters())
            loss = criterion(model(x), y) + weights
            loss.backward()
        """,
    )
    line = "loss = criterion(model(x), y) + weights"
    assert regions(step) == [(line, line)]


def test_what_is_read_to_the_host_has_no_gradient(script: Script) -> None:
    step = only_step(
        script,
        """
        import environment
        memory = []
        for number in range(100):
            action = model(torch.randn(1, 8)).argmax().item()
            reward = environment.step(action)
            memory.append(reward)
            y = torch.tensor(memory)
            out = model(torch.randn(len(memory), 8))
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()
        """,
    )
    assert regions(step) == [
        ("out = model(torch.randn(len(memory), 8))", "loss = criterion(out, y)")
    ]


def test_handing_on_alone_is_no_region(script: Script) -> None:
    body = """
        def attack(x):
            shift = torch.zeros_like(x, requires_grad=True)
            criterion(model(x + shift), x).backward()
            return shift.grad.sign()

        for x, y in loader:
            if len(x) > 1:
                shift = attack(x)
                shift = shift.detach()
            else:
                shift = torch.zeros_like(x)
            loss = criterion(model(x + shift), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """
    step = script(HEAD + dedent(body)).step_code[0]
    line = "loss = criterion(model(x + shift), y)"
    assert regions(step) == [(line, line)]


def test_losses_computed_where_they_are_backpropagated(script: Script) -> None:
    step = only_step(
        script,
        """
        for x, y in loader:
            out = model(x)
            criterion(out, y).backward()
        """,
    )
    assert step.backwards[0].computes
    assert regions(step) == [("out = model(x)", "out = model(x)")]


def test_arithmetic_and_tensor_methods_compute_nothing(script: Script) -> None:
    step = only_step(
        script,
        """
        for x, y in loader:
            a, b = criterion(model(x), y), criterion(model(-x), y)
            sum([a + 2 * b, a]).mean().backward()
        """,
    )
    assert not step.backwards[0].computes


def test_networks_in_functions(script: Script) -> None:
    step = only_step(
        script,
        """
        def loss_of(x, y):
            return criterion(model(x), y)


        def step(x, y):
            loss = loss_of(x, y)
            loss.backward()
            optimizer.step()


        for x, y in loader:
            step(x, y)
        """,
    )
    assert step.function is None
    assert regions(step) == [("loss = loss_of(x, y)", "loss = loss_of(x, y)")]
    assert [u.code for u in step.updates] == ["optimizer.step()"]


def test_resets_and_tests_of_gradients_are_no_reads(script: Script) -> None:
    step = only_step(
        script,
        """
        for x, y in loader:
            loss = criterion(model(x), y)
            loss.backward()
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.zero_()
                p.grad = None
            optimizer.step()
        """,
    )
    assert step.gradient_readers == ()


HANDED = """
def optimize(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def optimize_mean(losses):
    optimize(losses.mean(), optimizer)


class Scaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cuda")

    def __call__(self, value, optimizer):
        self._scaler.scale(value).backward()
        self._scaler.step(optimizer)
        self._scaler.update()


scaler = Scaler()
"""


@pytest.mark.parametrize(
    "call",
    [
        "optimize(loss, optimizer)",
        "optimize_mean(loss)",
        "scaler(loss / 2, optimizer=optimizer)",
        "optimize(sum([loss]), optimizer)",
    ],
)
def test_losses_that_a_function_is_handed(script: Script, call: str) -> None:
    loop = f"for x, y in loader:\n    out = model(x)\n    loss = criterion(out, y)\n    {call}\n"
    understood = script(HEAD + HANDED + loop)
    (step,) = understood.step_code
    assert regions(step) == [("out = model(x)", "loss = criterion(out, y)")]
    assert [caller.module.code(caller.node) for caller in step.callers] == [loop.strip()]
    reached = [node.node for node in step.nodes(understood.resolver)]
    assert len(reached) == len(set(reached))
    assert {*step.regions[0].statements, *step.body} <= set(reached)


def test_losses_computed_in_the_call_that_hands_them_on(script: Script) -> None:
    call = "for x, y in loader:\n    optimize(criterion(model(x), y), optimizer)\n"
    (step,) = script(HEAD + HANDED + call).step_code
    assert not step.regions
    assert not step.callers


def test_losses_handed_from_several_places(script: Script) -> None:
    loop = """
for x, y in loader:
    first = criterion(model(x), y)
    optimize(first, optimizer)
    second = criterion(other(x), y)
    optimize(second, optimizer)
"""
    (step,) = script(HEAD + HANDED + loop).step_code
    lines = ["first = criterion(model(x), y)", "second = criterion(other(x), y)"]
    assert regions(step) == [(line, line) for line in lines]
    assert len(step.callers) == 1
