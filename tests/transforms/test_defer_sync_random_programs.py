"""defer-sync on loops that do random arithmetic with what they read: whatever waits on the device, the same text is printed.

Each program trains a small network, reads losses and counts in every step, and adds them up, divides and weighs them, keeps
them in lists and meters, has functions give them back, and looks at them now and then, and afterwards.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import pytest

torch = pytest.importorskip("torch")

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Meter:
    def __init__(self):
        self.last = 0
        self.sum = 0
        self.count = 0

    def update(self, value, n=1):
        self.last = value
        self.sum += value * n
        self.count += n

    @property
    def mean(self):
        return self.sum / self.count


def shares(output, y):
    found = []
    for k in (1, 2):
        hit = output.topk(k, 1)[1].eq(y.unsqueeze(1)).any(1)
        found.append(hit.float().sum().mul_(100.0 / y.size(0)))
    return found


def numbers(output, y):
    loss = nn.functional.nll_loss(output.log_softmax(1), y)
    right = (output.argmax(1) == y).sum()
    return loss.item(), right.item() / y.size(0)


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(5, 3).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(22, 5), torch.randint(3, (22,))), batch_size=4)
log = []
"""
STEP = """\
x, y = x.to(device), y.to(device)
output = model(x)
loss = nn.functional.cross_entropy(output, y)
optimizer.zero_grad()
loss.backward()
optimizer.step()
"""
FRACTIONS = """\
loss.item()
float(loss)
loss.data.cpu().item()
(loss * 3).item()
(output.argmax(1) == y).float().mean().item()
shares(output, y)[0].item()
output.softmax(1).max(1)[0].sum().item()
""".splitlines()
COUNTS = """\
(output.argmax(1) == y).sum().item()
int((output.max(1)[1] == y).sum())
torch.count_nonzero(output.argmax(1) == y).item()
(y != 0).sum().item()
""".splitlines()
WHOLE = ["x.size(0)", "2", "(i + 1)", "7"]
NUMBERS = [*WHOLE, "y.shape[0]", "0.3", "100.0", "1e-3"]
SHOWN = ["print({0})", "print('%.7f' % ({0}))", "print(f'{{{0}:.9f}}')", "log.append({0})"]


