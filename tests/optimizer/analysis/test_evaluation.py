"""Where networks run for their results only."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from data import train_set, test_set

net = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

def train():
    for x, y in DataLoader(train_set):
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()

train()
"""


def regions(script: TrainingScript) -> list[str]:
    """The proven regions: a function's name, or the first line of statements."""
    return [
        getattr(found.node, "name", "") if found.is_function else found.code.splitlines()[0]
        for found in script.inference
    ]


def test_function_and_loop(script: Script) -> None:
    found = script(
        HEAD
        + """
def test():
    for x, y in DataLoader(test_set):
        print(net(x).argmax(1).tolist())

test()
for x, y in DataLoader(test_set):
    print(net(x).sum().item())
"""
    )
    assert regions(found) == ["for x, y in DataLoader(test_set):", "test"]
    assert not found.unproven_evaluation


def test_a_long_loop_is_left_where_it_is(script: Script) -> None:
    def loop(lines: int) -> str:
        work = "    y = y + 1\n" * lines
        return f"for x, y in DataLoader(test_set):\n{work}    out = net(x)\n    print(out.sum().item())\n"

    assert regions(script(HEAD + loop(3))) == ["for x, y in DataLoader(test_set):"]
    assert regions(script(HEAD + loop(30))) == ["out = net(x)"]
    two = loop(30) + "    print(net(y).sum().item())\n"
    assert regions(script(HEAD + two)) == ["for x, y in DataLoader(test_set):"]


def test_a_layer_looked_up_step_by_step(script: Script) -> None:
    found = script(
        HEAD
        + """
part = net
for name in "encoder.fc".split("."):
    part = getattr(part, name)
print(part(torch.ones(4)).sum().item())
"""
    )
    assert regions(found) == ["print(part(torch.ones(4)).sum().item())"]


def test_reason_where_nothing_is_proven(script: Script) -> None:
    found = script(
        HEAD
        + """
outs = []
for x, y in DataLoader(test_set):
    outs.append(net(x))
torch.cat(outs).mean().backward()
"""
    )
    assert regions(found) == []
    (unproven,) = found.unproven_evaluation
    assert str(unproven.escape) == f"reaches a backward pass at line 22 of {found.entry.path}"


@pytest.mark.parametrize(
    "kept",
    [
        "net.out = net(x)\n    ",
        "global kept\n    kept = net(x)\n    ",
        "cache['x'] = net(x)\n    ",
        "setattr(net, 'out', net(x))\n    ",
        "(lambda: net(x))\n    holder.append(net(x))\n    ",
    ],
)
def test_what_a_called_function_keeps_is_followed(script: Script, kept: str) -> None:
    found = script(
        HEAD
        + f"""
cache = {{}}
holder = []
kept = None
def helper(x):
    {kept}return x.sum().item()

for x, y in DataLoader(test_set):
    print(helper(x))
loss = getattr(net, 'out', 0) + (kept or 0) + cache.get('x', 0) + sum(holder)
loss.backward()
"""
    )
    assert regions(found) == []


def test_star_import_is_followed(script: Script) -> None:
    found = script(
        {
            "train.py": "from evaluation import *\n\nloss = outputs[0].mean()\nloss.backward()\n",
            "evaluation.py": HEAD
            + "outputs = []\nfor x, y in DataLoader(test_set):\n    outputs.append(net(x))\n",
        }
    )
    assert regions(found) == []


def test_self_test_of_an_imported_file_is_left(script: Script) -> None:
    found = script(
        {
            "train.py": HEAD.replace("net = nn.Linear(4, 2)", "from nets import Net\nnet = Net()"),
            "nets.py": """
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        return x

def test():
    print(Net()(torch.ones(2)).shape)

if __name__ == "__main__":
    test()
""",
        }
    )
    assert regions(found) == []


def test_demonstration_is_left(script: Script) -> None:
    found = script(
        "import torch\nfrom torch import nn\nprint(nn.Linear(2, 2)(torch.ones(2)).shape)\n"
    )
    assert regions(found) == []


def test_statements_of_one_computation_form_one_region(script: Script) -> None:
    found = script(
        HEAD
        + """
x = test_set[0]
hidden = net(x)
hidden = hidden * 2
print("not part of it")
out = net(hidden)
"""
    )
    (first,) = found.inference[:1]
    assert isinstance(first.statements[0], ast.Assign)
    assert len(found.inference) == 2
