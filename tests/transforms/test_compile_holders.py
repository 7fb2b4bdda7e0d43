"""A network that a step calls inside another one, which holds it: `GaussianDiffusion(unet)`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Check = Callable[..., None]

SCRIPT = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(x).relu()


class Diffusion(nn.Module):
    def __init__(self, net, steps):
        super().__init__()
        self.net = net
        self.steps = steps

    def forward(self, x):
        noise = torch.randn_like(x){more}
        return nn.functional.mse_loss(self.net(x + noise), noise)


net = Net().cuda()
diffusion = Diffusion(net, 10){moved}
optimizer = torch.optim.Adam(net.parameters())
{compiled}for epoch in range(100):
    for x in loader:
        optimizer.zero_grad()
        loss = diffusion(x.cuda()){beside}
        loss.backward()
        optimizer.step()
"""


@pytest.fixture
def name() -> str:
    return "compile"


def script(more: str = "", moved: str = "", compiled: str = "", beside: str = "") -> str:
    return SCRIPT.format(more=more, moved=moved, compiled=compiled, beside=beside)


def test_the_network_around_it(check_transformed: Check) -> None:
    compiled = "diffusion.compile()\n"
    check_transformed(script(moved=".cuda()"), script(moved=".cuda()", compiled=compiled))


def test_the_network_around_it_is_not_moved_itself(check_transformed: Check) -> None:
    check_transformed(script(), script(compiled="diffusion.compile()\n"))


def test_what_is_called_by_itself_is_compiled_alone(check_transformed: Check) -> None:
    beside = " + net(x.cuda()).mean()"
    check_transformed(script(beside=beside), script(compiled="net.compile()\n", beside=beside))


def test_the_network_around_it_leaves_the_graph(check_noop: Check) -> None:
    more = "\n        print(noise.sum())"
    check_noop(script(more=more), reason="printing breaks the graph")


def test_the_network_around_it_takes_gradients(check_noop: Check) -> None:
    more = "\n        torch.autograd.grad(self.net(x).mean(), self.net.parameters())"
    check_noop(script(more=more), reason="gradients that are taken inside of it break the graph")


GAN = """\
import torch
from torch import nn


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Linear(8, 1)

    def noise(self, n):
        return torch.randn(n, 8, device="cuda")

    def fit(self, loader, optimizer):
        for epoch in range(100):
            for x in loader:
                optimizer.zero_grad()
                loss = (self.critic(x.cuda()) - self.critic(self.noise(len(x)))).mean()
                loss.backward()
                optimizer.step()


gan = GAN().cuda()
gan.fit(loader, torch.optim.Adam(gan.critic.parameters()))
"""


def test_parts_that_a_network_calls_are_no_methods_of_it(
    rewrite: Callable[..., RewriteResult],
) -> None:
    (file,) = rewrite(GAN, ["compile"]).files
    assert not any("does not reach" in skip.message for skip in file.skips)
