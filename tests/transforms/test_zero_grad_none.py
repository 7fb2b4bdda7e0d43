"""zero-grad-none: gradients dropped where that provably changes no number."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Check = Callable[..., None]

NETWORK = """\
import torch
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.head = nn.Linear(8, 2)
        self.aux = nn.Linear(8, 2)

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
"""
BY_HAND = """\
for p in model.parameters():
        if p.grad is not None:
            p.grad.data.zero_()"""
STEPS = """
for step in range(4):
    {clear}
    x, y = torch.randn(4, 8), torch.randint(2, (4,))
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""


def script(clear: str = BY_HAND, network: str = NETWORK, steps: str = STEPS) -> str:
    return network + steps.format(clear=clear)


GROUPS = """\
for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                p.grad.detach_()
                p.grad.zero_()"""
NAMED = """\
for _, p in model.named_parameters():
        if p.grad != None:
            p.grad.zero_()"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (BY_HAND, "model.zero_grad()"),
        (NAMED, "model.zero_grad()"),
        (GROUPS, "optimizer.zero_grad()"),
        ("optimizer.zero_grad(set_to_none=False)", "optimizer.zero_grad()"),
        ("optimizer.zero_grad(False)", "optimizer.zero_grad()"),
        ("model.zero_grad(set_to_none=False)", "model.zero_grad()"),
    ],
)
def test_cleared_in_every_step(check_transformed: Check, before: str, after: str) -> None:
    check_transformed(script(before), script(after))


def test_cleared_behind_the_step(check_transformed: Check) -> None:
    steps = STEPS.replace("    {clear}\n", "") + "    {clear}\n"
    before = "for p in model.parameters():\n        p.grad.data.zero_()"
    check_transformed(script(before, steps=steps), script("model.zero_grad()", steps=steps))


def test_other_aliases_and_files(check_transformed: Check) -> None:
    model = NETWORK.partition("model = Net()")[0].replace("import torch\n", "import torch as th\n")
    train = """\
from network import *

