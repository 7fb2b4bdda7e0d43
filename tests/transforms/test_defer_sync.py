"""Losses and counts are summed on the device where nothing needs them in every step, and left alone everywhere else."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent
from typing import Any

import pytest

from torchopt_cli.optimizer.options import Target, Tier

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from data import train_set

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(10, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(train_set, batch_size=64)
"""
STEP = """\
x, y = x.to(device), y.to(device)
optimizer.zero_grad()
output = model(x)
loss = nn.functional.cross_entropy(output, y)
loss.backward()
optimizer.step()
"""


def script(before: str, step: str, after: str, head: str = HEAD) -> str:
    """A flat script with one training loop: what stands before it, ends its step, and follows it."""
    body = indent(STEP + dedent(step).strip() + "\n", "        ")
    start, end = (indent(dedent(text).strip(), "    ") for text in (before, after))
    return f"{head}\nfor epoch in range(3):\n{start}\n    for i, (x, y) in enumerate(loader):\n{body}{end}\n"


@pytest.mark.parametrize(
    ("step", "expected", "after", "converted"),
    [
        (
            "total += loss.item()",
            "total += loss.detach().double()",
            "print(total)",
            "print(float(total))",
        ),
        (
            "total += loss.item() * x.size(0)",
            "total += loss.detach().double() * x.size(0)",
            "print(total / 10)",
            "print(float(total) / 10)",
        ),
        (
            "total = total + loss.data.cpu().item() / len(loader)",
            "total = total + loss.detach().double() / len(loader)",
            "print('%.3f' % total)",
            "print('%.3f' % float(total))",
        ),
        (
            "total += float(loss)",
            "total += loss.detach().double()",
            "print(total)",
            "print(float(total))",
        ),
        (
            "total += float(loss.item()) * len(y)",
            "total += loss.detach().double() * len(y)",
            "print(total)",
            "print(float(total))",
        ),
        (
            "total += float((output.argmax(1) == y).sum().item())",
            "total += (output.argmax(1) == y).sum().double()",
            "print(total)",
            "print(float(total))",
        ),
        (
            "total = 0.9 * total + 0.1 * loss.item()",
            "total = 0.9 * total + 0.1 * loss.detach().double()",
            "print(total)",
            "print(float(total))",
        ),
        (
            "total += (loss + 1).item()",
            "total += (loss + 1).detach().double()",
            'print(f"{total:.4f}")',
            'print(f"{float(total):.4f}")',
        ),
        (
            "total += float(loss * 2)",
            "total += (loss * 2).detach().double()",
            "print(total)",
            "print(float(total))",
        ),
        (
            "total += (output.argmax(1) == y).float().mean().item()",
            "total += (output.argmax(1) == y).float().mean().detach().double()",
            "print(total)",
            "print(float(total))",
        ),
        (
            "total += (output.argmax(1) == y).sum().item()",
            "total += (output.argmax(1) == y).sum().double()",
            "print(total)",
            "print(float(total))",
        ),
    ],
)
def test_sums(
    check_transformed: Callable[..., None], step: str, expected: str, after: str, converted: str
) -> None:
    check_transformed(
        script("total = 0.0", step, after), script("total = 0.0", expected, converted)
    )


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("n += (output.argmax(1) == y).sum().item()", "n += (output.argmax(1) == y).sum()"),
        ("n += int((output.max(1)[1] == y).sum())", "n += (output.max(1)[1] == y).sum()"),
        (
            "_, predicted = torch.max(output.data, 1)\nn += predicted.eq(y).sum().item()",
            "_, predicted = torch.max(output.data, 1)\nn += predicted.eq(y).sum()",
        ),
        (
            "n += torch.sum(output.argmax(dim=1) == y).item()",
            "n += torch.sum(output.argmax(dim=1) == y)",
        ),
    ],
)
def test_counts_stay_integers(
    check_transformed: Callable[..., None], step: str, expected: str
) -> None:
    check_transformed(script("n = 0", step, "print(n)"), script("n = 0", expected, "print(int(n))"))


def test_reads_every_so_many_steps_are_converted_there(
    check_transformed: Callable[..., None],
) -> None:
    branch = """\
        total += {0}
        if i % 100 == 99:
            print(f"{{{1} / 100:.3f}}")
            total = 0.0
    """
    before, after = (
        branch.format("loss.item()", "total"),
        branch.format("loss.detach().double()", "float(total)"),
    )
    check_transformed(script("total = 0.0", before, "pass"), script("total = 0.0", after, "pass"))


def test_a_timed_branch_reads_before_its_clock(check_transformed: Callable[..., None]) -> None:
    head = "import time\n" + HEAD
    before = """\
        total += loss.item()
        if i % 100 == 0:
            elapsed = time.time() - start
            print(total, elapsed)
    """
    after = """\
        total += loss.detach().double()
        if i % 100 == 0:
            total = float(total)
            elapsed = time.time() - start
            print(total, elapsed)
    """
    start = "total = 0.0\nstart = time.time()"
    check_transformed(script(start, before, "pass", head), script(start, after, "pass", head))


def test_a_timed_loop_ends_with_reading(check_transformed: Callable[..., None]) -> None:
    head = "import time\n" + HEAD
    start = "total = 0.0\nstart = time.time()"
    after = "print(time.time() - start, total)"
    check_transformed(
        script(start, "total += loss.item()", after, head),
        script(start, "total += loss.detach().double()", f"total = float(total)\n{after}", head),
    )


def test_half_counts_are_no_integers(check_transformed: Callable[..., None]) -> None:
    step = "total += (output.argmax(1) == y).mul(0.5).sum()"
    check_transformed(
        script("total = 0", f"{step}.item()", "print(total / 10)"),
        script("total = 0", f"{step}.detach().double()", "print(float(total) / 10)"),
    )


def test_what_else_an_object_holds_is_no_variable(check_transformed: Callable[..., None]) -> None:
    check_transformed(
        script("total = 0.0", "total += loss.item()", "print(vars(model), total)"),
        script(
            "total = 0.0",
            "total += loss.detach().double()",
            "print(vars(model), float(total))",
        ),
    )


