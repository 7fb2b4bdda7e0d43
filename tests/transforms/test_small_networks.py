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


TABLE = SCRIPT.replace(
    "model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 3)).cuda()",
    """
class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(9000, 256)

    def forward(self, x):
        return score(self.rows(x))


def score(rows):
    return (rows * rows).sum(-1)


model = Scores().cuda()
""",
)
NO_PRODUCTS = "its networks compute no matrix products and no convolutions"


def test_networks_without_products_gain_nothing_from_half_precision(rewrite: Rewrite) -> None:
    done, said = changed(rewrite, TABLE)
    assert "autocast" not in done
    assert NO_PRODUCTS in said["autocast"]
    assert "autocast" in changed(rewrite, TABLE, amp=AmpDtype.BF16)[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rows * rows", "rows @ rows.mT"),
        ("nn.Embedding(9000, 256)", "nn.Sequential(nn.Embedding(9000, 256), other())"),
        ("return score(self.rows(x))", "return self.other(self.rows(x))"),
        ("model(x.cuda()), y.cuda())", "model(x.cuda()) @ W, y.cuda())"),
    ],
)
def test_others_may_compute_products(rewrite: Rewrite, old: str, new: str) -> None:
    code = TABLE.replace("class Scores", "W = torch.randn(256, 3).cuda()\n\nclass Scores")
    code = code.replace("class Scores", "from somewhere import other\n\nclass Scores", 1)
    assert old in code
    said = changed(rewrite, code.replace(old, new))[1]
    assert NO_PRODUCTS not in said.get("autocast", "")


PROBE = """
class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4096, 3)

    def forward(self, x):
        return self.fc(x)


model = MADE
"""


@pytest.mark.parametrize(
    ("made", "compiled"),
    [
        ("nn.Linear(4096, 3).cuda()", False),
        ("nn.Sequential(nn.Flatten(), nn.Linear(4096, 3)).cuda()", False),
        ("Probe().cuda()", False),
        ("nn.Sequential(nn.Linear(4096, 3), nn.ReLU(), nn.Linear(3, 3)).cuda()", True),
        ("nn.Sequential(nn.BatchNorm1d(4096), nn.Linear(4096, 3)).cuda()", True),
    ],
)
def test_one_linear_layer_is_not_compiled(rewrite: Rewrite, made: str, compiled: bool) -> None:
    line = "model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 3)).cuda()"
    code = SCRIPT.replace(line, PROBE.replace("MADE", made)).replace("(9000, 16)", "(9000, 4096)")
    code = code.replace("batch_size=64", "batch_size=65_536")
    done, said = changed(rewrite, code)
    assert ("compile" in done) is compiled
    assert ("the network is one linear layer" in said.get("compile", "")) is not compiled
    asked = {"compile_mode": CompileMode.DEFAULT}
    assert "compile" in changed(rewrite, code, **asked)[0]


ACTS = """
import gymnasium
import torch
from torch import nn

env = gymnasium.make("ALE/Pong-v5")
model = nn.Sequential(nn.Conv2d(3, 64, 8, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(6)).cuda()
optimizer = torch.optim.Adam(model.parameters())
state, _ = env.reset()
for update in range(1000):
    losses = []
    for step in range(20):
        logits = model(torch.from_numpy(state).cuda().float().permute(2, 0, 1)[None])
        action = logits.argmax(1)
        state, reward, done, _, _ = env.step(action.item())
        losses.append(-reward * logits.log_softmax(1)[0, action])
    loss = torch.cat(losses).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_networks_that_act_as_they_compute_gain_nothing_from_half_precision(
    rewrite: Rewrite,
) -> None:
    done, said = changed(rewrite, ACTS)
    assert "autocast" not in done
    assert "choose one action after the other (`env.step(action.item())`)" in said["autocast"]
    assert "autocast" in changed(rewrite, ACTS, amp=AmpDtype.BF16)[0]


def test_what_was_collected_before_is_learned_from_in_half_precision(rewrite: Rewrite) -> None:
    batch = "    frames = torch.randn(256, 3, 84, 84).cuda()\n    loss = model(frames).logsumexp(1).mean()\n"
    code = ACTS.replace("    loss = torch.cat(losses).sum()\n", batch)
    code = code.replace("        losses.append(-reward * logits.log_softmax(1)[0, action])\n", "")
    assert "autocast" in changed(rewrite, code)[0]
