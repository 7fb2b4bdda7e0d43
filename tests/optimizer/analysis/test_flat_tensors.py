"""What is certainly flattened, or pooled to one pixel."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.tensors.flat_tensors import FlatTrace, Shape

from .conftest import questions

Script = Callable[..., TrainingScript]


@pytest.mark.parametrize(
    ("code", "shape"),
    [
        ("ASK(x)", Shape.UNKNOWN),
        ("ASK(x.flatten(1))", Shape.FLAT),
        ("ASK(torch.flatten(x, 1))", Shape.FLAT),
        ("ASK(torch.flatten(x, start_dim=1, end_dim=2))", Shape.UNKNOWN),
        ("ASK(x.flatten(2))", Shape.UNKNOWN),
        ("ASK(x.view(-1, 8))", Shape.FLAT),
        ("ASK(x.view(*size, -1))", Shape.UNKNOWN),
        ("ASK(x.view(-1, 8, 1, 1))", Shape.UNKNOWN),
        ("ASK(x.mean((2, 3)))", Shape.FLAT),
        ("ASK(x.mean((2, 3), keepdim=True))", Shape.PIXEL),
        ("ASK(x.mean(1))", Shape.UNKNOWN),
        ("ASK(nn.functional.adaptive_avg_pool2d(x, 1))", Shape.PIXEL),
        ("ASK(nn.functional.adaptive_avg_pool2d(x, (1, 7)))", Shape.UNKNOWN),
        ("pool = nn.AdaptiveAvgPool2d((1, 1))\nASK(torch.relu(pool(x)))", Shape.PIXEL),
        ("fc = nn.Linear(2, 2)\nASK(fc(x))", Shape.UNKNOWN),
        ("fc = nn.Linear(2, 2)\nASK(fc(x.flatten(1)) * 2)", Shape.FLAT),
        ("if a:\n    x = x.flatten(1)\nASK(x)", Shape.UNKNOWN),
        ("x = x.flatten(1)\nfor i in n:\n    x = x + 1\nASK(x)", Shape.FLAT),
        ("x = x.flatten(1)\nfor i in n:\n    x = grow(x)\nASK(x)", Shape.UNKNOWN),
    ],
)
def test_shapes(script: Script, code: str, shape: Shape) -> None:
    body = "".join(f"    {line}\n" for line in code.splitlines())
    understood = script(f"import torch\nfrom torch import nn\ndef f(x):\n{body}")
    ((expression, module),) = questions(understood)
    assert FlatTrace(understood.resolver).shape(expression, module) is shape


@pytest.mark.parametrize(
    ("code", "projected"),
    [
        ("ASK(x)", False),
        ("fc = nn.Linear(2, 2)\nASK(fc(x))", True),
        ("fc = nn.Linear(2, 2)\nh = fc(x)\nASK(torch.relu(h).sigmoid())", True),
        ("fc = nn.Linear(2, 2)\nh = x\nif a:\n    h = fc(x)\nASK(h)", False),
        ("fc = nn.Linear(2, 2)\nh = fc(x)\nfor i in n:\n    h = torch.relu(h)\nASK(h)", True),
        ("fc = nn.Linear(2, 2)\nh = fc(x)\nfor i in n:\n    h = grow(h)\nASK(h)", False),
        ("fc = nn.Sequential(nn.Linear(2, 2), nn.ReLU())\nASK(fc(x))", True),
        ("fc = nn.Sequential(nn.Linear(2, 2), nn.Unflatten(1, (2, 1)))\nASK(fc(x))", False),
        ("fc = nn.Sequential(nn.ReLU())\nASK(fc(x))", False),
        ("fc = nn.Conv2d(2, 2, 1)\nASK(fc(x))", False),
        ("ASK(torch.relu(x))", False),
    ],
)
def test_what_linear_layers_made(script: Script, code: str, projected: bool) -> None:
    body = "".join(f"    {line}\n" for line in code.splitlines())
    understood = script(f"import torch\nfrom torch import nn\ndef f(x):\n{body}")
    ((expression, module),) = questions(understood)
    assert FlatTrace(understood.resolver).is_projected(expression, module) is projected
