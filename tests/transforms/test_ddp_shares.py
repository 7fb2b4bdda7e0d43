"""``ddp`` where something is measured: sums of training, evaluations in shares, and what is decided by them."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

START = """\
import sys
import time

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
train_set = TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))
test_set = TensorDataset(torch.randn(10, 8), torch.randint(0, 3, (10,)))
loader = DataLoader(train_set, batch_size=16, shuffle=True)
test_loader = DataLoader(test_set, batch_size=4)
model = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def evaluate():
    model.eval()
    correct, total = 0, 0.0
    with torch.no_grad():
        for x, y in test_loader:
            out = model(x)
            total += nn.functional.cross_entropy(out, y).item()
            correct += (out.argmax(1) == y).sum().item()
    return total / len(test_loader), correct / len(test_set)


best, patience = 1e9, 0
for epoch in range(9):
    model.train()
    seen, running = 0, 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        running += loss.item() * x.size(0)
        seen += len(x)
    val_loss, accuracy = evaluate()
"""
LOOP = "        for x, y in test_loader:\n"
KEPT = "            out = model(x)\n"
Rewrite = Callable[..., RewriteResult]


def after(rewrite: Rewrite, source: str, **options: object) -> tuple[str, str]:
    """The text, and the reason of the change with its notes; else the reason why there is none."""
    result = rewrite(source, ["ddp"], **{"gpus": 2, **options})
    file = result.files[0]
    assert not file.errors
    told = [change.reason for change in file.changes] or [skip.message for skip in file.skips]
    return file.text, told[0]


def test_training_sums_are_added_up(rewrite: Rewrite) -> None:
    text, _ = after(rewrite, START + "    print(running / seen)\n")
    assert (
        "        seen += len(x)\n    seen = sum_over_processes(seen)\n"
        "    running = sum_over_processes(running)\n" in text
    ) or (
        "        seen += len(x)\n    running = sum_over_processes(running)\n"
        "    seen = sum_over_processes(seen)\n" in text
    )


@pytest.mark.parametrize(
    ("added", "told"),
    [
        ("loss.item()", "running = sum_over_processes(running) / WORLD_SIZE"),
        (
            "float(loss.detach()) / len(loader)",
            "running = sum_over_processes(running) / WORLD_SIZE",
        ),
        ("(model[0](x).argmax(1) == y).float().mean()", " / WORLD_SIZE"),
        ("loss.item() * len(y)", "running = sum_over_processes(running)\n"),
        ("y.shape[0]", "running = sum_over_processes(running)\n"),
        ("(y == 1).sum()", "running = sum_over_processes(running)\n"),
        ("1", None),
        ("len(loader)", None),
        ("y.max()", None),
        ("loss.item() ** 2", None),
    ],
)
def test_what_is_added_decides_how(rewrite: Rewrite, added: str, told: str | None) -> None:
    source = START.replace("loss.item() * x.size(0)", added).replace("model[0](x)", "x")
    text, _ = after(rewrite, source + "    print(running)\n")
    if told is None:
        assert "running = sum" not in text
    else:
        assert told in text


@pytest.mark.parametrize(
    ("added", "told", "is_summed"),
    [
        ("running += loss.item() ** 2", "running / seen", False),
        ("running += loss.item() ** 2", "100.0 * (float(running) / seen)", False),
        ("running = max(running, loss.item())", "running / seen", False),
        ("running += loss.item() ** 2", "running, seen", True),
        ("running += loss.item() ** 2", "seen / len(loader), running", True),
        ("running += 1", "running / seen", True),
    ],
)
def test_the_sum_of_all_is_not_divided_by_a_share(
    rewrite: Rewrite, added: str, told: str, is_summed: bool
) -> None:
    source = START.replace("running += loss.item() * x.size(0)", added)
    text, _ = after(rewrite, source + f"    print({told})\n")
    assert ("seen = sum_over_processes(seen)" in text) is is_summed
    assert "running = sum" not in text


def test_what_is_not_added_up_is_said(rewrite: Rewrite) -> None:
    said = "the first process tells its own share"
    assert said in after(rewrite, START + "    print(x.max().item())\n")[1]
    assert (
        said
        in after(
            rewrite, START.replace("running +=", "running +=  x.max() +") + "    print(running)\n"
        )[1]
    )
    assert said not in after(rewrite, START + "    print(running / seen, val_loss)\n")[1]


@pytest.mark.parametrize(
    ("starts", "is_summed"),
    [
        ("*start, seen, running = 7, 0, 0.0", True),
        ("seen, running, *start = 0, 0.0, 7", True),
        ("(seen, *start), running = (0, 7), 0.0", True),
        ("start = [0]\n    seen, running = *start, 0.0", False),
        ("start = [0.0]\n    running, seen = *start, 0", False),
    ],
)
def test_sums_that_start_among_starred_values(
    rewrite: Rewrite, starts: str, is_summed: bool
) -> None:
    source = START.replace("seen, running = 0, 0.0", starts) + "    print(running / seen)\n"
    assert ("running = sum_over_processes(running)" in after(rewrite, source)[0]) == is_summed


def test_a_sum_that_nobody_reads_is_not_added_up(rewrite: Rewrite) -> None:
    shown = START.replace(
        "        seen += len(x)\n", "        seen += len(x)\n        print(running / seen)\n"
    )
    assert "sum_over_processes(seen)" not in after(rewrite, shown)[0]
    assert "sum_over_processes(seen)" in after(rewrite, shown + "    print(seen)\n")[0]


@pytest.mark.parametrize(("starts", "known"), [("*start, 0.0", False), ("0, *start", True)])
def test_a_start_behind_a_starred_value_is_not_known(
    rewrite: Rewrite, starts: str, known: bool
) -> None:
    source = START.replace("best, patience", "start = [0]\nbest, patience", 1)
    source = source.replace("seen, running = 0, 0.0", f"seen, running = {starts}")
    text, _ = after(rewrite, source + "    print(running, seen)\n")
    assert ("    seen = sum_over_processes(seen)\n" in text) == known
    assert "\n    running = sum_over_processes(running)\n" not in text


def test_a_sum_that_goes_on_is_not_added_up_again(rewrite: Rewrite) -> None:
    source = START.replace("    seen, running = 0, 0.0\n", "").replace(
        "best, patience", "seen, running = 0, 0.0\nbest, patience"
    )
    text, _ = after(rewrite, source + "    print(running)\n")
    assert "\n    running = sum" not in text
    assert "    global_running = sum_over_processes(running)\n" in text


def test_an_evaluation_is_shared(rewrite: Rewrite) -> None:
    text, told = after(rewrite, START)
    assert (
        """\
