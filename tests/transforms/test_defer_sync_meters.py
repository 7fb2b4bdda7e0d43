"""Meters such as ``AverageMeter`` are given tensors where all they do is calculate, and left alone everywhere else."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent
from typing import Any

import pytest

from torchopt_cli.optimizer.options import Tier

from .test_defer_sync import HEAD, script

METER = """\
class AverageMeter(object):
    \"\"\"Computes and stores the average and current value\"\"\"

    def __init__(self):
        self.reset()

    def reset(self):
        self.val = 0
        self.avg = 0
        self.sum = 0
        self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count
"""
START = "losses = AverageMeter()"
UPDATE = "losses.update({0}, x.size(0))"
READ, GIVEN = UPDATE.format("loss.item()"), UPDATE.format("loss.detach().double()")


@pytest.fixture
def name() -> str:
    return "defer-sync"


def metered(step: str, after: str, before: str = START, meter: str = METER) -> str:
    return script(before, step, after, f"{HEAD}\n\n{meter}\n")


@pytest.mark.parametrize(
    ("after", "converted"),
    [
        ("print(losses.avg)", "print(float(losses.avg))"),
        ("print(f'{losses.avg:.4f}')", "print(f'{float(losses.avg):.4f}')"),
        ("print('%.3f' % losses.avg)", "print('%.3f' % float(losses.avg))"),
        ("print('{:.3f}'.format(losses.avg))", "print('{:.3f}'.format(float(losses.avg)))"),
        ("print(losses.sum / losses.count)", "print(float(losses.sum) / losses.count)"),
        ("writer.add_scalar('loss', losses.val)", "writer.add_scalar('loss', float(losses.val))"),
        ("history.append(losses.avg)", "history.append(float(losses.avg))"),
        (
            "torch.save({'loss': losses.avg}, 'last.pt')",
            "torch.save({'loss': float(losses.avg)}, 'last.pt')",
        ),
        (
            "if losses.avg < best:\n    best = losses.avg",
            "if float(losses.avg) < best:\n    best = float(losses.avg)",
        ),
        ("print(float(losses.avg))", "print(float(losses.avg))"),
        ("print(losses.count)", "print(losses.count)"),
        ("pass", "pass"),
    ],
)
def test_figures_are_numbers_where_they_are_looked_at(
    check_transformed: Callable[..., None], after: str, converted: str
) -> None:
    check_transformed(metered(READ, after), metered(GIVEN, converted))


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("losses.update(loss.item())", "losses.update(loss.detach().double())"),
        ("losses.update(float(loss), n=len(x))", "losses.update(loss.detach().double(), n=len(x))"),
        (
            "losses.update(val=loss.data.cpu().item(), n=4)",
            "losses.update(val=loss.detach().double(), n=4)",
        ),
        (
            "losses.update(100 * loss.item() + 1, 2)",
            "losses.update(100 * loss.detach().double() + 1, 2)",
        ),
        (
            "losses.update(loss.item() + (loss * 2).item())",
            "losses.update(loss.detach().double() + (loss * 2).detach().double())",
        ),
        (
            "losses.update((output.argmax(1) == y).sum().item() / x.size(0), x.size(0))",
            "losses.update((output.argmax(1) == y).sum().double() / x.size(0), x.size(0))",
        ),
        (
            "value = loss.item()\nlosses.update(value, x.size(0))",
            "value = loss.detach().double()\nlosses.update(value, x.size(0))",
        ),
        (
            "n = (output.argmax(1) == y).sum().item()\nlosses.update(100 * n / x.size(0))",
            "n = (output.argmax(1) == y).sum()\nlosses.update(100 * n.double() / x.size(0))",
        ),
        (
            "n = y.size(0)\nlosses.update(loss.item(), n)",
            "n = y.size(0)\n" + "losses.update(loss.detach().double(), n)",
        ),
    ],
)
def test_what_the_meter_is_given(
    check_transformed: Callable[..., None], step: str, expected: str
) -> None:
    check_transformed(
        metered(step, "print(losses.avg)"), metered(expected, "print(float(losses.avg))")
    )


ACCURACY = """\
def accuracy(output, target, topk=(1,)):
    _, pred = output.topk(max(topk), 1, True, True)
    correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
    res = []
    for k in topk:
        correct_k = correct[:k].reshape(-1).float().sum(0)
        res.append(correct_k.mul_(100.0 / target.size(0)))
    return res
