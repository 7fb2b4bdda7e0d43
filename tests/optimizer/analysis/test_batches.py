"""Where batches go."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.loading.batches import BatchTrace
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
import torch
from torch.autograd import Variable
from torch.utils.data import DataLoader
loader = DataLoader(open("x"))
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""

GENERATOR = "def endless(batches):\n    for x, y in batches:\n"

PLACES = {
    # expression in the loop, what it is
    "x": "loaded",
    "batch": "loaded",
    "batch[0]": "loaded",
    "x[0, :3]": "loaded",
    "x[-1]": "loaded",
    "x[i]": "derived",
    "x[y]": "derived",
    "batch['a']": "loaded",
    "x.data": "loaded",
    "x.view(-1)": "loaded",
    "x.permute(0, 2, 1).unsqueeze(0)": "loaded",
    "torch.unsqueeze(x, 1)": "loaded",
    "torch.flatten(input=x.data)": "loaded",
    "torch.squeeze()": "other",
    "torch.squeeze(x.float())": "derived",
    "Variable(x)": "loaded",
    "(x, y)": "loaded",
    "{'a': x}": "loaded",
    "[t for t in batch]": "loaded",
    "tuple(t for t in batch)": "loaded",
    "{k: v for k, v in batch.items()}": "loaded",
    "x if i else y": "loaded",
    "(z := x)": "loaded",
    "x.float()": "derived",
    "x / 255": "derived",
    "-x": "derived",
    "torch.cat([x, y])": "derived",
    "x.clone()": "derived",
    "x.to(device).cpu()": "derived",
    "x.to(device)": "device",
    "x.cuda().float()": "device",
    "x.to(device) + y": "device",
    "x.type(torch.cuda.FloatTensor)": "device",
    "x.shape": "other",
    "x.size(0)": "other",
    "i": "other",
    "len(x)": "other",
    "isinstance(x, torch.Tensor)": "other",
    "not x": "other",
    "x.to(device).ndimension()": "other",
    "x.is_contiguous()": "other",
    "torch.ones(3)": "other",
    "3": "other",
    "f'{x}'": "other",
    "unknown(x)": "derived",
}


def places(script: TrainingScript) -> list[str]:
    """Where the arguments of the calls of ASK are, in source order."""
    trace = BatchTrace(script.resolver, script.loaders)
    found: list[str] = []
    for module in script.modules:
        for call in module.calls:
            if module.code(call.func) == "ASK":
                parts = trace.parts(call.args[0], module)
                found.append(
                    "+".join(sorted("other" if p is None else p.place.value for p in parts))
                )
    return found


@pytest.mark.parametrize(("expression", "place"), PLACES.items())
def test_expressions_of_a_batch(script: Script, expression: str, place: str) -> None:
    loop = f"for i, batch in zip(open('y'), loader):\n    x, y = batch\n    ASK({expression})\n"
    assert places(script(HEAD + loop)) == [place]


@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("for i, (x, y) in enumerate(loader):\n    ASK(x)\n", "loaded"),
        ("for i, (x, y) in enumerate(loader):\n    ASK(i)\n", "other"),
        ("for item in enumerate(loader):\n    ASK(item[1])\n", "loaded"),
        ("from tqdm import tqdm\nfor x in tqdm(loader):\n    ASK(x)\n", "loaded"),
        ("for a, b in zip(loader, range(3)):\n    ASK(b)\n", "other"),
        ("for a in zip(loader, loader):\n    ASK(a)\n", "loaded"),
        ("it = iter(loader)\nASK(next(it))\n", "loaded"),
        ("ASK(next(iter(loader)))\n", "loaded"),
        ("it = iter(loader)\nASK(it.__next__())\n", "loaded"),
        ("it = loader.__iter__()\nASK(next(it))\n", "loaded"),
        ("it = iter(loader)\nx, y = it.next()\nASK(y.cuda())\n", "device"),
        ("ASK(open('x').next())\n", "other"),
        ("ASK(next(open('x')))\n", "other"),
        (f"{GENERATOR}        yield x\nASK(next(endless(loader)))\n", "loaded"),
        (f"{GENERATOR}        yield x\nit = iter(endless(loader))\nASK(next(it))\n", "loaded"),
        (f"{GENERATOR}        yield x\nfor x in endless(loader):\n    ASK(x)\n", "loaded"),
        (f"{GENERATOR}        yield x.cuda()\nASK(next(endless(loader)))\n", "device"),
        (f"{GENERATOR}        yield 3\nASK(next(endless(loader)))\n", "other"),
        (f"{GENERATOR}        yield\nASK(next(endless(loader)))\n", "other"),
        ("def f(it):\n    yield from it\nASK(next(f(loader)))\n", "loaded"),
        ("for i in range(3):\n    for x in loader:\n        ASK(x[i])\n", "loaded"),
        ("for x in loader:\n    for k in x.keys():\n        ASK(x[k])\n", "loaded"),
        ("for x in loader:\n    for k, v in x.items():\n        ASK(x[k])\n", "loaded"),
        ("for x in loader:\n    x = x.to(device)\n    ASK(x)\n", "device"),
        ("for x in loader:\n    if x.any():\n        x = x.cuda()\n    ASK(x)\n", "device+loaded"),
        ("for x in loader:\n    x, y = x.cuda(), x\n    ASK(y)\n", "loaded"),
        ("for x in loader:\n    x, y = 1\n    ASK(y)\n", "other"),
        ("def f(t):\n    ASK(t)\nfor x in loader:\n    f(x)\n", "loaded"),
        ("def f(t):\n    ASK(t)\nfor x in loader:\n    f(x)\nf(3)\n", "loaded+other"),
        ("def f(t=3):\n    ASK(t)\nfor x in loader:\n    f()\n", "other"),
        ("def f(t):\n    ASK(t)\nfor x in loader:\n    f(*x)\n", "other"),
        ("def f(*t):\n    ASK(t)\nfor x in loader:\n    f(x)\n", "other"),
        ("def f(t):\n    ASK(t)\n", "other"),
        ("def f(t):\n    return t.cuda()\nfor x in loader:\n    ASK(f(x))\n", "device"),
        ("def f(t):\n    print(t)\nfor x in loader:\n    ASK(f(x))\n", "other"),
        ("for x in loader:\n    ASK(map(lambda t: ASK(t), x))\n", "derived"),
        ("for x in loader:\n    g = lambda t: ASK(t)\n", "other"),
    ],
)
def test_ways_of_a_batch(script: Script, code: str, place: str) -> None:
    found = places(script(HEAD + code))
    assert found[0] == place


def test_batch_kept_in_an_attribute(script: Script) -> None:
    code = """\
        class Trainer:
            def put(self, batch):
                self.x, self.y = batch
                self.n = 3

            def step(self):
                ASK(self.x)
                ASK(self.n)
                ASK(self.nothing)


        for batch in loader:
            trainer = Trainer()
            trainer.put(batch)
    """
    assert places(script(HEAD + dedent(code))) == ["loaded", "other", "other"]


def test_expression_that_leads_back_to_itself(script: Script) -> None:
    code = "def f(t, n):\n    ASK(t)\n    f(t, n - 1)\nfor x in loader:\n    f(x, 3)\n"
    assert places(script(HEAD + code)) == ["loaded"]


def test_copies(script: Script) -> None:
    code = """\
        for x, y in loader:
            a = x.to(device)
            b = y.cuda(0)
            c = x.float().to("cuda")
            d = x.to("cpu")
            e = a.to(device)
            f = x.to(torch.float16)
    """
    understood = script(HEAD + dedent(code))
    copies = understood.batch_copies
    assert [(c.code, c.method, c.copies_loaded_memory) for c in copies] == [
        ("x.to(device)", "to", True),
        ("y.cuda(0)", "cuda", True),
        ('x.float().to("cuda")', "to", False),
    ]
    assert all(copy.loaders == understood.loaders for copy in copies)