def test_several_reads_share_one_conversion(check_transformed: Callable[..., None]) -> None:
    after = "print(total)\nbest = min(3.0, total)\nhistory = [total]"
    check_transformed(
        script("total = 0", "total += loss.item()", after),
        script("total = 0", "total += loss.detach().double()", f"total = float(total)\n{after}"),
    )


def test_adding_to_the_sum_after_the_loop(check_transformed: Callable[..., None]) -> None:
    after = "total /= len(loader)\nprint(total)"
    check_transformed(
        script("total = 0", "total += loss.item()", after),
        script("total = 0", "total += loss.detach().double()", f"total = float(total)\n{after}"),
    )


def test_a_number_with_a_name_of_its_own(check_transformed: Callable[..., None]) -> None:
    step = """\
        value = {0}
        total += value
        if i % 100 == 0:
            print({1})
    """
    check_transformed(
        script("total = 0.0", step.format("loss.item()", "value"), "print(total)"),
        script(
            "total = 0.0",
            step.format("loss.detach().double()", "float(value)"),
            "print(float(total))",
        ),
    )


def test_a_sum_that_starts_among_starred_values(check_transformed: Callable[..., None]) -> None:
    check_transformed(
        script("n, *rest, total = *pair, 0.0", "total += loss.item()", "print(total)"),
        script(
            "n, *rest, total = *pair, 0.0", "total += loss.detach().double()", "print(float(total))"
        ),
    )


def test_a_number_that_goes_into_a_list_and_a_sum(check_transformed: Callable[..., None]) -> None:
    step = "value = {0}\ntotal += value\nlosses.append(value)"
    check_transformed(
        script("total = 0\nlosses = []", step.format("loss.item()"), "print(total / 9, losses)"),
        script(
            "total = 0\nlosses = []",
            step.format("loss.detach().double()"),
            "losses = [value.item() for value in losses]\nprint(float(total) / 9, losses)",
        ),
    )


COUNT = "n = (output.argmax(1) == y).sum()"


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("total += loss.item() * n", "total += loss.detach().double() * n"),
        ("total += n * (loss.item() + 1)", "total += n * (loss.detach().double() + 1)"),
        ("total += n * 0.5 * loss.item()", "total += n.double() * 0.5 * loss.detach().double()"),
        ("total += n", "total += n.double()"),
        ("total += n / x.size(0)", "total += n.double() / x.size(0)"),
        ("total += 100.0 * n / x.size(0)", "total += 100.0 * n.double() / x.size(0)"),
        ("part = n / x.size(0)\ntotal += part", "part = n.double() / x.size(0)\ntotal += part"),
        (
            "value = loss.item()\ntotal += value * n",
            "value = loss.detach().double()\ntotal += value * n",
        ),
        ("total += 2 * n\nseen += n", "total += 2 * n.double()\nseen += n"),
    ],
)
def test_a_count_in_a_fraction_is_computed_with_in_float64(
    check_transformed: Callable[..., None], use: str, expected: str
) -> None:
    seen = "int(seen)" if "seen" in use else "seen"
    check_transformed(
        script("total, seen = 0.0, 0", f"{COUNT}.item()\n{use}", "print(total, seen)"),
        script("total, seen = 0.0, 0", f"{COUNT}\n{expected}", f"print(float(total), {seen})"),
    )


def test_a_list_of_fractions_of_counts(check_transformed: Callable[..., None]) -> None:
    step = "{0}\nparts.append({1} / x.size(0))\ncounts.append(n)"
    read = "parts = [value.item() for value in parts]\ncounts = [value.item() for value in counts]"
    check_transformed(
        script(
            "parts, counts = [], []", step.format(f"{COUNT}.item()", "n"), "print(parts, counts)"
        ),
        script(
            "parts, counts = [], []",
            step.format(COUNT, "n.double()"),
            f"{read}\nprint(parts, counts)",
        ),
    )


@pytest.mark.parametrize(
    ("number", "read", "expected", "element"),
    [
        ("0.0", "loss.item()", "loss.detach()", "float"),
        ("1", "(output.argmax(1) == y).sum().item()", "(output.argmax(1) == y).sum()", "int"),
    ],
)
def test_a_list_that_is_given_numbers_too(
    check_transformed: Callable[..., None], number: str, read: str, expected: str, element: str
) -> None:
    step = f"if len(x) > 1:\n    values.append({{0}})\nelse:\n    values.append({number})"
    check_transformed(
        script("values = []", step.format(read), "print(values)"),
        script(
            "values = []",
            step.format(expected),
            f"values = [{element}(value) for value in values]\nprint(values)",
        ),
    )


def test_losses_that_each_pass_adds_up_anew(
    check_transformed: Callable[..., None], check_noop: Callable[..., None]
) -> None:
    step = """
    both = 0
    for scale in (1, 2):
        both += nn.functional.cross_entropy(model(x * scale), y)
    both.backward()
    {}
    """
    after = "losses = [value.item() for value in losses]\nprint(max(losses))"
    check_transformed(
        script("losses = []", step.format("losses.append(both.item())"), "print(max(losses))"),
        script("losses = []", step.format("losses.append(both.detach())"), after),
    )
    kept = step.replace("both = 0", "").format("losses.append(both.item())")
    check_noop(script("losses, both = [], 0", kept, "print(max(losses))"), reason="in place")


def test_lists(check_transformed: Callable[..., None]) -> None:
    after = "print(sum(losses) / len(losses))"
    converted = f"losses = [value.item() for value in losses]\n{after}"
    check_transformed(
        script("losses = []", "losses.append(loss.item())", after),
        script("losses = []", "losses.append(loss.detach())", converted),
    )


