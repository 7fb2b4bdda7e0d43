"""Where gradients are filled with zeros, and where they are used otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.optimizers.gradient_clearing import other_gradient_use
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


@pytest.mark.parametrize(
    ("code", "owner"),
    [
        ("for p in net.parameters():\n    p.grad.zero_()", "net"),
        ("for p in self.net.parameters():\n    p.grad.detach_()\n    p.grad.zero_()", "self.net"),
        ("for n, p in net.named_parameters():\n    p.grad.data.zero_()", "net"),
        ("opt.zero_grad(set_to_none=False)", "opt"),
        ("for p in net.parameters():\n    p.grad.detach_()", None),
        ("for p in net.parameters(recurse=False):\n    p.grad.zero_()", None),
        ("for p in net.parameters():\n    p.grad.zero_()\nelse:\n    print()", None),
        ("opt.zero_grad(set_to_none=none)", None),
    ],
)
def test_clearings(script: Script, code: str, owner: str | None) -> None:
    found = script(code).gradient_clearings
    assert [c.module.code(c.owner) for c in found] == ([owner] if owner else [])


@pytest.mark.parametrize(
    ("code", "is_used"),
    [
        ("import torch\ng = torch.autograd.grad(y, x)", False),
        ("from torch import autograd\ng = autograd.grad(y, x)", False),
        ("print(x.grad)", True),
        ("x.grad = None", True),
        ("for p in net.parameters():\n    p.grad.zero_()", False),
    ],
)
def test_other_uses(script: Script, code: str, is_used: bool) -> None:
    found = script(code)
    use = other_gradient_use(found.resolver, found.gradient_clearings)
    assert (use is not None) is is_used
