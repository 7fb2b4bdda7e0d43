"""``no-grad`` where forward hooks keep what layers compute: for a backward pass, or as plain numbers."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

SCRIPT = """\
import torch
from torch import nn

net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8)).eval()
kept = {{}}
every = []


def keep(module, inputs, output):
    kept["h"] = output


def keep_numbers(module, inputs, output):
    kept["h"] = output.detach().cpu()


def keeper(name):
    def hook(module, inputs, output):
        kept[name] = output

    return hook


class Keeper:
    def save(self, module, inputs, output):
        self.h = output


saved = Keeper()
{registered}
x = torch.rand(2, 4, requires_grad=True)
"""
DREAM = """\
for step in range(20):
    net(x)
    {read}.pow(2).mean().backward()
    with torch.no_grad():
        x += x.grad
        x.grad.zero_()
"""
Rewrite = Callable[..., RewriteResult]


@pytest.mark.parametrize(
    ("registered", "read"),
    [
        ("net[1].register_forward_hook(keep)", 'kept["h"]'),
        ("net[1].register_forward_hook(hook=keep)", 'kept["h"]'),
        ("net[1].register_forward_hook(keeper('h'))", 'kept["h"]'),
        ("net[1].register_forward_hook(lambda m, i, o: every.append(o))", "every.pop()"),
        ("net[2].register_forward_pre_hook(lambda m, i: every.extend(i))", "every.pop()"),
        ("net[1].register_forward_hook(saved.save)", "saved.h"),
    ],
)
def test_what_a_hook_keeps_is_differentiated(rewrite: Rewrite, registered: str, read: str) -> None:
    source = SCRIPT.format(registered=registered) + DREAM.format(read=read)
    (file,) = rewrite(source, ["no-grad"]).files
    assert not file.changes


def test_a_hook_that_is_not_known(rewrite: Rewrite) -> None:
    source = SCRIPT.replace("import torch\n", "import torch\nimport made\n", 1)
    source = source.format(registered="net[1].register_forward_hook(getattr(made, 'h'))")
    (file,) = rewrite(source + DREAM.format(read="made.kept"), ["no-grad"]).files
    assert not file.changes


def test_what_a_hook_keeps_is_a_number(rewrite: Rewrite) -> None:
    start = SCRIPT.format(registered="net[1].register_forward_hook(keep_numbers)")
    loop = """\
        for step in range(20):
            net(torch.rand(2, 4))
            print(kept["h"].mean().item())
    """
    (file,) = rewrite(start + dedent(loop), ["no-grad"]).files
    assert file.text == f"{start}with torch.no_grad():\n{indent(dedent(loop), '    ')}"