@pytest.mark.parametrize(
    "read",
    ["loss.data.cpu().numpy()", "loss.detach().cpu().numpy()", "loss.cpu().detach().numpy()"],
)
def test_lists_of_arrays(
    check_transformed: Callable[..., None], check_noop: Callable[..., None], read: str
) -> None:
    """They stay arrays of float32, of which others make means in float32."""
    after = "print(sum(losses) / len(losses))"
    converted = f"losses = [value.cpu().numpy() for value in losses]\n{after}"
    check_transformed(
        script("losses = []", f"losses.append({read})", after),
        script("losses = []", "losses.append(loss.detach())", converted),
    )
    for before, step in (
        ("losses = []", f"losses.append({read} / 2)"),
        ("losses = []", f"losses.append({read})\nlosses.append(0.5)"),
        ("losses = 0.0", f"losses += {read}"),
    ):
        check_noop(
            script(before, step, "print(losses)"),
            reason="is an array, which is not only kept in a list",
        )
    outputs = script(
        "outputs = []", "outputs.append(model(x).data.cpu().numpy())", "print(outputs)"
    )
    check_noop(outputs, reason="copies to the host")


@pytest.mark.parametrize(
    "draw",
    [
        "if torch.rand(1).item() < 0.5:\n    x = x.flip(1)",
        "if torch.rand(1) < 0.5:\n    x = x.flip(1)",
        "turns = torch.randint(0, 4, (1,))\nif turns.item():\n    x = torch.rot90(x, int(turns.item()))",
    ],
)
def test_numbers_drawn_on_the_host_wait_for_nothing(
    check_transformed: Callable[..., None], draw: str
) -> None:
    check_transformed(
        script("total = 0.0", f"{draw}\ntotal += loss.item()", "print(total)"),
        script("total = 0.0", f"{draw}\ntotal += loss.detach().double()", "print(float(total))"),
    )


def test_numbers_drawn_where_a_gpu_is_the_default(check_noop: Callable[..., None]) -> None:
    draw = "if torch.rand(1).item() < 0.5:\n    x = x.flip(1)\ntotal += loss.item()"
    head = HEAD + 'torch.set_default_device("cuda")\n'
    check_noop(script("total = 0.0", draw, "print(total)", head), reason="is compared")


def test_a_list_that_grows_by_lists(check_transformed: Callable[..., None]) -> None:
    after = "print(sum(losses) / len(losses))"
    converted = f"losses = [value.item() for value in losses]\n{after}"
    check_transformed(
        script("losses = []", "losses += [loss.item()]", after),
        script("losses = []", "losses += [loss.detach()]", converted),
    )


def test_a_list_that_starts_anew_every_so_many_steps(
    check_transformed: Callable[..., None],
) -> None:
    step = "losses.append({0})\nif i % 100 == 0:\n    print(i, np.mean({1}))\n    losses = []"
    head = f"import numpy as np\n{HEAD}"
    check_transformed(
        script("losses = []", step.format("loss.item()", "losses"), "pass", head),
        script(
            "losses = []",
            step.format("loss.detach()", "[value.item() for value in losses]"),
            "pass",
            head,
        ),
    )


def test_a_list_in_a_timed_branch_is_read_before_its_clock(
    check_transformed: Callable[..., None],
) -> None:
    step = """
        losses.append({0})
        if i % 100 == 0:{1}
            print(time.time() - start, sum(losses))
            losses, start = [], time.time()
            losses = []
    """
    read = "\n            losses = [value.item() for value in losses]"
    head = f"import time\n{HEAD}"
    check_transformed(
        script("losses, start = [], time.time()", step.format("loss.item()", ""), "pass", head),
        script("losses, start = [], time.time()", step.format("loss.detach()", read), "pass", head),
    )


def test_a_mean_that_is_taken_at_the_end_of_no_grad(
    check_transformed: Callable[..., None],
) -> None:
    source = """
        def validate():
            with torch.no_grad():
                total = 0.0
                for i, (x, y) in enumerate(loader):
                    loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
                    total += loss{0}
                total {1}
            print(f"{{total:.3f}}")

        validate()
    """
    check_transformed(
        HEAD + dedent(source.format(".item()", "= total / len(loader)")),
        HEAD + dedent(source.format(".double()", "= float(total) / len(loader)")),
    )


def test_a_list_of_all_epochs_is_converted_behind_them(
    check_transformed: Callable[..., None],
) -> None:
    before = HEAD + "losses = []\n"
    after = "\nprint(max(losses))\n"
    check_transformed(
        script("pass", "losses.append(loss.item())", "pass", before) + after,
        script("pass", "losses.append(loss.detach())", "pass", before)
        + "losses = [value.item() for value in losses]\n"
        + after,
    )


EVALUATED = """\
    losses = []
    with torch.no_grad():
        for x, y in test_loader:
            losses.append(nn.functional.cross_entropy(model(x.to(device)), y.to(device)).item())
    print(max(losses))
"""
TWO = HEAD + "test_loader = DataLoader(test_set, batch_size=64)\n"


def test_two_loops_that_fill_lists_of_one_name(check_transformed: Callable[..., None]) -> None:
    check_transformed(
        script("losses = []", "losses.append(loss.item())", "print(max(losses))", TWO) + EVALUATED,
        script(
            "losses = []",
            "losses.append(loss.detach())",
            "losses = [value.item() for value in losses]\nprint(max(losses))",
            TWO,
        )
        + EVALUATED.replace(".item()", "").replace(
            "    print", "        losses = [value.item() for value in losses]\n    print"
        ),
    )


@pytest.mark.parametrize(
    "between",
    [
        "losses = losses[:0]",
        "if epoch == 0:\n    losses = []",
        "losses = []\nkept = losses",
        "pass",
    ],
)
def test_two_loops_that_may_fill_one_list(rewrite: Callable[..., Any], between: str) -> None:
    second = EVALUATED.replace("    losses = []\n", indent(between, "    ") + "\n")
    source = script("losses = []", "losses.append(loss.item())", "print(max(losses))", TWO) + second
    text = rewrite(source, ["defer-sync"]).files[0].text
    assert second in text


def test_of_two_lists_the_last_one_is_read_behind_its_own_loop(
    check_transformed: Callable[..., None],
) -> None:
    second = "    if epoch % 2:\n" + indent(
        EVALUATED.replace("    print(max(losses))\n", ""), "    "
    )
    before = "losses = []\n" + script(
        "losses = []", "losses.append(loss.item())", "print(max(losses))", TWO
    )
    after = "losses = []\n" + script(
        "losses = []",
        "losses.append(loss.detach())",
        "losses = [value.item() for value in losses]\nprint(max(losses))",
        TWO,
    )
    read = "            losses = [value.item() for value in losses]\n"
    check_transformed(
        before + second + "print(losses)\n",
        after + second.replace(".item()", "") + read + "print(losses)\n",
    )


