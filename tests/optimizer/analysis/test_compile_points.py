"""Where a network is final."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.compiling.compile_points import compile_point
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


def point(understood: TrainingScript) -> tuple[str, str] | None:
    """Where the network called in ``net(x)`` can be compiled: the statement below it, and the network's name there."""
    for module in understood.modules:
        for call in module.calls:
            if module.code(call).endswith("net(x)"):
                found = compile_point(
                    understood.resolver, call.func, module, understood.functions_run
                )
                if found is None:
                    return None
                return found.module.code(found.statement).split("\n")[0], found.code
    raise AssertionError("no net(x)")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            "net = make()\nfor e in epochs:\n    for x in data:\n        net(x).backward()",
            ("for e in epochs:", "net"),
        ),
        (
            "for fold in folds:\n    net = make()\n    for x in fold:\n        net(x).backward()",
            ("for x in fold:", "net"),
        ),
        (
            "def f(net):\n    for x in data:\n        net(x).backward()\nm = make()\nf(m)",
            ("f(m)", "m"),
        ),
        (
            "def f(net):\n    for x in data:\n        net(x).backward()\n"
            "def g(other):\n    for e in epochs:\n        f(other)\nm = make()\ng(m)",
            ("g(m)", "m"),
        ),
        (
            "def f():\n    for x in data:\n        net(x).backward()\nnet = make()\nfor e in epochs:\n    f()",
            ("for e in epochs:", "net"),
        ),
        (
            "def f(net):\n    for x in data:\n        net(x).backward()\n"
            "def main():\n    global m\n    m = make()\n    for e in epochs:\n        f(m)\nmain()",
            ("for e in epochs:", "m"),
        ),
        (
            "def f():\n    for x in data:\n        net(x).backward()\n"
            "def main():\n    global net\n    net = make()\n    for e in epochs:\n        f()\nmain()",
            ("for e in epochs:", "net"),
        ),
        (
            "import torch.multiprocessing as mp\n"
            "def main():\n    net = make()\n    for x in data:\n        net(x).backward()\nmp.spawn(main)",
            ("for x in data:", "net"),
        ),
        (
            "def f(pair):\n    other, net = pair\n    for x in data:\n        net(x).backward()\n"
            "a = make()\nb = make()\nfor e in epochs:\n    f([a, b])",
            ("for e in epochs:", "b"),
        ),
        (
            "def f(pair):\n    other, net = pair\n    for x in data:\n        net(x).backward()\n"
            "pair = make()\nf(pair)",
            ("for x in data:", "net"),
        ),
        (
            "def f(pair):\n    other, net = pair\n    for x in data:\n        net(x).backward()\n"
            "pair = make()\nfor e in epochs:\n    f(pair)",
            None,
        ),
        (
            "def f():\n    net = nets[0]\n    for x in data:\n        net(x).backward()\n"
            "def g():\n    f()\nnets = [make()]\nfor e in epochs:\n    g()",
            None,
        ),
        (
            "net = make()\nfor x in data:\n    net = net.train()\n    net(x).backward()",
            ("for x in data:", "net"),
        ),
        (
            "net = make()\nfor x in data:\n    net = other.train()\n    net(x).backward()",
            None,
        ),
        (
            "net = make()\nfor x in data:\n    net = net.half()\n    net(x).backward()",
            None,
        ),
        (
            "def f(net):\n    for x in data:\n        net(x).backward()\nf(make())\nf(make())",
            None,
        ),
        (
            "def f(net):\n    for x in data:\n        net(x).backward()\n"
            "def one():\n    a = make()\n    f(a)\ndef two():\n    a = make()\n    f(a)\none()\ntwo()",
            None,
        ),
        (
            "class T:\n    def __init__(self, net):\n        self.net = net\n"
            "    def one(self):\n        for x in data:\n            self.net(x).backward()\n"
            "model = make()\nt = T(model)\nfor e in epochs:\n    t.one()",
            ("for e in epochs:", "model"),
        ),
        (
            "class T:\n    def __init__(self, net):\n        self.net = net\n"
            "    def one(self):\n        for x in data:\n            self.net(x).backward()\n"
            "model = make()\nt = T(model)\nmodel = make()\nfor e in epochs:\n    t.one()",
            ("for e in epochs:", "t.net"),
        ),
        (
            "class T:\n    def __init__(self, net):\n        self.net = net\n"
            "    def one(self):\n        for x in data:\n            self.net(x).backward()\n"
            "t = T(make())\nfor e in epochs:\n    t.one()",
            ("for e in epochs:", "t.net"),
        ),
        (
            "nets = [make()]\nfor net in nets:\n    for x in data:\n        net(x).backward()",
            ("for x in data:", "net"),
        ),
        (
            "class Base:\n    def __init__(self, net):\n        self.net = net\n"
            "    def train(self):\n        for e in epochs:\n            self.one(e)\n"
            "class T(Base):\n    def one(self, e):\n        for x in data:\n            self.net(x).backward()\n"
            "T(make()).train()",
            ("for e in epochs:", "self.net"),
        ),
        (
            "class Base:\n    def __init__(self, net):\n        self.net = net\n"
            "    def train(self):\n        self.one()\n"
            "class T(Base):\n    def one(self):\n        for x in data:\n            self.net(x).backward()\n"
            "    def more(self):\n        for e in epochs:\n            self.train()\n"
            "T(make()).more()",
            ("for e in epochs:", "self.net"),
        ),
    ],
)
def test_point(script: Script, code: str, expected: tuple[str, str] | None) -> None:
    assert point(script(f"{dedent(code)}\n")) == expected
