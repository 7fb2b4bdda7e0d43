"""autocast holds back where an operation that CUDA has for float32 alone would be given half precision."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.options import AmpDtype
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 2)
        self.W = nn.Parameter(torch.eye(2))

    def forward(self, x):
{forward}


model = Net().cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    x, y = x.cuda(), y.cuda()
    optimizer.zero_grad()
    output = model(x)
{step}
    loss.backward()
    optimizer.step()
"""
IMPLEMENTED = "is not implemented for half precision"
MAGNIFIES = "magnifies the rounding of half precision"


def training(step: str, forward: str) -> str:
    """A script whose network runs ``forward`` and whose steps run ``step``."""
    return SCRIPT.format(forward=indent(dedent(forward), " " * 8), step=indent(step, " " * 4))


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        ("return torch.special.bessel_j0(self.fc(x))", IMPLEMENTED),
        ("return torch.special.bessel_j0(self.fc(x).float())", None),
        ("return torch.special.entr(self.fc(x).sigmoid())", None),
        ("return torch.special.ndtri(torch.softmax(self.fc(x), 1))", None),
        ("h = self.fc(x)\nreturn torch.igamma(h.abs() + 1, h)", IMPLEMENTED),
        ("h = self.fc(x)\nreturn h + h.histc(10).sum()", IMPLEMENTED),
        ("h = self.fc(x)\nreturn h + torch.svd_lowrank(h, 2)[1].sum()", IMPLEMENTED),
        ("h = self.fc(x)\nreturn h + torch.cholesky_inverse(h.t() @ h).sum()", IMPLEMENTED),
        ("h = self.fc(x)\nreturn h + h.inverse()", IMPLEMENTED),
        ("h = self.fc(x)\nreturn h + self.flows[0].inverse(h)", None),
        ("h = self.fc(x).float()\nreturn h + torch.linalg.svdvals(h).sum()", MAGNIFIES),
        ("return self.fc(x) @ torch.matrix_exp(self.fc(x))", MAGNIFIES),
        ("return self.fc(x) @ torch.linalg.inv(x.t().float())", MAGNIFIES),
        ("return self.fc(x) + torch.linalg.svdvals(self.fc.weight @ self.W).sum()", IMPLEMENTED),
        ("return self.fc(x) + torch.linalg.svdvals(self.W + torch.eye(2)).sum()", None),
        ("return self.fc(x) + torch.linalg.slogdet(self.W)[1]", "wants float32"),
        ("return self.fc(x) + torch.linalg.vector_norm(self.fc(x))", None),
        ("return torch.distributions.Beta(self.fc(x), 1.0).rsample()", IMPLEMENTED),
        ("h = F.softplus(self.fc(x)) + 1\nreturn torch.distributions.Beta(h, 1.0).rsample()", None),
        ("return torch.distributions.Gamma(self.fc(x), 1.0).rsample()", None),
    ],
)
def test_operations_for_float32_alone(
    rewrite: Callable[..., RewriteResult], forward: str, said: str | None
) -> None:
    source = training("loss = criterion(output, y)", forward)
    (file,) = rewrite(source, ["autocast"]).files
    assert bool(file.changes) == (said is None), file.skips
    assert said is None or said in file.skips[0].message


@pytest.mark.parametrize(
    ("use", "after"),
    [
        ("torch.histc(output, 10)", "torch.histc(output.float(), 10)"),
        ("torch.linalg.svdvals(output.detach())", "torch.linalg.svdvals(output.detach().float())"),
        ("output.detach().quantile(0.5)", "output.detach().float().quantile(0.5)"),
        ("torch.linalg.svdvals(model.fc.weight)", "torch.linalg.svdvals(model.fc.weight)"),
    ],
)
def test_operations_for_float32_alone_behind_the_step(
    rewrite: Callable[..., RewriteResult], use: str, after: str
) -> None:
    source = training("loss = criterion(output, y)", "return self.fc(x)") + f"    print({use})\n"
    (file,) = rewrite(source, ["autocast"], amp=AmpDtype.BF16).files
    assert f"    print({after})" in file.text


@pytest.mark.parametrize(
    ("forward", "step", "is_done"),
    [
        ("return self.fc(x).log_softmax(2)", "loss = F.ctc_loss(output, y, y, y)", True),
        (
            "return self.fc(x).log_softmax(2).requires_grad_()",
            "loss = F.ctc_loss(output, y, y, y)",
            True,
        ),
        ("return F.log_softmax(self.fc(x), 2)", "loss = nn.CTCLoss()(output, y, y, y)", True),
        ("return self.fc(x)", "loss = F.ctc_loss(output, y, y, y)", False),
        ("return self.fc(x).float()", "loss = x.float().index_add(0, y, output).sum()", True),
        ("return self.fc(x).softmax(1)", "loss = x.float().index_add(0, y, output).sum()", False),
        ("return self.fc(x)", "loss = x.float().index_add(0, y, output).sum()", False),
        (
            "return self.fc(x).float().softmax(1)",
            "m = torch.zeros_like(output)\nloss = m.scatter_add_(1, y, output * x).sum()",
            True,
        ),
    ],
)
def test_what_a_network_returns_in_float32(
    rewrite: Callable[..., RewriteResult], forward: str, step: str, is_done: bool
) -> None:
    source = training(step, forward).replace(
        "for x, y in loader", "loader = torch.utils.data.DataLoader(read())\nfor x, y in loader"
    )
    (file,) = rewrite(source, ["autocast"]).files
    assert bool(file.changes) == is_done, file.skips


def test_rows_of_bounded_length_by_the_same_name(rewrite: Callable[..., RewriteResult]) -> None:
    """Normalized rows make a product with themselves of at most one."""
    source = training("loss = alike(output)", "return self.fc(x)").replace(
        "model = Net()",
        "def alike(z):\n    z = F.normalize(z, dim=1)\n    return torch.matmul(z, z.T).sum()\n\n\nmodel = Net()",
    )
    (file,) = rewrite(source, ["autocast"]).files
    assert "not in float16" not in file.changes[0].message
