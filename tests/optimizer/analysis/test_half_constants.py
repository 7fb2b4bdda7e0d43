"""Constants that a half-precision type cannot hold."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.analysis.calls.reach import Reached
from torchopt_cli.optimizer.analysis.precision.half_constants import constant_obstacle
from torchopt_cli.optimizer.analysis.script import TrainingScript

HEAD = """
import torch
import torch.nn.functional as F

MASKED = -1e9
LOWEST = torch.finfo(torch.float32).min
LIMITS = {{"low": -1e9, "high": 1e4}}


class Attention:
    EPS = 1e-12

    def __init__(self, fill=-1e9):
        self.fill = fill

    def run(self, half, x, mask, floor=1e-10):
{body}


Attention().run(read(), read(), read())
"""

FLOAT16 = "float16"
BOTH = "half precision"


@pytest.mark.parametrize(
    ("body", "type_"),
    [
        ("half.masked_fill(mask, -1e9)", FLOAT16),
        ("half.masked_fill_(mask, MASKED)", FLOAT16),
        ("half.masked_fill(mask, self.fill)", FLOAT16),
        ("torch.full_like(half, -1e9)", FLOAT16),
        ("torch.full_like(half, -1e9, dtype=torch.float32)", None),
        ("torch.full((3, 3), -1e9)", None),
        ("half.new_full((3, 3), -1e9)", FLOAT16),
        ("half.fill_(-1e9)", FLOAT16),
        ("F.pad(half, (0, 1), value=-1e9)", FLOAT16),
        ("torch.where(mask, half, -1e9)", FLOAT16),
        ("torch.where(mask, half, torch.tensor(-1e9))", FLOAT16),
        ("half[mask] = MASKED", FLOAT16),
        ("half.clamp(-1e9, 1e9)", FLOAT16),
        ("half.clamp(max=1e9)", FLOAT16),
        ("half.clamp_max(1e9)", FLOAT16),
        ("half.clamp_min(-1e9)", FLOAT16),
        ("torch.clamp_max(half, 1e9)", FLOAT16),
        ("half.nan_to_num(0.0, neginf=-1e9)", FLOAT16),
        ("half.clamp_max(1e4)", None),
        ("half.nan_to_num()", None),
        ("half.masked_fill(mask, LIMITS['low'])", FLOAT16),
        ("half.masked_fill(mask, LIMITS['high'])", None),
        ("half.masked_fill(mask, torch.finfo(torch.bfloat16).min)", FLOAT16),
        ("half.masked_fill(mask, torch.finfo(torch.float16).min)", None),
        ("torch.full((3, 3), -1e9, dtype=half.dtype)", FLOAT16),
        ("torch.full((3, 3), LOWEST, dtype=half.dtype)", BOTH),
        ("torch.full((3, 3), -1e4, dtype=half.dtype)", None),
        ("torch.full((3, 3), -1e9, dtype=torch.float32)", None),
        ("half * MASKED", FLOAT16),
        ("half += -1e9", FLOAT16),
        ("half.masked_fill(mask, LOWEST)", BOTH),
        ("half.masked_fill(mask, torch.finfo(torch.float32).min)", BOTH),
        ("half[mask] = -torch.finfo(torch.float32).max", BOTH),
        ("half * LOWEST", BOTH),
        ("x.masked_fill(mask, LOWEST)", FLOAT16),
        ("x * MASKED", None),
        ("x + MASKED", None),
        ("half.masked_fill(mask, torch.finfo(half.dtype).min)", None),
        ("half.masked_fill(mask, float('-inf'))", None),
        ("half.masked_fill(mask, -1e4)", None),
        ("half + 1e-12", FLOAT16),
        ("half += self.EPS", FLOAT16),
        ("torch.add(half, floor)", FLOAT16),
        ("half.clamp(min=self.EPS)", FLOAT16),
        ("half.clamp_min(floor)", FLOAT16),
        ("torch.clamp(half, min=floor)", FLOAT16),
        ("torch.maximum(half, torch.tensor(1e-12))", FLOAT16),
        ("half.clamp(min=0)", None),
        ("half.clamp(min=1e-6)", None),
        ("half + 1e-6", None),
        ("3 + 1e-12", None),
        ("half - x", None),
        ("half.float().masked_fill(mask, -1e9)", None),
        ("torch.softmax(half, 1) + 1e-12", None),
        ("p = half.softmax(1) * 512\n(p + 1e-10).log()", None),
        ("(1 - torch.exp(-half)).clamp(min=1e-10)", None),
        ("torch.zeros(3, 3).masked_fill(mask, -1e9)", None),
        ("torch.sigmoid(half) + 1e-12", FLOAT16),
        ("torch.zeros_like(half).masked_fill(mask, -1e9)", FLOAT16),
    ],
)
def test_constants(script: Callable[..., TrainingScript], body: str, type_: str | None) -> None:
    understood = script(HEAD.format(body=indent(dedent(body), " " * 8)))
    module = understood.entry
    found = [
        obstacle
        for node in module.nodes
        if (
            obstacle := constant_obstacle(
                understood.resolver,
                Reached(node, module, True),
                lambda node, module: module.code(node) == "half",
            )
        )
    ]
    assert [f"in {type_}" in obstacle.message for obstacle in found] == [True] * bool(type_)
    assert all(obstacle.float16_only is (type_ == FLOAT16) for obstacle in found)
