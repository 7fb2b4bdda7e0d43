"""Numbers that a step's own function gives back stay on the device where the loop needs none of them in every step."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.pipeline.result import RewriteResult

from .test_defer_sync import HEAD as WITHOUT_CLOCK
from .test_defer_sync import STEP as TRAINING

HEAD = f"import time\n{WITHOUT_CLOCK}"
BODY = indent(TRAINING, "    ")
STEP = f"def step(x, y):\n{BODY}    return loss.item()\n"


@pytest.fixture
def name() -> str:
    return "defer-sync"


def script(function: str, before: str, step: str, after: str, head: str = HEAD) -> str:
    """A flat script whose training loop calls ``function``."""
    start, body, end = (
        indent(dedent(text).strip(), " " * width)
        for text, width in ((before, 4), (step, 8), (after, 4))
    )
    return f"{head}\n{function}\nfor epoch in range(3):\n{start}\n    for x, y in loader:\n{body}\n{end}\n"


def returning(result: str, signature: str = "def step(x, y):") -> str:
    return f"{signature}\n{BODY}    return {result}\n"


@pytest.mark.parametrize(
    ("result", "given", "before", "step", "after", "converted"),
    [
        (
            "loss.item()",
            "loss.detach()",
            "losses = []",
            "losses.append(step(x, y))",
            "print(sum(losses))",
            "losses = [value.item() for value in losses]\nprint(sum(losses))",
        ),
        (
            "float(loss)",
            "loss.detach().double()",
            "total = 0.0",
            "total += step(x, y)",
            "print(total)",
            "print(float(total))",
        ),
        (
            "loss.item()",
            "loss.detach().double()",
            "total = 0.0",
            "last = step(x, y)\ntotal += last * x.size(0)",
            "print(total / 10)",
            "print(float(total) / 10)",
        ),
        (
            "(output.argmax(1) == y).sum().item()",
            "(output.argmax(1) == y).sum()",
            "hits = 0",
            "hits += step(x, y)",
            "print(hits)",
            "print(int(hits))",
        ),
        (
            "loss.item(), (output.argmax(1) == y).sum().item(), len(x)",
            "loss.detach().double(), (output.argmax(1) == y).sum(), len(x)",
            "total, hits = 0.0, 0",
            "last, right, size = step(x, y)\ntotal += last\nhits += right",
            "print(total, hits)",
            "print(float(total), int(hits))",
        ),
        (
            "(output.argmax(1) == y).sum().item() / len(y)",
            "(output.argmax(1) == y).sum().double() / len(y)",
            "rates = []",
            "rates.append(step(x, y))",
            "print(sum(rates))",
            "rates = [value.item() for value in rates]\nprint(sum(rates))",
        ),
    ],
)
def test_functions_that_give_numbers_back(
    check_transformed: Callable[..., None],
    result: str,
    given: str,
    before: str,
    step: str,
    after: str,
    converted: str,
) -> None:
    check_transformed(
        script(returning(result), before, step, after),
        script(returning(given), before, step, converted),
    )


@pytest.mark.parametrize(
    ("annotation", "result", "after", "given"),
    [
        ("float", "loss.item()", "torch.Tensor", "loss.detach().double()"),
        (
            "tuple[float, int]",
            "loss.item(), len(x)",
            "tuple[torch.Tensor, int]",
            "loss.detach().double(), len(x)",
        ),
    ],
)
def test_what_a_function_says_it_returns(
    check_transformed: Callable[..., None], annotation: str, result: str, after: str, given: str
) -> None:
    step = "total += step(x, y)" if annotation == "float" else "last, n = step(x, y)\ntotal += last"
    check_transformed(
        script(
            returning(result, f"def step(x, y) -> {annotation}:"),
            "total = 0.0",
            step,
            "print(total)",
        ),
        script(
            returning(given, f"def step(x, y) -> {after}:"),
            "total = 0.0",
            step,
            "print(float(total))",
        ),
    )


def test_methods_in_another_file(check_transformed: Callable[..., None]) -> None:
    trainer = dedent("""\
        class Trainer:
            def __init__(self, model, optimizer, criterion, device):
                self.model, self.optimizer = model, optimizer
                self.criterion, self.device = criterion, device

            def step(self, x, y):
                x, y = x.to(self.device), y.to(self.device)
                loss = self.criterion(self.model(x), y)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                return {0}
    """)
    main = HEAD + dedent("""\
        from trainer import Trainer

        trainer = Trainer(model, optimizer, nn.MSELoss(), device)
        total = 0.0
        for x, y in loader:
            total += trainer.step(x, y)
        print({0})
    """)
    check_transformed(
        {"train.py": main.format("total"), "trainer.py": trainer.format("loss.item()")},
        {
            "train.py": main.format("float(total)"),
            "trainer.py": trainer.format("loss.detach().double()"),
        },
    )


@pytest.mark.parametrize(
    ("function", "step", "after", "reason"),
    [
        (STEP, "total += step(x, y)\nprint(total)", "pass", "printed in every step"),
        (
            STEP,
            "total += step(x, y)\nif step(x, y) > 9:\n    break",
            "print(total)",
            "is compared in every step",
        ),
        (STEP + "run = step\n", "total += step(x, y)", "print(total)", "called elsewhere, too"),
        (
            STEP,
            "total += step(x, y)",
            "print(total, step(*next(iter(loader))))",
            "needs the number, too",
        ),
        (
            returning("(output.argmax(1) == y).sum().item() + 1"),
            "total += step(x, y)",
            "print(total)",
            "may be an integer",
        ),
        (
            returning("1 / loss.item()"),
            "total += step(x, y)",
            "print(total)",
            "may divide by zero",
        ),
        (
            STEP.replace("    x,", "    start = time.time()\n    x,").replace(
                "return loss", "print(time.time() - start)\n    return loss"
            ),
            "total += step(x, y)",
            "print(total)",
            "is timed (`time.time()`)",
        ),
        (
            STEP.replace("    x,", "    if x is None:\n        return 0.0\n    x,"),
            "total += step(x, y)",
            "print(total)",
            "returns in several places",
        ),
        (
            STEP.replace("step(x, y):", 'step(x, y) -> "float":'),
            "total += step(x, y)",
            "print(total)",
            "is annotated",
        ),
        (
            STEP.replace("    optimizer.step()", "    optimizer.step()\n    print(loss.item())"),
            "total += step(x, y)",
            "print(total)",
            "`loss.item()` is printed in every step",
        ),
    ],
)
def test_left_alone(
    check_noop: Callable[..., None], function: str, step: str, after: str, reason: str
) -> None:
    check_noop(script(function, "total = 0.0", step, after), reason)


ACCURACY = "def accuracy(output, y):\n    return (output.argmax(1) == y).{0}\n"


def two_loops(
    accuracy: str, trained: str, shown: str = "", evaluated: str = "hits += accuracy"
) -> str:
    """A script that calls ``accuracy`` in its loop over training steps and in its evaluation."""
    training = script(
        accuracy,
        "right = 0",
        BODY.replace("    ", "") + f"right += accuracy(output, y)\n{shown}",
        f"print({trained})",
    )
    return f"""{training}
