"""``autocast`` and ``tf32`` where a network is quantized, where an optimizer changes an input of the network, and where it trains weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Rewrite = Callable[..., RewriteResult]
SEARCH = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from data import images

net = nn.Sequential(nn.Linear(3072, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
loader = DataLoader(images, batch_size=512)


def fit(x, y):
    {made}
    optimizer = torch.optim.Adam({given}, lr=0.01)
    for step in range(100):
        loss = nn.functional.cross_entropy(net({read}), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


for x, y in loader:
    fit(x.cuda(), y.cuda())
"""
INPUTS = [
    ("delta = torch.zeros_like(x, requires_grad=True)", "[delta]", "x + delta"),
    ("x.requires_grad_()", "[x]", "x"),
    ("w = nn.Parameter(x.clone())", "[{'params': [w], 'lr': 0.1}]", "w.tanh()"),
    ("w = x.clone().requires_grad_(True)\n    changed = [w]", "changed", "w"),
    (
        "x.requires_grad = True\n    more = []\n    more.append(x.clone())\n    for one in more:\n"
        "        one.requires_grad = True",
        "[x] + more",
        "x + more[0]",
    ),
]
WEIGHTS = [
    ("pass", "net.parameters()", "x"),
    ("pass", "[p for p in net.parameters() if p.requires_grad]", "x"),
    ("pass", "[net[0].weight, net[2].weight]", "x"),
    (
        "scale = torch.ones(1, device='cuda', requires_grad=True)",
        "[scale, *net.parameters()]",
        "x * scale",
    ),
    ("x.requires_grad = True", "[x] + list(net.parameters())", "x"),
    (
        "more = []\n    more.append(net[0].weight)\n    x.requires_grad = True",
        "[x] + more",
        "x",
    ),
]


def reasons(rewrite: Rewrite, name: str, made: str, given: str, read: str) -> tuple[bool, str]:
    (file,) = rewrite(SEARCH.format(made=made, given=given, read=read), [name]).files
    assert not file.errors
    return bool(file.changes), " ".join(skip.message for skip in file.skips)


@pytest.mark.parametrize("name", ["autocast", "tf32"])
@pytest.mark.parametrize(("made", "given", "read"), INPUTS)
def test_inputs_that_an_optimizer_changes_keep_float32(
    rewrite: Rewrite, name: str, made: str, given: str, read: str
) -> None:
    changed, said = reasons(rewrite, name, made, given, read)
    assert not changed
    assert "changes an input of the network" in said


@pytest.mark.parametrize("name", ["autocast", "tf32"])
@pytest.mark.parametrize(("made", "given", "read"), WEIGHTS)
def test_weights_are_no_inputs(
    rewrite: Rewrite, name: str, made: str, given: str, read: str
) -> None:
    changed, said = reasons(rewrite, name, made, given, read)
    assert changed or "input of the network" not in said
    assert changed or name == "tf32", said


@pytest.mark.parametrize(
    ("imported", "used", "quantizes"),
    [
        ("from torch.ao.quantization import prepare_qat", "prepare_qat(net, inplace=True)", True),
        ("import brevitas.nn as qnn", "net.append(qnn.QuantLinear(10, 10))", True),
        ("import bitsandbytes as bnb", "net.append(bnb.nn.Linear8bitLt(10, 10))", True),
        ("import bitsandbytes as bnb", "print(bnb.__version__)", False),
    ],
)
def test_quantized_networks_keep_float32(
    rewrite: Rewrite, imported: str, used: str, quantizes: bool
) -> None:
    source = SEARCH.format(made="pass", given="net.parameters()", read="x")
    source = source.replace("loader =", f"{used}\nloader =").replace(
        "import torch\n", f"import torch\n{imported}\n", 1
    )
    (file,) = rewrite(source, ["autocast"]).files
    assert any("quantizes" in skip.message for skip in file.skips) is quantizes
    assert bool(file.changes) is not quantizes