test_batches = BatchSampler(SequentialSampler(test_set), 4, drop_last=False)
test_loader = DataLoader(test_set, batch_sampler=list(test_batches)[RANK::WORLD_SIZE])
"""
        in text
    )
    assert (
        """\
            correct += (out.argmax(1) == y).sum().item()
        total = sum_over_processes(total)
        correct = sum_over_processes(correct)
        batches = sum_over_processes(len(test_loader))
    return total / batches, correct / len(test_set)
"""
        in text
    )
    assert "evaluates all" not in told


def test_an_evaluation_may_use_the_names_of_the_training(rewrite: Rewrite) -> None:
    function, *_ = START.partition("def evaluate():\n")[2].partition("\n\n\n")
    source = START.replace(f"def evaluate():\n{function}\n\n\n", "")
    body = function.partition("    return")[0]
    inline = source.replace("    val_loss, accuracy = evaluate()\n", body)
    inline = inline.replace(
        "    for x, y in loader:\n", "    for i, b in enumerate(loader):\n        x, y = b\n"
    )
    text, told = after(rewrite, inline + "    print(correct / len(test_set))\n")
    assert "correct = sum_over_processes(correct)\n" in text
    assert "evaluates all" not in told
    text, told = after(rewrite, inline + "    print(correct / len(test_set), y)\n")
    assert "every process evaluates all of the data: `y` of its last batch" in told


def test_arguments_by_position(rewrite: Rewrite) -> None:
    source = START.replace("(test_set, batch_size=4)", "(test_set, 4, False, num_workers=2)")
    text, _ = after(rewrite, source)
    assert (
        "test_loader = DataLoader(\n    test_set, batch_sampler=list(test_batches)[RANK::WORLD_SIZE], num_workers=2\n)"
        in text
    )


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("batch_size=4)", "batch_size=4, shuffle=True)", "it shuffles"),
        ("batch_size=4)", "batch_size=4, sampler=[1, 2])", "a `sampler` of its own"),
        ("batch_size=4)", "**{'batch_size': 4})", "comes by a dict"),
        (LOOP, LOOP + "            print(x)\n", "is done for every batch"),
        (LOOP, LOOP + "            if len(x) < 3:\n                break\n", "may end before"),
        (
            LOOP,
            "        for i, (x, y) in enumerate(test_loader):\n            x = x + i\n",
            "`i` counts the batches",
        ),
        ("    return total", "    print(out)\n    return total", "`out` of its last batch"),
        (
            "            out = model(x)",
            "            x = x + correct\n            out = model(x)",
            "it looks at `correct`",
        ),
        (
            "correct, total = 0, 0.0",
            "correct, total = 0, 1.5",
            "`total` is not known to start at zero",
        ),
        (
            "            correct +=",
            "            model.last = out\n            correct +=",
            "`model.last` is kept",
        ),
        (".sum().item()", ".sum(0)", "`correct` may become an array"),
        ("(out.argmax(1) == y).sum().item()", "numpy.bincount(y)", "`correct` may become an array"),
        (KEPT, "            out = model(x + torch.randn(8))\n", "it draws random numbers"),
        (
            KEPT,
            "            total = max(total, 1)\n            out = model(x)\n",
            "`total` is not known to start",
        ),
        ("best, patience", "print(test_loader.batch_size)\nbest, patience", "would be another one"),
        ("best, patience", "print(len(test_loader))\nbest, patience", "counts all batches"),
        (
            "best, patience",
            "all_of_it = [y for x, y in test_loader]\nbest, patience",
            "also gone over in",
        ),
    ],
)
def test_an_evaluation_in_full_is_said(rewrite: Rewrite, old: str, new: str, why: str) -> None:
    assert old in START
    text, told = after(rewrite, START.replace(old, new))
    assert "batch_sampler" not in text
    assert "every process evaluates all of the data: " in told
    assert why in told


def test_all_processes_evaluate_with_the_same_statistics(rewrite: Rewrite) -> None:
    source = START.replace("nn.ReLU()", "nn.BatchNorm1d(5)")
    text, _ = after(rewrite, source)
    assert (
        """\
        if WORLD_SIZE > 1:  # evaluate with the running statistics of the first process
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)
        for x, y in test_loader:
