"""no-grad on programs whose tensors take random ways: whatever is wrapped, training stays bitwise the same.

Each program calls networks, sends their results through names, containers, attributes, closures and functions, and trains
on some of them. A region that is wrapped although its tensors reach the backward pass changes a gradient.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

HEAD = """\
import collections, dataclasses
import torch
from torch import nn

class Keep(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.last, self.hist = None, []

    def forward(self, x):
        {forward}
        return h

    def encode(self, x):
        return self.fc(x)

class Box:
    def __init__(self, value=None):
        self.value = torch.zeros(4, 3) if value is None else value
        self.items = []

    def put(self, value):
        self.value = value

    def push(self, value):
        self.items.append(value)

    @property
    def current(self):
        return self.value

@dataclasses.dataclass
class Data:
    tensor: torch.Tensor

def collect(into, value):
    into.append(value)
    return value * 1

Pair = collections.namedtuple("Pair", ["first", "second"])
torch.manual_seed(0)
model, net = nn.Linear(3, 3), Keep()
layers = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
box, kept, table, LOG = Box(), [], {{}}, []
shared = torch.zeros(4, 3)
x, y = torch.randn(4, 3), torch.randn(4, 3)
"""
FORWARDS = [
    "h = self.fc(x)",
    "self.last = self.fc(x)\n        h = self.last * 2",
    "h = self.fc(x)\n        self.last = h",
    "h = self.fc(x) + (0 if self.last is None else self.last)\n        self.last = h",
    "h = self.fc(x)\n        self.hist.append(h)",
]
NEW_VALUES = """\
model({v})
net({v})
net.encode({v})
layers({v})
{v} * 2 + {w}
{v}.detach()
({v} > 0).float()
{v}.max(1)[1].float().unsqueeze(1).expand(4, 3)
torch.max({v}, 1)[0].unsqueeze(1).expand(4, 3)
torch.stack(kept).mean(0) if kept else {v}
sum(kept) + {v}
sum(box.items) + {v}
box.value + {v}
box.current
box.__dict__['value'] + {v}
getattr(model, 'out', {v})
net.last if net.last is not None else {v}
sum(net.hist) + {v}
table.get('k', {v})
shared + {v}
[model({v}) for _ in range(2)][0]
Pair({v}, {w}).first
Data({v}).tensor * 1
Box({v}).current
(lambda t: t * 2)({v})
list(map(lambda t: t + 1, [{v}]))[0]
dict(a={v})['a']
next(iter([{v}]))
max([{v}, {w}], key=lambda t: t.sum().item())
nn.functional.mse_loss({v}, y) + {w}
collect(kept, {v})
torch.where({v} > 0, {v}, {w})
({v}, {w})[step % 2]
{v} if {v}.sum() > 0 else {w}
(model if step % 2 else net)({v})
""".splitlines()
EFFECTS = """\
kept.append({v})
box.value = {v}
box.put({v})
box.push({v})
table['k'] = {v}
model.out = {v}
setattr(box, 'value', {v})
alias = kept; alias.append({v})
LOG.append({v}.mean().item())
LOG.append(model({v}).sum().item())
model.eval(); LOG.append(float(model({v}).sum())); model.train()
""".splitlines()


class Programs:
    """Grows one program; ``names`` are the tensors in sight."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._count = 0
        self._functions: list[str] = []

    def program(self) -> str:
        lines = HEAD.format(forward=self._random.choice(FORWARDS)).splitlines()
        for _ in range(self._random.randint(0, 3)):
            lines += self._function()
        names = ["x", "y"]
        body = self._block(names, self._random.randint(3, 9), depth=0)
        loss = " + ".join(self._random.choice(names) for _ in range(2))
        body += [f"loss = ({loss}).mean()", "if loss.requires_grad:"]
        body += ["    loss.backward(retain_graph=True)", "LOG.append(loss.item())"]
        return (
            "\n".join([*lines, "for step in range(3):", *(f"    {line}" for line in body)]) + "\n"
        )

    def _function(self) -> list[str]:
        names = ["p"]
        body = self._block(names, self._random.randint(1, 6), depth=0)
        if self._random.random() < 0.2:
            body = ["global shared", *body, f"shared = {self._random.choice(names)}"]
        name = f"f{len(self._functions)}"
        self._functions.append(name)
        detached = self._random.choice(["", ".detach()"])
        body.append(f"return {self._random.choice(names)}{detached}")
        return [f"def {name}(p, step):", *(f"    {line}" for line in body)]

    def _block(self, names: list[str], size: int, depth: int) -> list[str]:
        return [line for _ in range(size) for line in self._statement(names, depth)]

    def _statement(self, names: list[str], depth: int) -> list[str]:
        choose = self._random.choice
        v, w, kind = choose(names), choose(names), self._random.random()
        if kind < 0.25:
            return [choose(EFFECTS).format(v=v)]
        if kind < 0.4 and depth == 0:
            inner = self._block(list(names), self._random.randint(1, 4), depth + 1)
            header = choose(["if step % 2 == 0:", "for q in range(2):", "if step != 1:"])
            return [header, *(f"    {line}" for line in inner)]
        self._count += 1
        new = f"v{self._count}"
        if kind < 0.55 and self._functions:
            value = f"{choose(self._functions)}({v}, step)"
        else:
            value = choose(NEW_VALUES).format(v=v, w=w)
        extra = choose(
            ["", "", "", f"{new} = {new} * 1; {new} += {w}", f"{new} = {new} * 1; {new}.mul_(2)"]
        )
        names.append(new)
        return [f"{new} = {value}", *([extra] if extra else [])]


def outcome(text: str) -> tuple[list[Any], list[Any]]:
    """The gradients after running a program, and what it logged (NaN as text)."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "train.py", "exec"), namespace)
    networks = [namespace["model"], namespace["net"], namespace["layers"]]
    gradients = [
        None if p.grad is None else p.grad.tolist() for net in networks for p in net.parameters()
    ]
    return [repr(gradient) for gradient in gradients], [repr(entry) for entry in namespace["LOG"]]


def check(rewrite: Callable[..., Any], seeds: range) -> int:
    """How many programs changed; all of them must train the same as before."""
    changed = 0
    for seed in seeds:
        program = Programs(seed).program()
        (file,) = rewrite(program, ["no-grad"]).files
        if file.changes:
            changed += 1
            assert outcome(program) == outcome(file.text), f"seed {seed}:\n{file.text}"
    return changed


@pytest.mark.torch
def test_training_stays_the_same(rewrite: Callable[..., Any]) -> None:
    assert check(rewrite, range(40)) > 10


@pytest.mark.slow
@pytest.mark.torch
def test_training_stays_the_same_on_many(rewrite: Callable[..., Any]) -> None:
    assert check(rewrite, range(1000, 1600)) > 150
