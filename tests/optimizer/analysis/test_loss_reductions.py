"""How losses are reduced, checked against what they are: the loss of a batch beside those of its two halves."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest
import torch

from torchopt_cli.optimizer.analysis.distributed.distributed_obstacles import loss_reduction
from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.training.reductions import Reduced, Reduction

HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

"""
NETWORK = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)

    def forward(self, x):
        return self.body(x)

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LOOP = """
for x, y in loader:
    out = model(x)
{step}
    loss.backward()
    optimizer.step()
"""
FOCAL = """
class Focal(nn.Module):
    def __init__(self, gamma=2.0, average=True):
        super().__init__()
        self.gamma, self.average = gamma, average

    def forward(self, scores, target):
        each = F.cross_entropy(scores, target, reduction={reduction!r})
        loss = (1 - torch.exp(-each)) ** self.gamma * each
        if self.average:
            return loss.mean()
        return loss.sum()

criterion = {made}
"""
SMOOTHED = """
def criterion(scores, gold, smoothing=True):
    gold = gold.contiguous().view(-1)
    if smoothing:
        eps = 0.2
        classes = scores.size(1)
        hot = torch.zeros_like(scores).scatter(1, gold.view(-1, 1), 1)
        hot = hot * (1 - eps) + (1 - hot) * eps / (classes - 1)
        loss = -(hot * F.log_softmax(scores, dim=1)).sum(dim=1).mean()
    else:
        loss = F.cross_entropy(scores, gold, reduction='mean')
    return loss
"""
DICE = """
def criterion(scores, target):
    p = torch.sigmoid(scores[:, 0])
    return 1 - 2 * (p * target).sum() / (p.sum() + target.sum())
"""
VAE = """
def criterion(scores, target):
    mean, logvar = scores.chunk(2, dim=1)
    error = F.mse_loss(mean, torch.zeros_like(mean), reduction='sum')
    return error - 0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())
"""
WORDS = """
def criterion(scores, target):
    mask = (target != 0).float()
    each = F.cross_entropy(scores, target, reduction='none')
    return (each * mask).sum() / mask.sum()
"""
SEVERAL = """
losses = [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(label_smoothing=0.1)]

def criterion(scores, target):
    total = 0.0
    for weight in (0.5, 1.5):
        total += weight * losses[0](scores, target)
    return total
"""
RMSE = """
def criterion(scores, target):
    return torch.sqrt(F.mse_loss(scores[:, 0], target.float()))
"""
SIZED = """
def criterion(scores, size):
    return scores.pow(2).sum() / ({by})
"""
BY_SIZE = "    loss = criterion(out, out.shape)"
CALLED = "    loss = criterion(out, y)"
CASES: dict[str, tuple[str, str, Reduction | None]] = {
    "cross entropy": ("", "    loss = F.cross_entropy(out, y)", Reduction.MEAN),
    "focal": (FOCAL.format(reduction="none", made="Focal()"), CALLED, Reduction.MEAN),
    "summed focal": (
        FOCAL.format(reduction="none", made="Focal(average=False)"),
        CALLED,
        Reduction.SUM,
    ),
    "focal of the mean": (FOCAL.format(reduction="mean", made="Focal()"), CALLED, Reduction.MIXED),
    "either": (
        FOCAL.format(reduction="none", made="Focal() if optimizer else nn.CrossEntropyLoss()"),
        CALLED,
        Reduction.MEAN,
    ),
    "smoothed": (SMOOTHED, CALLED, Reduction.MEAN),
    "dice": (DICE, CALLED, Reduction.MIXED),
    "vae": (VAE, CALLED, Reduction.SUM),
    "vae by samples": (VAE, "    loss = criterion(out, y) / x.size(0)", Reduction.MEAN),
    "vae by len": (VAE, "    loss = criterion(out, y) / len(x)", Reduction.MEAN),
    "words": (WORDS, CALLED, Reduction.WEIGHTED),
    "several": (SEVERAL, CALLED, Reduction.MEAN),
    "root": (RMSE, CALLED, Reduction.MIXED),
    "square": ("", "    loss = F.cross_entropy(out, y) ** 2", Reduction.MIXED),
    "product": (
        "",
        "    loss = F.cross_entropy(out, y) * (out ** 2).mean()",
        Reduction.MIXED,
    ),
    "sum of two": (
        "",
        "    loss = F.cross_entropy(out, y)\n    loss = loss + 0.1 * (out ** 2).mean()",
        Reduction.MEAN,
    ),
    "added to": (
        "",
        "    loss = F.cross_entropy(out, y)\n    loss += 0.1 * out.abs().sum(dim=1).mean()",
        Reduction.MEAN,
    ),
    "mean and sum": (
        "",
        "    loss = F.cross_entropy(out, y)\n    loss += out.abs().sum()",
        None,
    ),
    "penalty": (
        "",
        "    loss = F.cross_entropy(out, y) + 0.1 * sum(0.5 * p.norm() for p in model.parameters())",
        None,
    ),
    "largest": ("", "    loss = out.max(dim=1)[0].mean()", None),
    "along the batch": (
        "",
        "    loss = -F.log_softmax(out, dim=0).mean(dim=1).sum()",
        Reduction.MIXED,
    ),
    "normalized over the batch": (
        "",
        "    loss = F.cross_entropy(F.normalize(out, dim=0), y)",
        Reduction.MIXED,
    ),
    "each with each": (
        "",
        "    near = (out.unsqueeze(0) - out.unsqueeze(1)).pow(2).sum(2)\n    loss = (1 / (1 + near)).mean()",
        Reduction.MIXED,
    ),
    "each with each, indexed": (
        "",
        "    near = F.cosine_similarity(out[:, None], out.detach()[None], dim=2)\n"
        "    loss = F.cross_entropy(near, y)",
        Reduction.MIXED,
    ),
    "each with each in a product": (
        "",
        "    loss = F.cross_entropy(F.linear(out, F.normalize(out)), y)",
        Reduction.MIXED,
    ),
    "each with each in a product of tensors": (
        "",
        "    loss = F.cross_entropy(torch.tensordot(out, out, dims=([1], [1])), y)",
        Reduction.MIXED,
    ),
    "same classes": (
        "",
        "    same = (y[None, :] == y[:, None]).float()\n    loss = (same * out.sum(1)).sum(1).mean()",
        Reduction.MIXED,
    ),
    "weights of classes": (
        "weights = torch.arange(6.0)\n",
        "    loss = (out * weights.unsqueeze(0) + weights[None]).pow(2).mean()",
        Reduction.MEAN,
    ),
    "a layer of weights": (
        "weights = torch.ones(6, 6)\n",
        "    loss = F.cross_entropy(F.linear(out, weights), y)",
        Reduction.MEAN,
    ),
    "divergence": (
        "",
        "    loss = F.kl_div(F.log_softmax(out, 1), F.softmax(x.sum(1, keepdim=True) * out.detach(), 1), reduction='batchmean')",
        Reduction.MEAN,
    ),
    "divergence of a layer": (
        "criterion = nn.KLDivLoss(reduction='batchmean')\n",
        "    loss = criterion(F.log_softmax(out / 2, dim=1), F.softmax(out.detach(), dim=1))",
        Reduction.MEAN,
    ),
    "other samples": ("", "    loss = (out - out[0]).pow(2).mean()", None),
    "centred": ("", "    loss = (out - out.mean(dim=0)).pow(2).mean()", Reduction.MIXED),
    "halves": (
        "",
        "    one, other = out.chunk(2, dim=0)\n    loss = (one - other).pow(2).mean()",
        None,
    ),
    "columns": ("", "    loss = (out[:, 0] - out[:, 1]).pow(2).mean()", Reduction.MEAN),
    "of the mean": ("", "    loss = F.cross_entropy(out, y).exp()", Reduction.MIXED),
    "clamped samples": ("", "    loss = out.clamp(min=0.1).mean()", Reduction.MEAN),
    "mean over rows": ("", "    loss = (out ** 2).mean(0).sum()", Reduction.MEAN),
    "by itself": ("", "    loss = (out ** 2).sum() / out.abs().sum()", Reduction.MIXED),
    "one hot": (
        "",
        "    hot = torch.zeros(out.size())\n    hot.scatter_(1, y.view(-1, 1), 1)\n"
        "    loss = -(hot * F.log_softmax(out, dim=1)).sum(dim=1).mean()",
        Reduction.MEAN,
    ),
    "centred in place": (
        "",
        "    each = out.abs()\n    each.sub_(out.mean())\n    loss = (each ** 2).mean()",
        Reduction.MIXED,
    ),
    "first one set": (
        "",
        "    each = F.cross_entropy(out, y, reduction='none')\n    each = each * 1\n"
        "    each[0] = each.sum()\n    loss = each.mean()",
        None,
    ),
    "by its shape": (SIZED.format(by="size[0] * size[-1]"), BY_SIZE, Reduction.MEAN),
    "by another size": (SIZED.format(by="size[1]"), BY_SIZE, Reduction.SUM),
    "by a sum of sizes": (SIZED.format(by="size[0] + size[1]"), BY_SIZE, None),
    "sizes unpacked": (
        "",
        "    count, width = out.size()\n    loss = out.abs().sum() / (count * width)",
        Reduction.MEAN,
    ),
    "column set": (
        "",
        "    each = out.abs()\n    each[:, 1] = 2 * x[:, 0]\n    loss = (each * out).mean()",
        Reduction.MEAN,
    ),
    "column set to a mean": (
        "",
        "    each = out.abs()\n    each[:, 1] = x.mean()\n    loss = (each * out).mean()",
        Reduction.MIXED,
    ),
    "set further down": (
        "",
        "    each = out.abs()\n    loss = each.mean()\n    each = out.detach() * 1\n    each[0] = loss.item()",
        Reduction.MEAN,
    ),
    "set behind its use": (
        "",
        "    each = out.detach() * 1\n    loss = (out + each).pow(2).mean()\n    each[0] = 0.0",
        Reduction.MEAN,
    ),
    "set in the pass before": (
        "weights = torch.ones(6)\n",
        "    loss = (out + weights).pow(2).mean()\n    weights[:] = out.detach().mean(0)",
        None,
    ),
    "set by another name in the pass before": (
        "weights = torch.ones(6)\n",
        "    w = weights\n    loss = (out + w).pow(2).mean()\n    w[:] = out.detach().mean(0)",
        None,
    ),
    "set in a part of the batch": (
        "",
        "    first = x[:, 1:]\n    loss = (out * first.sum(1, keepdim=True)).mean()\n    first = first * 1\n    first[0] = 0.0",
        Reduction.MEAN,
    ),
    "a part of something of its own that is set": (
        "",
        "    kept = {'out': out.detach() * 1}\n    w = kept['out']\n    loss = (out + w).pow(2).mean()\n    w[0] = 0.0",
        Reduction.MEAN,
    ),
    "transposed": ("", "    loss = (out.T @ out).pow(2).mean()", None),
}


