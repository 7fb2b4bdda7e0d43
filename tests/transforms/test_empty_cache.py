"""`torch.cuda.empty_cache()` in loops over steps."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Check = Callable[..., None]

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from data import train_set, test_set

model = nn.Linear(10, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(train_set, batch_size=32)
test_loader = DataLoader(test_set, batch_size=32)
"""
STEP = """\
loss = model(x.cuda()).square().mean()
optimizer.zero_grad()
loss.backward()
optimizer.step()
"""


def script(body: str, imports: str = "") -> str:
    return imports + HEAD + dedent(body).lstrip("\n")


def step(level: int) -> str:
    return indent(STEP, "    " * level)


def test_call_in_the_training_loop(check_transformed: Check) -> None:
    loop = "for epoch in range(3):\n    for x, y in loader:\n" + step(2)
    check_transformed(script(loop + "        torch.cuda.empty_cache()\n"), script(loop))


def test_gc_collect_goes_with_it_and_so_does_its_import(check_transformed: Check) -> None:
    loop = "for x, y in loader:\n" + step(1)
    release = "    torch.cuda.empty_cache()  # keep memory low\n    gc.collect()\n"
    check_transformed(script(loop + release, "import gc\n"), script(loop))


@pytest.mark.parametrize("rest", ["", "gc.collect()\n"])
def test_only_the_garbage_collector_costs_time_without_a_gpu(
    rewrite: Callable[..., RewriteResult], rest: str
) -> None:
    loop = "for x, y in loader:\n" + step(1) + "    torch.cuda.empty_cache()\n"
    for code, on_cpu in ((loop, False), (loop + "    gc.collect()\n", True)):
        (change,) = rewrite(script(code + rest, "import gc\n"), ["empty-cache"]).files[0].changes
        assert change.on_cpu == on_cpu
        assert ("collects cycles by itself" in change.reason) == on_cpu


def test_one_name_of_an_import_goes(check_transformed: Check) -> None:
    loop = "for x, y in loader:\n" + step(1)
    release = "    gc.collect()\n    torch.cuda.empty_cache()\n"
    rest = "print(os.getcwd(), sys.argv)\n"
    check_transformed(
        script(loop + release + rest, "import os, gc, sys\n"),
        script(loop + rest, "import os, sys\n"),
    )


def test_import_with_another_use_stays(check_transformed: Check) -> None:
    loop = "for x, y in loader:\n" + step(1)
    release = "    gc.collect()\n    torch.cuda.empty_cache()\n"
    rest = "gc.collect()\n"
    check_transformed(
        script(loop + release + rest, "import gc\n"), script(loop + rest, "import gc\n")
    )


def test_condition_that_guards_nothing_else_goes_too(check_transformed: Check) -> None:
    loop = "for i, (x, y) in enumerate(loader):\n" + step(1)
    release = (
        "    if i % 10 == 0 and torch.cuda.is_available():\n        torch.cuda.empty_cache()\n"
    )
    check_transformed(script(loop + release), script(loop))


def test_counter_that_starts_anew(check_transformed: Check) -> None:
    loop = "held = 0\nfor x, y in loader:\n" + step(1) + "    held += 1\n    if held == 4:\n"
    release = "        torch.cuda.empty_cache()\n"
    rest = "        held = 0\n"
    check_transformed(script(loop + release + rest), script(loop + rest))


def test_evaluation_loop(check_transformed: Check) -> None:
    before = """
        with torch.no_grad():
            for x, y in test_loader:
                print(model(x.cuda()).sum().item())
                torch.cuda.empty_cache()
    """
    after = """
        with torch.no_grad():
            for x, y in test_loader:
                print(model(x.cuda()).sum().item())
    """
    check_transformed(script(before), script(after))


def test_imported_under_another_name(check_transformed: Check) -> None:
    loop = "for x, y in loader:\n" + step(1)
    imports = "import torch.cuda as tc\n"
    check_transformed(script(loop + "    tc.empty_cache()\n", imports), script(loop, imports))