"""


@pytest.mark.parametrize(
    "given", ["top, _ = accuracy(output, y, (1, 2))", "top = accuracy(output, y)[0]"]
)
def test_an_accuracy_among_others(check_transformed: Callable[..., None], given: str) -> None:
    head = f"{METER}\n\n{ACCURACY}"
    step = f"{given}\nlosses.update({{0}}, x.size(0))"
    check_transformed(
        metered(step.format("top.item()"), "print(losses.avg)", meter=head),
        metered(step.format("top.detach().double()"), "print(float(losses.avg))", meter=head),
    )


def test_figures_are_read_every_so_many_steps(check_transformed: Callable[..., None]) -> None:
    show = "\nif i % 100 == 0:\n    print(f'{{{0}:.4f}} ({{{1}}})', losses.count)"
    check_transformed(
        metered(READ + show.format("losses.val", "losses.avg"), "pass"),
        metered(GIVEN + show.format("float(losses.val)", "float(losses.avg)"), "pass"),
    )


def test_a_meter_that_is_reset_before_each_epoch(check_transformed: Callable[..., None]) -> None:
    head = f"{HEAD}\n\n{METER}\n\nlosses, unused = AverageMeter(), AverageMeter()\n"
    check_transformed(
        script("losses.reset()", READ, "print(losses.avg)", head),
        script("losses.reset()", GIVEN, "print(float(losses.avg))", head),
    )


def test_a_meter_that_is_reset_every_so_many_steps(
    check_transformed: Callable[..., None],
) -> None:
    show = "\nif i % 100 == 0:\n    print(i, {0})\n    losses.reset()"
    check_transformed(
        metered(READ + show.format("losses.avg"), "print(losses.count)"),
        metered(GIVEN + show.format("float(losses.avg)"), "print(losses.count)"),
    )


def test_meters_and_sums(check_transformed: Callable[..., None]) -> None:
    before = f"total = 0.0\n{START}\ntop1 = AverageMeter()"
    step = "total += {0}\n{1}\ntop1.update((output.argmax(1) == y).float().mean(){2}, len(x))"
    after = "print({0}, {1}, {2})"
    check_transformed(
        metered(
            step.format("loss.item()", READ, ".item()"),
            after.format("total", "losses.avg", "top1.avg"),
            before,
        ),
        metered(
            step.format("loss.detach().double()", GIVEN, ".detach().double()"),
            after.format("float(total)", "float(losses.avg)", "float(top1.avg)"),
            before,
        ),
    )


def test_a_meter_that_holds_tensors_already_is_left_alone(
    check_transformed: Callable[..., None],
) -> None:
    before = f"{START}\ntop1 = AverageMeter()"
    step = "acc1 = accuracy(output, y)\ntop1.update(acc1[0], x.size(0))\n"
    check_transformed(
        metered(step + READ, "print(losses.avg, top1.avg)", before),
        metered(step + GIVEN, "print(float(losses.avg), top1.avg)", before),
    )
    check_transformed(
        metered(step + "losses.update(3, 4)", "print(losses.avg, top1.avg)", before),
        metered(step + "losses.update(3, 4)", "print(losses.avg, top1.avg)", before),
    )


TRAIN = """\
import torch
import torch.nn.functional as F
from util import AverageMeter


def train(model, loader, optimizer, epoch):
    losses = AverageMeter()
    for i, (x, y) in enumerate(loader):
        x, y = x.cuda(), y.cuda()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss{0}, x.size(0))
        if i % 50 == 0:
            print(f"{{epoch}} {{{2}:.4f}}")
    return {3}


@torch.no_grad()
def validate(model, loader):
    losses = AverageMeter()
    with torch.no_grad():
        for x, y in loader:
            x, y = x.cuda(), y.cuda()
            losses.update(F.cross_entropy(model(x), y){1}, x.size(0))
    return {3}
"""
MAIN = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from data import train_set
from engine import train, validate

model = nn.Linear(10, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(train_set, batch_size=64)
for epoch in range(3):
    print(train(model, loader, optimizer, epoch), validate(model, loader))
"""