@pytest.mark.parametrize("test", ["last is None", "None is not last"])
def test_none_is_told_without_waiting(check_transformed: Callable[..., None], test: str) -> None:
    asked = "last = loss.item()\nif {}:\n    skipped += 1\nelse:\n    total += last"
    check_transformed(
        script("total, skipped = 0.0, 0", asked.format(test), "print(total)"),
        script(
            "total, skipped = 0.0, 0",
            asked.format(test).replace("loss.item()", "loss.detach().double()"),
            "print(float(total))",
        ),
    )


def test_nothing_is_read_afterwards(check_transformed: Callable[..., None]) -> None:
    check_transformed(
        script("total = 0.0", "total += loss.item()", "pass"),
        script("total = 0.0", "total += loss.detach().double()", "pass"),
    )


EVALUATE = """\
import torch as th
import torch.nn.functional as F
from torch.utils.data import DataLoader
from data import test_set
from net import Net


{decorator}
def evaluate(model, loader):
    model.eval()
    test_loss, correct = 0, 0
    for data, target in loader:
        data, target = data.cuda(), target.cuda()
        output = model(data)
        test_loss += F.nll_loss(output, target, reduction="sum"){loss}
        pred = output.argmax(dim=1, keepdim=True)
        correct += pred.eq(target.view_as(pred)).sum(){item}
    return {0} / len(loader.dataset), {1}


model = Net().cuda()
print(evaluate(model, DataLoader(test_set, batch_size=64)))
"""
NET = """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 2)

    def forward(self, x):
        return self.fc(x)
"""


def test_evaluation_without_gradients_needs_no_detach(
    check_transformed: Callable[..., None],
) -> None:
    before = EVALUATE.format(
        "test_loss", "correct", decorator="@th.no_grad()", loss=".item()", item=".item()"
    )
    after = EVALUATE.format(
        "float(test_loss)", "int(correct)", decorator="@th.no_grad()", loss=".double()", item=""
    )
    check_transformed({"train.py": before, "net.py": NET}, {"train.py": after, "net.py": NET})


def test_a_loop_in_another_file(check_transformed: Callable[..., None]) -> None:
    engine = """\
        def train(model, loader, criterion, optimizer, device):
            total = 0.0
            for x, y in loader:
                x, y = x.to(device), y.to(device)
                loss = criterion(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss{0}
            return {1} / len(loader)
    """
    main = (
        HEAD
        + "from engine import train\n\nprint(train(model, loader, nn.MSELoss(), optimizer, device))\n"
    )
    check_transformed(
        {"train.py": main, "engine.py": dedent(engine).format(".item()", "total")},
        {
            "train.py": main,
            "engine.py": dedent(engine).format(".detach().double()", "float(total)"),
        },
    )


def test_a_loss_of_unknown_make_that_is_backpropagated(
    check_transformed: Callable[..., None],
) -> None:
    head = HEAD + "from losses import make\n\ncriterion = make()\n"
    step = "loss = criterion(output, y)\nloss.backward()\ntotal += {0}"
    check_transformed(
        script("total = 0.0", step.format("loss.item()"), "print(total)", head),
        script("total = 0.0", step.format("loss.detach().double()"), "print(float(total))", head),
    )


@pytest.mark.parametrize(
    "head",
    [
        "if torch.backends.mps.is_available():\n    model.to('mps')\n",
        "from accelerate import Accelerator\n\naccelerator = Accelerator()\nmodel.to(accelerator.device)\n",
    ],
)
def test_without_float64_the_change_is_numeric(rewrite: Callable[..., Any], head: str) -> None:
    head = HEAD + head
    before = script("total = 0.0", "total += loss.item()", "print(total)", head)
    (file,) = rewrite(before, ["defer-sync"]).files
    assert "total += loss.detach().float()" in file.text
    assert [change.tier for change in file.changes] == [Tier.NUMERIC]
    assert "float32" in file.changes[0].reason


@pytest.mark.parametrize(
    ("step", "tier"),
    [
        ("total += loss.item()", Tier.EXACT),
        ("total += loss.item() * x.size(0)", Tier.EXACT),
        ("total += loss.item() / len(loader)", Tier.NUMERIC),
    ],
)
def test_devices_divide_in_another_way(rewrite: Callable[..., Any], step: str, tier: Tier) -> None:
    (file,) = rewrite(script("total = 0.0", step, "print(total)"), ["defer-sync"]).files
    assert [change.tier for change in file.changes] == [tier]
    assert ("reciprocal" in file.changes[0].reason) is (tier is Tier.NUMERIC)


def test_only_exact_sums_where_no_others_are_allowed(
    check_transformed: Callable[..., None], check_noop: Callable[..., None]
) -> None:
    check_transformed(
        script("total = 0.0", "total += loss.item()", "print(total)"),
        script("total = 0.0", "total += loss.detach().double()", "print(float(total))"),
        tier=Tier.EXACT,
    )
    divided = script("total = 0.0", "total += loss.item() / len(loader)", "print(total)")
    check_noop(divided, "only with --tier numeric", tier=Tier.EXACT)