"""
        in text
    )
    assert "broadcast" not in after(rewrite, source, sync_batchnorm=True)[0]


def test_batchnorm_that_may_learn_from_the_evaluation(rewrite: Rewrite) -> None:
    source = START.replace("nn.ReLU()", "nn.BatchNorm1d(5)").replace("    model.eval()\n", "")
    text, told = after(rewrite, source)
    assert "batch_sampler" not in text
    assert "BatchNorm may be in train mode" in told


def test_a_share_is_evaluated_without_the_wrapper(rewrite: Rewrite) -> None:
    source = START.replace("optimizer = ", "model = nn.DataParallel(model)\noptimizer = ")
    assert (
        "            out = (model.module if WORLD_SIZE > 1 else model)(x)\n"
        in after(rewrite, source)[0]
    )


# Decisions


@pytest.mark.parametrize(
    ("decided", "agreed"),
    [
        ("if val_loss < 0.1:\n    break\n", None),  # it has been added up
        ("if epoch > 3:\n    break\n", None),
        ("if loss.item() < 0.1:\n    break\n", "if of_first_process(loss.item() < 0.1):\n"),
        (
            "if loss.item() < 0.1 or epoch > 5:\n    break\n",
            "of_first_process(bool(loss.item() < 0.1 or epoch > 5)):",
        ),
        ("if time.time() > 1e12:\n    break\n", "if of_first_process(time.time() > 1e12):\n"),
        (
            "if loss < best:\n    best = loss.item()\n    patience = 0\nelse:\n    patience += 1\n"
            "    if patience > 2:\n        break\n",
            "    if of_first_process(loss < best):\n        best = loss.item()\n        patience = 0\n"
            "    else:\n        patience += 1\n        if patience > 2:\n            break\n",
        ),
        (
            "if loss < best:\n    best = loss.item()\n    patience = 0\nelse:\n    patience += 1\n"
            "if patience > 2:\n    break\n",
            "    if of_first_process(loss < best):\n        best",
        ),
        ("if loss < best:\n    best = loss\n    torch.save(model, 'x')\n", None),
        (
            "if loss < best:\n    model.load_state_dict(torch.load('x'))\n",
            "    if of_first_process(loss < best):\n",
        ),
        (
            "if loss < best:\n    evaluate()\n",
            "    if of_first_process(loss < best):\n        evaluate()",
        ),
    ],
)
def test_the_first_process_decides(rewrite: Rewrite, decided: str, agreed: str | None) -> None:
    text, _ = after(rewrite, START + indent(decided, "    "))
    assert "DistributedDataParallel" in text
    if agreed is None:
        assert "of_first_process" not in text
    else:
        assert agreed in text
        assert text.count("of_first_process") == 2


PLATEAU = "scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)\nbest, patience"


def test_a_learning_rate_follows_what_all_have_measured(rewrite: Rewrite) -> None:
    source = START.replace("best, patience", PLATEAU)
    assert (
        "    scheduler.step(val_loss)\n"
        in after(rewrite, source + "    scheduler.step(val_loss)\n")[0]
    )
    text, _ = after(rewrite, source + "    scheduler.step(loss)\n")
    assert "    scheduler.step(of_first_process(loss))\n" in text


STOPPER = """\
class Stopper:
    def __init__(self, patience):
        self.patience, self.best, self.count = patience, 1e9, 0
        self.stop = False

    def __call__(self, value):
        if value < self.best:
            self.best, self.count = value, 0
        else:
            self.count += 1
            self.stop = self.count > self.patience


