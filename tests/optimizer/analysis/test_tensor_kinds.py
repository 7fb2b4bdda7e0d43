"""Which expressions are certainly tensors of floats or of integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchopt_cli.optimizer.analysis.loading.batches import BatchTrace
from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.tensors.tensor_kinds import TensorKind, TensorKinds

HEAD = """\
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from data import train_set

model = nn.Linear(3, 2).cuda()
criterion = nn.CrossEntropyLoss()

def own_loss(output, target):
    return criterion(output, target) + 0.1 * output.pow(2).sum()

def both(output, target):
    return own_loss(output, target), (output.argmax(1) == target).sum(), len(target)

def shares(output, target):
    found = []
    for k in (1, 2):
        found.append((output.argmax(1) == target).float().sum().mul_(100.0 / k))
    return found

def mixed(output, target):
    found = []
    found.append(output.sum())
    found.append(target.sum().item())
    return found

def changed(output, target):
    found = []
    found.append(output.sum())
    found[0] = 1.0
    return found

def handed(output, target):
    found = []
    found.append(output.sum())
    fill(found)
    return found

def written(output, target):
    return [output.mean(), target.argmax()]

for x, y in DataLoader(train_set):
    host = x
    x, y = x.cuda(), y.cuda()
    output = model(x)
    values, indices = output.max(1)
    loss = criterion(output, y)
    twice = loss
    twice *= 2
    number = loss.item()
    first, second, third = both(output, y)
    ASK({0})
"""


def asked_kind(script: TrainingScript) -> TensorKind:
    """The kind of the argument of ``ASK``."""
    kinds = TensorKinds(script.resolver, BatchTrace(script.resolver, script.loaders))
    module = script.entry
    (call,) = (call for call in module.calls if module.code(call.func) == "ASK")
    return kinds.of(call.args[0], module)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("loss", "float"),
        ("twice", "float"),
        ("own_loss(output, y)", "float"),
        ("F.nll_loss(output, y, reduction='sum')", "float"),
        ("nn.MSELoss()(output, y)", "float"),
        ("-loss", "float"),
        ("loss / len(y)", "float"),
        ("2.0 * output.sum()", "float"),
        ("(output.argmax(1) == y).float().mean()", "float"),
        ("(output == y).to(torch.float32).sum()", "float"),
        ("torch.sum(output == y, dtype=torch.float)", "float"),
        ("output.detach().mean()", "float"),
        ("loss.data", "float"),
        ("loss.mul_(2)", "float"),
        ("shares(output, y)[0]", "float"),
        ("written(output, y)[0]", "float"),
        ("written(output, y)[1]", "integer"),
        ("both(output, y)[1]", "integer"),
        ("mixed(output, y)[0]", "unknown"),
        ("changed(output, y)[0]", "unknown"),
        ("handed(output, y)[0]", "unknown"),
        ("(output.argmax(1) == y).sum()", "integer"),
        ("torch.eq(indices, y).sum()", "integer"),
        ("indices.eq(y).long().sum()", "integer"),
        ("indices", "integer"),
        ("((indices == y) & (indices == 1)).sum()", "integer"),
        ("2 * (indices == y).sum()", "integer"),
        ("output.max(1)[1].eq(y).sum()", "integer"),
        ("torch.max(output, 1)[1]", "integer"),
        ("torch.max(something(x), 1)[1] == y", "integer"),
        ("loss.expand(3).topk(2)[0]", "float"),
        ("loss.expand(3).topk(2).values", "float"),
        ("output.topk(5).indices", "integer"),
        ("(torch.max(output, 1).indices == y).sum()", "integer"),
        ("output.softmax(1).masked_select(output > 0).sum()", "float"),
        ("torch.zeros_like(indices).scatter(0, indices, 1)", "integer"),
        ("torch.where(output > 0, 1, 0).eq(y).sum()", "integer"),
        ("torch.where(output > 0, 1.0, 0)", "float"),
        ("((something(x) - 1) > 0).float().mean()", "float"),
        ("(something(x) > 0).long().sum()", "integer"),
        ("(output.argmax(1) == y).mul(0.5).sum()", "float"),
        ("indices.mul(2)", "integer"),
        ("torch.mul(indices, loss)", "float"),
        ("first", "float"),
        ("second", "integer"),
        ("third", "host"),
        ("values", "tensor"),
        ("indices.mul(output).sum()", "tensor"),
        ("indices.clamp(min=bound)", "tensor"),
        ("torch.where(output > 0, output, 0)", "tensor"),
        ("torch.bincount(indices, weights=x).sum()", "tensor"),
        ("output", "tensor"),
        ("y.sum()", "tensor"),
        ("number", "host"),
        ("loss.item()", "host"),
        ("loss.cpu()", "host"),
        ("loss.to('cpu')", "host"),
        ("len(y) * 2", "host"),
        ("loss.ndimension()", "host"),
        ("isinstance(y, list)", "unknown"),
        ("not isinstance(y, list)", "unknown"),
        ("output.detach().cpu().numpy().mean()", "host"),
        ("np.mean(number)", "host"),
        ("host", "unknown"),
        ("host.sum()", "unknown"),
        ("model.weight", "unknown"),
        ("something(output)", "unknown"),
        ("something(output).max(1)[1]", "unknown"),
        ("something(output).max(1).values", "unknown"),
        ("something(output).float()", "unknown"),
        ("output.max()[1]", "unknown"),
        ("output[0]", "unknown"),
        ("loss * something", "unknown"),
    ],
)
def test_kinds(script: Callable[..., TrainingScript], code: str, kind: str) -> None:
    asked = script(HEAD.format(code))
    assert asked_kind(asked) is TensorKind(kind)


def test_what_was_answered_on_the_way_is_not_asked_again(
    script: Callable[..., TrainingScript], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that, each of the functions is gone through three times as often as the one that calls it."""
    layers = "\n".join(
        f"def f{n}(a):\n    return f{n - 1}(a) * f{n - 1}(a) + f{n - 1}(a)\n" for n in range(1, 5)
    )
    head = HEAD.replace("for x, y", f"def f0(a):\n    return a.relu()\n{layers}\nfor x, y")
    asked: list[object] = []
    evaluate = TensorKinds._evaluate

    def counted(self: TensorKinds, *question: Any) -> TensorKind:
        asked.append(question[0])
        return evaluate(self, *question)

    monkeypatch.setattr(TensorKinds, "_evaluate", counted)
    asked_kind(script(head.format("f4(output)")))
    assert len(asked) < 60


def test_a_network_that_returns_numbers(script: Callable[..., TrainingScript]) -> None:
    asked = script("""
        import torch
        from torch import nn

        class Net(nn.Module):
            def forward(self, x):
                score = x.sum()
                return x, score.item()

        output, score = Net()(torch.ones(3))
        ASK(score)
    """)
    assert asked_kind(asked) is TensorKind.UNKNOWN
