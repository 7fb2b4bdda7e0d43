"""Where a script keeps batches in the memory that workers fill."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.loading.kept_batches import kept_batches
from torchopt_cli.optimizer.analysis.loading.kept_copies import kept_copies, kept_for_good
from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.options import Options, Target

Script = Callable[..., TrainingScript]
HEAD = """\
import itertools
from collections import defaultdict, deque
import torch
from torch.utils.data import DataLoader
from tqdm import tqdm
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Linear(3, 3)
loader = DataLoader(torch.load("data"), 64)
other = DataLoader(torch.load("other"), 64)
kept, table = [], {}
"""
LOOP = "for i, (x, y) in enumerate(loader):\n    "


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("batches = list(loader)", "list(loader)"),
        ("batches = tuple(tqdm(loader))", "tuple(tqdm(loader))"),
        ("batches = [*loader]", "*loader"),
        ("batches = [b for b in loader]", "[b for b in loader]"),
        ("xs = torch.cat([x for x, y in loader])", "[x for x, y in loader]"),
        ("xs = torch.cat(list(x for x, y in loader))", "list(x for x, y in loader)"),
        ("rows = [row for x, y in loader for row in x]", "[row for x, y in loader for row in x]"),
        ("batches = itertools.cycle(loader)", "itertools.cycle(loader)"),
        ("batches = list(itertools.islice(loader, 5000))", "list(itertools.islice(loader, 5000))"),
        (LOOP + "kept.append((x, y))", "kept.append((x, y))"),
        (LOOP + "kept.append({'y': y})", "kept.append({'y': y})"),
        (LOOP + "kept.append(x[0].numpy())", "kept.append(x[0].numpy())"),
        (LOOP + "kept.append(y.cpu())", "kept.append(y.cpu())"),
        (LOOP + "kept.append(y.long())", "kept.append(y.long())"),
        (LOOP + "kept.append(y.to('cpu'))", "kept.append(y.to('cpu'))"),
        (LOOP + "kept.append((x.cuda(), y))", "kept.append((x.cuda(), y))"),
        (LOOP + "kept.extend(y)", "kept.extend(y)"),
        (LOOP + "kept += [y]", "kept += [y]"),
        (LOOP + "kept = kept + [y]", "kept = kept + [y]"),
        (LOOP + "table[i] = y", "table[i] = y"),
        (LOOP + "if i % 2 == 0:\n        kept.append(y)", "kept.append(y)"),
        (LOOP + "if i > 0:\n        kept.append(y)", "kept.append(y)"),
        (LOOP + "if len(kept) < 5000:\n        kept.append(y)", "kept.append(y)"),
        ("for epoch in range(3):\n    ys = []\n    for x, y in loader:\n        ys.append(y)", "ys.append(y)"),
        ("def put(y):\n    kept.append(y)\n" + LOOP + "put(y)", "kept.append(y)"),
        ("def put(to, y):\n    to.append(y)\n" + LOOP + "put(kept, y)", "to.append(y)"),
        ("groups = defaultdict(list)\n" + LOOP + "groups[i % 2].append(y)", "groups[i % 2].append(y)"),
        ("batches = iter(loader)\nfor i in range(9):\n    x, y = next(batches)\n    kept.append(x)", "kept.append(x)"),
        ("class Cache:\n    def __init__(self):\n        self.all = []\n        for b in loader:\n            self.all.append(b)\nCache()", "self.all.append(b)"),
    ],
)  # fmt: skip
def test_kept(script: Script, code: str, found: str) -> None:
    assert _found(script, code) == found


@pytest.mark.parametrize(
    "code",
    [
        "fixed = next(iter(loader))",
        "batches = list(other)",
        "total = sum(y.sum() for x, y in loader)",
        "batches = list(itertools.islice(loader, 5))",
        "losses = [model(x).sum() for x, y in loader]",
        "moved = [(x.to(device), y.cuda()) for x, y in loader]",
        "moved = [[part.to(device) for part in batch] for batch in loader]",
        "fixed = next(iter(loader))\nfor epoch in range(3):\n    kept.append(fixed)",
        "last = deque(maxlen=10)\n" + LOOP + "last.append(x)",
        LOOP + "last = x",
        LOOP + "table['last'] = x",
        LOOP + "torch.zeros(9)[i] = y",
        LOOP + "kept.append(i)",
        LOOP + "kept.append(x.clone())",
        LOOP + "kept.append(y.sum().item())",
        LOOP + "kept.extend(y.tolist())",
        LOOP + "kept.extend(y.numpy())",
        LOOP + "kept.append(model(x))",
        LOOP + "x, y = x.to(device), y.to(device)\n    kept.append(y)",
        LOOP + "y = y.to(device)\n    kept.append(y.cpu().numpy())",
        LOOP + "if i == 0:\n        kept.append(x)",
        LOOP + "if len(kept) < 16 and i:\n        kept.append(x)",
        LOOP + "kept.append(x)\n    if i == 9:\n        break",
        LOOP + "kept.append(x)\n    if len(kept) == 4:\n        kept.clear()",
        LOOP + "parts = []\n    parts.append(x)",
        "def put(y):\n    own = []\n    own.append(y)\n" + LOOP + "put(y)",
        "torch.multiprocessing.set_sharing_strategy('file_system')\nbatches = list(loader)",
    ],
)
def test_not_kept(script: Script, code: str) -> None:
    assert _found(script, code) is None


def test_moved_where_the_device_may_be_the_cpu(script: Script) -> None:
    code = LOOP + "kept.append(y.to(device))"
    assert _found(script, code) is None
    assert _found(script, code, Target.CPU) == "kept.append(y.to(device))"


def test_pinned_copies(script: Script) -> None:
    code = "pinned = DataLoader(torch.load('data'), 64, pin_memory=True)\nfor x, y in pinned:\n    kept.append(y)"
    assert _found(script, code, loader=2) is None
    assert _found(script, code, Target.CPU, loader=2) == "kept.append(y)"


def _found(
    script: Script, code: str, target: Target = Target.CUDA, *, loader: int = 0
) -> str | None:
    understood = script(f"{HEAD}{code}\n")
    facts = kept_batches(understood, understood.loaders[loader], Options(target=target))
    return facts[0].code if facts else None


@pytest.mark.parametrize(
    ("code", "copies"),
    [
        (LOOP + "kept.append(y)\nys = torch.cat(kept)", ["y.clone()"]),
        (LOOP + "kept.append(x['y'])\nys = torch.stack(kept, 0)", ["x['y'].clone()"]),
        (LOOP + "kept.append(y)\n    model(x.to(device))\nys = torch.cat(kept)", ["y.clone()"]),
        (LOOP + "kept += [y.cpu()]", ["y.cpu().clone()"]),
        (LOOP + "kept.append(x[0].numpy())", ["x[0].numpy().copy()"]),
        (LOOP + "kept.append(y.cpu().numpy().reshape(-1))", ["y.cpu().numpy().reshape(-1).copy()"]),
        (LOOP + "loss = model(x.to(device)) - y.to(device)\n    kept.append(y)", ["y.clone()"]),
        (LOOP + "if i % 2:\n        kept.append(y.long())", ["y.long().clone()"]),
        (LOOP + "kept.append(x.detach())\n    kept.append(y.cpu())", ["x.detach().clone()", "y.cpu().clone()"]),
        (LOOP + "model(x)", []),
    ],
)  # fmt: skip
def test_copies_of_tensors(script: Script, code: str, copies: list[str]) -> None:
    understood = script(f"{HEAD}{code}\n")
    options = Options(target=Target.CPU)
    edits = kept_copies(understood, understood.loaders[0], options)
    assert [getattr(edit.edit, "code", None) for edit in edits] == copies
    assert kept_for_good(understood, understood.loaders[0], options) is None


@pytest.mark.parametrize(
    "code",
    [
        LOOP + "kept.append(y)",
        LOOP + "kept.append(y)\n    print(y.reshape(-1))",
        LOOP + "kept.append((x, y))\n    x.detach(), y.detach()",
        LOOP + "kept.append(x.detach())\n    kept.append(y)",
        LOOP + "kept.append(y)\n    y.mul_(2)\nys = torch.cat(kept)",
        LOOP + "kept.append(y)\n    if torch.is_tensor(y):\n        y = y.cpu()",
        LOOP + "if torch.is_tensor(y):\n        y.long()\n    else:\n        kept.append(y)",
        LOOP + "kept.append(y)\n    if torch.is_tensor(y):\n        print(y.long())",
        LOOP + "kept.append(y.detach())\nbatches = list(loader)",
        "def mixed(rows):\n    return rows\nloader = DataLoader(torch.load('data'), 64, collate_fn=mixed)\n"
        + LOOP
        + "kept.append(y.cpu())",
    ],
)
def test_what_may_be_no_tensor_or_is_written_to_is_not_copied(script: Script, code: str) -> None:
    understood = script(f"{HEAD}{code}\n")
    loader = understood.loaders[-1] if "collate_fn" in code else understood.loaders[0]
    assert kept_copies(understood, loader, Options(target=Target.CPU)) == ()
    assert kept_for_good(understood, loader, Options(target=Target.CPU)) is not None
