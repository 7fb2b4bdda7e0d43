"""Which values certainly are floating-point results of a network, and which certainly are no half-precision ones."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.precision.float_values import FloatTrace
from torchopt_cli.optimizer.analysis.script import TrainingScript

from .conftest import questions

Script = Callable[..., TrainingScript]

SETUP = """
import torch
from torch import nn
model = nn.Linear(2, 2)
loader = torch.utils.data.DataLoader(data)
class Weights(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.kept = torch.ones(2) @ torch.ones(2)
    def forward(self, x):
        {inside}
def show(value):
    {helper}
for x, y in {loader}:
    out = model(x)
    {code}
"""


@pytest.mark.parametrize(
    ("code", "helper", "inside", "is_float", "is_other"),
    [
        ("ASK(out)", "", "", True, False),
        ("ASK(torch.sigmoid(out).detach().cpu())", "", "", True, False),
        ("ASK(model(y))", "", "", True, False),
        ("ASK(len(x))", "", "", False, False),
        ("loss = find()(out)\n    ASK(loss)\n    loss.backward()", "", "", True, False),
        ("loss = find()(out)\n    ASK(loss)\n    loss.mean().backward()", "", "", False, False),
        ("loss = 0\n    ASK(loss)\n    loss += find()(out)\n    loss.backward()", "", "", False, False),
        (
            "loss = 0\n    for _ in y:\n        ASK(loss)\n        loss += find()(out)\n    loss.backward()",
            "",
            "",
            False,
            False,
        ),
        ("ASK(y)", "", "", False, True),
        ("y = y.to('cuda')\n    ASK(y.cpu())", "", "", False, True),
        ("y = y.to('cuda', torch.float16)\n    ASK(y.cpu())", "", "", False, False),
        ("y = y.to(kind)\n    ASK(y.cpu())", "", "", False, False),
        ("ASK(y @ y)", "", "", False, False),
        ("ASK(out > 0)", "", "", False, True),
        ("ASK(out.argmax(1).cpu())", "", "", False, True),
        ("show(out)", "ASK(value.cpu())", "", True, False),
        ("show(out)\n    show(y)", "ASK(value.cpu())", "", False, False),
        ("show(y)", "ASK(value)", "", False, True),
        ("show(out)\n    print(show)", "ASK(value)", "", False, False),
        ("pass", "ASK(value)", "", False, False),
        ("pass", "", "ASK(self.weight.data.cpu())", False, True),
        ("pass", "", "ASK(self.kept)", False, False),
        ("pass", "", "ASK(x @ self.weight)", False, False),
        ("ASK(show(x).cpu())", "return model(value)", "", True, False),
        ("_, out = show(x)\n    ASK(out)", "out = model(value)\n    return out.sum(), out", "", True, False),
        ("_, n = show(x)\n    ASK(n)", "out = model(value)\n    return out, len(out)", "", False, False),
        ("_, out = show(x)\n    ASK(out)", "if value: return None\n    return 0, model(value)", "", False, False),
        ("ASK(show(x))", "return show(value) if value.any() else model(value)", "", False, False),
        ("ASK(show(x))", "return show(model(value))", "", True, False),
        ("while a:\n        out = out.detach()\n    ASK(out)", "", "", True, False),
    ],
)  # fmt: skip
def test_values(
    script: Script, code: str, helper: str, inside: str, is_float: bool, is_other: bool
) -> None:
    parts = {"code": code, "helper": helper or "pass", "inside": inside or "pass"}
    understood = script(SETUP.format(**parts, loader="loader"))
    module = understood.resolver.project.modules[0]
    producers = {
        call: module for call in module.calls_named("model") if ast.unparse(call) == "model(x)"
    }
    trace = FloatTrace(understood.resolver, producers)
    ((expression, _),) = questions(understood)
    assert trace.is_float(expression, module) is is_float
    assert trace.is_other(expression, module) is is_other


@pytest.mark.parametrize(
    ("loader", "is_other"),
    [
        ("loader", True),
        ("zip(loader, loader)", False),
        ("[model(x) for x in loader]", False),
        ("torch.ones(2, 2) @ torch.ones(2, 2)", False),
    ],
)
def test_what_loops_go_over(script: Script, loader: str, is_other: bool) -> None:
    parts = {"code": "ASK(y)", "helper": "pass", "inside": "pass"}
    understood = script(SETUP.format(**parts, loader=loader))
    ((expression, module),) = questions(understood)
    assert FloatTrace(understood.resolver, {}).is_other(expression, module) is is_other


@pytest.mark.parametrize(
    ("returned", "is_float"),
    [
        ("self.two(x), self.one(x)", True),
        ("self.one(x).argmax(1), self.body(x)", True),
        ("self.one(x), x.argmax(1)", False),
        ("self.one(x), x", False),
        ("self.one(x), nn.Flatten()(x)", False),
    ],
)
def test_a_part_of_what_a_network_returns(script: Script, returned: str, is_float: bool) -> None:
    understood = script(f"""
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)
        self.body = nn.Sequential(nn.ReLU(), nn.Linear(2, 2))

    def forward(self, x):
        return {returned}

model = Net()
for x in data:
    _, out = model(x)
    ASK(out.cpu())
""")
    module = understood.entry
    producers = {call: module for call in module.calls_named("model")}
    trace = FloatTrace(understood.resolver, producers)
    (asked,) = [c for c in module.calls if getattr(c.func, "id", "") == "ASK"]
    assert trace.is_float(asked.args[0], module) is is_float