def test_meters_of_another_file_that_other_scripts_use_too(
    check_transformed: Callable[..., None],
) -> None:
    others = {
        "train.py": MAIN,
        "util.py": METER,
        "other.py": "from util import AverageMeter\nprint(AverageMeter().avg)\n",
    }
    before = TRAIN.format(".item()", ".item()", "losses.avg", "losses.avg")
    after = TRAIN.format(
        ".detach().double()", ".double()", "float(losses.avg)", "float(losses.avg)"
    )
    check_transformed({**others, "engine.py": before}, {**others, "engine.py": after})


AVERAGE = """\
    @property
    def avg(self):
        \"\"\"The mean of all.\"\"\"
        return {0}

    def update("""


@pytest.mark.parametrize(
    "average",
    [
        "self.sum / self.count",
        "self.sum / self.count if self.count > 0 else 0.0",
        "0 if not self.count else 100 * self.sum / self.count",
        "self.sum / max(1, self.count)",
    ],
)
@pytest.mark.parametrize("returns", ["return {0}", "mean = {0}\n        return mean"])
def test_figures_that_are_properties(
    check_transformed: Callable[..., None], average: str, returns: str
) -> None:
    meter = METER.replace("        self.avg = 0\n", "").replace(
        "        self.avg = self.sum / self.count\n", ""
    )
    average = AVERAGE.replace("return {0}", returns).format(average)
    meter = meter.replace("    def update(", average)
    meter = meter.replace("self.sum = 0", "self.sum: float = 0.0")
    after = "print({0}, losses.count)"
    check_transformed(
        metered(READ, after.format("losses.avg"), meter=meter),
        metered(GIVEN, after.format("float(losses.avg)"), meter=meter),
    )


@pytest.mark.parametrize(
    ("average", "reason"),
    [
        ("math.exp(self.sum)", "more than plain"),
        ("self.sum / max(1, self.sum)", "more than plain"),
        ("max(0, self.sum) / self.count", "more than plain"),
        ("self.sum / largest(1, self.count)", "more than plain"),
        ("self.sum / max(1, key=self.count)", "more than plain"),
        ("torch.tensor(self.sum / self.count)", "more than plain"),
        ("self.sum * torch.ones(3)", "more than plain"),
        ("self.count / self.sum", "more than plain"),
        ("self.sum if self.sum > 0 else 0", "more than plain"),
        ("self.sum if self.mean else 0", "more than plain"),
        ("self.sum if self.__dict__ else 0", "more than plain"),
        ("self.sum if known(self) else 0", "more than plain"),
        ("self.mean + 1", "more than plain"),
        ("self.sum + self.offset", "`AverageMeter.__init__` does more than plain"),
        ("self.sum // 2", "more than plain"),
        ("[self.sum]", "more than plain"),
        ("None", "more than plain"),
        ("self.sum\n        return 3", "more than plain"),
        ("0\n        mean = self.sum\n        return best", "more than plain"),
    ],
)
def test_properties_that_do_more(
    check_noop: Callable[..., None], average: str, reason: str
) -> None:
    meter = METER.replace("    def update(", AVERAGE.format(average).replace("avg", "best"))
    mean = (
        "    @property\n    def mean(self):\n        return self.sum / self.count\n\n    def reset("
    )
    meter = meter.replace("    def reset(", mean)
    meter = meter.replace(
        "        self.reset()\n", "        self.reset()\n        self.offset = torch.ones(3)\n"
    )
    check_noop(metered(READ, "print(losses.best)", meter=meter), reason)


def test_a_moving_average_is_exact(rewrite: Callable[..., Any]) -> None:
    meter = METER.replace(
        "self.avg = self.sum / self.count", "self.avg = 0.9 * self.avg + 0.1 * self.val"
    )
    (file,) = rewrite(metered(READ, "print(losses.avg)", meter=meter), ["defer-sync"]).files
    assert GIVEN in file.text
    assert [change.tier for change in file.changes] == [Tier.EXACT]


def test_a_mean_is_rounded_as_the_device_divides(rewrite: Callable[..., Any]) -> None:
    (file,) = rewrite(metered(READ, "print(losses.avg)"), ["defer-sync"]).files
    assert [change.tier for change in file.changes] == [Tier.NUMERIC]
    assert "reciprocal" in file.changes[0].reason