model.eval()
hits = 0
with torch.no_grad():
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        {evaluated}(model(x), y)
print({trained.replace("right", "hits")})
"""


def test_loops_that_share_a_function_change_together(
    check_transformed: Callable[..., None],
) -> None:
    check_transformed(
        two_loops(ACCURACY.format("sum().item()"), "right"),
        two_loops(ACCURACY.format("sum()"), "int(right)"),
    )


def test_a_loop_that_needs_the_number_holds_the_other_back(check_noop: Callable[..., None]) -> None:
    source = two_loops(ACCURACY.format("sum().item()"), "right", shown="print(right)")
    check_noop(source, "is needed in every step by another loop (line 17)")


def test_a_count_here_and_a_fraction_there(check_noop: Callable[..., None]) -> None:
    source = two_loops(ACCURACY.format("sum().item()"), "right", evaluated="hits += 0.5 * accuracy")
    check_noop(source, "is a count in one loop and part of a fraction in another")


def test_loops_that_share_nothing_change_one_by_one(rewrite: Callable[..., RewriteResult]) -> None:
    second = ACCURACY.format("float().mean().item()").replace("accuracy", "rate")
    source = two_loops(ACCURACY.format("sum().item()") + second, "right", evaluated="hits += rate")
    (file,) = rewrite(source, ["defer-sync"]).files
    assert [change.message.split("`")[1] for change in file.changes] == ["right", "hits"]


def test_a_number_that_is_not_a_tensor_of_the_function(check_noop: Callable[..., None]) -> None:
    function = STEP.replace("(x, y):", "(x, y, loss):").replace(
        "    loss = nn.functional.cross_entropy(output, y)\n", "    loss += output.sum()\n"
    )
    check_noop(
        script(
            function,
            "total = 0.0",
            "total += step(x, y, torch.zeros(1).to(device))",
            "print(total)",
        ),
        "`loss` may change later",
    )


def test_a_function_that_other_scripts_use(check_noop: Callable[..., None]) -> None:
    head = HEAD + "from steps import step\n"
    steps = "import torch\n\n\ndef step(model, optimizer, x, y):\n" + dedent("""\
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()
    """).replace("\n", "\n    ").strip().join(["    ", "\n"])
    other = "from steps import step\n\nprint(step(None, None, None, None) + 1)\n"
    call = "total += step(model, optimizer, x.to(device), y.to(device))"
    check_noop(
        {
            "train.py": script("", "total = 0.0", call, "print(total)", head),
            "steps.py": steps,
            "other.py": other,
        },
        "`other.py` uses the function, too",
    )


@pytest.mark.torch
def test_numbers_that_functions_give_back_are_the_same(
    check_verified: Callable[..., None],
) -> None:
    data = "\ntrain_set = torch.utils.data.TensorDataset(torch.randn(640, 10), torch.randint(0, 2, (640,)))\n"
    head = HEAD.replace("from data import train_set\n", "").replace("\ndevice", f"{data}device", 1)
    result = "loss.item(), (output.argmax(1) == y).sum().item()"
    check_verified(
        script(
            returning(result),
            "total, hits = 0.0, 0",
            "last, right = step(x, y)\ntotal += last\nhits += right",
            "print(total, hits)",
            head,
        )
    )


def test_a_read_beside_it_of_what_may_be_no_tensor_waits_all_the_same(
    check_noop: Callable[..., None],
) -> None:
    function = """\
