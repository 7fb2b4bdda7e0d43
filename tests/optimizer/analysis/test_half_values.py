"""Where results of autocast forward passes leave PyTorch or autocast."""

from __future__ import annotations

import ast
from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.calls.reach import reached_nodes
from torchopt_cli.optimizer.analysis.precision.half_values import HalfUse, half_uses
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]

HEAD = """
import numpy as np
import sklearn.metrics
import torch
import torch.nn.functional as F
from torch import nn

model, judge = nn.Linear(2, 2), nn.Linear(2, 2)
"""
PARTS = "parts, kept = nn.ModuleList(), []\nfor _ in range(2):\n    parts.append(nn.Linear(2, 2))\n"
NORMALIZED = """
class Normalized(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.norm = {}

    def forward(self, x):
        return self.norm(self.norm(model(x)))


Normalized(**options)
"""


@pytest.fixture
def uses(script: Script) -> Callable[[str], list[HalfUse]]:
    """``uses(body)``: where the results of ``model(..)`` calls in ``body`` leave."""

    def ask(body: str) -> list[HalfUse]:
        understood = script(HEAD + dedent(body))
        module = understood.entry
        producers = frozenset(
            call for call in module.calls if getattr(call.func, "id", None) == "model"
        )
        return list(half_uses(understood.resolver, producers))

    return ask


@pytest.mark.parametrize(
    ("body", "is_float"),
    [
        ("model(x).numpy()", True),
        ("out = model(x)\nout.detach().cpu().numpy()", True),
        ("out = model(x)\nout.data[:, 0].numpy()", True),
        ("out = model(x)\ntorch.softmax(out, 1).numpy()", True),
        ("out = model(x)\nnp.mean(out)", True),
        ("out = model(x)\nsklearn.metrics.f1_score(y, out)", True),
        ("out = model(x)\ntorch.save(out, 'f')", True),
        ("out = model(x)\njudge(out)", True),
        ("out = model(x)\nout @ bank", True),
        ("torch.matmul(model(x), bank)", True),
        ("bank.mm(model(x))", True),
        ("torch.einsum('ij,kj->ik', model(x), bank)", True),
        ("F.conv2d(model(x), window)", True),
        ("out = model(x)\nwindow = torch.ones(3).type_as(out)\nF.conv2d(x, window)", False),
        ("def f(a, b):\n    return a @ b\nf(model(x), x)", True),
        ("def f(a, b):\n    return a @ b\nf(model(x), x)\nf(z, x)", False),
        ("out, state = model(x)\nout.numpy()", False),
        ("outs = []\nfor x in data:\n    outs.append(model(x))\ntorch.cat(outs).numpy()", False),
        ("total = 0\nfor x in data:\n    total += model(x)\ntotal.numpy()", False),
        ("def f(z):\n    return z + 1\nf(model(x)).numpy()", False),
        ("def f(z):\n    z.numpy()\nf(model(x))", True),
        ("def f(z):\n    z.numpy()\nf(model(x))\nf(x)", False),
        ("def f():\n    return 1, model(x)\na, b = f()\nb.numpy()", True),
        ("[model(x) for x in data][0].numpy()", False),
        (f"{PARTS}out = model(x)\nkept.append(parts[0](out))", True),
        (f"{PARTS}out = model(x)\nfor part in parts:\n    kept.append(part(out))", True),
    ],
)
def test_leaves(uses: Callable[[str], list[HalfUse]], body: str, is_float: bool) -> None:
    (use,) = uses(body)
    assert use.is_float is is_float


@pytest.mark.parametrize(
    "body",
    [
        "model(x).argmax(1).numpy()",
        "_, best = torch.max(model(x), 1)\nbest.numpy()",
        "model(x).topk(1)[1].numpy()",
        "print(model(x).item(), model(x).tolist())",
        "import math\nmath.exp(model(x).mean())",
        "model(x).float().cpu().numpy()",
        "y = x.numpy()\nout = model(x)",
        "out = model(x)\nout = judge(x)\nout.numpy()",
        "def f():\n    return 1, model(x)\na, b = f()\na.numpy()",
        "def f(z):\n    return z\nf(model(x))\nf(x).numpy()",
        "np.zeros(model(x).shape)",
        "kept = [model(x)]\nnp.maximum(len(kept) - 9, 0)",
        "(model(x) > 0).numpy()",
        "torch.save(model.state_dict(), 'f')",
        "out = model(x)\nout @ out.t()",
        "torch.mm(model(x), model(y).t())",
        "model(x) + bank",
        "model(x).float() @ bank",
        "out = model(x)\nF.conv2d(out, torch.ones(3).type_as(out))",
        "torch.cat([model(x), bank])",
        f"{PARTS}out = model(x)\nprint(parts[0].weight.shape)",
        NORMALIZED.format("norm(2) if norm else nn.LayerNorm(2)"),
    ],
)
def test_stays(uses: Callable[[str], list[HalfUse]], body: str) -> None:
    assert uses(body) == []


@pytest.mark.parametrize(
    ("function", "is_meant"),
    [
        ("F.log_softmax(z, 1)", False),
        ("t = z * 2\n    F.log_softmax(t, 1)", False),
        ("inner(z)", False),
        ("z @ y", False),
        ("keep.append(z)\n    F.log_softmax(keep[0], 1)", True),
        ("global last\n    F.log_softmax(last, 1)\n    last = z", True),
        ("z.numpy()", True),
    ],
)
def test_a_function_called_under_autocast_and_elsewhere_on_float32(
    script: Script, function: str, is_meant: bool
) -> None:
    """In the calls under autocast it needs nothing, unless it leaves PyTorch or what they left behind comes back."""
    understood = script(f"""{HEAD}
keep, last, y = [], None, torch.ones(2, 2)
def inner(z):
    return F.softmax(z, 1)
def f(z):
    {function}
with torch.autocast("cuda"):
    f(model(x))
f(y)
""")
    resolver, module = understood.resolver, understood.entry
    region = next(s for s in module.tree.body if isinstance(s, ast.With))
    covered = {reached.node for reached in reached_nodes(resolver, region.body, module)}
    producers = frozenset(
        call for call in module.calls if getattr(call.func, "id", None) == "model"
    )
    assert bool(half_uses(resolver, producers, frozenset(covered))) is is_meant


@pytest.mark.parametrize(
    "kept",
    ["self.seen.append(model(x))", "self.seen['a'].append(model(x))", "self.seen += model(x)"],
)
def test_what_is_added_to_an_attribute_leaves_with_it(
    uses: Callable[[str], list[HalfUse]], kept: str
) -> None:
    body = """
        class Judge:
            def __init__(self):
                self.seen, self.others = [], []
            def look(self, x):
                {}
                self.others.append(x)
            def tell(self):
                return self.others[0].numpy(), self.seen[0].numpy()
    """
    (use,) = uses(body.format(kept))
    assert use.code == "self.seen[0].numpy()"


def test_taker_is_named(uses: Callable[[str], list[HalfUse]]) -> None:
    assert uses("model(x).numpy()")[0].taker == "NumPy"
    assert "f1_score" in uses("sklearn.metrics.f1_score(y, model(x))")[0].taker
    value = uses("model(x).cpu().numpy()")[0].value
    assert ast.unparse(value) == "model(x).cpu()"
