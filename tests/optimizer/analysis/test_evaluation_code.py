"""Evaluation loops, and the statements in them that run a network and compute losses."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from data import test_set

test_loader = DataLoader(test_set)
model = nn.Linear(8, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def regions(understood: TrainingScript) -> list[list[str]]:
    found = [region for code in understood.evaluation_code for region in code.regions]
    return [[region.module.code(s) for s in region.statements] for region in found]


def test_evaluation(script: Script) -> None:
    understood = script(
        HEAD
        + dedent(
            """
            total = 0
            for x, y in test_loader:
                x = x.float()
                out = model(x)
                total += criterion(out, y).item()
                hits = out.argmax(1) == y
            """
        )
    )
    (evaluation,) = understood.evaluation_code
    (region,) = evaluation.regions
    assert [understood.entry.code(s) for s in region.statements] == [
        "out = model(x)",
        "total += criterion(out, y).item()",
    ]


def own_batches(body: str, decorator: str = "@torch.no_grad()") -> str:
    """A function that cuts its batches out of a tensor, and runs ``body`` for each."""
    return (
        HEAD
        + f"""
rows, labels = torch.rand(100, 8), torch.zeros(100, dtype=torch.long)

{decorator}
def evaluate():
    total = 0.0
    hidden = torch.rand(8)
    for i in range(0, 100, 10):
        x, y = rows[i:i + 10], labels[i:i + 10]
{indent(dedent(body), " " * 8)}
    return total

evaluate()
"""
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "out = model(x)\ntotal += criterion(out, y).item()\nhits = out.argmax(1) == y",
            ["out = model(x)", "total += criterion(out, y).item()"],
        ),
        ("_, loss = model(x, y)\ntotal += loss.item()", ["_, loss = model(x, y)"]),
        ("total += criterion(model(x), y)", ["total += criterion(model(x), y)"]),
    ],
)
def test_batches_that_the_script_cuts_out(script: Script, body: str, expected: list[str]) -> None:
    assert regions(script(own_batches(body))) == [expected]
    block = f"with torch.no_grad():\n{indent(body, '    ')}"
    assert regions(script(own_batches(block, decorator=""))) == [expected]


@pytest.mark.parametrize(
    ("body", "decorator"),
    [
        # a part of a step may come to a backward behind the loop
        ("out = model(x)\ntotal += criterion(out, y)", ""),
        # a policy acts, a text is sampled
        ("hidden = model(hidden).argmax()", "@torch.no_grad()"),
        # an outer loop, of which the inner one evaluates
        ("for j in range(2):\n    out = model(x)\ntotal += criterion(out, y)", "@torch.no_grad()"),
    ],
)
def test_loops_that_are_no_evaluation(script: Script, body: str, decorator: str) -> None:
    assert regions(script(own_batches(body, decorator))) == []


def test_layers_are_no_batches(script: Script) -> None:
    understood = script(
        HEAD
        + dedent(
            """
            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layers = nn.ModuleList([nn.Linear(8, 8)])

                @torch.no_grad()
                def forward(self, x):
                    for layer in self.layers:
                        loss = layer(x)
                    return loss

            Net()(torch.rand(2, 8))
            """
        )
    )
    assert regions(understood) == []


LEVELS = """
class Distance(nn.Module):
    def forward(self, x, y):
        return (x - y).abs().mean()

criterion = Distance()
with torch.no_grad():
    for x, targets in test_loader:
        outputs = model(x)
        for level in range(len(targets)):
            {}
            total = criterion(outputs[level], targets[level])
"""


@pytest.mark.parametrize("own", ["print(level)", "outputs = model(x + level)"])
def test_a_loop_over_the_losses_of_a_batch_is_part_of_its_evaluation(
    script: Script, own: str
) -> None:
    (region,) = regions(script(HEAD + LEVELS.format(own)))
    assert [statement.partition("\n")[0] for statement in region] == [
        "outputs = model(x)",
        "for level in range(len(targets)):",
    ]


def test_a_loop_that_runs_nothing_but_a_loss_evaluates_no_network(script: Script) -> None:
    body = "with torch.no_grad():\n    outputs = model(x)\n    for a, b in zip(outputs, y):\n        total = criterion(a, b)\n"
    start = LEVELS.partition("with torch")[0]
    assert (
        regions(script(HEAD + start + "x, y = torch.rand(9, 8), torch.rand(9, 2)\n" + body)) == []
    )
