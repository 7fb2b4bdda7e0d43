"""autocast: what is told of scripts whose own autocast is off, or around a part of their steps alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Check = Callable[..., None]
Rewrite = Callable[..., Any]

TRAIN = """\
import torch
from torch import nn

model = nn.Linear(8, 2).cuda()
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.CrossEntropyLoss()


def train(model, loader, optimizer, scaler=None):
    for x, y in loader:
        optimizer.zero_grad()
        {loss}
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()


train(model, loader, optimizer{given})
"""
SWITCHED = """with torch.autocast("cuda", enabled=scaler is not None):
            loss = criterion(model(x.cuda()), y.cuda())"""
CHOSEN = """if scaler:
            with torch.autocast("cuda"):
                loss = criterion(model(x.cuda()), y.cuda())
        else:
            loss = criterion(model(x.cuda()), y.cuda())"""
GAN = """\
import torch
from torch import nn

G = {g}.cuda()
D = nn.Linear(8, 1).cuda()
criterion = nn.BCEWithLogitsLoss()
opt_g = torch.optim.Adam(G.parameters())
opt_d = torch.optim.Adam(D.parameters())
scaler = torch.amp.GradScaler("cuda")


def of_generator(noise, ones):
    loss = criterion(D(G(noise)), ones)
    return loss


for x, ones, zeros, noise in loader:
    opt_d.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss_d = criterion(D(x), ones) + criterion(D(G(noise).detach()), zeros)
    scaler.scale(loss_d).backward()
    scaler.step(opt_d)
    scaler.update()
    opt_g.zero_grad()
    {loss}
    loss_g.backward()
    opt_g.step()
"""
GENERATOR = "loss_g = criterion(D(G(noise)), ones)"
PARTS = {"g": "nn.Linear(8, 8)", "loss": GENERATOR}
OUTSIDE = "stays in float32: the script's own autocast is not around it"


@pytest.fixture
def name() -> str:
    return "autocast"


@pytest.mark.parametrize("loss", [SWITCHED, CHOSEN])
def test_a_scaler_that_nothing_gives(check_noop: Check, loss: str) -> None:
    reason = "the step runs under autocast where `scaler` is given, and no call gives one"
    check_noop(TRAIN.format(loss=loss, given=""), reason)


@pytest.mark.parametrize("loss", [SWITCHED, CHOSEN])
def test_a_scaler_that_is_given(check_noop: Check, loss: str) -> None:
    given = ", torch.amp.GradScaler('cuda')"
    check_noop(TRAIN.format(loss=loss, given=given), silent=True)


def test_a_network_that_the_autocast_leaves_out(check_noop: Check) -> None:
    check_noop(GAN.format(**PARTS), f"`D(G(noise))` {OUTSIDE}")


@pytest.mark.parametrize(
    "changed",
    [
        {"loss": f"with torch.autocast('cuda', enabled=False):\n        {GENERATOR}"},
        {"loss": f"with torch.autocast('cuda', dtype=torch.float16):\n        {GENERATOR}"},
        {
            "loss": "with torch.autocast('cuda', dtype=torch.float16):\n"
            "        loss_g = of_generator(noise, ones)"
        },
        {
            "loss": f"if plain:\n        {GENERATOR}\n    else:\n"
            f"        with torch.autocast('cuda', dtype=torch.float16):\n            {GENERATOR}"
        },
    ],
)
def test_networks_under_autocast_or_deliberately_not(
    check_noop: Check, changed: dict[str, str]
) -> None:
    check_noop(GAN.format(**PARTS | changed), silent=True)


def test_a_forward_pass_that_is_decorated(check_noop: Check) -> None:
    network = """class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 1)

    @torch.autocast("cuda", dtype=torch.float16)
    def forward(self, x):
        return self.fc(x)


G = """
    gan = GAN.format(**PARTS | {"g": "nn.Linear(8, 8)"})
    gan = gan.replace("G = ", network, 1).replace("D = nn.Linear(8, 1)", "D = Net()")
    check_noop(gan, silent=True)


def test_steps_of_another_network(check_noop: Check) -> None:
    other = """
student = nn.Linear(8, 1).cuda()
opt_s = torch.optim.Adam(student.parameters())
for x, ones, zeros, noise in loader:
    opt_s.zero_grad()
    criterion(student(x), ones).backward()
    opt_s.step()
"""
    check_noop(
        GAN.format(**PARTS) + other,
        "the step stays in float32: the script's own autocast is around other steps alone",
    )


def test_a_network_that_stays_on_the_host_beside_one_that_is_moved(rewrite: Rewrite) -> None:
    """Each step is asked where its own network is: what is on the CPU is not computed in half precision there."""
    moved = """\
import torch
from torch import nn

big = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 2)).cuda()
optimizer = torch.optim.Adam(big.parameters())
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(big(x.cuda()), y.cuda()).backward()
    optimizer.step()
"""
    kept = """\
head = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 2))
head_optimizer = torch.optim.Adam(head.parameters())
for x, y in features:
    head_optimizer.zero_grad()
    nn.functional.cross_entropy(head(x), y).backward()
    head_optimizer.step()
"""
    (file,) = rewrite(moved + kept, ["autocast"]).files
    assert file.text.endswith(kept)
    assert "with torch.autocast" in file.text
    assert [skip.message for skip in file.skips] == ["the network is not seen to be moved to a GPU"]


def test_a_step_beside_one_under_autocast_that_could_not_have_been_put_there(
    check_noop: Check,
) -> None:
    """That autocast is in use already is no reason for a step that it is not around."""
    labelled = """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 2)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for x, _ in loader:
    x = x.cuda()
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        with torch.no_grad():
            labels = model(x).argmax(1)
        loss = nn.functional.cross_entropy(model(x), labels)
    loss.backward()
    optimizer.step()
"""
    sought = """\
image = torch.rand(1, 4096, device="cuda").requires_grad_()
search = torch.optim.Adam([image])
for _ in range(10000):
    search.zero_grad()
    model(image).sum().backward()
    search.step()
"""
    check_noop(labelled + sought, "the optimizer changes an input of the network and not weights")