@pytest.mark.parametrize(
    ("before", "step", "after", "reason"),
    [
        ("total = 0.0", "total += loss.item()\nprint(total)", "pass", "printed in every step"),
        (
            "total = 0.0",
            "total += loss.item()\nprint(loss.item())",
            "pass",
            "printed in every step",
        ),
        ("pass", "print(f'{loss.item():.4f}')", "pass", "printed in every step"),
        ("total = 0.0", "total += loss.item()\nif total > 9:\n    break", "pass", "compared"),
        ("best = 9.0", "best = loss.item()\nif best:\n    break", "pass", "decides"),
        ("best = 9.0", "best = loss.item()\nif best is 0.0:\n    break", "pass", "compared"),
        ("best = 9.0", "best = loss.item()\nif best == None:\n    break", "pass", "compared"),
        ("best = 9.0", "best = loss.item()\nif best < 1e-3:\n    break", "pass", "compared"),
        ("pass", "if loss.item() != loss.item():\n    raise ValueError", "pass", "compared"),
        ("pass", "assert loss.item() < 1e6", "pass", "compared"),
        ("pass", "scheduler.step(loss.item())", "pass", "goes by"),
        ("pass", "bar.set_postfix(loss=loss.item())", "pass", "shown in every step"),
        ("pass", "writer.add_scalar('loss', loss.item(), i)", "pass", "logged in every step"),
        (
            "top = 0",
            "top += output.byte().max().item()",
            "print(top)",
            "`output.byte().max()` has few bits, and its sums may overflow",
        ),
        ("pass", "meter.update(loss.item(), x.size(0))", "pass", "goes into `meter`"),
        ("pass", "meter.total += loss.item()", "pass", "goes into `meter.total`"),
        ("pass", "stats['loss'] += loss.item()", "pass", "goes into `stats['loss']`"),
        ("total = 0.0", "total += loss.item() ** 0.5", "print(total)", "used in every step"),
        ("total = 0.0", "total += 1 / loss.item()", "print(total)", "divide by zero"),
        ("total = 1.0", "total *= loss.item()", "print(total)", "only sums"),
        ("total = 0.0", "total += loss.item() * weight", "print(total)", "may be no number"),
        ("total = torch.zeros(1)", "total += loss.item()", "print(total)", "also set by"),
        ("total = None", "total = loss.item()", "print(total)", "also set by"),
        ("total = start()", "total += loss.item()", "print(total)", "also set by"),
        ("n, total = *pair, 0.0", "total += loss.item()", "print(total)", "also set by"),
        ("total = 0.0", "total += loss.item()\ntotal = f(total)", "pass", "also set by"),
        (
            "total = 0.0",
            "total += loss.item()\nif epoch % 2 == 0:\n    print(total)",
            "pass",
            "printed",
        ),
        (
            "total = 0.0",
            "total += loss.item()\nif i % 1 == 0:\n    print(total)",
            "pass",
            "printed",
        ),
        ("total = 0.0", "total += loss.item()\nif i % 9:\n    print(total)", "pass", "printed"),
        ("total = 0.0", "total += y.sum().item()", "print(total)", "integers or floats"),
        (
            "pass",
            "number = y.sum().item()\nif number > 3:\n    stop()",
            "pass",
            "`number` is compared in every step (`number > 3`)",
        ),
        ("total = 0", "total += int(loss)", "print(total)", "rounds"),
        ("total = 0.0", "total += loss.item()\nshow = lambda: total", "pass", "another function"),
        ("total = 0.0", "total += loss.item()\ndel total", "pass", "deleted"),
        ("total = 0.0", "total += loss.item()", "print(locals())", "may read `total`"),
        ("total = 0.0", "total += loss.item()", "print(vars())", "may read `total`"),
        ("total = 0.0", "total += loss.item()", "vars(find(__name__))", "may read `total`"),
        (
            "total = 0.0",
            "total += loss.item()\nif i % 9 == 0:\n    total = 0",
            "print(total)",
            "the integer",
        ),
        (
            "total = 0.0",
            "total += loss.item()\nif i == 9:\n    total = -1",
            "print(total)",
            "also set by",
        ),
        (
            "total = 0.0",
            "total += loss.item()\nif x.dim():\n    total = len(x)",
            "print(total)",
            "also set by",
        ),
        (
            "totals, total = [], 0.0",
            "total += loss.item()\ntotals.append(total)",
            "print(totals)",
            "while it is kept",
        ),
        ("losses = []", "losses.append(loss.item())\nprint(losses[-1])", "pass", "printed"),
        ("losses = [0.0]", "losses.append(loss.item())", "print(losses)", "start as an empty list"),
        ("losses = [0.0]", "losses += [loss.item()]", "print(losses)", "start as an empty list"),
        ("losses = []", "losses += [loss.item(), 1.0]", "print(losses)", "used in every step"),
        ("losses = []", "losses += 2 * [loss.item()]", "print(losses)", "used in every step"),
        ("losses = []", "losses -= [loss.item()]", "print(losses)", "used in every step"),
        (
            "losses = []",
            "losses.append(loss.item())\nif i % 100 == 0:\n    print(max(losses))",
            "pass",
            "while it still grows",
        ),
        (
            "losses = []",
            "losses.append(loss.item())\nif i % 9 == 0:\n    show(losses)\n    losses = []",
            "pass",
            "is used",
        ),
        (
            "losses = []",
            "losses.append(loss.item())\nif i % 9 == 0:\n    losses.sort()\n    losses = []",
            "pass",
            "is used",
        ),
        (
            "losses = []",
            "losses.append(loss.item())\nif i % 9 == 0:\n    losses = []\n    print(max(losses))",
            "pass",
            "while it still grows",
        ),
        (
            "losses = make()",
            "losses.append(loss.item())",
            "print(losses)",
            "start as an empty list",
        ),
        (
            "losses = []\nkept = losses",
            "losses.append(loss.item())",
            "print(kept)",
            "known elsewhere",
        ),
        (
            "losses = []",
            "losses.append(loss.item())\nloss += 1",
            "print(losses)",
            "changed in place",
        ),
        (
            "losses = []",
            "losses.append(loss.item())\nloss.zero_()",
            "print(losses)",
            "changed in place",
        ),
        (
            "losses = torch.zeros(1000)",
            "losses[i] = loss.item()",
            "print(losses.mean())",
            "goes into `losses[i]`, an element of a tensor",
        ),
        (
            "losses = torch.load('losses.pt')",
            "losses[i] = loss.item()",
            "print(losses)",
            "goes into `losses[i]`, which may be read anywhere",
        ),
        (
            "total = 0.0",
            "total += loss.item()\nshort = x[:, : output.argmax(1).sum()]",
            "print(total)",
            "needs its values in every step",
        ),
        (
            "total = 0.0",
            "total += loss.item()\nfor row in range(output.argmax()):\n    x[row] += 1",
            "print(total)",
            "needs its values in every step",
        ),
        (
            "total = 0.0",
            "total += loss.item()\nseen = y.tolist()",
            "pass",
            "`y.tolist()` copies to the host",
        ),
        ("total = 0.0", "total += loss.item()\ntorch.cuda.synchronize()", "pass", "synchronize"),
        ("total = 0.0", "total += loss.item()\nif torch.isnan(loss):\n    break", "pass", "isnan"),
        (
            "n = 0",
            "n = (output.argmax(1) == y).sum().item()\nn += loss.item()",
            "print(n)",
            "replaced and added",
        ),
        (
            "total = 0.0",
            f"{COUNT}.item()\ntotal += loss.item() / n",
            "print(total)",
            "divide by zero",
        ),
        (
            "values = []",
            "values.append(loss.item() if i else 0)",
            "print(values)",
            "goes into `values`",
        ),
        (
            "values = []",
            "values.append(loss.item())\nif len(x) == 1:\n    values.append(0)",
            "print(values)",
            "`values` is a count in one place and a fraction in another",
        ),
        (
            "best = 0",
            f"{COUNT}.item()\nif len(x) > 1:\n    best = n\nelse:\n    best = loss.item()",
            "print(best)",
            "`best` is a count in one place and a fraction in another",
        ),
    ],
)
def test_left_alone(
    check_noop: Callable[..., None], before: str, step: str, after: str, reason: str
) -> None:
    check_noop(script(before, step, after), reason)


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ("import time\n" + HEAD, "timed"),
        (HEAD + "side = torch.cuda.Stream()\n", "orders its work"),
        (HEAD + "model.to('cuda:1')\n", "several GPUs, `cuda:1` and the current one"),
        (HEAD + "first, second = 'cuda:0,cuda:2'.split(',')\n", "`cuda:0` and `cuda:2`"),
        (HEAD + "critic = model.cuda(0), model.cuda(1)\n", "`cuda:0` and `cuda:1`"),
        (HEAD + "kwargs = dict(device_map='auto')\n", "several GPUs (`device_map`)"),
        (HEAD + "staged = torch.empty(8, pin_memory=True)\n", "copies without waiting"),
        (
            HEAD + "def kept(t):\n    return t.to('cpu', non_blocking=True)\n",
            "copies without waiting",
        ),
        (HEAD + "float = abs\n", "something else"),
    ],
)
def test_scripts_that_may_rely_on_waiting(
    check_noop: Callable[..., None], head: str, reason: str
) -> None:
    step = "total += loss.item()" + ("\nprint(time.time())" if "time" in head else "")
    check_noop(script("total = 0.0", step, "print(total)", head), reason)


