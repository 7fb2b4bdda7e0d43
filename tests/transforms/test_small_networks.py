"""Networks so small that a step waits for the host are not compiled nor taken to half precision, unless that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from torchopt_cli.optimizer.options import AmpDtype, CompileMode
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult
from torchopt_cli.transforms.registry import all_transforms

Rewrite = Callable[..., RewriteResult]

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(9000, 16), torch.randint(3, (9000,)))
loader = DataLoader(data, batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 3)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(20):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
"""
ABOUT = frozenset({"autocast", "compile", "tf32"})


def changed(rewrite: Rewrite, text: str, **options: Any) -> tuple[set[str], dict[str, str]]:
    """Which of the three change ``text`` in a plain rewrite, and what the others say."""
    names = [transform.name for transform in all_transforms()]
    (file,) = rewrite(text, names, **{"select": frozenset[str](), **options}).files
    done = {change.transform for change in file.changes} & ABOUT
    return done, {skip.transform: skip.message for skip in file.skips if skip.transform in ABOUT}


def test_a_small_network_is_left_alone(rewrite: Rewrite) -> None:
    done, said = changed(rewrite, SCRIPT)
    assert done == set()
    assert said.keys() == ABOUT
    for message in said.values():
        assert "its layers have 2,048 weights at most, for 64 rows a batch" in message


def test_a_larger_one_is_not(rewrite: Rewrite) -> None:
    wide = SCRIPT.replace("128", "65_536").replace("16, 65_536", "64, 65_536")
    assert changed(rewrite, wide)[0] == {"autocast", "compile"}
    assert changed(rewrite, SCRIPT.replace("batch_size=64", "batch_size=65_536"))[0] == {
        "autocast",
        "compile",
    }


def test_many_small_layers_are_compiled(rewrite: Rewrite) -> None:
    deep = SCRIPT.replace("nn.Linear(128, 3)", "*[nn.Linear(128, 128) for _ in range(8)]")
    done, said = changed(rewrite, deep)
    assert done == {"compile"}
    assert said.keys() == {"autocast", "tf32"}


@pytest.mark.parametrize(
    ("options", "done"),
    [
        ({"amp": AmpDtype.BF16}, {"autocast"}),
        ({"compile_mode": CompileMode.DEFAULT}, {"compile"}),
        ({"select": frozenset({"autocast"})}, {"autocast"}),
        ({"select": frozenset({"compile"})}, {"compile"}),
        ({"select": frozenset({"tf32"})}, {"tf32"}),
    ],
)
def test_it_is_done_where_it_is_asked_for(
    rewrite: Rewrite, options: dict[str, Any], done: set[str]
) -> None:
    assert changed(rewrite, SCRIPT, **options)[0] == done


def test_the_decision_stays_when_the_loader_was_rewritten(rewrite: Rewrite) -> None:
    names = [transform.name for transform in all_transforms()]
    (file,) = rewrite(SCRIPT, names, select=frozenset()).files
    assert "BatchSampler(" in file.text
    assert changed(rewrite, file.text)[0] == set()
