from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from torchopt_cli.optimizer.options import AmpDtype, Options, Tier
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult
from torchopt_cli.transforms.registry import all_transforms

from . import table

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
SMALLER = HEAD.replace("batch_size=16", "batch_size=4")
STEP = """\
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
"""
LOOP = HEAD + "for x, y in loader:\n" + STEP
N = {"accumulate": 4}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            """\
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        # forget the last step
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        if i % 100 == 0:
            print(epoch, i, loss.item())
""",
            """\
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        if i % 4 == 0:
            # forget the last step
            optimizer.zero_grad()
        loss = criterion(model(x), y)
        (loss / 4).backward()
        if (i + 1) % 4 == 0 or i + 1 == len(loader):
            optimizer.step()
        if i % 100 == 0:
            print(epoch, i, loss.item())
""",
        ),
        (
            """\
for i, batch in enumerate(loader, 1):
    criterion(model(batch[0]), batch[1]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
""",
            """\
for i, batch in enumerate(loader, 1):
    (criterion(model(batch[0]), batch[1]) / 4).backward()
    if i % 4 == 0 or i == len(loader):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
""",
        ),
        (
            """\
for i, (x, y) in enumerate(loader):
    x = x.float()
    loss = criterion(model(x), y)

    # learn
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            """\
for i, (x, y) in enumerate(loader):
    x = x.float()
    loss = criterion(model(x), y)

    # learn
    (loss / 4).backward()
    if (i + 1) % 4 == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
        ),
        (
            """\
total = 0.0
for x, y in loader:
    model.zero_grad()
    loss = criterion(model(x), y) + 0.1 * nn.functional.mse_loss(model(x)[:, 0], y.float())
    loss.backward()
    optimizer.step()
    total += loss.item()
print(total / len(loader))
""",
            """\
total = 0.0
for step, (x, y) in enumerate(loader):
    if step % 4 == 0:
        model.zero_grad()
    loss = criterion(model(x), y) + 0.1 * nn.functional.mse_loss(model(x)[:, 0], y.float())
    (loss / 4).backward()
    if (step + 1) % 4 == 0 or step + 1 == len(loader):
        optimizer.step()
    total += loss.item()
print(total / len(loader))
""",
        ),
        (
            """\
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
for _, (x, y) in enumerate(loader, start=0):
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step()
""",
            """\
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
for step, (x, y) in enumerate(loader, start=0):
    if step % 4 == 0:
        optimizer.zero_grad()
    loss = criterion(model(x), y)
    (loss / 4).backward()
    if (step + 1) % 4 == 0 or step + 1 == len(loader):
        optimizer.step()
        scheduler.step()
""",
        ),
        (
            """\
scaler = torch.amp.GradScaler("cuda")
for (x, y) in loader:
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
""",
            """\
scaler = torch.amp.GradScaler("cuda")
for step, (x, y) in enumerate(loader):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(x), y)
    scaler.scale(loss / 4).backward()
    if (step + 1) % 4 == 0 or step + 1 == len(loader):
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
""",
        ),
    ],
)
def test_transformed(check_transformed: Callable[..., None], before: str, after: str) -> None:
    check_transformed(HEAD + before, SMALLER + after, **N)


def test_progress_bar_and_option(check_transformed: Callable[..., None]) -> None:
    before = """\
        import argparse
        import torch as th
        import torch.nn.functional as F
        from torch.utils.data import DataLoader, TensorDataset
        from tqdm import tqdm

        def train(args, model, train_loader, optimizer):
            for x, y in tqdm(train_loader):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()

        def main():
            parser = argparse.ArgumentParser()
            parser.add_argument("--batch-size", type=int, default=64)
            args = parser.parse_args()
            data = TensorDataset(th.randn(40, 8), th.randint(0, 3, (40,)))
            train_loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
            model = th.nn.Linear(8, 3)
            train(args, model, train_loader, th.optim.Adam(model.parameters()))

        main()
    """
    after = (
        before.replace("=args.batch_size", "=args.batch_size // 2")
        .replace(
            "for x, y in tqdm(train_loader)", "for step, (x, y) in enumerate(tqdm(train_loader))"
        )
        .replace(
            "    optimizer.zero_grad()",
            "    if step % 2 == 0:\n" + " " * 20 + "optimizer.zero_grad()",
        )
        .replace("loss.backward()", "(loss / 2).backward()")
        .replace(
            "    optimizer.step()",
            "    if (step + 1) % 2 == 0 or step + 1 == len(train_loader):\n"
            + " " * 20
            + "optimizer.step()",
        )
    )
    check_transformed(before, after, accumulate=2)


