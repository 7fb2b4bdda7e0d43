"""Which networks an optimizer is made for."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.networks.trained import trained_networks
from torchopt_cli.optimizer.analysis.script import TrainingScript

HEAD = """
import itertools
import torch
from torch import nn

a, b = nn.Linear(2, 3), nn.Linear(3, 2)
"""


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("torch.optim.SGD(a.parameters(), lr=0.1)", 1),
        ("torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1)", 2),
        ("torch.optim.SGD(itertools.chain(a.parameters(), b.parameters()), lr=0.1)", 2),
        (
            "params = list(a.parameters()) + list(b.parameters())\ntorch.optim.SGD(params, lr=0.1)",
            2,
        ),
        ("torch.optim.SGD([{'params': a.parameters()}, {'params': [b.weight]}], lr=0.1)", 1),
        ("torch.optim.SGD(filter(lambda p: p.requires_grad, a.parameters()), lr=0.1)", 1),
        (
            "def groups(net):\n    return [p for p in net.parameters()]\ntorch.optim.SGD(groups(a), lr=0.1)",
            1,
        ),
        ("def make(net):\n    return torch.optim.SGD(net.parameters(), lr=0.1)\nmake(a)", 1),
        (
            "def make(params):\n    return torch.optim.SGD(params, lr=0.1)\nmake(a.parameters())\nmake(b.parameters())",
            2,
        ),
        (
            "class Scheduled:\n    def __init__(self, params, lr):\n        self.optimizer = torch.optim.SGD(params, lr)\n"
            "net = nn.DataParallel(a)\nScheduled(lr=0.1, params=net.parameters())",
            1,
        ),
        ("def make(*params):\n    return torch.optim.SGD(params, lr=0.1)\nmake(a.weight)", 0),
        ("both = nn.Sequential(a, b)\ntorch.optim.SGD(both[1].parameters(), lr=0.1)", 1),
        ("torch.optim.SGD(a.head.parameters(), lr=0.1)", 1),
        (
            "named, params = dict(a.named_parameters()), []\nfor name, value in named.items():\n"
            "    params += [{'params': [value]}]\ntorch.optim.SGD(params, lr=0.1)",
            1,
        ),
        (
            "params = []\nfor p in a.parameters():\n    params.append(p)\n"
            "params.extend(b.parameters())\ntorch.optim.SGD(params, lr=0.1)",
            2,
        ),
        ("from optim_factory import groups\ntorch.optim.SGD(groups(a, 0.05), lr=0.1)", 1),
        (
            "from optim_factory import groups\nmore = [b]\ntorch.optim.SGD(groups(a, more=more), lr=0.1)",
            2,
        ),
        (
            "from optim_factory import groups\ntorch.optim.SGD(groups([a, {'head': b}]), lr=0.1)",
            2,
        ),
        ("def fit(trainer):\n    torch.optim.SGD(trainer.groups(a), lr=0.1)", 0),
        (
            "groups = {'decay': {'params': []}}\nfor name, p in a.named_parameters():\n"
            "    groups['decay']['params'].append(p)\ntorch.optim.SGD(list(groups.values()), lr=0.1)",
            1,
        ),
        ("torch.optim.SGD([torch.zeros(1)], lr=0.1)", 0),
        ("print(a.parameters())", 0),
    ],
)
def test_trained(script: Callable[..., TrainingScript], code: str, count: int) -> None:
    understood = script(f"{HEAD}\n{code}\n")
    networks = trained_networks(understood.resolver, understood.optimizers)
    assert len(networks) == count
    assert all(isinstance(network.node, ast.Call) for network in networks)


@pytest.mark.parametrize(
    ("made", "names"),
    [
        ("Net()", ["Net"]),
        ("Net()\nWide()\nOther()", ["Net", "Wide"]),
        ("Wide()", ["Wide"]),
        ("Other()", []),
        ("print(Net)", []),
    ],
)
def test_what_self_may_be(
    script: Callable[..., TrainingScript], made: str, names: list[str]
) -> None:
    code = """
class Net(nn.Linear):
    def fit(self):
        torch.optim.SGD(self.parameters(), lr=0.1)
class Wide(Net):
    pass
class Other(nn.Linear):
    pass
"""
    understood = script(f"{HEAD}{code}{made}\n")
    networks = trained_networks(understood.resolver, understood.optimizers)
    assert [network.cls.node.name for network in networks if network.cls] == names
