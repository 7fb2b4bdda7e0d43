"""Cosines times a constant, as people write them."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.analysis.calls.reach import Reached
from torchopt_cli.optimizer.analysis.precision.scaled_similarities import scaled_similarities
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]

HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn

TEMPERATURE = 0.01


def unit(x):
    return F.normalize(x, dim=-1)


def loss(x, y, scale, temperature=0.02):
"""
COSINES = "s = F.normalize(x, dim=1) @ F.normalize(y, dim=1).t()\n"


@pytest.mark.parametrize(
    ("body", "types"),
    [
        (COSINES + "return s / 0.01", {"bfloat16"}),
        (COSINES + "return s / TEMPERATURE", {"bfloat16"}),
        (COSINES + "s /= TEMPERATURE\nreturn s", {"bfloat16"}),
        (COSINES + "return s.div(TEMPERATURE)", {"bfloat16"}),
        (COSINES + "return torch.exp(torch.div(s, TEMPERATURE))", {"bfloat16"}),
        (COSINES + "return 64.0 * (s - 0.35)", {"bfloat16"}),
        (COSINES + "return s * 1000", {"half precision"}),
        (COSINES + "return s / temperature", set()),
        (COSINES + "return s / 0.07", set()),
        (COSINES + "return s * scale", set()),
        (COSINES + "return s * scale.exp()", set()),
        (COSINES + "return s - (1 - y) * 1e4", set()),
        ("return 100.0 * unit(x) @ unit(y).t()", {"bfloat16"}),
        ("a = x / x.norm(dim=-1, keepdim=True)\nreturn torch.mm(a, a.t()) * 100", {"bfloat16"}),
        ("x /= x.norm(dim=-1, keepdim=True)\nreturn x.mm(x.t()) * 100", {"bfloat16"}),
        ("return torch.einsum('nc,mc->nm', unit(x), unit(y)).mul(100)", {"bfloat16"}),
        ("return F.linear(F.normalize(x), F.normalize(y)) * 100", {"bfloat16"}),
        ("return x @ y.t() * 100", set()),
        ("return unit(x) @ y.t() * 100", set()),
        ("return F.cosine_similarity(x, y) * 100", set()),
    ],
)
def test_scaled_similarities(script: Script, body: str, types: set[str]) -> None:
    understood = script(HEAD + indent(dedent(body), "    ") + "\n")
    module = understood.entry
    nodes = [Reached(node, module, True) for node in module.nodes]
    obstacles = list(scaled_similarities(understood.resolver, nodes))
    assert {o.message.rpartition(" in ")[2] for o in obstacles} == types
    assert all(o.bfloat16_only == ("bfloat16" in o.message) for o in obstacles)
