"""Models and optimizers are recognised by what made them, not by their names."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = "import torch, torchvision\nfrom torch import nn\nfrom torchvision import models\n"


@pytest.mark.parametrize(
    ("source", "made_by"),
    [
        ("class Net(nn.Module): pass\nNet()", ["Net"]),
        ("class Base(nn.Module): pass\nclass Net(Base): pass\nNet()", ["Net"]),
        ("class Net(models.ResNet): pass\nNet()", ["Net"]),
        ("nn.Sequential(nn.Linear(1, 1), nn.ReLU())", ["torch.nn.Sequential"]),
        ("models.resnet18()", ["torchvision.models.resnet18"]),
        ("models.__dict__['resnet18']()", ["torchvision.models.<any>"]),
        ("torch.hub.load('a', 'b')", ["torch.hub.load"]),
        ("nn.CrossEntropyLoss()", []),
        ("class Loss: pass\nLoss()", []),
        ("class FocalLoss(nn.Module): pass\nFocalLoss()", []),
        (
            "m = models.resnet18()\nm.fc = nn.Linear(2, 2)\nm.parameters()",
            ["torchvision.models.resnet18"],
        ),
    ],
)
def test_models(script: Script, source: str, made_by: list[str]) -> None:
    found = script(HEAD + source)
    assert [m.cls.node.name if m.cls else m.library_name for m in found.models] == made_by


def test_layers_made_for_a_network_are_not_models(script: Script) -> None:
    source = """
def conv(n):
    return nn.Conv2d(n, n, 3)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = conv(3)
        self.b = nn.Linear(2, 2)
Net()
"""
    assert [m.cls.node.name for m in script(HEAD + source).models if m.cls] == ["Net"]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("torch.optim.Adam(p)", ["torch.optim.Adam"]),
        ("from torch import optim as o\no.SGD(p, lr=1)", ["torch.optim.SGD"]),
        ("class Mine(torch.optim.Adam): pass\nMine(p)", ["torch.optim.Adam"]),
        ("from transformers import AdamW\nAdamW(p)", ["transformers.AdamW"]),
        ("import bitsandbytes as bnb\nbnb.optim.AdamW8bit(p)", ["bitsandbytes.optim.AdamW8bit"]),
        ("from torch_optimizer import Lamb\nLamb(p)", ["torch_optimizer.Lamb"]),
        ("from torch_optimizer import Lookahead\nLookahead(inner)", []),
        ("from timm.optim import create_optimizer\ncreate_optimizer(args, net)", []),
        ("torch.optim.lr_scheduler.StepLR(o, 3)", []),
        ("torch.optim.swa_utils.AveragedModel(net)", []),
        ("from torch.optim.swa_utils import SWALR\nSWALR(o, 0.1)", []),
        ("optim = 3\noptim.step()", []),
        ("import argparse\nopt = argparse.ArgumentParser().parse_args()\nopt.step()", []),
        ("make = {'sgd': torch.optim.SGD}['sgd']\nmake(p)", ["torch.optim.SGD"]),
    ],
)
def test_optimizers(script: Script, source: str, names: list[str]) -> None:
    assert [o.library_name for o in script(HEAD + source).optimizers] == names


@pytest.mark.parametrize(
    "wrap", ["nn.DataParallel({})", "torch.compile({})", "{}.to(d)", "{}.cuda().train()"]
)
def test_wrappers_are_looked_through(script: Script, wrap: str) -> None:
    found = script(f"{HEAD}net = nn.Linear(1, 1)\nmodel = {wrap.format('net')}\nmodel(x)")
    (call,) = [c for c in found.entry.calls if ast.unparse(c) == "model(x)"]
    assert [m.library_name for m in found.models_of(call.func, found.entry)] == ["torch.nn.Linear"]