def test_function_called_in_every_step(check_transformed: Check) -> None:
    before = """
        def train_step(x):
            loss = model(x.cuda()).mean()
            loss.backward()
            del loss
            torch.cuda.empty_cache()

        for x, y in loader:
            train_step(x)
    """
    after = """
        def train_step(x):
            loss = model(x.cuda()).mean()
            loss.backward()
            del loss

        for x, y in loader:
            train_step(x)
    """
    check_transformed(script(before), script(after))


def test_forward_runs_in_every_step(check_transformed: Check) -> None:
    before = """
        class Net(nn.Module):
            def forward(self, x):
                x = x * 2
                torch.cuda.empty_cache()
                return x

        net = Net()
        for x, y in loader:
            net(x).sum().backward()
    """
    after = """
        class Net(nn.Module):
            def forward(self, x):
                x = x * 2
                return x

        net = Net()
        for x, y in loader:
            net(x).sum().backward()
    """
    check_transformed(script(before), script(after))


def test_calls_of_a_function_that_only_releases_memory(check_transformed: Check) -> None:
    engine = """
        import gc
        import torch

        def free_memory():
            '''Give everything back.'''
            gc.collect()
            torch.cuda.empty_cache()
    """
    imports = "from memory import free_memory\n"
    loop = "for x, y in loader:\n" + step(1)
    end = "free_memory()\n"
    check_transformed(
        {"train.py": script(loop + "    free_memory()\n" + end, imports), "memory.py": engine},
        {"train.py": script(loop + end, imports), "memory.py": engine},
    )


def test_other_file(check_transformed: Check) -> None:
    def engine(release: str) -> str:
        return (
            "import torch\n\n\ndef train(model, loader):\n    for x, y in loader:\n"
            f"        model(x).sum().backward()\n{release}"
        )

    entry = script("train(model, loader)\n", "from engine import train\n")
    check_transformed(
        {"train.py": entry, "engine.py": engine("        torch.cuda.empty_cache()\n")},
        {"train.py": entry, "engine.py": engine("")},
    )


