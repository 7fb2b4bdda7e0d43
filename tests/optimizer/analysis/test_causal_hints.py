"""Calls of transformers that are not told that their mask is causal."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]

HEAD = """\
import torch
from torch import nn

n = 5
both = nn.Transformer(16, 2)
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2), 1)
decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 2), 1)
causal = torch.ones(n, n).triu(1).bool()
nothing = torch.zeros(n, n).bool()
x = torch.rand(n, 1, 16)
"""


def hints(script: Script, call: str) -> list[tuple[str, bool]]:
    return [(h.keyword, h.is_causal) for h in script(HEAD + dedent(call)).causal_hints]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("both(x, x, tgt_mask=causal)", [("tgt_is_causal", True)]),
        (
            "both(x, x, nothing, causal, None, None, None, None)",
            [("src_is_causal", False), ("tgt_is_causal", True)],
        ),
        ("encoder(x, causal)", [("is_causal", True)]),
        ("encoder(x, mask=causal, src_key_padding_mask=None)", [("is_causal", True)]),
        ("decoder(x, x, causal)", [("tgt_is_causal", True)]),
    ],
)
def test_masks_that_are_compared(script: Script, call: str, expected: object) -> None:
    assert hints(script, call) == expected


@pytest.mark.parametrize(
    "call",
    [
        "both(x, x, tgt_mask=causal, tgt_is_causal=None)",
        "both(x, x, memory_mask=causal)",
        "both(x, x)",
        "both(x, x, None, causal, None, None, None, None, None, True)",
        "encoder(x, causal, None, True)",
        "encoder(x, ~causal)",
        "encoder(*[x, causal])",
        "more = {}\nencoder(x, causal, **more)",
        "(encoder if n > 3 else decoder)(x, causal)",
        "encoder.layers[0](x, causal)",
    ],
)
def test_nothing_is_to_be_said(script: Script, call: str) -> None:
    assert hints(script, call) == []
