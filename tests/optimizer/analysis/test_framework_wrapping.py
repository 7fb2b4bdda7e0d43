"""What comes back from ``accelerator.prepare`` and ``fabric.setup`` is what they are given."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.facts import LoopKind
from torchopt_cli.optimizer.analysis.frameworks.framework_wrapping import wrapper_of_loader
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
import lightning as L
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

accelerator, fabric = Accelerator(), L.Fabric()
loader, other = DataLoader(open("x")), DataLoader(open("y"))
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
"""
LOOPS = """\
for x in loader:
    loss = model(x).sum()
    {}.backward(loss)
    optimizer.step()
for x in {}:
    print(model(x))
"""


@pytest.mark.parametrize(
    ("prepare", "framework"),
    [
        ("model, optimizer, loader, other = accelerator.prepare(model, optimizer, loader, other)", "Accelerate"),
        ("loader = accelerator.prepare(loader)\nother = accelerator.prepare_data_loader(other)\nmodel = accelerator.prepare_model(model)", "Accelerate"),
        ("model, optimizer = fabric.setup(model, optimizer)\nloader, other = fabric.setup_dataloaders(loader, other)", "Fabric"),
        ("model = fabric.setup_module(model)\nloader = fabric.setup_dataloaders(loader)\nother = fabric.setup_dataloaders(other)", "Fabric"),
    ],
)  # fmt: skip
def test_loops_over_wrapped_loaders(script: Script, prepare: str, framework: str) -> None:
    owner = "accelerator" if framework == "Accelerate" else "fabric"
    understood = script(HEAD + prepare + "\n" + LOOPS.format(owner, "other"))
    training, evaluation = understood.loops
    assert training.loaders == understood.loaders[:1]
    assert evaluation.loaders == understood.loaders[1:]
    assert [training.kind, evaluation.kind] == [LoopKind.TRAINING, LoopKind.EVALUATION]
    found = {wrapper_of_loader(understood.resolver, loader) for loader in understood.loaders}
    assert found == {framework}


@pytest.mark.parametrize(
    "prepare",
    [
        "loader = unknown.prepare(loader)",
        "loader, other = accelerator.prepare(*[loader, other])",
        "loader = accelerator.clip_grad_norm_(loader)",
    ],
)
def test_what_is_not_followed(script: Script, prepare: str) -> None:
    understood = script(HEAD + prepare + "\n" + LOOPS.format("accelerator", "loader"))
    assert not any(loop.loaders for loop in understood.loops)


@pytest.mark.parametrize(
    "prepare",
    [
        "loader = accelerator.prepare(loader, device_placement=[False])",
        "loader = Accelerator(device_placement=False).prepare(loader)",
        "loader = Accelerator(**options).prepare(loader)",
        "loader = fabric.setup_dataloaders(loader, move_to_device=False)",
        "model = accelerator.prepare(model)",
    ],
)
def test_batches_that_stay_on_the_host(script: Script, prepare: str) -> None:
    understood = script(HEAD + prepare + "\n" + LOOPS.format("accelerator", "loader"))
    assert wrapper_of_loader(understood.resolver, understood.loaders[0]) is None


def test_loaders_handed_to_a_function(script: Script) -> None:
    code = """\
        def train(accelerator, model, loader):
            model, loader = accelerator.prepare(model, loader)
            for x in loader:
                accelerator.backward(model(x).sum())


        train(accelerator, model, loader)
    """
    understood = script(HEAD + dedent(code))
    assert understood.loops[0].loaders == understood.loaders[:1]
    assert wrapper_of_loader(understood.resolver, understood.loaders[0]) == "Accelerate"
