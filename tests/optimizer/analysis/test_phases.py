"""Loops that train in some calls of their function only."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.facts import Phase
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]

FUNCTION = """
from torch import nn, optim
from torch.utils.data import DataLoader

def run_epoch(model, loader, optimizer=None, train=True, phase="train"):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        if CONDITION:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

model = nn.Linear(3, 1)
sgd = optim.SGD(model.parameters(), 0.1)
train_loader = DataLoader(train_set, 4)
val_loader = DataLoader(val_set, 4)
run_epoch(model, train_loader, TRAINS)
run_epoch(model, val_loader, EVALUATES)
"""


def phase(script: Script, condition: str, trains: str, evaluates: str) -> Phase | None:
    code = FUNCTION.replace("CONDITION", condition)
    code = code.replace("TRAINS", trains).replace("EVALUATES", evaluates)
    (loop,) = script(code).training_loops
    return loop.phase


@pytest.mark.parametrize(
    ("condition", "trains", "evaluates"),
    [
        ("train", "sgd", "sgd, train=False"),
        ("train", "sgd, True", "None, False"),
        ("not train", "sgd, False", "None, True"),
        ("optimizer is not None", "sgd", "None"),
        ("optimizer is not None", "sgd", ""),
        ("optimizer", "sgd", ""),
        ('phase == "train"', "sgd", 'sgd, phase="val"'),
        ('phase != "val"', "sgd", 'sgd, phase="val"'),
        ('train and phase == "train"', "sgd", 'sgd, phase="val"'),
        ('train or phase == "train"', "sgd", 'sgd, train=False, phase="val"'),
    ],
)
def test_what_is_trained_on(script: Script, condition: str, trains: str, evaluates: str) -> None:
    found = phase(script, condition, trains, evaluates)
    assert found is not None
    assert found.condition == condition
    (loader,) = found.trained
    assert loader.module.code(loader.node) == "DataLoader(train_set, 4)"
    ((call, module),) = found.calls
    assert module.code(call) == f"run_epoch(model, train_loader, {trains})"


@pytest.mark.parametrize(
    ("condition", "trains", "evaluates"),
    [
        ("train", "sgd", "sgd"),
        ("train", "sgd", "sgd, train=read()"),
        ("model.training", "sgd", "sgd"),
        ("optimizer is not None", "sgd", "find()"),
        ("train is True", "sgd", "sgd, train=1 > 2"),
        ('phase in ("train", "fit")', "sgd", 'sgd, phase="val"'),
    ],
)
def test_calls_that_may_both_train(
    script: Script, condition: str, trains: str, evaluates: str
) -> None:
    assert phase(script, condition, trains, evaluates) is None


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        (
            {"        if train:": "        if not train:\n            continue\n        else:"},
            "train",
        ),
        (
            {
                "    for x": "    trains = optimizer is not None\n    for x",
                "if train:": "if trains:",
                "sgd, train=False": "",
            },
            "trains",
        ),
        (
            {
                "        if train:": "        if not train:\n            continue",
                "            optimizer": "        optimizer",
                "            loss.": "        loss.",
            },
            "train",
        ),
        (
            {
                "        if train:": "        if optimizer is None:\n            continue",
                "            optimizer": "        optimizer",
                "            loss.": "        loss.",
                "sgd, train=False": "",
            },
            "optimizer is not None",
        ),
        ({"if train:": "if not train:\n            print(loss)\n        else:"}, "train"),
        ({"    for x": "    train = bool(train)\n    for x"}, None),
        (
            {
                "        if train:": "        trains = optimizer is not None\n        if trains:",
                "sgd, train=False": "",
            },
            None,
        ),
        (
            {
                "            loss.backward()\n": "",
                "        if train": "        loss.backward()\n        if train",
            },
            None,
        ),
        (
            {
                "run_epoch(model, train_loader, sgd)": "run_epoch(model, train_loader, sgd)\nrun_epoch(model, val_loader, sgd)"
            },
            None,
        ),
    ],
)
def test_forms(script: Script, changed: dict[str, str], wanted: str | None) -> None:
    code = FUNCTION.replace("CONDITION", "train")
    code = code.replace("TRAINS", "sgd").replace("EVALUATES", "sgd, train=False")
    for old, new in changed.items():
        assert old in code
        code = code.replace(old, new)
    (loop,) = script(code).training_loops
    found = loop.phase.condition if loop.phase is not None else None
    assert found == wanted


def test_a_loop_over_one_loader_has_no_phases(script: Script) -> None:
    code = FUNCTION.replace("CONDITION", "train").replace("TRAINS", "sgd")
    (loop,) = script(code.replace("run_epoch(model, val_loader, EVALUATES)", "")).training_loops
    assert loop.phase is None
    assert loop.trained == loop.loaders