def test_without_float64(rewrite: Callable[..., Any]) -> None:
    source = metered(READ, "print(losses.avg)") + "torch.backends.mps.is_available()\n"
    (file,) = rewrite(source, ["defer-sync"]).files
    assert UPDATE.format("loss.detach().float()") in file.text
    assert "float32" in file.changes[0].reason


def test_float64_figures_are_no_reason_against_tf32(rewrite: Callable[..., Any]) -> None:
    engine = TRAIN.format(".item()", ".item()", "losses.avg", "losses.avg")
    files = rewrite(
        {"train.py": MAIN, "engine.py": engine, "util.py": METER}, ["defer-sync", "tf32"]
    ).files
    text = "".join(file.text for file in files)
    assert "y).double(), x.size(0))" in text
    assert "set_float32_matmul_precision" in text


@pytest.mark.parametrize(
    ("before", "step", "after", "reason"),
    [
        (START, READ + "\nprint(losses.avg)", "pass", "`losses.avg` is printed in every step"),
        (START, READ + "\nbar.set_postfix(loss=losses.avg)", "pass", "shown in every step"),
        (START, READ + "\nif losses.avg > 9:\n    break", "pass", "compared in every step"),
        (START, READ + "\nwriter.add_scalar('loss', losses.val, i)", "pass", "logged"),
        (START, READ + "\nif i % 5:\n    print(losses.avg)", "pass", "printed in every step"),
        (START, READ, "print(losses)", "also used by `print(losses)`"),
        (START, READ, "print(f'{losses}')", "also used by"),
        (START, READ, "print('{m.avg:.3f}'.format(m=losses))", "also used by"),
        (START, READ, "history.append(losses)", "also used by"),
        (START, READ, "print(losses.__dict__)", "also used by"),
        (START, READ, "print(vars(losses))", "also used by"),
        (START, READ, "print(getattr(losses, 'avg'))", "also used by"),
        (START, READ, "torch.save(losses, 'meter.pt')", "also used by"),
        (START, READ, "kept = losses", "also used by `kept = losses`"),
        (START, READ, "losses.avg = 0.0", "also used by"),
        (START, READ, "losses.avg += 1", "also used by"),
        (START, READ, "show = losses.update", "also used by"),
        (START, READ, "losses.update(0.5, 3)", "also used by"),
        (START, READ, "losses.reset()", "also used by"),
        (START, READ, "losses = AverageMeter()", "also set by"),
        (START, READ, "print(locals())", "may read `losses`"),
        (START, READ, "print([losses.avg for _ in range(2)])", "comprehension"),
        (START, READ, "print(f'{losses.avg=}')", "inside of a string"),
        (START, READ, "for x, y in loader:\n    print(losses.avg)", "read in another loop"),
        (START, READ, "show = lambda: losses.avg", "another function"),
        (START, READ, "del losses", "may be read anywhere"),
        (START + "\nprint(losses.avg)", READ, "pass", "before it is given anything"),
        (
            START,
            "if i % 9 == 0:\n    print(losses.avg)\n" + READ,
            "pass",
            "before it is given anything",
        ),
        (START, READ + "\nlosses.reset()", "pass", "also used by"),
        (START, "if i % 9 == 0:\n    losses.reset()\n" + READ, "pass", "also used by"),
        (START, READ + "\nif i % 9 == 0:\n    losses.reset()", "print(losses.avg)", "set back"),
        (
            START,
            READ + "\nif i % 9 == 0:\n    losses.reset()\n    print(losses.avg)",
            "pass",
            "set back",
        ),
        (
            START,
            READ + "\nif i % 9 == 0:\n    losses.update(0)\n    print(losses.avg)",
            "pass",
            "also used by",
        ),
        (START, READ + "\nif i % 9 == 0:\n    losses = AverageMeter()", "pass", "also set by"),
        (START, READ + "\n" + READ, "pass", "in several ways"),
        (START, f"if x.size(0) > 1:\n    {READ}", "pass", "not updated in every step"),
        (START, "losses.update(loss.item(), weight)", "pass", "may be no number"),
        (START, "losses.update(loss.item(), y.sum())", "pass", "may be no number"),
        (START, "losses.update(loss.item(), int(y.sum()))", "pass", "losses"),
        (START, "losses.update(loss.item() * weight)", "pass", "may be no number"),
        (START, "losses.update(1 / loss.item())", "pass", "divide by zero"),
        (START, "losses.update(math.sqrt(loss.item()))", "pass", "which may be read anywhere"),
        (START, "losses.update((output.argmax(1) == y).sum().item())", "pass", "an integer"),
        (
            START,
            "n = (output.argmax(1) == y).sum().item()\nlosses.update(n)",
            "pass",
            "given an integer (`n`)",
        ),
        (
            START + "\ntotal = 0.0",
            "total += loss.item()\nlosses.update(total)",
            "pass",
            "`total` changes while `losses` keeps it",
        ),
        (START, "value = loss.item()\nlosses.update(1 / value)", "pass", "divide by zero"),
        (
            START,
            "value = loss.item()\nlosses.update(value, value)",
            "pass",
            "in several ways",
        ),
        (
            START,
            "value = loss.item()\nhistory.update(value)",
            "pass",
            "`value` goes into `history`",
        ),
        (
            START,
            "value = loss.item()\nwriter.add_scalar('loss', value, i)",
            "pass",
            "`value` is logged in every step",
        ),
        (START, "losses.update(y.sum().item())", "pass", "integers or floats"),
        (START, "losses.update(int(loss))", "pass", "rounds"),
        (START, "losses.update(*[loss.item()])", "pass", "losses"),
        (START, "losses.update(loss.item(), *[3])", "pass", "may be no number"),
        (START, "losses.update(**dict(val=loss.item()))", "pass", "losses"),
        (START, "n = losses.update(loss.item())", "pass", "losses"),
        (START, READ + "\nloss += 1", "pass", "changed in place"),
        (START, READ + "\nprint(loss)", "pass", "needs its values"),
        ("losses = top = AverageMeter()", READ, "print(top.avg)", "also set by"),
        ("losses = AverageMeter() if i else None", READ, "pass", "may be read anywhere"),
        ("losses = make()", READ, "pass", "may be read anywhere"),
        ("losses = set()", "losses.add(loss.item())", "pass", "may be read anywhere"),
        ("meters = {'loss': AverageMeter()}", "meters['loss'].update(loss.item())", "pass", "read"),
        (START + "\nprogress = ProgressMeter([losses])", READ, "pass", "also used by `progress"),
        (START + "\nAverageMeter.update = print", READ, "pass", "may be none of its class"),
        (START + "\nfloat = int", READ, "print(losses.avg)", "something else"),
    ],
)
def test_left_alone(
    check_noop: Callable[..., None], before: str, step: str, after: str, reason: str
) -> None:
    check_noop(metered(step, after, before), reason)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("(object)", "(Base)", "more than its own text"),
        ("(object)", "(metaclass=Meta)", "more than its own text"),
        ("class Av", "@dataclass\nclass Av", "more than its own text"),
        ("    def reset", "    best = 0\n\n    def reset", "more than methods"),
        (
            "    def reset",
            "    @staticmethod\n    def best():\n        return 0\n\n    def reset",
            "more than methods",
        ),
        (
            "    def reset",
            "    def __setattr__(self, name, value):\n        pass\n\n    def reset",
            "__setattr__",
        ),
        (
            "    def reset",
            "    def __del__(self):\n        print(self.avg)\n\n    def reset",
            "__del__",
        ),
        ("        self.val = val\n", "        self.val = float(val)\n", "more than plain"),
        (
            "        self.val = val\n",
            "        self.val = val\n        print(val)\n",
            "more than plain",
        ),
        ("        self.val = val\n", "        self.val = val ** 2\n", "more than plain"),
        ("        self.val = val\n", "        self.val = max(val, self.val)\n", "more than plain"),
        ("        self.val = val\n", "        self.val = math.sqrt(val)\n", "more than plain"),
        (
            "        self.val = val\n",
            "        if val > 9:\n            return\n",
            "more than plain",
        ),
        ("        self.val = val\n", "        assert isinstance(val, float)\n", "more than plain"),
        ("        self.val = val\n", "        self.values.append(val)\n", "more than plain"),
        ("        self.val = val\n", "        self.values[0] = val\n", "more than plain"),
        (
            "        self.val = val\n",
            "        self.val = LAST\n        val.n = 1\n",
            "more than plain",
        ),
        ("        self.val = val\n", "        self.val = 1 / val\n", "divides by what it is given"),
        ("        self.val = val\n", "        self.val /= val\n", "divides by what it is given"),
        ("        self.val = val\n", "        self.last = self.sum\n", "a second name of `sum`"),
        ("        self.val = val\n", "        self.sum = val\n", "both replaced and added to"),
        ("        self.val = val\n", "        self.val = self.update\n", "more than plain"),
        ("        self.count = 0\n", "        self.count = torch.zeros(3)\n", "more than plain"),
        ("        self.count = 0\n", "        self.count = make()\n", "more than plain"),
        ("val, n=1", "val, n=1, *more", "more than plain"),
        ("        self.sum = 0\n", "        self.sum = torch.zeros(1)\n", "more than plain"),
        ("        self.sum = 0\n", "        self.sum = None\n", "more than plain"),
        ("        self.sum = 0\n", "        self.sum = False\n", "more than plain"),
        (
            "        self.sum = 0\n",
            "        self.sum = 0\n        METERS.append(self)\n",
            "more than plain",
        ),
        (
            "        self.sum = 0\n",
            "        self.sum = 0\n        self.me = [self]\n",
            "more than plain",
        ),
        (
            "        self.reset()\n",
            "        self.reset()\n        self.__init__()\n",
            "more than plain",
        ),
        ("        self.reset()\n", "        self.reset(3)\n", "more than plain"),
        ("    def __init__(self):\n        self.reset()\n", "", "no `__init__`"),
    ],
)
def test_classes_that_do_more(
    check_noop: Callable[..., None], old: str, new: str, reason: str
) -> None:
    assert old in METER
    check_noop(metered(READ, "print(losses.avg)", meter=METER.replace(old, new, 1)), reason)