def test_a_clock_that_nobody_looks_at_times_nothing(rewrite: Callable[..., Any]) -> None:
    head, step = "import time\n" + HEAD, "total += loss.item()\nend = time.time()"
    assert (
        rewrite(script("total = 0.0", step, "print(total)", head), ["defer-sync"]).files[0].changes
    )
    (file,) = rewrite(script("total = 0.0", step, "print(total, end)", head), ["defer-sync"]).files
    assert "it is timed" in file.skips[0].message


@pytest.mark.parametrize(
    "option",
    [
        "default='cuda:1', help='cuda:0, cuda:1'",
        "default='cuda:1', help='the GPU, as ' + 'cuda:0'",
        "default='cuda:0', choices=['cuda:0', 'cuda:1', 'cpu']",
    ],
)
def test_one_gpu_of_any_number_waits_for_no_other(rewrite: Callable[..., Any], option: str) -> None:
    imports, model = HEAD.split(
        'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'
    )
    parser = f"import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--device', {option})\n"
    head = f"{imports}{parser}device = torch.device(parser.parse_args().device)\n{model}"
    source = script("total = 0.0", "total += loss.item()", "print(total)", head)
    assert rewrite(source, ["defer-sync"]).files[0].changes


def test_comments_rely_on_nothing(rewrite: Callable[..., Any]) -> None:
    head = HEAD + "# model.to('cuda:1')\n# torch.compile(model, mode='reduce-overhead')\n"
    source = script("total = 0.0", "total += loss.item()", "print(total)", head)
    assert rewrite(source, ["defer-sync"]).files[0].changes


@pytest.mark.parametrize(
    "wait",
    [
        "if torch.isnan(output).any():\n    raise ValueError",
        "if torch.any(torch.isnan(loss)):\n    continue",
        "if not torch.isfinite(loss) or i > 900:\n    break",
        "if loss > 5 and i > 3:\n    continue",
        "assert torch.isfinite(loss)",
        "scale = 1 if loss > 3 else 2",
        "if math.isnan(loss):\n    raise ValueError",
        "if bool(loss > 3):\n    break",
        "print(loss)",
        "line = f'{loss:.3f}'",
        "line = '{:.3f}'.format(loss)",
        "line = '{} {loss}'.format(i, loss=loss)",
        "line = repr(loss)",
        "bar.set_postfix(loss=loss)",
        "writer.add_scalar('loss', loss, i)",
        "chosen = output[y > 0]",
        "where = (y > 0).nonzero()",
        "same = torch.equal(output, y)",
        "best = min(best, loss)",
        "kept = loss.to('cpu')",
    ],
)
def test_something_else_waits_in_every_step(check_noop: Callable[..., None], wait: str) -> None:
    head = "import math\n" + HEAD
    step = "total += loss.item()\n"
    why = "copies to the host" if "to('cpu')" in wait else "needs its values in every step"
    check_noop(script("total = 0.0", step + wait, "print(total)", head), why)


@pytest.mark.parametrize(
    "other",
    [
        "print(output.shape, x.size(0))",
        "line = f'{i} of {len(loader)}'",
        "small = x.size(0) < 64 and i > 3",
        "chosen = output[:, 0]",
        "if i % 100 == 0:\n    print(loss)",
        "best = min(9, x.size(0))",
        "moved = loss.to(device)",
        "bounded = torch.where(output > 0, output, -output)",
    ],
)
def test_what_does_not_wait_is_no_obstacle(
    check_transformed: Callable[..., None], other: str
) -> None:
    check_transformed(
        script("total = 0.0", f"total += loss.item()\n{other}", "print(total)"),
        script("total = 0.0", f"total += loss.detach().double()\n{other}", "print(float(total))"),
    )


