"""The code of a network and of the layers it is made of."""

from __future__ import annotations

import ast
from collections.abc import Callable

from torchopt_cli.optimizer.analysis.calls.reach import Reached
from torchopt_cli.optimizer.analysis.networks.forward_code import (
    called_names,
    forward_code,
    layer_classes,
    method_name,
)
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]

NETWORK = """
import torch
from torch import nn


class Base(nn.Module):
    def helper(self, x):
        return x.exp()


class Block(nn.Module):
    def forward(self, x):
        return x.sin()


class Unused(nn.Module):
    def forward(self, x):
        return x.cos()


def stack(block, count):
    return nn.Sequential(*[block() for _ in range(count)])


class Net(Base):
    def __init__(self, block):
        super().__init__()
        self.layers = stack(block, 3)

    def forward(self, x):
        return self.helper(self.layers(x)).tanh()

    def sample(self):
        return torch.randn(2).item()


model = Net(Block)
"""


def methods(script: Script, text: str) -> set[str | None]:
    understood = script(text)
    nodes = forward_code(understood.resolver, understood.models)
    return {method_name(understood.resolver, reached) for reached in nodes} - {None}


def test_forward_of_every_layer_and_what_it_calls(script: Script) -> None:
    assert methods(script, NETWORK) == {"sin", "exp", "tanh"}


def test_layer_classes(script: Script) -> None:
    understood = script(NETWORK)
    names = [c.node.name for c in layer_classes(understood.resolver, understood.models)]
    assert names == ["Net", "Block", "Base"]


def test_layers_inside_a_library_container(script: Script) -> None:
    text = NETWORK.replace("model = Net(Block)", "model = nn.Sequential(Block(), nn.ReLU())")
    assert methods(script, text) == {"sin"}


def test_names_of_what_is_called(script: Script) -> None:
    understood = script(
        "from torch import nn\nloss = nn.BCELoss()\nloss(a, b)\nx.sum()\nloss.to(d)\n"
    )
    module = understood.entry
    calls = {ast.unparse(c): Reached(c, module, True) for c in module.calls}
    assert "torch.nn.BCELoss" in called_names(understood.resolver, calls["loss(a, b)"])
    assert method_name(understood.resolver, calls["x.sum()"]) == "sum"
    assert method_name(understood.resolver, calls["loss(a, b)"]) is None
