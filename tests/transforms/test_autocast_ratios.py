"""``autocast`` and ratios of probabilities to kept ones, and exponentials and quotients of other things."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Rewrite = Callable[..., RewriteResult]
HEAD = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Normal
from torch.utils.data import DataLoader
from rollouts import batches, memory


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(12800, 512))
        self.head = nn.Linear(512, 6)

    def forward(self, x):
        return self.head(self.body(x))

    def act(self, x):
        actions = Categorical(logits=self.head(self.body(x)))
        chosen = actions.sample()
        return chosen, actions.log_prob(chosen)

    def evaluate(self, x, chosen):
        actions = Categorical(logits=self.head(self.body(x)))
        return actions.log_prob(chosen), actions.entropy()


def clipped(new, old, advantages):
    ratio = torch.exp(new - old)
    return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()


def chances(logits):
    return Categorical(logits=logits)


policy = Policy().cuda()
older = Policy().cuda()
optimizer = torch.optim.Adam(policy.parameters())
for x, chosen, old, advantages in batches:
    x, chosen, old, advantages = x.cuda(), chosen.cuda(), old.cuda(), advantages.cuda()
"""
TAIL = """\
optimizer.zero_grad()
loss.backward()
optimizer.step()
"""
RATIOS = [
    """
    new, entropy = policy.evaluate(x, chosen)
    loss = clipped(new, old, advantages) - 0.01 * entropy.mean()
    """,
    """
    new, _ = policy.evaluate(x, chosen)
    change = new - memory.log_probs.detach()
    ratio = change.sum(-1).exp()
    loss = -(ratio * advantages).mean()
    """,
    """
    new = F.log_softmax(policy(x), dim=-1).gather(1, chosen)
    loss = -(torch.exp(new - torch.stack(memory.log_probs)) * advantages).mean()
    """,
    """
    new = torch.softmax(policy(x), dim=-1).gather(1, chosen)
    loss = -(new / old * advantages).mean()
    """,
    """
    new = Categorical(logits=policy(x)).log_prob(chosen)
    loss = -(torch.exp(new) / old * advantages).mean()
    """,
    """
    new, _ = policy.evaluate(x, chosen)
    loss = -((old - new).exp() * advantages).mean()
    """,
    """
    kept = chances(old)
    now = chances(policy(x))
    loss = -((now.log_prob(chosen) - kept.log_prob(chosen)).exp() * advantages).mean()
    """,
]
OTHERS = [
    # Nothing was kept: both are computed in this step.
    """
    new, _ = policy.evaluate(x, chosen)
    loss = -((new - new.detach()).exp() * advantages).mean()
    """,
    """
    new = F.log_softmax(policy(x), dim=-1)
    with torch.no_grad():
        reference = F.log_softmax(older(x), dim=-1)
    loss = (torch.exp(reference - new) - (reference - new) - 1).mean()
    """,
    # Focal loss, a temperature, a stable softmax, a weight per sample, a perplexity.
    """
    ce = F.cross_entropy(policy(x), chosen, reduction="none")
    loss = ((1 - torch.exp(-ce)) ** 2 * ce).mean()
    """,
    """
    out = policy(x) / 0.7
    out = torch.exp(out - out.max(dim=-1, keepdim=True).values)
    loss = (out / out.sum(-1, keepdim=True)).mean()
    """,
    """
    loss = (F.cross_entropy(policy(x), chosen, reduction="none") / advantages).mean()
    """,
    """
    loss = -F.log_softmax(policy(x), dim=-1).gather(1, chosen).mean()
    perplexity = torch.exp(loss)
    """,
    # Distances, and the variance of a VAE.
    """
    out = policy(x)
    loss = torch.exp(-(out - advantages) ** 2).mean()
    """,
    """
    out = policy(x)
    loss = (out.exp() + torch.exp(out - 1)).mean()
    """,
]


def rewritten(rewrite: Rewrite, step: str) -> str:
    source = HEAD + indent(dedent(step) + TAIL, "    ")
    files = {"train.py": source, "rollouts.py": "from memories import batches, memory\n"}
    file = rewrite(files, ["autocast"]).files[0]
    assert not file.errors
    return file.text if file.changes else file.skips[0].message


@pytest.mark.parametrize("step", RATIOS)
def test_ratios_to_kept_probabilities_keep_float32(rewrite: Rewrite, step: str) -> None:
    assert "ratio of a probability" in rewritten(rewrite, step)


@pytest.mark.parametrize("step", OTHERS)
def test_other_exponentials_and_quotients_run_under_autocast(rewrite: Rewrite, step: str) -> None:
    assert "torch.autocast" in rewritten(rewrite, step)


@pytest.mark.parametrize(("network", "kept"), [("policy", True), ("critic", False)])
def test_other_steps_of_the_same_network_keep_float32_too(
    rewrite: Rewrite, network: str, kept: bool
) -> None:
    auxiliary = (
        "layers = nn.Conv2d(4, 32, 8, stride=4), nn.Flatten(), nn.Linear(12800, 6)\n"
        "critic = nn.Sequential(*layers).cuda()\n"
        f"other = torch.optim.Adam({network}.parameters())\n"
        "for x, chosen, old, advantages in batches:\n"
        f"    loss = F.cross_entropy({network}(x.cuda()), chosen.cuda())\n"
        "    other.zero_grad()\n    loss.backward()\n    other.step()\n"
    )
    source = HEAD + indent(dedent(RATIOS[0]) + TAIL, "    ") + auxiliary
    files = {"train.py": source, "rollouts.py": "from memories import batches, memory\n"}
    file = rewrite(files, ["autocast"]).files[0]
    assert ("torch.autocast" in file.text) is not kept
    assert sum("ratio of a probability" in skip.message for skip in file.skips) == 1 + kept