def test_across_files(check_transformed: Callable[..., None]) -> None:
    main = """\
import torch
from data import make_loader
from engine import train

model = torch.nn.Linear(8, 3)
train(model, make_loader(), torch.optim.SGD(model.parameters(), lr=0.1))
"""
    data = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

BATCH = 32


def make_loader():
    data = TensorDataset(torch.randn(40, 8), torch.randn(40, 3))
    return DataLoader(data, BATCH, shuffle=True)
"""
    engine = """\
from torch.nn import *


def train(model, batches, optimizer):
    for x, y in batches:
        optimizer.zero_grad()
        loss = MSELoss()(model(x), y)
        loss.backward()
        optimizer.step()
"""
    after = """\
from torch.nn import *


def train(model, batches, optimizer):
    for step, (x, y) in enumerate(batches):
        if step % 4 == 0:
            optimizer.zero_grad()
        loss = MSELoss()(model(x), y)
        (loss / 4).backward()
        if (step + 1) % 4 == 0 or step + 1 == len(batches):
            optimizer.step()
"""
    check_transformed(
        {"train.py": main, "data.py": data, "engine.py": engine},
        {"train.py": main, "data.py": data.replace("BATCH, ", "BATCH // 4, "), "engine.py": after},
        **N,
    )


def test_runs_whenever_asked_for(rewrite: Callable[..., RewriteResult]) -> None:
    names = ["gradient-accumulation", "no-grad"]
    asked = rewrite(LOOP, names, select=frozenset(), tier=Tier.EXACT, accumulate=4)
    assert [c.tier for f in asked.files for c in f.changes] == [Tier.SEMANTIC]
    other = rewrite(LOOP, names, select=frozenset({"no-grad"}), accumulate=4)
    assert other.files[0].changed
    without = rewrite(LOOP, names, select=frozenset({"gradient-accumulation"}))
    assert not without.files[0].changed
    assert not without.files[0].skips
    ignored = rewrite(LOOP, names, accumulate=4, ignore=frozenset({"gradient-accumulation"}))
    assert not ignored.files[0].changed


def test_says_what_batch_norm_sees(rewrite: Callable[..., RewriteResult]) -> None:
    def reason(text: str) -> str:
        (change,) = rewrite(text, ["gradient-accumulation"], accumulate=4).files[0].changes
        return change.reason

    assert "BatchNorm" not in reason(LOOP)
    normalized = LOOP.replace("nn.ReLU()", "nn.BatchNorm1d(5)")
    assert "BatchNorm normalizes by batches of 4 now" in reason(normalized)


@pytest.mark.parametrize("index", ["0, 16", "..., 16", "16"])
def test_an_index_is_no_batch_size(rewrite: Callable[..., RewriteResult], index: str) -> None:
    source = LOOP.replace("    loss = ", f"    x[{index}] = 0\n    loss = ")
    (file,) = rewrite(source, ["gradient-accumulation"], **N).files
    assert "loss / 4" in file.text


def test_silent_without_training(check_noop: Callable[..., None]) -> None:
    check_noop("print(1)\n", **N)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        # The loss
        ("nn.CrossEntropyLoss()", "nn.CrossEntropyLoss(reduction='sum')", "not a mean"),
        ("nn.CrossEntropyLoss()", "nn.CrossEntropyLoss(size_average=False)", "size_average"),
        ("nn.CrossEntropyLoss()", "nn.CrossEntropyLoss(ignore_index=0)", "ignore_index"),
        ("nn.CrossEntropyLoss()", "nn.CrossEntropyLoss(torch.ones(3))", "not all arguments"),
        ("nn.CrossEntropyLoss()", "nn.CrossEntropyLoss(**options)", "not all arguments"),
        ("criterion(model(x), y)", "model(x).sum()", "not known to be a mean"),
        ("criterion(model(x), y)", "criterion(model(x), y) * len(x)", "not known to be a mean"),
        ("criterion(model(x), y)", "criterion(model(x), torch.arange(len(x)))", "mix the samples"),
        ("criterion(model(x), y)", "criterion(model(x), mine(x))", "come with the batch"),
        ("criterion(model(x), y)", "criterion(model(x)[y > 0], y[y > 0])", "come with the batch"),
        (
            "    loss = ",
            "    y = torch.LongTensor(range(len(x)))\n    loss = ",
            "come with the batch",
        ),
        ("    loss = ", "    if x is y:\n        y = other\n    loss = ", "come with the batch"),
        ("optimizer = ", "criterion.reduction = 'sum'\noptimizer = ", "set after it is made"),
        ("criterion(model(x), y)", "criterion(model(x) @ model(x).t(), y)", "compare or mix"),
        ("criterion(model(x), y)", "criterion(model(x), y) ** 2", "hangs on a mean or a sum"),
        (
            "loss.backward()",
            "loss += model(x).sum()\n    loss.backward()",
            "not known to be a mean",
        ),
        ("loss.backward()", "loss = loss + x.sum()\n    loss.backward()", "not known to be a mean"),
        # What goes from batch to batch
        (
            "loss = criterion(model(x), y)",
            "out = model(x + h)\n    h = out.detach()\n    loss = criterion(out, y)",
            "`h` goes from one batch to the next",
        ),
        # The backward pass and the step
        ("loss.backward()", "loss.backward(retain_graph=True)", "arguments of its own"),
        ("loss.backward()", "loss.backward()\n    loss.backward()", "2 backward passes are seen"),
        ("loss.backward()", "r = loss.backward()", "result is used"),
        ("loss.backward()", "(loss / 2).backward()\n    model[0].bias.grad.clone()", "gradients"),
        ("    optimizer.step()", "    if loss < 3:\n        optimizer.step()", "in every pass"),
        ("optimizer.step()", "optimizer.step(lambda: loss)", "not certainly the optimizer"),
        ("loss.backward()\n    optimizer", "loss.backward(); optimizer", "share a line"),
        (
            "optimizer.step()",
            "optimizer.step()\n    optimizer.step()",
            "2 optimizer steps are seen",
        ),
        ("torch.optim.SGD", "torch.optim.LBFGS", "one step for one gradient"),
        ("    optimizer.zero_grad()\n", "", "no call of `zero_grad` in the loop is seen"),
        (
            "    optimizer.zero_grad()\n",
            "    if x.sum() > 0:\n        optimizer.zero_grad()\n",
            "in every pass",
        ),
        (
            "loss.backward()\n",
            "loss.backward()\n    norm = nn.utils.clip_grad_norm_(model.parameters(), 1)\n",
            "gradients are looked at",
        ),
        ("loss.backward()", "loss.backward()\n    model[0].weight.register_hook(print)", "hook"),
        (
            "optimizer = ",
            "other = torch.optim.SGD(model[2].parameters(), lr=1)\noptimizer = ",
            "2 optimizers are seen, not one (lines",
        ),
        # The loop
        (
            "    optimizer.zero_grad()",
            "    if x is None:\n        continue\n    optimizer.zero_grad()",
            "skipped",
        ),
        ("optimizer.step()", "optimizer.step()\n    if loss < 0.1:\n        break", "left"),
        ("for x, y in loader:", "for x, y in list(loader):", "DataLoader"),
        ("for x, y in loader:", "for (x, y), z in zip(loader, loader):", "DataLoader"),
        ("for x, y in loader:", "for i, (x, y) in enumerate(loader, 5):", "from 0 or 1"),
        ("for x, y in loader:", "for i, (x, y) in enumerate(loader):\n    i += 1", "changed"),
        ("for x, y in loader:", "for x, y in loader if data else loader:", "DataLoader"),
        # The batches
        ("batch_size=16", "batch_size=18", "does not divide into 4"),
        ("batch_size=16, ", "", "not written in the call"),
        ("batch_size=16", "batch_size=int('16')", "is not known"),
        ("batch_size=16", "batch_size=16, sampler=chosen", "sampler"),
        ("batch_size=16", "batch_size=16, collate_fn=pad", "collate_fn"),
        ("batch_size=16", "**settings, batch_size=16", "not known"),
        ("model(x), y)", "model(x.view(16, -1)), y)", "may be the batch size"),
        ("model = ", "state = torch.zeros(16, 8)\nmodel = ", "may be the batch size"),
        ("optimizer = ", "def len(x):\n    return 1\n\noptimizer = ", "script's own"),
        (
            "optimizer = ",
            "for x, y in loader:\n    print(model(x))\noptimizer = ",
            "not for training alone",
        ),
        # What counts steps
        (
            "for x, y in loader:",
            "schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1, total_steps=3 * len(loader))\nfor x, y in loader:",
            "a schedule may count them",
        ),
        (
            "optimizer.step()",
            "optimizer.step()\n    ema.update()",
            "follows every step",
        ),
        (
            "optimizer.step()",
            "optimizer.step()\n    for p in model.parameters():\n        p.data.clamp_(-1, 1)",
            "parameters themselves",
        ),
        (
            "optimizer.step()",
            "optimizer.step()\n    for p, q in pairs:\n        q.lerp_(p, 0.1)",
            "changed in place",
        ),
        ("optimizer.step()", "optimizer.step()\n    follow(model)", "more with the network"),
        ("optimizer.step()", "optimizer.step()\n    profiler.step()", "counts steps"),
        (
            "optimizer.step()",
            "optimizer.step()\n    for g in optimizer.param_groups:\n        g['lr'] *= 0.99",
            "sets the learning rate",
        ),
        (
            "optimizer.step()",
            "optimizer.step()\n    print(loss)\n    s = torch.optim.lr_scheduler.StepLR(optimizer, 3)\n    s.step()",
            "between statements",
        ),
        ("model = ", "model = nn.parallel.DistributedDataParallel(net)\nmodel = ", "Distributed"),
    ],
)
def test_left_alone(check_noop: Callable[..., None], old: str, new: str, reason: str) -> None:
    assert old in LOOP
    check_noop(LOOP.replace(old, new, 1), reason, **N)


def test_batch_size_that_others_use(check_noop: Callable[..., None]) -> None:
    named = LOOP.replace("loader = ", "size = 16\nloader = ", 1).replace(
        "batch_size=16", "batch_size=size"
    )
    check_noop(named + "    print(loss)\nother = size\nseen = other * 3\n", "other uses", **N)
    check_noop(named.replace("model(x)", "model(x.view(size, -1))"), "other uses", **N)


def test_network_that_remembers(check_noop: Callable[..., None]) -> None:
    text = LOOP.replace(
        "model = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))",
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(8, 3)\n\n"
        "    def forward(self, x):\n"
        "        self.last = self.layer(x)\n"
        "        return self.last\n\n\n"
        "model = Net()",
    )
    check_noop(text, "keeps something from one batch", **N)


def test_step_of_a_function(check_noop: Callable[..., None]) -> None:
    text = HEAD + "def update(x, y):\n" + STEP + "\n\nfor x, y in loader:\n    update(x, y)\n"
    check_noop(text, "not in sight", **N)


def test_frameworks_have_a_setting(check_noop: Callable[..., None]) -> None:
    text = "from accelerate import Accelerator\naccelerator = Accelerator()\n" + LOOP
    check_noop(text, "has a setting for this", **N)


def test_iterable_dataset(check_noop: Callable[..., None]) -> None:
    text = LOOP.replace(
        "data = TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))",
        "class Stream(torch.utils.data.IterableDataset):\n"
        "    def __iter__(self):\n        yield torch.zeros(8), 0\n\n\ndata = Stream()",
    ).replace(", shuffle=True", "")
    check_noop(text, "length of its dataset is not known", **N)


def test_beside_all_others(rewrite: Callable[..., RewriteResult]) -> None:
    names = [transform.name for transform in all_transforms()]
    text = LOOP.replace("nn.Linear(5, 3))", "nn.Linear(5, 3)).cuda()").replace(
        "model(x), y", "model(x.cuda()), y.cuda()"
    )
    tier, amp = Options().tier, AmpDtype.FP16  # asked for: a network this small does without
    result = rewrite(text, names, select=frozenset(), tier=tier, amp=amp, accumulate=4)
    assert not [error for file in result.files for error in file.errors]
    assert "    scaler.scale(loss / 4).backward()\n" in result.files[0].text
    assert "        scaler.step(optimizer)\n        scaler.update()\n" in result.files[0].text


@pytest.mark.torch
def test_trains_the_same(
    tmp_path: Path,
    rewrite: Callable[..., RewriteResult],
    count_case: Callable[[str, str], None],
    warm_python: Path,
) -> None:
    """Where every group is full, and nothing depends on the batch, the parameters end up the same."""
    count_case("gradient-accumulation", table.VERIFIED)
    script = (
        "import json\nimport sys\n\n"
        + LOOP.replace("import torch\n", "import torch\n\ntorch.manual_seed(0)\n", 1)
        .replace("40", "48")
        .replace("for x", "order = []\nfor x", 1)
        .replace("shuffle=True", "shuffle=False")
        + "numbers = [n for p in model.parameters() for n in p.detach().flatten().tolist()]\n"
        "json.dump(numbers, sys.stdout)\n"
    )
    result = rewrite(script, ["gradient-accumulation"], accumulate=4)
    assert result.files[0].changed, result.files[0].skips
    numbers: list[list[float]] = []
    for name, text in (("before.py", script), ("after.py", result.files[0].text)):
        (tmp_path / name).write_text(text)
        run = subprocess.run(
            [warm_python, name],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        numbers.append(json.loads(run.stdout))
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-5, abs=1e-7)  # pyright: ignore[reportUnknownMemberType]
    assert len(numbers[0]) == 8 * 5 + 5 + 5 * 3 + 3