def test_a_function_of_the_step_waits(check_noop: Callable[..., None]) -> None:
    head = HEAD + "def hits(a, b):\n    return (a.argmax(1) == b).sum().item() + 1\n"
    step = "total += loss.item()\nn += hits(output, y)"
    check_noop(script("total, n = 0.0, 0", step, "print(total, n)", head), "in every step")


def test_what_happens_rarely_is_no_matter(check_noop: Callable[..., None]) -> None:
    step = (
        "if i % 100 == 0:\n    print(loss.item())\nif i == len(loader) - 1:\n    last = loss.item()"
    )
    check_noop(script("pass", step, "print(last)"))


def test_numbers_of_the_host(check_noop: Callable[..., None]) -> None:
    check_noop(script("total = 0.0", "total += float(x.size(0))", "print(total)"))
    check_noop(script("n = 0", "n += (output.argmax(1).cpu() == 3).sum().item()", "print(n)"))


def test_a_script_for_the_cpu(check_noop: Callable[..., None]) -> None:
    head = HEAD.replace('torch.device("cuda" if torch.cuda.is_available() else "cpu")', '"cpu"')
    check_noop(
        script("total = 0.0", "total += loss.item()", "print(total)", head), "does not use a GPU"
    )


def test_a_global_sum(check_noop: Callable[..., None]) -> None:
    body = indent(STEP + "total += loss.item()\n", "        ")
    source = f"{HEAD}\ntotal = 0.0\n\ndef train():\n    global total\n    for x, y in loader:\n{body}\ntrain()\n"
    check_noop(source, "around the function")


def test_a_read_in_an_exception_handler(check_noop: Callable[..., None]) -> None:
    body = indent(STEP + "total += loss.item()\n", "        ")
    source = (
        f"{HEAD}\ntotal = 0.0\ntry:\n    for x, y in loader:\n{body}"
        "except KeyboardInterrupt:\n    print(total)\n"
    )
    check_noop(source, "after an exception")


def test_a_caught_exception_skips_no_conversion(check_noop: Callable[..., None]) -> None:
    body = indent(STEP + "losses.append(loss.item())\n", "        ")
    source = (
        f"{HEAD}\nlosses = []\ntry:\n    for x, y in loader:\n{body}"
        "except KeyboardInterrupt:\n    pass\nprint(losses)\n"
    )
    check_noop(source, "may not be set")


def test_the_else_of_the_loop(check_noop: Callable[..., None]) -> None:
    check_noop(script("total = 0.0", "total += loss.item()", "else:\n    print(total)"), "printed")


def test_float64_sums_are_no_reason_against_tf32(rewrite: Callable[..., Any]) -> None:
    before = script("total = 0.0", "total += loss.item()", "print(total)")
    (file,) = rewrite(before, ["defer-sync", "tf32"]).files
    assert ".double()" in file.text
    assert "set_float32_matmul_precision" in file.text


@pytest.mark.parametrize(
    ("before", "step", "expected", "after"),
    [
        ("total = 0.0", "total += loss", "total += loss.detach()", "print(total.item())"),
        ("total = 0", "total = total + loss", "total = total + loss.detach()", "f(total)"),
        (
            "total = 0.0",
            "total = 0.9 * total + 0.1 * loss",
            "total = 0.9 * total + 0.1 * loss.detach()",
            "f(total)",
        ),
        (
            "total = 0",
            "total += loss * x.size(0)",
            "total += loss.detach() * x.size(0)",
            "f(total)",
        ),
        (
            "all = []",
            "all.append(loss)",
            "all.append(loss.detach())",
            "print(torch.stack(all).mean())",
        ),
    ],
)
def test_graphs_are_not_kept(
    check_transformed: Callable[..., None], before: str, step: str, expected: str, after: str
) -> None:
    check_transformed(script(before, step, after), script(before, expected, after))


PARTS = """\
first = nn.functional.cross_entropy(model(x), y)
second = model(x).pow(2).mean()
{}
optimizer.zero_grad()
{}
optimizer.step()
{}
"""


@pytest.mark.parametrize(
    ("made", "backward"),
    [
        ("both = first + 0.1 * second", "both.backward()"),
        ("scale = 3", "(first / scale + second).backward()"),
    ],
)
def test_graphs_of_the_parts_of_a_loss_are_not_kept(
    rewrite: Callable[..., Any], made: str, backward: str
) -> None:
    source = script("total = 0.0", PARTS.format(made, backward, "total += second"), "f(total)")
    (file,) = rewrite(source, ["defer-sync"]).files
    assert "total += second.detach()" in file.text


@pytest.mark.parametrize(
    "weight",
    ["0.5 * i", "math.exp(-i)", "2.0 / (1.0 + np.exp(-10 * i)) - 1"],
)
def test_graphs_of_a_weighted_sum_are_not_kept(rewrite: Callable[..., Any], weight: str) -> None:
    step = PARTS.format(
        f"weight = {weight}\nboth = first + second",
        "both.backward()",
        "total += first - weight * second",
    )
    source = "import math\nimport numpy as np\n" + script("total = 0.0", step, "f(total)")
    (file,) = rewrite(source, ["defer-sync"]).files
    assert "total += first.detach() - weight * second.detach()" in file.text
    (change,) = file.changes
    assert "go into `total` without their graphs" in change.message


@pytest.mark.parametrize(
    ("made", "backward"),
    [
        ("both = first + 0.1 * second.detach()", "both.backward()"),
        ("both = first + second", "both.backward(retain_graph=True)"),
        ("both = first + second\nboth = first", "both.backward()"),
        ("both = first + second\nsecond = second + 1", "both.backward()"),
        ("both = first + second", "if i:\n    both.backward()"),
        ("second = len(x)\nboth = first / second", "both.backward()"),
        ("second = weight(i)\nboth = first * second", "both.backward()"),
    ],
)
def test_graphs_of_parts_that_may_be_used(
    check_noop: Callable[..., None], made: str, backward: str
) -> None:
    check_noop(
        script(
            "total = 0.0", PARTS.format(made, backward, "total += second"), "print(total.mean())"
        )
    )


