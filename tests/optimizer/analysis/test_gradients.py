"""Which expressions may hold a tensor with an autograd graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.autograd.gradients import Gradients
from torchopt_cli.optimizer.analysis.networks.networks import Networks
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]

HEAD = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from elsewhere import data, unknown

class Meter:
    def __init__(self):
        self.values = []
        self.count = 0

    def add(self, value):
        self.values.append(value)

    @property
    def last(self):
        return self.values[-1]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return self.fc(x)

net = Net()
meter = Meter()
loader = DataLoader(data)
"""

FREE = [
    "torch.zeros(3)",
    "net(x).detach()",
    "net(x).argmax(1)",
    "net(x) > 0",
    "net(x).max(1)[1]",
    "net(x).sum().item()",
    "net(x).data",
    "net(x).shape[0]",
    "np.array(net(x).tolist())",
    "len(net(x))",
    "x.to('cuda')",
    "F.relu(x)",
    "torch.cat([x, torch.ones(2)])",
    "net",
    "meter.count + 1",
    "nn.CrossEntropyLoss()(x, x)",
    "torch.tensor(1.0)",
]
CARRYING = [
    "net(x)",
    "net.fc(x)",
    "net(x) * 2",
    "F.relu(net(x))",
    "net.fc.weight",
    "list(net.parameters())[0]",
    "unknown(x)",
    "torch.zeros(3, requires_grad=True)",
    "nn.CrossEntropyLoss()(net(x), x)",
    "net(x).max(1)[0]",
    "[net(x)]",
    "torch.Tensor(net(x))",
    "net(x).split(1)",
    "getattr(net, 'fc').weight",
]


def is_free(script: TrainingScript, name: str = "ASK") -> bool:
    gradients = Gradients(script.resolver, Networks(script.resolver))
    (call,) = [c for c in script.entry.calls if getattr(c.func, "id", "") == name]
    return gradients.free(call.args[0], script.entry)


@pytest.mark.parametrize("expression", FREE)
def test_holds_no_graph(script: Script, expression: str) -> None:
    assert is_free(script(f"{HEAD}\nfor x in loader:\n    ASK({expression})\n"))


@pytest.mark.parametrize("expression", CARRYING)
def test_may_hold_a_graph(script: Script, expression: str) -> None:
    assert not is_free(script(f"{HEAD}\nfor x in loader:\n    ASK({expression})\n"))


@pytest.mark.parametrize("name", ["item", "keys", "short", "size"])
def test_a_layer_called_as_a_method_of_tensors_is_gives_a_graph(script: Script, name: str) -> None:
    """``self.item``, an embedding of what is recommended; ``self.keys`` of an attention, ``self.short`` beside a block."""
    towers = f"""
class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.{name} = nn.Embedding(30, 8)

    def of_all(self, ids):
        return F.normalize(self.{name}(ids), dim=-1)

towers = Towers()
"""
    assert not is_free(script(f"{HEAD}{towers}\nASK(towers.of_all(data))\n"))
    assert not is_free(script(f"{HEAD}{towers}\nASK(towers.{name}(data))\n"))


@pytest.mark.parametrize(
    ("body", "free"),
    [
        ("total = 0\nfor x in loader:\n    total += net(x).mean().item()\nASK(total)", True),
        ("total = 0\nfor x in loader:\n    total += net(x).mean()\nASK(total)", False),
        ("outs = []\nfor x in loader:\n    outs.append(net(x).argmax(1))\nASK(outs)", True),
        ("outs = []\nfor x in loader:\n    outs.append(net(x))\nASK(outs)", False),
        ("outs = []\nalias = outs\nfor x in loader:\n    alias.append(net(x))\nASK(outs)", False),
        (
            "def keep(into, x):\n    into.append(net(x))\nouts = []\nkeep(outs, data)\nASK(outs)",
            False,
        ),
        (
            "buffer = torch.zeros(3)\nfor x in loader:\n    buffer[0] = net(x).sum()\nASK(buffer)",
            False,
        ),
        ("buffer = torch.zeros(3)\nfor x in loader:\n    buffer.add_(net(x))\nASK(buffer)", False),
        ("for x in loader:\n    meter.add(net(x))\nASK(meter.values)", False),
        ("for x in loader:\n    meter.add(net(x).item())\nASK(meter.values)", True),
        ("for x in loader:\n    meter.add(net(x))\nASK(meter.last)", False),
        ("for x in loader:\n    setattr(meter, 'loss', net(x))\nASK(meter.loss)", False),
        ("def predict(x):\n    return net(x).argmax()\nASK(predict(data))", True),
        ("def predict(x):\n    return net(x)\nASK(predict(data))", False),
        ("def scale(x):\n    return x * 2\nfor x in loader:\n    ASK(scale(x))", True),
        ("_, best = torch.max(net(data), 1)\nASK(best)", True),
        ("best, _ = torch.max(net(data), 1)\nASK(best)", False),
    ],
)
def test_names_and_attributes(script: Script, body: str, free: bool) -> None:
    assert is_free(script(f"{HEAD}\n{body}\n")) is free


def test_variable_of_another_file(script: Script) -> None:
    state = "import torch\nfrom torch import nn\nnet = nn.Linear(2, 2)\nlast = net(torch.ones(2))\n"
    assert not is_free(
        script({"train.py": "from state import last\nASK(last)\n", "state.py": state})
    )
    assert not is_free(script({"train.py": "import state\nASK(state.last)\n", "state.py": state}))