def written(case: str) -> str:
    before, step, _ = CASES[case]
    return HEAD + NETWORK + before + LOOP.format(step=step)


def reduced(understood: TrainingScript) -> Reduced:
    """How the loss of the one step is reduced."""
    (step,) = understood.step_code
    return loss_reduction(understood.resolver, step, step.backwards[0])


@pytest.mark.parametrize("case", CASES)
def test_reduction(script: Callable[..., TrainingScript], case: str) -> None:
    understood = script(written(case))
    found = reduced(understood)
    assert found is CASES[case][2]


def gradients(case: str, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    """The gradient of the network's weights that the script ``case`` computes from each of ``batches``."""
    tree = ast.parse(written(case))
    loop = tree.body.pop()
    names: dict[str, object] = {}
    torch.manual_seed(0)
    exec(compile(tree, case, "exec"), names)
    assert isinstance(loop, ast.For)
    loop.body.pop()  # the optimizer's step
    found: list[torch.Tensor] = []
    for batch in batches:
        model = names["model"]
        assert isinstance(model, torch.nn.Module)
        model.zero_grad()
        module = ast.Module([loop], [])
        exec(compile(module, case, "exec"), names | {"loader": [batch]})
        gradient = next(model.parameters()).grad
        assert gradient is not None
        found.append(gradient.clone())
    return found


@pytest.mark.parametrize("case", CASES)
def test_what_the_halves_of_a_batch_add_up_to(case: str) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(12, 4), torch.randint(6, (12,))
    whole, first, second = gradients(case, [(x, y), (x[:6], y[:6]), (x[6:], y[6:])])
    is_mean = torch.allclose(whole, (first + second) / 2, atol=1e-6)
    is_sum = torch.allclose(whole, first + second, atol=1e-6)
    match CASES[case][2]:
        case Reduction.MEAN:
            assert is_mean
        case Reduction.SUM:
            assert is_sum
        case Reduction.WEIGHTED:
            counts = [(part != 0).sum() for part in (y[:6], y[6:])]
            mixed = (first * counts[0] + second * counts[1]) / sum(counts)
            assert torch.allclose(whole, mixed, atol=1e-6)
        case _ if case not in {"penalty", "largest"}:  # means that are not understood
            assert not is_mean
            assert not is_sum
        case _:
            assert is_mean


@pytest.mark.parametrize("body", ["return loss.mean()", "return loss.mean(), loss"])
def test_loss_in_another_file(script: Callable[..., TrainingScript], body: str) -> None:
    losses = f"import torch.nn.functional as F\n\ndef each(scores, y):\n    loss = F.cross_entropy(scores, y, reduction='none')\n    {body}\n"
    step = "    loss = each(out, y)" if "," not in body else "    loss, _ = each(out, y)"
    text = HEAD + "from losses import each\n" + NETWORK + LOOP.format(step=step)
    understood = script({"train.py": text, "losses.py": losses})
    found = reduced(understood)
    assert found is Reduction.MEAN


def test_results_of_several_heads(script: Callable[..., TrainingScript]) -> None:
    """How many there are is no number of samples, nor is one of them a sample."""
    several = NETWORK.replace("return self.body(x)", "return [self.body(x), self.body(x)]")
    for step, reduction in (
        ("    loss = F.cross_entropy(out[0], y, reduction='sum') / len(out)", None),
        ("    loss = F.cross_entropy(out[0], y) + F.cross_entropy(out[1], y)", Reduction.MEAN),
    ):
        understood = script(HEAD + several + LOOP.format(step=step))
        found = reduced(understood)
        assert found is reduction


def test_a_function_that_reads_what_the_loop_sets(script: Callable[..., TrainingScript]) -> None:
    """A global of the script: it is part of the batch, not a number."""
    own = "def scaled(loss):\n    return loss * scale\n"
    step = "    scale = x.mean()\n    loss = scaled(F.cross_entropy(out, y))"
    understood = script(HEAD + NETWORK + own + LOOP.format(step=step))
    assert reduced(understood) is None


def test_a_step_in_a_function(script: Callable[..., TrainingScript]) -> None:
    step = "    loss = ((model(x) - y.float()[:, None]) ** 2).mean()"
    text = (
        HEAD + NETWORK + f"def step(x, y):\n{step}\n    loss.backward()\n    optimizer.step()\n\n"
    )
    understood = script(text + "for x, y in loader:\n    step(x, y)\n")
    found = reduced(understood)
    assert found is Reduction.MEAN


def test_a_network_with_more_ways_through_it_than_can_be_gone(
    script: Callable[..., TrainingScript],
) -> None:
    """As in U-Nets, each feature is used twice: 2 ** 60 ways from the batch to the loss."""
    layers = "".join("        x = up(self.body(x), x)\n" for _ in range(60))
    up = "def up(source, target):\n    source = F.interpolate(source, target.shape[2:])\n    return source + target\n"
    network = NETWORK.replace("        return self.body(x)\n", f"{layers}        return x\n")
    understood = script(HEAD + up + network + LOOP.format(step="    loss = F.mse_loss(out, y)"))
    found = reduced(understood)
    assert found is Reduction.MEAN
