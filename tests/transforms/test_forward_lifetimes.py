"""forward-lifetimes: `del output` at the end of a loop's body, asked for by name."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.pipeline.result import RewriteResult

Check = Callable[..., None]

HEAD = """\
import contextlib
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from data import train_set, test_set

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Conv2d(3, 8, 3).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(train_set, batch_size=32)
test_loader = DataLoader(test_set, batch_size=32)
"""
TRAIN = """\
for x, y in loader:
    x, y = x.to(device), y.to(device)
    optimizer.zero_grad()
    output = model(x)
    loss = criterion(output, y)
    loss.backward()
    optimizer.step()
"""
TEST = """\
total = 0
for x, y in test_loader:
    output = model(x.to(device))
    total += criterion(output, y.to(device)).item()
"""


def in_function(body: str, name: str = "run", more: str = "") -> str:
    return HEAD + f"\n\ndef {name}():\n" + indent(dedent(body), "    ") + f"\n\n{more}{name}()\n"


def test_training_in_a_function(check_transformed: Check) -> None:
    check_transformed(in_function(TRAIN), in_function(TRAIN + "    del output, loss\n"))


def test_evaluation(check_transformed: Check) -> None:
    check_transformed(in_function(TEST), in_function(TEST + "    del output\n"))
    deep = "with torch.no_grad():\n" + indent(TEST, "    ")
    check_transformed(in_function(deep), in_function(deep + "        del output\n"))


def test_at_module_level(check_transformed: Check) -> None:
    check_transformed(HEAD + TRAIN, HEAD + TRAIN + "    del output, loss\n")


def test_one_function_trains_and_tests(check_transformed: Check) -> None:
    before = "for epoch in range(3):\n" + indent(TRAIN + "{}" + TEST + "{}", "    ")
    after = before.format("    del output, loss\n    ", "    del output\n")
    check_transformed(in_function(before.replace("{}", "")), in_function(after))


def test_under_autocast(check_transformed: Check) -> None:
    body = TRAIN.replace(
        "    output = model(x)\n    loss =",
        "    with torch.autocast('cuda'):\n        output = model(x)\n        loss =",
    )
    check_transformed(in_function(body), in_function(body + "    del output, loss\n"))


def test_several_results(check_transformed: Check) -> None:
    head = "import torch as th\n"
    body = TEST.replace("output = model", "output, (a, b) = model").replace(
        "total +=", "m = F.softmax(a, 1)\n    total +="
    )
    check_transformed(
        head + in_function(body), head + in_function(body + "    del output, a, b, m\n")
    )


def test_long_lists_take_two_lines(check_transformed: Check) -> None:
    names = [f"a_rather_long_name_{i}" for i in range(5)]
    body = TEST.replace("output =", f"{', '.join(names)} =").replace("(output", f"({names[0]}")
    after = f"    del {', '.join(names[:3])}\n    del {', '.join(names[3:])}\n"
    check_transformed(in_function(body), in_function(body + after))


def test_reads_in_comprehensions_and_after_continue(check_transformed: Check) -> None:
    body = TRAIN + "    if x is None:\n        continue\n    print([output[i] for i in range(3)])\n"
    check_transformed(in_function(body), in_function(body + "    del output, loss\n"))


def test_engine_in_another_file(check_transformed: Check) -> None:
    engine = """\
        def evaluate(net, batches, device):
            for x, y in batches:
                out = net(x.to(device))
                print((out.argmax(1) == y.to(device)).sum().item())
    """
    main = HEAD + "from engine import evaluate\n\nevaluate(model, test_loader, device)\n"
    check_transformed(
        {"train.py": main, "engine.py": engine},
        {"train.py": main, "engine.py": engine.rstrip() + "\n                del out\n"},
    )


def test_loop_over_steps(check_transformed: Check) -> None:
    body = TRAIN.replace(
        "for x, y in loader:\n",
        "batches = iter(loader)\nwhile step < 9:\n    x, y = next(batches)\n",
    )
    body = "step = 0\n" + body + "    step += 1\n"
    check_transformed(in_function(body), in_function(body + "    del output, loss\n"))


def test_only_the_loss_is_kept(check_transformed: Check) -> None:
    body = TRAIN + "print(loss)\n"
    after = TRAIN + "    del output\nprint(loss)\n"
    check_transformed(in_function(body), in_function(after))


# No change. `{}` stands for what the loop is followed by or holds.

KEEPS_OUTPUT = [
    (TEST + "print(output.shape)\n", "read behind the loop"),
    (TEST + "else:\n    print(output)\n", "read behind the loop"),
    (TEST + "    if total > 3:\n        break\nprint(output)\n", "read behind the loop"),
    ("output = None\n" + TEST + "if output is not None:\n    print(1)\n", "read behind the loop"),
    (TEST + "del output\n", "read behind the loop"),
    (
        "try:\n" + indent(TEST, "    ") + "except KeyboardInterrupt:\n    print(output)\n",
        "read behind",
    ),
    ("try:\n" + indent(TEST, "    ") + "finally:\n    print(output)\n", "read behind"),
    ("output = 0\n" + TEST.replace("    output", "    print(output)\n    output"), "read before"),
    ("output = 0\n" + TEST.replace("model(x", "model(output + x"), "read before it is bound"),
    (
        "output = 0\nfor e in range(3):\n    print(output)\n" + indent(TEST, "    "),
        "is read before",
    ),
    ("output = 1\nwhile output > 0:\n" + indent(TEST, "    "), "head of a loop"),
    (TEST + "    later = lambda: output\n", "a function"),
    (TEST + "    later = (output * i for i in range(3))\n", "runs later"),
    (
        TEST + "    def closure():\n        return output\n    optimizer.step(closure)\n",
        "a function",
    ),
    (TEST + "    print(locals())\n", "does not name it"),
    (TEST + "exec('print(output)')\n", "does not name it"),
    (TEST + "    breakpoint()\n", "does not name it"),
    (TEST + "print(vars())\n", "does not name it"),
    (TEST + "    import pdb; pdb.set_trace()\n", "does not name it"),
    (TEST + "    seen.add(id(output))\n", "its address"),
    (TEST + "    if total:\n        del output\n", "deleted already"),
    (TEST + "    break\n", "every pass ends in"),
    (TEST + "    return output\n", "every pass ends in"),
    (TEST.replace("    output", "    if total < 3:\n        output"), "not be bound in every pass"),
    (
        TEST.replace("    output", "    try:\n        output").replace(
            "    total +=", "    except IOError:\n        pass\n    total +="
        ),
        "not be bound in every pass",
    ),
    (
        TEST.replace("    output", "    with contextlib.suppress(IOError):\n        output"),
        "may swallow an exception",
    ),
    (TEST.replace("    output", "    with guard():\n        output"), "may swallow an exception"),
    (
        TEST + "    try:\n        total += 1\n    except IOError as output:\n        pass\n",
        "assignments",
    ),
    (TEST + "    match y:\n        case [output]:\n            pass\n", "assignments"),
    ("for output in range(3):\n" + indent(TEST, "    "), "a loop around this one"),
    ("s = torch.cuda.Stream()\n" + TEST, "may need it for longer"),
    (TEST + "    torch.distributed.all_reduce(output, async_op=True)\n", "may need it for longer"),
    (TEST + "    print(torch.cuda.memory_allocated())\n", "memory in use"),
]


@pytest.mark.parametrize(("body", "reason"), KEEPS_OUTPUT)
def test_reads_and_unbound_names(check_noop: Check, body: str, reason: str) -> None:
    check_noop(in_function(body), reason=reason)


NOTHING_TO_DO = [
    "global output\n" + TEST,
    TEST + "    results += [output]\n",
    TEST + "    del output\n",
    TEST + "    output = None\n",
    TEST + "    outputs.append(output)\n",
    TEST + "    self.output = output\n",
    TEST.replace("output = ", "_ = ").replace("output", "x"),
    TEST.replace("output = model(x.to(device))", "x = model(x.to(device))").replace("output", "x"),
    TEST.replace(
        "output = model(x.to(device))", "output = model(x.to(device)).mean().item()"
    ).replace("criterion(output, y.to(device)).item()", "output"),
    TRAIN.replace(
        "output = model(x)\n    loss = criterion(output, y)", "loss = criterion(model(x), y)"
    ),
    "for x, y in loader:\n    output = x.to(device)\n    print(output.mean())\n",
    TEST.replace(
        "for x, y in test_loader:", "for x, y in test_loader:\n  for i in range(2):"
    ).replace("    ", "      "),
]


@pytest.mark.parametrize("body", NOTHING_TO_DO)
def test_nothing_is_won(check_noop: Check, body: str) -> None:
    check_noop(in_function(body))


def test_global_read_by_a_function(check_noop: Check) -> None:
    check_noop(
        HEAD + "\n\ndef show():\n    print(output)\n\n\n" + TEST + "    show()\n", "a function"
    )
    check_noop(
        HEAD + "\n\ndef forget():\n    global output\n    del output\n\n\n" + TEST, "a function"
    )


def test_global_read_in_another_file(check_noop: Check) -> None:
    other = "import train\n\n\ndef show():\n    print(train.output)\n"
    check_noop({"train.py": HEAD + "import other\n" + TEST, "other.py": other}, "imports this file")


def test_loop_of_an_imported_file(check_noop: Check) -> None:
    check_noop({"train.py": "import other\n", "other.py": HEAD + TEST}, "other files may import")


def test_globals_of_the_script(check_noop: Check) -> None:
    check_noop(HEAD + TEST + "print(globals())\n", "globals()")


def test_loop_in_a_class_body(check_noop: Check) -> None:
    check_noop(HEAD + "class C:\n" + indent(TEST, "    "), "a variable of a class")


def test_only_when_asked_for(rewrite: Callable[..., RewriteResult]) -> None:
    result = rewrite(in_function(TEST), ["forward-lifetimes"], select=frozenset())
    assert not any(file.changed for file in result.files)


RUNS = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(40, 3, 8, 8), torch.randint(4, (40, 8, 8)))
model = nn.Conv2d(3, 4, 3, padding=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        output = model(x)
        loss = nn.functional.cross_entropy(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss < 0:
            continue
        print(loss.item())
    right = 0
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=8):
            output = model(x)
            right += (output.argmax(1) == y).sum().item()
    print(right)
"""


@pytest.mark.slow
@pytest.mark.torch
def test_verified(check_verified: Check) -> None:
    check_verified(RUNS)
