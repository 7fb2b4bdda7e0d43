"""Variables that an ``if`` copies to the device on some of its ways."""

from __future__ import annotations

import ast
from collections.abc import Callable
from textwrap import indent

import pytest

from torchopt_cli.optimizer.analysis.devices.conditional_copies import ConditionalCopies
from torchopt_cli.optimizer.analysis.program.trees import is_name
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("if cuda:\n    x = x.cuda()\nuse(x)", True),
        ("if cuda:\n    x, y = x.cuda(), y.cuda()\nuse(x)", True),
        ("if cuda:\n    x = Variable(x.cuda())\nelse:\n    x = Variable(x)\nuse(x)", True),
        ("if cuda:\n    x = x.cuda()\nelif y:\n    x = x.to('cuda')\nuse(x)", True),
        ("if cuda:\n    x = x.cuda()\nelse:\n    x = x.to('cuda')\nuse(x)", False),
        ("if cuda:\n    x = x.cuda()\nelse:\n    continue\nuse(x)", False),
        ("if cuda:\n    x = x.cuda()\n    use(x)", False),
        ("if y:\n    if cuda:\n        x = x.cuda()\nuse(x)", False),
        ("if cuda:\n    for _ in y:\n        x = x.cuda()\nuse(x)", False),
        ("if cuda:\n    x = len(x.cuda())\nuse(x)", False),
        ("if cuda:\n    x = x.cuda()\nx = y\nuse(x)", False),
        ("if cuda:\n    x = x.cuda()\ndef later():\n    use(x)", False),
    ],
)
def test_above_a_read(script: Script, body: str, found: bool) -> None:
    loop = "for x, y in loader:\n" + indent(body, "    ") + "\n"
    parsed = script("from torch.autograd import Variable\n" + loop)
    module = parsed.resolver.project.modules[0]
    reads = [n for n in module.names_of("x") if isinstance(n.ctx, ast.Load)]
    read = next(n for n in reads if is_name(getattr(module.parents[n], "func", n), "use"))
    bindings = module.scopes.by_node[module.tree].bindings["x"]
    last = max(
        (b for b in bindings if b.node.lineno < read.lineno),  # type: ignore[attr-defined]
        key=lambda b: b.node.lineno,  # type: ignore[attr-defined]
    )
    copy = ConditionalCopies(parsed.resolver).above(read, last, module)
    assert (copy is not None) is found
