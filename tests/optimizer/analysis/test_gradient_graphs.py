"""Which backward passes may build a graph of the gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.autograd.gradient_graphs import gradient_graphs
from torchopt_cli.optimizer.analysis.script import TrainingScript

HEAD = """
import torch
from torch import nn

model = nn.Linear(2, 2)


class Scaler:
    def __call__(self, loss, optimizer, create_graph=False):
        loss.backward(create_graph=create_graph)
        optimizer.step()


scaler = Scaler()
"""
CALL = """
is_second_order = hasattr(optimizer, "is_second_order") and optimizer.is_second_order
scaler(model(torch.ones(2)).sum(), optimizer, create_graph=is_second_order)
"""
CHOSEN = """
import timm

def make(name):
    optimizer = None
    if name == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    elif name == "adamw":
        optimizer = torch.optim.AdamW(model.parameters())
    return optimizer

optimizer = make("sgd")
"""


@pytest.mark.parametrize(
    ("made", "count"),
    [
        (CHOSEN, 0),
        (
            "try:\n    from apex.optimizers import FusedAdam\nexcept ImportError:\n    FusedAdam = None\n"
            + CHOSEN.replace("torch.optim.AdamW", "FusedAdam"),
            0,
        ),
        (CHOSEN.replace("torch.optim.AdamW", "timm.optim.Adahessian"), 2),
        ("from timm.optim import create_optimizer\noptimizer = create_optimizer(None, model)", 2),
    ],
)
def test_only_optimizers_of_second_order_ask_for_one(
    script: Callable[..., TrainingScript], made: str, count: int
) -> None:
    assert len([*gradient_graphs(script(HEAD + made + CALL).resolver)]) == count


@pytest.mark.parametrize(
    ("bound", "count"),
    [
        ("import chamfer", 0),
        ("from torch.utils.cpp_extension import load\nchamfer = load(name='c', sources=[])", 0),
        (
            "from torch.utils import cpp_extension\nif find('chamfer'):\n    import chamfer\n"
            "else:\n    chamfer = cpp_extension.load_inline(name='c', cpp_sources='')",
            0,
        ),
        ("chamfer = find('chamfer')", 1),
        ("from losses import chamfer", 1),
    ],
)
def test_functions_of_extensions_are_no_backward_passes(
    script: Callable[..., TrainingScript], bound: str, count: int
) -> None:
    call = "\nchamfer.backward(torch.ones(2), torch.ones(2), torch.ones(2))\n"
    assert len([*gradient_graphs(script("import torch\n" + bound + call).resolver)]) == count
