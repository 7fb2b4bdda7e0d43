"""Loops that ask for no number that could wait, and wait for the device all the same: the first place is told."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from .test_defer_sync import HEAD, STEP

Check = Callable[..., None]


@pytest.fixture
def name() -> str:
    return "defer-sync"


def script(after: str, functions: str = "", step: str = STEP) -> str:
    body = indent(step + dedent(after), " " * 8)
    return f"{HEAD}\n{dedent(functions)}\noutputs = []\nfor epoch in range(3):\n    for x, y in loader:\n{body}"


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (
            "outputs.append(output.detach().cpu().numpy())",
            "`output.detach().cpu()` copies to the host",
        ),
        ("torch.cuda.synchronize()", "`torch.cuda.synchronize()` asks for it"),
        (
            "if loss.isnan().any():\n    break",
            "`loss.isnan().any()` needs its values in every step",
        ),
        ("print(f'{loss:.3f}')", "`loss` needs its values in every step"),
        ("print('loss %.3f of %d' % (loss, 3))", "`loss` needs its values in every step"),
        ("line = '%.3f' % loss.mean()", "`loss.mean()` needs its values in every step"),
        ("outputs.append(unknown(output).cpu())", "`unknown(output).cpu()` copies to the host"),
    ],
)
def test_a_step_that_waits(check_noop: Check, after: str, reason: str) -> None:
    check_noop(script(after), f"the loop goes on waiting for the device in every step: {reason}")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("print(value.item())", "`value.item()` is printed in every step, reached from line"),
        ("return {'loss': value.item()}", "`value.item()` is what `tell` gives back, reached from"),
        (
            "number = value.item()\n    return number, 1",
            "`value.item()` is read in every step, reached",
        ),
        ("return value.detach().cpu()", "`value.detach().cpu()` copies to the host, reached from"),
    ],
)
def test_a_function_that_waits(check_noop: Check, function: str, reason: str) -> None:
    told = f"def tell(value):\n    {function}\n"
    check_noop(script("outputs.append(tell(loss))", told), reason)


FLAG = "def tell(value, host=False):\n    if {}:\n        return value.detach().cpu()\n    else:\n        return value.detach()\n"


@pytest.mark.parametrize(
    ("test", "call"), [("host", "tell(loss, host=True)"), ("not host", "tell(loss)")]
)
def test_a_function_that_is_told_to_wait(check_noop: Check, test: str, call: str) -> None:
    check_noop(script(f"outputs.append({call})", FLAG.format(test)), "copies to the host, reached")


@pytest.mark.parametrize(
    ("test", "call"),
    [("host", "tell(loss)"), ("host", "tell(loss, False)"), ("not host", "tell(loss, host=True)")],
)
def test_a_function_that_is_told_not_to_wait(check_noop: Check, test: str, call: str) -> None:
    check_noop(script(f"outputs.append({call})", FLAG.format(test)), silent=True)


def test_a_loop_over_epochs_that_are_one_step_each(check_noop: Check) -> None:
    step = indent(STEP.partition("\n")[2] + "print(loss.item())\n", "    ")
    full = f"{HEAD}\nx, y = (t.to(device) for t in train_set)\n\ndef train(epoch):\n{step}\n\n"
    reason = "`loss.item()` is printed in every step, reached from"
    check_noop(f"{full}for epoch in range(200):\n    train(epoch)\n", reason)


def test_what_is_asked_once_an_epoch(check_noop: Check) -> None:
    """The loop over the epochs reaches the optimizer's step by way of the loop over the batches."""
    lines = dedent("""
        def train():
            total = torch.zeros((), device=device)
            for x, y in loader:
        """) + indent(STEP + "total += loss.detach()\n", " " * 8)
    body = indent("return total.item() / len(loader)\n", " " * 4)
    check_noop(HEAD + lines + body + "\nfor epoch in range(3):\n    print(train())\n", silent=True)


def test_a_step_that_adds_up_gradients(check_noop: Check) -> None:
    code = f"""{HEAD}
batches = iter(loader)
for step in range(100):
    for _ in range(4):
        x, y = next(batches)
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
    print(loss.item())
    optimizer.step()
    optimizer.zero_grad()
"""
    check_noop(code, "`loss.item()` is printed in every step")


@pytest.mark.parametrize(
    ("after", "functions"),
    [
        ("", ""),
        ("y.cpu", ""),
        ("if epoch % 10 == 0:\n    pass", ""),
        ("tell(x)", "def tell(x):\n    return x.shape[0]\n"),
        ("tell(torch.ones(1, 3).cpu() / 2)", ""),
        (
            "tell(y)",
            "def tell(y):\n    for i in range(len(y)):\n        if i > 0:\n            pass\n",
        ),
        ("outputs.append(loss.detach())", ""),
    ],
)
def test_a_step_that_does_not_wait(check_noop: Check, after: str, functions: str) -> None:
    check_noop(script(after, functions), silent=True)


def test_what_is_told_every_so_many_steps(check_noop: Check) -> None:
    function = """
        def tell(step, value):
            if step % 100 == 0:
                print(value.item())
    """
    check_noop(script("tell(len(outputs), loss)", function), silent=True)


def test_without_a_gpu_nothing_is_told(check_noop: Check) -> None:
    cpu = script("outputs.append(output.detach().cpu().numpy())").replace(
        '"cuda" if torch.cuda.is_available() else ', ""
    )
    check_noop(cpu, silent=True)