def test_a_meter_of_the_code_around(check_noop: Callable[..., None]) -> None:
    source = metered(READ, "print(losses.avg)", "pass")
    head, loop = source.split("\nfor epoch", 1)
    body = indent("for epoch" + loop, "    ")
    for meter, reason in (
        ("losses = AverageMeter()\n\ndef main():\n    global losses\n", "the code around"),
        ("losses = AverageMeter()\n\ndef main():\n", "the code around"),
        ("def main(losses):\n", "may be read anywhere"),
    ):
        check_noop(f"{head}\n{meter}{body}\nmain()\n", reason)


@pytest.mark.parametrize(
    "clock",
    [
        "start = time.time()\nprint(start)",
        "start = time.perf_counter()\nprint(start)",
        "clock.update(time.time())",
    ],
)
def test_loops_that_are_timed(check_noop: Callable[..., None], clock: str) -> None:
    source = "import time\n" + metered(READ, "print(losses.avg)", f"{START}\n{clock}")
    check_noop(source, "timed")
    source = "import time\n" + metered(f"{READ}\n{clock}", "print(losses.avg)")
    check_noop(source, "timed")


def test_a_meter_of_an_imported_file(check_noop: Callable[..., None]) -> None:
    engine = metered(READ, "print(losses.avg)")
    check_noop({"train.py": "import engine\n", "engine.py": engine}, "of an imported file")


RUN = f"""\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


{METER}
    @property
    def mean(self):
        return self.sum / self.count if self.count > 0 else 0.0


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(90, 8), torch.randint(3, (90,))), batch_size=16)
history = []
for epoch in range(2):
    losses, top1 = AverageMeter(), AverageMeter()
    recent = AverageMeter()
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        output = model(x)
        loss = nn.functional.cross_entropy(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), x.size(0))
        top1.update((output.argmax(1) == y).sum().item() / x.size(0), x.size(0))
        recent.update(loss.item(), x.size(0))
        if i % 2 == 0:
            print(i, recent.mean)
            recent.reset()
            print(i, losses.val, f"{{losses.avg:.4f}}", "%.3f" % top1.avg, top1.count)
    print(epoch, losses.avg, losses.sum, top1.avg)
    history.append(losses.avg)
print(history)
"""


@pytest.mark.torch
def test_same_figures(check_verified: Callable[..., None]) -> None:
    check_verified(RUN)
