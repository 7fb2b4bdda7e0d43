"""What is known of optimizers beside a GradScaler and beside checkpoints."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.optimizers.fused_updates import fused_momentum
from torchopt_cli.optimizer.analysis.optimizers.optimizer_state import loads_optimizer_state
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = "import torch\nfrom torch import nn\nnet = nn.Linear(2, 2)\n"


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("torch.optim.SGD(net.parameters(), lr=1, momentum=0.9, fused=True)", True),
        ("torch.optim.SGD(net.parameters(), 1, momentum, fused=flag)", True),
        ("torch.optim.SGD(net.parameters(), 1, fused=True, **more)", True),
        ("getattr(torch.optim, name)(net.parameters(), 1, momentum=0.9, fused=True)", True),
        ("torch.optim.SGD(net.parameters(), 1, 0.9, fused=False)", False),
        ("torch.optim.SGD(net.parameters(), 1, 0.0, fused=True)", False),
        ("torch.optim.SGD(net.parameters(), 1, fused=True)", False),
        ("torch.optim.SGD(net.parameters(), 1, 0.9)", False),
        ("torch.optim.Adam(net.parameters(), fused=True)", False),
    ],
)
def test_fused_momentum(script: Script, made: str, found: bool) -> None:
    assert (fused_momentum(script(f"{HEAD}{made}\n").resolver) is not None) is found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("net.load_state_dict(state)", False),
        ("torch.optim.Adam(net.parameters()).load_state_dict(state)", True),
        ("something.load_state_dict(state)", True),
        ("something = build(args).to(device)\nsomething.load_state_dict(state)", False),
        ("something = build(args)\nsomething.load_state_dict(state)\nsomething.cuda()", False),
        ("o = torch.optim.Adam(something.parameters())\nsomething.load_state_dict(state)", False),
        ("build(args).load_state_dict(net.module.state_dict())", False),
        ("something.module.load_state_dict(state)", False),
        ("something.load_state_dict(other.state_dict())", True),
        ("net = timm.create_model('x').cuda()\nnet.encoder.load_state_dict(state)", False),
        (
            "def f(model):\n    model.encoder.load_state_dict(state)\n    model.cuda()\nf(net)",
            False,
        ),
        ("net = timm.create_model('x').cuda()\nnet.optimizer.load_state_dict(state)", True),
        (
            "net = timm.create_model('x').cuda()\nnet.last = build(args)\nnet.last.load_state_dict(state)",
            True,
        ),
        ("something.encoder.load_state_dict(state)", True),
        ("def f(something):\n    something.to(device)\nsomething.load_state_dict(state)", True),
        (
            "o = torch.optim.Adam(net.parameters())\n"
            "s = torch.optim.lr_scheduler.StepLR(o, 1)\n"
            "s.load_state_dict(state)",
            False,
        ),
    ],
)
def test_loading_the_state_of_an_optimizer(script: Script, code: str, found: bool) -> None:
    assert (loads_optimizer_state(script(f"{HEAD}{code}\n").resolver) is not None) is found
