"""``ddp`` where seeds are drawn, and what hangs on them in every process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

SCRIPT = """\
import argparse
import random
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--gamma", type=float, default=0.1)
args = parser.parse_args()
SEED
data = TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(9):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * args.gamma**epoch
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""
Rewrite = Callable[..., RewriteResult]


def after(rewrite: Rewrite, seed: str, script: str = SCRIPT) -> tuple[str, str]:
    """The text, and the reason of the change; else the reason why there is none."""
    file = rewrite(script.replace("SEED", seed), ["ddp"], gpus=2).files[0]
    assert not file.errors
    told = [change.reason for change in file.changes] or [skip.message for skip in file.skips]
    return file.text, told[0]


@pytest.mark.parametrize(
    ("drawn", "common"),
    [
        ("random.randint(1, 10000)", "int(of_first_process(random.randint(1, 10000)))"),
        ("np.random.randint(1000)", "int(of_first_process(np.random.randint(1000)))"),
        ("int(time.time())", "int(of_first_process(int(time.time())))"),
    ],
)
def test_the_first_process_draws_the_seed(rewrite: Rewrite, drawn: str, common: str) -> None:
    seed = "if args.seed is None:\n    args.seed = DRAWN\ntorch.manual_seed(args.seed)\n"
    text, _ = after(rewrite, seed.replace("DRAWN", drawn))
    assert f"    args.seed = {common}\n" in text
    assert text.index("init_process_group") < text.index(common)
    assert "DistributedSampler(data, seed=args.seed)" in text
    assert 'group["lr"] = 0.1 * args.gamma**epoch\n' in text


@pytest.mark.parametrize(
    "seed",
    [
        "seed = args.seed or random.randint(1, 99)\ntorch.manual_seed(seed)\n",
        "seed = random.randint(1, 99) if args.seed is None else args.seed\ntorch.manual_seed(seed)\n",
        "def set_seed(seed):\n    torch.manual_seed(seed)\n\n\nset_seed(random.randint(1, 99))\n",
    ],
)
def test_where_the_seed_is_drawn(rewrite: Rewrite, seed: str) -> None:
    text, _ = after(rewrite, seed)
    assert "int(of_first_process(random.randint(1, 99)))" in text


@pytest.mark.parametrize(
    "seed",
    [
        "torch.manual_seed(args.seed or 3)\n",
        "torch.manual_seed(3)\nnumber = random.randint(1, 99)\n",
    ],
)
def test_seeds_that_are_the_same_anyway(rewrite: Rewrite, seed: str) -> None:
    text, _ = after(rewrite, seed)
    assert "of_first_process" not in text


@pytest.mark.parametrize(
    "seed",
    [
        "torch.manual_seed(hash(str(time.time())))\n",
        "seed = 0\nfor _ in range(3):\n    seed = random.randint(1, 99)\ntorch.manual_seed(seed)\n",
    ],
)
def test_seeds_that_differ_do_not_seed_the_sampler(rewrite: Rewrite, seed: str) -> None:
    text, _ = after(rewrite, seed)
    assert "DistributedSampler(data)" in text


SPLIT = SCRIPT.replace("loader = ", "data, rest = random_split(data, [30, 10]OPTIONS)\nloader = ")


@pytest.mark.parametrize(
    ("seed", "options", "refused"),
    [
        ("", "", "drawn without a seed"),
        ("torch.manual_seed(3)", "", None),
        ("torch.manual_seed(random.randint(1, 99))", "", None),
        ("torch.manual_seed(hash(str(time.time())))", "", "so is its seed"),
        ("torch.manual_seed(3)\nnp.random.seed()", "", None),
        ("", ", generator=torch.Generator().manual_seed(3)", None),
        ("", ", generator=torch.Generator().manual_seed(hash(time.time()))", "so is its seed"),
    ],
)
def test_splits(rewrite: Rewrite, seed: str, options: str, refused: str | None) -> None:
    text, reason = after(rewrite, seed, SPLIT.replace("OPTIONS", options))
    assert ("DistributedSampler(data" in text) is (refused is None)
    assert refused is None or refused in reason


@pytest.mark.parametrize(
    ("seed", "refused"),
    [("np.random.seed(3)", False), ("np.random.seed()", True), ("np.random.seed(None)", True)],
)
def test_seeds_of_the_system(rewrite: Rewrite, seed: str, refused: bool) -> None:
    script = SCRIPT.replace("loader = ", "order = np.random.permutation(40)\nloader = ")
    _, reason = after(rewrite, seed, script)
    assert ("so is its seed" in reason) is refused