def test_graphs_are_not_kept_on_the_cpu_either(check_transformed: Callable[..., None]) -> None:
    head = HEAD.replace('torch.device("cuda" if torch.cuda.is_available() else "cpu")', '"cpu"')
    check_transformed(
        script("total = 0.0", "total += loss", "print(f'{total:.3f}')", head),
        script("total = 0.0", "total += loss.detach()", "print(f'{total:.3f}')", head),
    )


@pytest.mark.parametrize(
    ("before", "step", "after"),
    [
        ("total = 0.0", "total += loss", "total.backward()"),
        ("total = 0.0", "total += loss", "(total / 2).backward()"),
        ("total = 0.0", "total += loss", "print(total.grad_fn)"),
        ("total = 0.0", "total = total + loss", "accelerator.backward(total)"),
        ("total = 0.0", "total = total + loss", "print(total)"),
        ("total = 0.0", "total = loss + 1", "f(total)"),
        ("total = 0.0", "total = loss = loss + 1", "f(total)"),
        ("total = 0.0", "total = total + total * loss", "f(total)"),
        ("total = 0.0", "total += loss", "print(total)"),
        ("total = 0.0", "total += other", "print(total.item())"),
        ("total = 0.0", "loss = loss + 1\ntotal += loss", "print(total.item())"),
        ("total = 0.0", "total += loss + other(x)", "print(total.item())"),
        ("total = 1.0", "total *= loss", "print(total.item())"),
        ("all = []", "all.append(loss)", "for each in all:\n    each.backward()"),
        ("all = []", "all.append(loss)", "keep = all"),
    ],
)
def test_graphs_that_may_be_used(
    check_noop: Callable[..., None], before: str, step: str, after: str
) -> None:
    check_noop(script(before, step, after))


def test_a_loss_given_to_a_layer_written_by_hand(check_noop: Callable[..., None]) -> None:
    source = """\
import math
import torch


class CrossEntropy:
    def forward(self, probabilities, y):
        return sum(-math.log(p[label]) for p, label in zip(probabilities, y))

    def backward(self, loss):
        return loss


class Layer:
    def __init__(self):
        self.weight = torch.rand(4, 4)

    def forward(self, x):
        return x.mm(self.weight)

    def backward(self, gradient):
        return gradient


layer = Layer()
criterion = CrossEntropy()
total = 0
for batch in range(10):
    output = layer.forward(torch.rand(8, 4))
    loss = criterion.forward(output, torch.randint(0, 4, (8,)))
    gradient = criterion.backward(loss)
    layer.backward(gradient)
    total += loss
print(total)
"""
    check_noop(source)


def test_a_graph_that_is_retained(check_noop: Callable[..., None]) -> None:
    source = script("total = 0.0", "total += loss", "print(total.item())")
    check_noop(source.replace("loss.backward()", "loss.backward(retain_graph=True)"))
    check_noop(source.replace("loss.backward()", "if i % 2:\n            loss.backward()"))


def test_a_sum_over_time_steps(check_noop: Callable[..., None]) -> None:
    step = """\
        total = 0.0
        for t in range(3):
            loss = nn.functional.cross_entropy(model(x), y)
            total += loss
        total.backward()
    """
    check_noop(script("pass", step, "pass"))


RUN = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(90, 8), torch.randint(3, (90,))), batch_size=16)
history = []
for epoch in range(3):
    running, shown, weighted, correct = 0.0, 0.0, 0.0, 0
    losses, recent, shares, thirds = [], [], [], []
    for i, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        output = model(x)
        loss = nn.functional.cross_entropy(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running += loss.item() * x.size(0)
        shown += loss.item()
        losses.append(loss.item())
        recent.append(loss.item())
        shares += [(output.argmax(1) == y).float().mean().item()]
        right = (output.argmax(1) == y).sum().item()
        correct += right
        weighted += loss.item() * right
        accuracy = 100.0 * right / x.size(0)
        thirds.append(right * 0.3)
        if (i + 1) % 2 == 0:
            print(accuracy)
            print(i, shown / 2, "%.3f" % shown, max(recent), recent)
            shown = 0.0
            recent = []
    print(epoch, running / 90, correct, losses, sum(losses), shares)
    print(weighted, thirds)
    history.append(running)
print(history)
"""


@pytest.mark.torch
def test_same_numbers(check_verified: Callable[..., None]) -> None:
    check_verified(RUN)


TRANSFORMER = """\
import torch
from torch import nn

device = torch.device({device})
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32), 1).to(device)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
mask = nn.Transformer.generate_square_subsequent_mask(8).to(device)
for step in range(12):
    optimizer.zero_grad()
    x = torch.rand(8, 4, 16, device=device)
    loss = encoder(x, mask{told}).square().mean()
    loss.backward()
    optimizer.step()
"""
CHOSEN = '"cuda" if torch.cuda.is_available() else "cpu"'


def test_a_transformer_is_told_that_its_mask_is_causal(
    check_transformed: Callable[..., None],
) -> None:
    check_transformed(
        TRANSFORMER.format(device=CHOSEN, told=""),
        TRANSFORMER.format(device=CHOSEN, told=", is_causal=True"),
    )


def test_on_a_cpu_nothing_waits_for_the_mask(check_noop: Callable[..., None]) -> None:
    check_noop(TRANSFORMER.format(device='"cpu"', told=""))


@pytest.mark.torch
def test_a_told_transformer_trains_the_same(check_verified: Callable[..., None]) -> None:
    check_verified(TRANSFORMER.format(device=CHOSEN, told=""), target=Target.CUDA)


@pytest.mark.parametrize(
    ("after", "converted"),
    [
        ("print(total, total / 10)", "total = float(total)\nprint(total, total / 10)"),
        ("print(total)\nprint(total / 10)", "print(float(total))\nprint(float(total) / 10)"),
    ],
)
def test_a_statement_that_shows_it_twice_converts_it_once(
    check_transformed: Callable[..., None], after: str, converted: str
) -> None:
    check_transformed(
        script("total = 0.0", "total += loss.item()", after),
        script("total = 0.0", "total += loss.detach().double()", converted),
    )