def test_two_places_sharing_the_import(check_transformed: Check) -> None:
    def text(release: str) -> str:
        return (
            "for epoch in range(3):\n    for x, y in loader:\n"
            + step(2)
            + indent(release, "        ")
            + "    with torch.no_grad():\n        for x, y in test_loader:\n"
            "            print(model(x).sum().item())\n" + indent(release, "            ")
        )

    release = "gc.collect()\ntorch.cuda.empty_cache()\n"
    check_transformed(script(text(release), "import gc\n"), script(text("")))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("torch.cuda.empty_cache()\n", "between phases"),
        (
            "for epoch in range(3):\n    for x, y in loader:\n"
            + step(2)
            + "    del x, y\n    torch.cuda.empty_cache()\n",
            "between phases",
        ),
        (
            "def validate(network, batches):\n    for x, y in batches:\n        x = x.cuda()\n"
            "        print(network(x).sum().item())\n        torch.cuda.empty_cache()\n",
            "a loop that is not known to be over steps",
        ),
        ("def sample(x):\n    torch.cuda.empty_cache()\n    return x\n", "nothing is seen to call"),
        (
            "for x, y in loader:\n    try:\n"
            + step(2)
            + "    except RuntimeError:\n        torch.cuda.empty_cache()\n",
            "recovers from an exception",
        ),
        (
            "for x, y in loader:\n    try:\n"
            + step(2)
            + "    except RuntimeError as e:\n        if 'out of memory' in str(e):\n"
            "            for p in model.parameters():\n                p.grad = None\n"
            "            torch.cuda.empty_cache()\n",
            "recovers from an exception",
        ),
        (
            "for x, y in loader:\n"
            + step(1)
            + "    if torch.cuda.memory_reserved() > 8e9:\n        torch.cuda.empty_cache()\n",
            "memory is short",
        ),
        (
            "for i, (x, y) in enumerate(loader):\n"
            + step(1)
            + "    if i == 1:\n        torch.cuda.empty_cache()\n",
            "in one round",
        ),
        (
            "steps, grown = 0, len(loader) // 2\nfor x, y in loader:\n"
            + step(1)
            + "    steps += 1\n    if steps == grown and grown > 1:\n        torch.cuda.empty_cache()\n",
            "in one round",
        ),
        (
            "for i, (x, y) in enumerate(loader):\n"
            + step(1)
            + "    if i == len(loader) - 1:\n        print(i)\n        torch.cuda.empty_cache()\n",
            "in one round",
        ),
        (
            "for x, y in loader:\n"
            + step(1)
            + "    torch.cuda.empty_cache()\n    print(torch.cuda.memory_reserved())\n",
            "reads the memory in use",
        ),
        (
            "for i, (x, y) in enumerate(loader):\n"
            + step(1)
            + "    if i % 100 == 0:\n        torch.cuda.empty_cache()\n"
            "        for x, y in test_loader:\n            print(model(x).sum().item())\n",
            "between phases",
        ),
        (
            "def validate():\n    torch.cuda.empty_cache()\n    for x, y in test_loader:\n"
            "        print(model(x).sum().item())\n\n"
            "for i, (x, y) in enumerate(loader):\n"
            + step(1)
            + "    if i % 100 == 0:\n        validate()\n",
            "between phases",
        ),
        (
            "def clean(x):\n    del x\n    torch.cuda.empty_cache()\n\n"
            "for x, y in loader:\n" + step(1) + "    clean(x)\nclean(model)\n",
            "both in and outside",
        ),
        (
            "for x, y in loader:\n    try:\n"
            + step(2)
            + "    finally:\n        torch.cuda.empty_cache()\n",
            "all that its block does",
        ),
        (
            "for x, y in loader:\n"
            + step(1)
            + "    if next(stream):\n        torch.cuda.empty_cache()\n",
            "all that its block does",
        ),
        (
            "for x, y in loader:\n"
            + step(1)
            + "    with torch.cuda.device(0):\n        torch.cuda.empty_cache()\n",
            "all that its block does",
        ),
        (
            "for x, y in loader:\n" + step(1) + "else:\n    torch.cuda.empty_cache()\n",
            "between phases",
        ),
        (
            "def retry():\n    torch.cuda.empty_cache()\n    print('once more')\n\n"
            "for x, y in loader:\n    try:\n"
            + step(2)
            + "    except RuntimeError:\n        retry()\n",
            "recovers from an exception",
        ),
        (
            "from pynvml import nvmlDeviceGetMemoryInfo\nfor x, y in loader:\n"
            + step(1)
            + "    torch.cuda.empty_cache()\nprint(nvmlDeviceGetMemoryInfo(0).used)\n",
            "reads the memory in use",
        ),
    ],
)
def test_left_alone(check_noop: Check, body: str, reason: str) -> None:
    check_noop(script(body), reason)


@pytest.mark.parametrize(
    "body",
    [
        "for x, y in loader:\n" + step(1) + "    gc.collect()\n",
        "for x, y in loader:\n" + step(1) + "    cache.empty_cache()\n",
        "for x, y in loader:\n" + step(1) + "    print('torch.cuda.empty_cache()')\n",
        "release = torch.cuda.empty_cache\nfor x, y in loader:\n" + step(1),
        "for x, y in loader:\n" + step(1) + "    print(torch.cuda.empty_cache())\n",
        "for x, y in loader:\n" + step(1) + "    done = torch.cuda.empty_cache()\n",
        "for x, y in loader:\n" + step(1) + "    release(torch.cuda.empty_cache)\n",
        "def empty_cache():\n    cache.clear()\n\nfor x, y in loader:\n"
        + step(1)
        + "    empty_cache()\n",
    ],
)
def test_not_concerned(check_noop: Check, body: str) -> None:
    check_noop(script(body, "import gc\nfrom elsewhere import cache\n"))