class Programs:
    """Grows one program. Of its variables some hold numbers of the step, others what is added up or kept of them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._fractions: list[str] = []
        self._counts: list[str] = []
        self._starts: list[str] = []
        self._outer: list[str] = []
        self._after: list[str] = []
        self._names = 0

    def program(self) -> str:
        step = STEP.splitlines()
        for _ in range(self._random.randint(1, 5)):
            step += self._statement()
        after = self._random.sample(self._after, len(self._after))
        epoch = [*self._starts, "for i, (x, y) in enumerate(loader):", *indented(step), *after]
        run = [*self._outer, "for epoch in range(2):", *indented(epoch), "print(log)"]
        if self._random.random() < 0.3:
            run = ["def main():", *indented(run), "", "", "main()"]
        return HEAD + "\n".join(run) + "\n"

    def _new(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def _start(self, line: str) -> None:
        (self._outer if self._random.random() < 0.2 else self._starts).append(line)

    def _statement(self) -> list[str]:
        makers = [self._number, self._number, self._sum, self._sum, self._list, self._meter]
        return self._random.choice(makers)()

    def _number(self) -> list[str]:
        """A variable of the step, or two that a function gives back."""
        choose, name = self._random.choice, self._new("v")
        if self._random.random() < 0.15:
            other = self._new("v")
            self._fractions += [name, other]
            return [f"{name}, {other} = numbers(output, y)"]
        whole = self._random.random() < 0.5
        value = self._count() if whole else self._fraction()
        (self._counts if whole else self._fractions).append(name)
        lines = [f"{name} = {value}"]
        if self._random.random() < 0.3:
            lines += ["if i % 3 == 2:", "    " + choose(SHOWN).format(name)]
        return lines

    def _sum(self) -> list[str]:
        choose, name = self._random.choice, self._new("t")
        whole = self._random.random() < 0.3
        self._start(f"{name} = {'0' if whole else choose(['0', '0.0', '1.5'])}")
        value = self._count() if whole else self._fraction()
        lines = [choose([f"{name} += {value}", f"{name} = {name} + {value}", f"{name} -= {value}"])]
        if not whole and self._random.random() < 0.3:
            lines = [f"{name} = 0.9 * {name} + 0.1 * {value}"]
        if self._random.random() < 0.3:
            lines += ["if i % 2 == 1:", "    " + choose(SHOWN).format(f"{name} / (i + 1)")]
            if self._random.random() < 0.5:
                lines.append(f"    {name} = {'0' if whole else '0.0'}")
        used = choose([name, f"{name} / len(loader)", f"100 * {name}", f"max({name}, 0.5)"])
        self._after.append(choose(SHOWN).format(used))
        return lines

    def _list(self) -> list[str]:
        choose, name = self._random.choice, self._new("l")
        self._start(f"{name} = []")
        value = self._random.choice([self._count, self._fraction])()
        added = choose([f"{name}.append({value})", f"{name} += [{value}]"])
        lines = [added]
        if self._random.random() < 0.25:
            other = choose(["0", "0.0", "1"])
            lines = ["if x.size(0) > 2:", f"    {added}", "else:", f"    {name}.append({other})"]
        self._after.append(f"print({choose([name, f'sum({name}) / len({name})', f'max({name})'])})")
        return lines

    def _meter(self) -> list[str]:
        choose, name = self._random.choice, self._new("m")
        self._start(f"{name} = Meter()")
        given = choose(["x.size(0)", "n=len(x)", "1"])
        figure = choose(["mean", "sum", "last"])
        self._after.append(choose(SHOWN).format(f"{name}.{figure}"))
        return [f"{name}.update({self._fraction()}, {given})"]

    def _fraction(self) -> str:
        """Arithmetic with a fraction in it, or with a count that becomes one."""
        choose = self._random.choice
        value = choose([choose(FRACTIONS), *self._fractions])
        if self._random.random() < 0.4:
            count = choose([choose(COUNTS), *self._counts])
            value = choose(
                [
                    f"{count} / x.size(0)",
                    f"{count} * 0.7",
                    f"{value} * {count}",
                    f"{count} - {value}",
                ]
            )
        for _ in range(self._random.randint(0, 2)):
            value = choose([f"({value}) {{}} {{}}", f"{{1}} {{0}} ({value})", f"{value} {{}} {{}}"])
            value = value.format(choose("+-*"), choose(NUMBERS))
        return value

    def _count(self) -> str:
        choose = self._random.choice
        value = choose([choose(COUNTS), *self._counts])
        if self._random.random() < 0.4:
            value = choose([f"{value} {{}} {{}}", f"{{1}} {{0}} {value}"])
            value = value.format(choose("+-*"), choose([*WHOLE, *self._counts]))
        return value


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" if line else line for line in lines]


def printed(text: str) -> str:
    with redirect_stdout(io.StringIO()) as shown:
        exec(compile(text, "train.py", "exec"), {"__name__": "__main__"})
    return shown.getvalue()


def check(rewrite: Callable[..., Any], seeds: range) -> int:
    """How many programs changed; all of them must print the same as before."""
    changed = 0
    for seed in seeds:
        program = Programs(seed).program()
        (file,) = rewrite(program, ["defer-sync"]).files
        if file.changes:
            changed += 1
            assert printed(program) == printed(file.text), f"seed {seed}:\n{file.text}"
    return changed


@pytest.mark.torch
def test_the_same_is_printed(rewrite: Callable[..., Any]) -> None:
    assert check(rewrite, range(60)) > 30


@pytest.mark.slow
@pytest.mark.torch
def test_the_same_is_printed_by_many(rewrite: Callable[..., Any]) -> None:
    assert check(rewrite, range(1000, 1800)) > 400
