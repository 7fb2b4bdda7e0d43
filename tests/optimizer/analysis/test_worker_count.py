"""How many workers a loader asks for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.loading.worker_count import CountKind, other_use, worker_count
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
import argparse
from torch.utils.data import DataLoader
parser = argparse.ArgumentParser()
parser.add_argument("--workers", default=0)
parser.add_argument("--cpus", default=4)
args = parser.parse_args()
ZERO = 0
TYPED: int = 0
"""


@pytest.mark.parametrize(
    ("arguments", "kind", "holder"),
    [
        ("x", CountKind.UNSET, None),
        ("x, num_workers=0", CountKind.ZERO, None),
        ("x, 1, None, None, None, 0", CountKind.ZERO, None),
        ("x, num_workers=ZERO", CountKind.ZERO, "ZERO"),
        ("x, num_workers=TYPED", CountKind.ZERO, "TYPED"),
        ("x, num_workers=args.workers", CountKind.ZERO, "workers"),
        ("x, num_workers=args.cpus", CountKind.CHOSEN, None),
        ("x, num_workers=2", CountKind.CHOSEN, None),
        ("x, num_workers=False", CountKind.CHOSEN, None),
        ("x, num_workers=4 if x else 0", CountKind.CHOSEN, None),
        ("x, num_workers=unknown()", CountKind.CHOSEN, None),
        ("x, **unknown()", CountKind.OPAQUE, None),
        ("x, **{'num_workers': 0}", CountKind.ZERO, None),
    ],
)
def test_kinds(script: Script, arguments: str, kind: CountKind, holder: str | None) -> None:
    understood = script(f"{HEAD}loader = DataLoader({arguments})\n")
    count = worker_count(understood.resolver, understood.loaders[0])
    assert count.kind is kind
    assert (count.zero.holder if count.zero is not None else None) == holder


USES = {
    "own argument": ("DataLoader(x, num_workers=0)\n", None),
    "variable": ("DataLoader(x, num_workers=ZERO)\nDataLoader(y, num_workers=ZERO)\n", None),
    "printed": (
        "DataLoader(x, num_workers=ZERO)\nprint('workers', ZERO)\nprint(f'{ZERO}')\n",
        None,
    ),
    "formatted elsewhere": ("DataLoader(x, num_workers=ZERO)\nlog(ZERO)\n", "ZERO"),
    "computed with": ("DataLoader(x, num_workers=ZERO)\ny = ZERO + 1\n", "ZERO"),
    "same name elsewhere": (
        "DataLoader(x, num_workers=ZERO)\ndef f(ZERO):\n    return ZERO\n",
        None,
    ),
    "option": (
        "DataLoader(x, num_workers=args.workers)\nif args.workers:\n    pass\n",
        "args.workers",
    ),
    "default of a parameter": (
        "def f(n=0):\n    DataLoader(x, num_workers=n)\n    if n: pass\nf()\n",
        "n",
    ),
    "keyword-only default": ("def f(*, n=0):\n    DataLoader(x, num_workers=n)\nf()\n", None),
    "kept in an attribute": (
        "class C:\n    def __init__(self, n=0):\n        self.n = n\n"
        "    def load(self):\n        return DataLoader(x, num_workers=self.n)\nC().load()\n",
        None,
    ),
    "attribute with another use": (
        "class C:\n    def __init__(self, n=0):\n        self.kept = n\n"
        "    def load(self):\n        return DataLoader(x, num_workers=self.kept), 2 * self.kept\nC().load()\n",
        "self.kept",
    ),
    "handed to a function": (
        "def f(cpus):\n    DataLoader(x, num_workers=cpus)\nf(cpus=args.workers)\nf(args.workers)\n",
        None,
    ),
    "handed to a function with another use": (
        "def f(cpus):\n    DataLoader(x, num_workers=cpus)\n    if cpus: pass\nf(args.workers)\n",
        "cpus",
    ),
    "handed to an unknown function": (
        "DataLoader(x, num_workers=args.workers)\nopen(args.workers)\n",
        "args.workers",
    ),
    "class attribute": ("class C:\n    n = 0\nDataLoader(x, num_workers=C.n)\n", None),
    "attribute": ("class C:\n    n: int = 0\nDataLoader(x, num_workers=C.n)\n", "0"),
    "argument of a call": ("def f(n):\n    DataLoader(x, num_workers=n)\nf(0)\n", "0"),
    "list": ("n = [0]\nDataLoader(x, num_workers=n[0])\n", "0"),
}


@pytest.mark.parametrize(("code", "use"), USES.values(), ids=USES)
def test_other_uses(script: Script, code: str, use: str | None) -> None:
    understood = script(HEAD + code)
    zero = worker_count(understood.resolver, understood.loaders[0]).zero
    assert zero is not None
    found = other_use(understood.resolver, zero, understood.loaders)
    assert (None if found is None else found.code) == use