net = Net()
sgd = th.optim.Adam(net.parameters())
"""
    steps = STEPS.replace("model", "net").replace("optimizer", "sgd").replace("torch.", "th.")
    train += steps
    check_transformed(
        {"train.py": train.format(clear="sgd.zero_grad(False)"), "network.py": model},
        {"train.py": train.format(clear="sgd.zero_grad()")},
    )


def test_types_are_the_same_in_every_step(check_transformed: Check) -> None:
    network = NETWORK.replace(
        "        return self.head(x)",
        "        if isinstance(x, tuple):\n            x = x[0]\n        return self.head(x)",
    )
    check_transformed(script(network=network), script("model.zero_grad()", network))


NESTED = NETWORK.replace(
    "self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])",
    "self.body = nn.ModuleDict(dict(layers=nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])))",
)


@pytest.mark.parametrize(
    "loop",
    ["for layer in self.body.layers", "for layer, _ in zip(self.body.layers, self.body.layers)"],
)
def test_layers_in_layers_are_gone_over_in_every_step(check_transformed: Check, loop: str) -> None:
    network = NESTED.replace("for layer in self.layers", loop)
    assert network != NESTED
    check_transformed(script(network=network), script("model.zero_grad()", network))


def forward(code: str) -> str:
    return NETWORK.replace("        return self.head(x)\n", code)


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (
            forward("        if x.mean() > 0:\n            x = x + self.aux(x)\n        return x\n"),
            "branch",
        ),
        (forward("        return self.head(x) if x.mean() > 0 else self.aux(x)\n"), "branch"),
        (forward("        return x.sum() > 0 and self.head(x) or self.aux(x)\n"), "branch"),
        (NETWORK.replace("in self.layers", "in self.layers[: int(x.sum())]"), "varying length"),
        (NETWORK.replace("for layer in self.layers", "for _ in range(len(x))"), "varying length"),
        (NETWORK.replace("in self.layers", "in settings.layers"), "varying length"),
        (NETWORK.replace("layer in self.layers", "layer, _ in zip(self.layers, x)"), "varying length"),
        (forward("        return self.layers[int(x.sum())](x)\n"), "index"),
        (forward("        return [self.head(x), self.aux(x)][int(x.sum())]\n"), "index"),
        (forward("        return sum([self.head(x), self.aux(x)][: int(x.sum())])\n"), "index"),
        (forward("        return max(self.head(x), self.aux(x), key=len)\n"), "a value or a name"),
        (forward("        if self.training:\n            x = x + self.aux(x)\n        return x\n"), "branch"),
        (forward("        with torch.set_grad_enabled(len(x) > 3):\n            return self.head(x)\n"), "a value or"),
        (
            NETWORK.replace("    def forward", "    def swap(self):\n        self.head = self.aux\n\n    def forward"),
            "one of several layers",
        ),
        (NETWORK + "criterion = nn.AdaptiveLogSoftmaxWithLoss(8, 9, [3])\n", "clusters"),
        (forward("        return getattr(self, pick())(x)\n"), "a value or a name"),
        (NETWORK.replace("nn.Linear(8, 2)\n", "timm.Head(8, 2)\n"), "timm"),
        (NETWORK.replace("Net()\n", "Net()\nmodel.aux.requires_grad_(False)\n"), "frozen"),
        (
            NETWORK.replace("Net()\n", "Net()\nfor p in model.aux.parameters():\n    p.requires_grad = False\n"),
            "frozen",
        ),
        (NETWORK + "second = torch.optim.Adam(model.parameters())\n", "2 optimizers are seen, not one (lines"),
        (NETWORK.replace("    def forward", "    def zero_grad(self):\n        pass\n\n    def forward"), "of its own"),
        (NETWORK.replace("model.parameters(), lr", "model.head.parameters(), lr"), "certainly"),
        (
            NETWORK.replace("model.parameters(), lr", "list(model.parameters()) + list(Net().parameters()), lr"),
            "2 networks that the optimizer trains are seen, not one",
        ),
        (NETWORK.replace("model = Net()", "model = nn.Sequential(Net(), timm.Head())"), "not known"),
        (NETWORK.replace("[nn.Linear(8, 8), ", "[timm.Head(8, 8), "), "not known"),
        (NETWORK.replace("nn.Linear(8, 2)\n", "nn.Sequential(head)\n"), "not known"),
        (NETWORK.replace("model = Net()", "model = timm.create_model('x')"), "`timm.create_model`"),
    ],
)  # fmt: skip
def test_networks(check_noop: Check, network: str, reason: str) -> None:
    network = "import timm\n" + network if "timm" in network else network
    check_noop(script(network=network), reason=reason)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (STEPS + "    print(model.head.weight.grad.norm())\n", "looks at gradients elsewhere"),
        (STEPS.replace("    {clear}", "    before = [q.grad for q in model.parameters()]\n    {clear}"),
         "looks at gradients elsewhere"),
        (STEPS.replace("    loss.backward", "    if step > 2:\n        loss = loss + model.aux(x).sum()\n    loss.backward"),
         "branch"),
        (STEPS.replace("    loss.backward()", "    if loss > 0:\n        loss.backward()"), "does not stand beside"),
        (STEPS.replace("    loss.backward()", "    loss.backward(retain_graph=True)\n    loss.backward()"),
         "2 backward passes are seen, not one (lines"),
        (STEPS.replace("    optimizer.step()", "    if step % 2:\n        optimizer.step()"), "does not stand beside"),
        (STEPS.replace("    optimizer.step()", "    optimizer.step()\n    optimizer.step()"), "does not stand beside"),
        (STEPS.replace("    {clear}\n", "").replace("    optimizer.step", "    {clear}\n    optimizer.step"),
         "does not stand beside"),
        (STEPS.replace("    {clear}\n", "").replace("for step", "{clear}\nfor step"), "does not stand beside"),
        (STEPS.replace("loss = F.cross_entropy(model(x), y)", "a, b = model(x)\n    loss = (a, b)[step % 2].sum()"), "index"),
        (STEPS.replace("loss = F.cross_entropy(model(x), y)", "a, b = model(x)\n    loss = min(a.sum(), b.sum())"),
         "a value or a name"),
        ("import accelerate\na = accelerate.Accelerator()\n" + STEPS, "Accelerate"),
    ],
)  # fmt: skip
def test_steps(check_noop: Check, steps: str, reason: str) -> None:
    check_noop(script("optimizer.zero_grad(set_to_none=False)", steps=steps), reason=reason)


@pytest.mark.parametrize(
    "clear",
    [
        "optimizer.zero_grad()",
        "optimizer.zero_grad(set_to_none=True)",
        "optimizer.zero_grad(set_to_none=args.none)",
        "for p in model.parameters():\n        p.grad = None",
        "for p in model.parameters():\n        p.grad.data.fill_(1)",
        "for p in model.head.weight:\n        p.grad.zero_()",
        "for p in model.parameters():\n        p.grad.zero_()\n        p.data.mul_(0.99)",
        "for p in model.parameters():\n        q.grad.zero_()",
        "for p in model.parameters():\n        p.data.zero_()",
        "for p in model.parameters():\n        if p.dim() > 1:\n            p.grad.zero_()",
    ],
)
def test_what_is_no_clearing(check_noop: Check, clear: str) -> None:
    check_noop(script(clear))


@pytest.mark.slow
@pytest.mark.torch
def test_verified(check_verified: Check) -> None:
    check_verified(script())