stopper = Stopper(3)
best, patience"""


@pytest.mark.parametrize("given", ["val_loss", "loss.item()"])
def test_an_object_that_stops_the_training(rewrite: Rewrite, given: str) -> None:
    source = START.replace("best, patience", STOPPER)
    text, _ = after(rewrite, f"{source}    stopper({given})\n    if stopper.stop:\n        break\n")
    test = "stopper.stop" if given == "val_loss" else "of_first_process(bool(stopper.stop))"
    assert f"    if {test}:\n        break\n" in text


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (
            "        loss.backward()",
            "        if torch.isnan(loss):\n            continue\n        loss.backward()",
            "would stop by",
        ),
        (
            "        loss.backward()",
            "        if loss < 9:\n            loss.backward()",
            "would hang on",
        ),
        (
            "        optimizer.step()",
            "        if loss < 9:\n            optimizer.step()",
            "would hang on",
        ),
        (
            "        loss.backward()",
            "        try:\n            loss.backward()\n        except RuntimeError:\n            print('memory')",
            "an error that one process gets over alone",
        ),
        (
            "        seen += len(x)",
            "        seen += len(x)\n        if loss > 9:\n            sys.exit()",
            "would stop by",
        ),
        (
            "        optimizer.step()",
            "        for group in optimizer.param_groups:\n            group['lr'] = loss.item()\n        optimizer.step()",
            "the learning rate would follow",
        ),
    ],
)
def test_what_a_step_decides_is_not_agreed_on(
    rewrite: Rewrite, old: str, new: str, why: str
) -> None:
    assert old in START
    text, told = after(rewrite, START.replace(old, new))
    assert "WORLD_SIZE" not in text
    assert why in told


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "        loss.backward()",
            "        if len(x) < 2 or x.shape[0] < 2:\n            continue\n        loss.backward()",
        ),
        (
            "        seen += len(x)",
            "        seen += len(x)\n        if loss > 9:\n            raise ValueError",
        ),
        (
            "        seen += len(x)",
            "        seen += len(x)\n        if loss > 9:\n            sys.exit(1)",
        ),
        (
            "        optimizer.step()",
            "        for group in optimizer.param_groups:\n            group['lr'] = 0.1 * epoch\n        optimizer.step()",
        ),
        (
            "        seen += len(x)",
            "        seen += len(x)\n        if loss > 9:\n            print(loss)",
        ),
    ],
)
def test_what_processes_decide_alike_stays(rewrite: Rewrite, old: str, new: str) -> None:
    assert old in START
    text, _ = after(rewrite, START.replace(old, new))
    assert "DistributedDataParallel(model)" in text
    assert "of_first" not in text


PHASES = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def run_epoch(model, loader, train):
    model.train(train)
    total, correct = 0.0, 0
    with torch.set_grad_enabled(train):
        for x, y in loader:
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            if train:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item()
            correct += (out.argmax(1) == y).sum().item()
    return total / len(loader), correct


train_set = TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))
test_set = TensorDataset(torch.randn(10, 8), torch.randint(0, 3, (10,)))
train_loader = DataLoader(train_set, batch_size=16, shuffle=True)
test_loader = DataLoader(test_set, batch_size=4)
model = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
for epoch in range(9):
    loss, correct = run_epoch(model, train_loader, True)
    val_loss, val_correct = run_epoch(model, test_loader, False)
    scheduler.step(val_loss)
    print(loss, correct, val_loss, val_correct)
"""


def test_a_loop_that_trains_in_some_calls_only(rewrite: Rewrite) -> None:
    """What it finds in training is in shares; what it evaluates, every process has gone over in full."""
    text, reason = after(rewrite, PHASES)
    assert (
        """\
        if train:
            total = sum_over_processes(total) / WORLD_SIZE
            correct = sum_over_processes(correct)
    return total / len(loader), correct
"""
        in text
    )
    assert "test_loader = DataLoader(test_set, batch_size=4)\n" in text
    assert "train_loader.sampler.set_epoch(epoch)" in text
    assert "run_epoch(ddp_model, train_loader, True)" in text
    assert "run_epoch(model, test_loader, False)" in text
    assert "scheduler.step(of_first_process(val_loss))" in text
    assert "every process evaluates all of the data: `for x, y in loader:` trains, too" in reason
    assert "tells its own share" not in reason


def test_a_loop_of_which_nothing_tells_when_it_trains(rewrite: Rewrite) -> None:
    text, reason = after(rewrite, PHASES.replace("test_loader, False", "test_loader, decide()"))
    assert text == PHASES.replace("test_loader, False", "test_loader, decide()")
    assert "does not go over one DataLoader" in reason
