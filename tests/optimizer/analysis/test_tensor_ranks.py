"""How many dimensions tensors are seen to have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.tensors.tensor_ranks import TensorRanks

HEAD = """\
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

def heads(x):
    return x.view(x.size(0), -1, 4, 16).permute(0, 2, 1, 3)

def same(x):
    return x

def either(x):
    if x.is_cuda:
        return x.view(2, 3)
    return x.view(2, 3, 4)

class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.scale = size ** -0.5
        self.table = nn.Parameter(torch.zeros(5))

    def forward(self, x, shape):
        B, T, C = x.shape
        y = x.view(B, T, 4, 16)
        qkv = x.reshape(B, T, 3, 4, 16).permute(2, 0, 3, 1, 4)
        q, k, v = qkv
        first, second = y.chunk(2, dim=-1)
        a, b = map(lambda t: rearrange(t, "b n (h d) -> b h n d", h=4), (x, x))
        c, d = [t.view(B, T, 4, 16).transpose(1, 2) for t in (x, x)]
        passed = same(y)
        loop = x
        loop = loop.unsqueeze(1)
        ASK({0})
"""


@pytest.fixture
def rank_of(script: Callable[..., TrainingScript]) -> Callable[[str], int | None]:
    def ask(expression: str) -> int | None:
        understood = script(HEAD.format(expression))
        module = understood.entry
        (call,) = (call for call in module.calls if module.code(call.func) == "ASK")
        return TensorRanks(understood.resolver).of(call.args[0], module)

    return ask


@pytest.mark.parametrize(
    ("expression", "rank"),
    [
        ("y", 4),
        ("x.view((B, T))", 2),
        ("y.transpose(1, 2).contiguous()", 4),
        ("y.permute(0, 2, 1, 3)", 4),
        ("qkv", 5),
        ("qkv[0]", 4),
        ("q", 4),
        ("qkv.unbind(0)[1]", 3),
        ("first", 4),
        ("a", 4),
        ("c", 4),
        ("passed", 4),
        ("heads(x)", 4),
        ("rearrange(x, 'b n (h d) -> (b h) n d', h=4)", 3),
        ('torch.einsum("bhid,bhjd->bhij", q, k)', 4),
        ("y.unsqueeze(1)", 5),
        ("y.unflatten(-1, (2, 8))", 5),
        ("y * self.scale", 4),
        ("2 * y / 3", 4),
        ("y + q", 4),
        ("F.softmax(y, dim=-1)", 4),
        ("F.dropout(y.softmax(-1), 0.1)", 4),
    ],
)
def test_tells_the_rank(rank_of: Callable[[str], int | None], expression: str, rank: int) -> None:
    assert rank_of(expression) == rank


@pytest.mark.parametrize(
    "expression",
    [
        "x",
        "x.view(shape)",
        "x.view(*shape)",
        "either(x)",
        "rearrange(x, '... (h d) -> ... h d', h=4)",
        "torch.einsum(shape, x)",
        "loop",
        "y * self.table",
        "y.mean()",
    ],
)
def test_does_not_tell_what_it_does_not_know(
    rank_of: Callable[[str], int | None], expression: str
) -> None:
    assert rank_of(expression) is None
