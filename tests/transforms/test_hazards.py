"""What real training scripts do that a careless rewrite breaks, over all the transforms it concerns."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.options import AmpDtype
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Rewrite = Callable[..., RewriteResult]

SETUP = """\
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(10, 10)
        self.fc = nn.Linear(10, 2)

    def encode(self, x):
        return self.enc(x)

    def forward(self, x):
        return self.fc(self.encode(x))


dataset = datasets.CIFAR10("data", transform=transforms.ToTensor())
loader = DataLoader(dataset, batch_size=4)
device = torch.device("cuda")
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters())
"""


def outcome(rewrite: Rewrite, code: str, *names: str, **options: object) -> tuple[str, str]:
    """The text after the transforms, and the reasons they give for what they left alone."""
    result = rewrite(SETUP + dedent(code), list(names), **options)
    [file] = result.files
    assert not file.errors
    return file.text, "\n".join(skip.message for skip in file.skips)


def test_optimizer_wrapper_whose_method_hides_the_step(rewrite: Rewrite) -> None:
    code = """
    class Scheduled:
        def __init__(self, optimizer):
            self._optimizer = optimizer

        def step_and_update_lr(self):
            self._optimizer.step()


    scheduled = Scheduled(optimizer)
    for x, y in loader:
        model.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        scheduled.step_and_update_lr()
    """
    text, _ = outcome(rewrite, code, "autocast")
    assert "scaler" not in text
    assert 'torch.autocast("cuda", dtype=torch.bfloat16, enabled=use_bf16)' in text
    text, reasons = outcome(rewrite, code, "autocast", amp=AmpDtype.FP16)
    assert "autocast" not in text
    assert "the optimizer steps inside a function of its own" in reasons


def test_update_written_by_hand(rewrite: Rewrite) -> None:
    code = """
    for x, y in loader:
        model.zero_grad()
        F.cross_entropy(model(x.to(device)), y.to(device)).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
    """
    text, reasons = outcome(rewrite, code, "autocast", amp=AmpDtype.FP16)
    assert "autocast" not in text
    assert "no optimizer step is seen" in reasons


def test_loss_without_a_name(rewrite: Rewrite) -> None:
    code = """
    for x, y in loader:
        optimizer.zero_grad()
        a = F.cross_entropy(model(x.to(device)), y.to(device))
        b = model(x.to(device)).pow(2).mean()
        (a + 0.1 * b).backward(); optimizer.step()
    """
    text, _ = outcome(rewrite, code, "autocast", amp=AmpDtype.FP16)
    assert "    scaler.scale(a + 0.1 * b).backward()" in text
    assert "scaler.step(optimizer)\n    scaler.update()\n" in text


def test_calls_that_bypass_the_network(rewrite: Rewrite) -> None:
    code = """
    for x, y in loader:
        optimizer.zero_grad()
        model.encode(x.to(device)).pow(2).mean().backward()
        optimizer.step()
    """
    text, reasons = outcome(rewrite, code, "compile")
    assert ".compile(" not in text
    assert "the step calls `model.encode`, which `compile` does not reach" in reasons


def test_checkpoints_of_the_network_itself(rewrite: Rewrite) -> None:
    """Compiled in place, it can be pickled, has the same keys and the same children."""
    code = """
    children = list(model.children())
    for epoch in range(100):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
        torch.save({"model": model, "state": model.state_dict()}, "checkpoint.pt")
    """
    text, _ = outcome(rewrite, code, "compile")
    assert "\nmodel.compile()\nfor epoch" in text
    assert "= torch.compile(" not in text


def test_guard_against_infinite_losses(rewrite: Rewrite) -> None:
    code = """
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        if not torch.isfinite(loss):
            continue
        loss.backward()
        optimizer.step()
    """
    text, _ = outcome(rewrite, code, "autocast", amp=AmpDtype.FP16)
    assert "    scaler.scale(loss).backward()\n    scaler.step(optimizer)\n" in text
    assert "    if not torch.isfinite(loss):\n        continue\n" in text


def test_accumulated_gradients(rewrite: Rewrite) -> None:
    code = """
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x.to(device)), y.to(device)) / 4
        loss.backward()
        if (i + 1) % 4 == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    """
    text, _ = outcome(rewrite, code, "autocast", amp=AmpDtype.FP16)
    assert text.endswith("""\
    scaler.scale(loss).backward()
    if (i + 1) % 4 == 0:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""")


def test_function_that_trains_and_evaluates_by_a_flag(rewrite: Rewrite) -> None:
    code = """
    def run(loader, train):
        total = 0.0
        for x, y in loader:
            out = model(x.to(device))
            loss = F.cross_entropy(out, y.to(device))
            if train:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item()
        return total


    run(loader, True)
    run(loader, False)
    """
    text, _ = outcome(rewrite, code, "no-grad", "autocast", amp=AmpDtype.FP16)
    assert "with torch.set_grad_enabled(train):" in text
    assert "@torch.no_grad()" not in text
    assert "            scaler.step(optimizer)\n            scaler.update()\n" in text


def test_evaluation_whose_results_train_later(rewrite: Rewrite) -> None:
    code = """
    features = []
    for x, y in loader:
        features.append(model(x.to(device)))
    centre = torch.cat(features).mean(0)
    for x, y in loader:
        optimizer.zero_grad()
        loss = (model(x.to(device)) - centre).pow(2).mean()
        loss.backward()
        optimizer.step()
    """
    text, reasons = outcome(rewrite, code, "no-grad")
    assert "no_grad" not in text
    assert "reaches a backward pass" in reasons


def test_iterator_started_anew_in_every_step(rewrite: Rewrite) -> None:
    code = """
    for step in range(1000):
        x, y = next(iter(loader))
        optimizer.zero_grad()
        F.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
    """
    text, reasons = outcome(rewrite, code, "dataloader-workers", "pin-memory", "non-blocking")
    assert "num_workers" not in text
    assert "would start the workers anew each time" in reasons
    assert "x.to(device, non_blocking=True)" in text


@pytest.mark.parametrize("rank", ['int(os.environ["LOCAL_RANK"])', "0"])
def test_integer_for_a_device(rewrite: Rewrite, rank: str) -> None:
    code = f"""
    rank = {rank}
    noise = torch.zeros(4, 10).to(rank)
    net = Net().to(rank)
    for batch in loader:
        net(batch[0].reshape(-1, 10).to(rank) + noise).sum().backward()
    for batch in loader:
        net(batch[0].to(rank)).sum().backward()
    """
    text, _ = outcome(rewrite, code, "pin-memory", "non-blocking", "device-construction")
    assert "noise = torch.zeros(4, 10, device=rank)" in text
    assert "net(batch[0].to(rank, non_blocking=True))" in text
    assert "pin_memory=True" in text


def test_batches_in_dicts_and_nested_tuples(rewrite: Rewrite) -> None:
    code = """
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}
        model(batch["image"]).sum().backward()
    for x, (y, z) in loader:
        F.cross_entropy(model(x.to(device)), y.to(device)).backward()
    """
    text, _ = outcome(rewrite, code, "pin-memory", "non-blocking")
    assert "{k: v.to(device, non_blocking=True) for k, v in batch.items()}" in text
    assert "model(x.to(device, non_blocking=True)), y.to(device, non_blocking=True)" in text


def test_draw_that_decides_a_split(rewrite: Rewrite) -> None:
    code = """
    order = torch.randperm(100).to(device)
    train, test = order[:80], order[80:]
    """
    text, reasons = outcome(rewrite, code, "device-construction")
    assert "torch.randperm(100).to(device)" in text
    assert "stays the CPU generator's" in reasons


def test_tensor_of_a_tensor(rewrite: Rewrite) -> None:
    code = """
    weights = torch.randn(3, requires_grad=True).to(device)
    copied = torch.tensor(weights).to(device)
    """
    text, reasons = outcome(rewrite, code, "device-construction")
    assert text == SETUP + dedent(code)
    assert "no leaf" in reasons
    assert "may be a tensor already" in reasons


def test_half_by_hand(rewrite: Rewrite) -> None:
    code = """
    model.half()
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x.to(device).half()), y.to(device)).backward()
        optimizer.step()
    """
    text, reasons = outcome(rewrite, code, "autocast")
    assert "autocast" not in text
    assert "`.half()` is in use already" in reasons