def losses(x, y, with_scores=False):
    scores = model(x)
    loss = nn.functional.cross_entropy(scores, y)
    return (loss, scores) if with_scores else loss


def step(x, y):
    loss, scores = losses(x, y, with_scores=True)
    wrong = (scores.argmax(1) != y).sum()
    return loss.item(), wrong.item()
"""
    step = "loss, wrong = step(x, y)\ntotal += loss\nerrors += wrong"
    source = script(function, "total, errors = 0.0, 0", step, "print(total, errors)")
    check_noop(source, "`loss.item()` is what `step` gives back")


def test_a_function_beside_it_that_copies_to_the_host_waits_all_the_same(
    check_noop: Callable[..., None],
) -> None:
    function = """\
def sharpness(scores):
    return scores.clamp(0, 1).cpu().numpy().std()
"""
    body = "loss = nn.functional.cross_entropy(model(x), y)\nsharp.append(sharpness(model(x)))\nlosses.append(loss.item())"
    source = script(function, "losses, sharp = [], []", body, "print(losses, sharp)")
    check_noop(source, "copies to the host, reached from line")


def test_so_does_an_attack_in_whose_steps_it_asks_for_values(
    check_noop: Callable[..., None],
) -> None:
    function = """\
def attack(x, y):
    x = x.detach().requires_grad_()
    for step in range(10):
        scores = model(x)
        guesses = scores.argmax(1)
        if guesses[0] == y[0]:
            print(step)
        nn.functional.cross_entropy(scores, y).backward()
        x = (x + 0.1 * x.grad.sign()).detach().requires_grad_()
    return x
"""
    step = (
        "x, y = x.to(device), y.to(device)\n"
        "loss = nn.functional.cross_entropy(model(attack(x, y)), y)\ntotal += loss.item()"
    )
    check_noop(script(function, "total = 0.0", step, "print(total)"), "needs its values")
