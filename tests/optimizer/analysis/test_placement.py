"""Calls and expressions that put tensors on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.devices.placement import (
    default_device_call,
    move_target,
    on_gpu,
)
from torchopt_cli.optimizer.analysis.facts import DeviceKind
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
import torch
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.load("x")
"""


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ("x.cuda()", DeviceKind.CUDA),
        ("x.to('cuda:1')", DeviceKind.CUDA),
        ("x.to(0)", DeviceKind.CUDA),
        ("x.to(device)", DeviceKind.CHOSEN),
        ("x.to(device=device)", DeviceKind.CHOSEN),
        ("x.to('cpu')", DeviceKind.CPU),
        ("x.to(y)", DeviceKind.UNKNOWN),
        ("x.to(torch.float16)", None),
        ("x.to()", None),
        ("x.type(torch.cuda.FloatTensor)", DeviceKind.CUDA),
        ("x.type(torch.FloatTensor)", None),
        (
            "x.type(torch.cuda.FloatTensor if device else torch.FloatTensor)",
            DeviceKind.CHOSEN,
        ),
        ("x.numpy()", None),
        ("to(device)", None),
    ],
)
def test_move_target(script: Script, call: str, kind: DeviceKind | None) -> None:
    understood = script(f"{HEAD}{call}\n")
    (node,) = [c for c in understood.entry.calls if understood.entry.code(c) == call]
    assert move_target(understood.resolver, node, understood.entry) is kind


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("ASK(x.cuda())", "x.cuda()"),
        ("ASK(x)", None),
        ("y = x.to(device)\nASK(y)", "x.to(device)"),
        ("y = x.to(device)\nz = y.float()[0]\nASK(z)", "x.to(device)"),
        ("ASK(x.to(device).cpu())", None),
        ("ASK(torch.zeros(3, device=device))", "torch.zeros(3, device=device)"),
        ("ASK(torch.zeros(3, device='cpu'))", None),
        ("ASK(torch.cuda.FloatTensor(3))", "torch.cuda.FloatTensor(3)"),
        ("ASK(torch.stack([x.cuda(), x]))", "x.cuda()"),
        ("ASK((x, [x.cuda()]))", "x.cuda()"),
        ("ASK({'a': x.cuda()})", "x.cuda()"),
        ("ASK([t.cuda() for t in x])", "t.cuda()"),
        ("ASK(x if device else x.cuda())", "x.cuda()"),
        ("ASK(x + x.cuda())", "x.cuda()"),
        ("ASK((y := x.cuda()))", "x.cuda()"),
        ("def f(t):\n    return t.cuda()\nASK(f(x))", "t.cuda()"),
        ("def f(t):\n    print(t)\nASK(f(x))", None),
        ("def f(t):\n    ASK(t)\nf(x)\nf(x.cuda())", "x.cuda()"),
        (
            "class A:\n    def __init__(self):\n        self.t = x.cuda()\n    def f(self):\n        ASK(self.t)",
            "x.cuda()",
        ),
        ("ASK(x.data)", None),
        ("args = dict(device='cuda', path='x')\nASK(args['path'])", None),
        ("args = dict(device='cuda', x=x.cuda())\nASK(args)", "x.cuda()"),
        (
            "import os, types\nargs = types.SimpleNamespace(device='cuda')\nASK(os.path.join(args.path, 'y'))",
            None,
        ),
        (
            "def load():\n    return x.cuda(), x\nmodel, tokenizer = load()\nASK(model)",
            "x.cuda()",
        ),
        ("def load():\n    return x.cuda(), x\nmodel, tokenizer = load()\nASK(tokenizer)", None),
        (
            "def load():\n    if x:\n        return x.cuda()\n    return x, x\nmodel, tokenizer = load()\nASK(tokenizer)",
            "x.cuda()",
        ),
        (
            "class A:\n    def put(self, t):\n        return t.cuda()\n    def f(self):\n        ASK(self.put(x))",
            "t.cuda()",
        ),
        (
            "class A:\n    def __init__(self):\n        self.net = torch.nn.Linear(3, 3)\n    def f(self):\n        ASK(self.net(x.cuda()).detach())",
            "x.cuda()",
        ),
        ("net = torch.nn.Linear(3, 3)\nASK(net(x))", None),
        ("def f(a, *rest):\n    ASK(rest)\nf(x, 3, x.cuda())", "x.cuda()"),
        ("def f(*rest):\n    ASK([*rest])\nf(*[x.cuda()])", "x.cuda()"),
        ("def f(a, *rest):\n    ASK(rest)\nf(x.cuda(), x)", None),
        ("for t in x:\n    ASK(t)", None),
        ("ASK(3)", None),
        ("ASK(nowhere)", None),
        ("def f(t):\n    ASK(t)\n    f(t)\n", None),
    ],
)
def test_on_gpu(script: Script, code: str, found: str | None) -> None:
    understood = script(HEAD + dedent(code) + "\n")
    entry = understood.entry
    (question,) = [c.args[0] for c in entry.calls if entry.code(c.func) == "ASK"]
    call = on_gpu(understood.resolver, question, entry)
    assert (None if call is None else entry.code(call)) == found


@pytest.mark.parametrize(
    ("line", "is_default"),
    [
        ("torch.set_default_device('cuda')", True),
        ("torch.set_default_device(device)", True),
        ("torch.set_default_tensor_type(torch.cuda.FloatTensor)", True),
        ("torch.set_default_device('cpu')", False),
        ("torch.set_default_dtype(torch.float64)", False),
    ],
)
def test_default_device(script: Script, line: str, is_default: bool) -> None:
    understood = script(f"{HEAD}{line}\n")
    call = default_device_call(understood.resolver, understood.entry)
    assert (call is not None) == is_default
