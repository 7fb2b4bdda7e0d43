"""Evaluation in train mode, and training in eval mode."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.pipeline.result import RewriteResult

from . import table

Check = Callable[..., None]

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from data import train_set, test_set

model = nn.Sequential(nn.Linear(10, 10), nn.Dropout(), nn.Linear(10, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(train_set, batch_size=32)
test_loader = DataLoader(test_set, batch_size=32)
"""
FUNCTIONS = """
def train():
    @model.train()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def test():
    correct = 0
    #model.eval()
    for x, y in test_loader:
        correct += (model(x).argmax(1) == y).sum().item()
    print(correct)


for epoch in range(3):
    train()
    test()
"""


def functions(train: bool, evaluate: bool, text: str = FUNCTIONS, head: str = HEAD) -> str:
    """Training and evaluation in functions, with or without the calls that set the mode."""
    for mark, wanted in (("@", train), ("#", evaluate)):
        lines = text.splitlines(keepends=True)
        text = "".join(line.replace(mark, "") for line in lines if wanted or mark not in line)
    return head + text


def test_evaluation_lacks_eval(check_transformed: Check) -> None:
    check_transformed(functions(True, False), functions(True, True))


def test_a_network_that_is_run_by_its_method(check_transformed: Check) -> None:
    text = FUNCTIONS.replace("model(x)", "model.forward(x)")
    check_transformed(functions(True, False, text), functions(True, True, text))


def test_flat_script_goes_back_to_training(check_transformed: Check) -> None:
    def code(before: str, after: str) -> str:
        return HEAD + dedent(f"""
            for epoch in range(3):
                for x, y in loader:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                correct = 0{before}
                for x, y in test_loader:
                    correct += (model(x).argmax(1) == y).sum().item(){after}
                print(correct)
        """)

    line = "\n" + " " * 16
    check_transformed(code("", ""), code(f"{line}model.eval()", f"{line}model.train()"))


def test_test_after_training_needs_no_way_back(check_transformed: Check) -> None:
    def code(line: str) -> str:
        return HEAD + dedent(f"""
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            {line}for x, y in test_loader:
                print(model(x).argmax(1) == y)
        """)

    check_transformed(code(""), code("model.eval()\n            "))


def test_training_stays_in_eval_mode(check_transformed: Check) -> None:
    check_transformed(functions(False, True), functions(True, True))


def test_train_once_before_all_epochs(check_transformed: Check) -> None:
    before = functions(False, True).replace("for epoch", "model.train()\nfor epoch")
    after = functions(True, True).replace("for epoch", "model.train()\nfor epoch")
    check_transformed(before, after)


def test_called_in_both_modes(check_transformed: Check) -> None:
    end = "model.eval()\ntest()\n"
    check_transformed(functions(True, False) + end, functions(True, True) + end)


def test_networks_in_parameters_and_files(check_transformed: Check) -> None:
    engine = """
        def evaluate(net, batches, device):
            correct = 0
            @for x, y in batches:
                correct += (net(x.to(device)).argmax(1) == y.to(device)).sum().item()
            return correct
    """
    main = functions(True, False).partition("def test")[0] + dedent("""\
        from engine import evaluate

        for epoch in range(3):
            train()
            evaluate(model, test_loader, "cpu")
    """)
    check_transformed(
        {"train.py": main, "engine.py": engine.replace("@", "")},
        {"train.py": main, "engine.py": engine.replace("@", "net.eval()\n            ")},
    )


@pytest.mark.parametrize(
    "network",
    [
        "nn.Sequential(nn.Conv1d(1, 1, 1), nn.BatchNorm1d(1))",
        "nn.TransformerEncoderLayer(8, 2)",
        "torchvision.models.resnet18()",
        "Net()",
    ],
)
def test_what_depends_on_the_mode(check_transformed: Check, network: str) -> None:
    own = (
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.out = nn.Linear(2, 2)\n\n"
        "    def forward(self, x):\n        return nn.functional.dropout(self.out(x), training=self.training)\n\n\n"
    )
    head = HEAD.replace("nn.Sequential(nn.Linear(10, 10), nn.Dropout(), nn.Linear(10, 2))", network)
    head = head.replace("model =", f"import torchvision\n\n{own}model =")
    check_transformed(functions(True, False, head=head), functions(True, True, head=head))


# Nothing to say


def test_gradients_that_train_nothing(check_noop: Check) -> None:
    """An attack on the network is part of the evaluation that calls it, or of the training."""
    attack = """
def attack(x, y):
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(5):
        nn.functional.cross_entropy(model(x + delta), y).backward()
        delta.data += 0.1 * delta.grad.sign()
    return delta.detach()

"""
    code = functions(True, True, FUNCTIONS.replace("model(x)", "model(x + attack(x, y))"))
    check_noop(code.replace("\ndef train", attack + "\ndef train", 1))


def test_right_already(check_noop: Check) -> None:
    check_noop(functions(True, True))


@pytest.mark.parametrize(
    "line",
    [
        "model.train(False)",
        "model.train(mode=False)",
        "model.eval().to('cpu')",
        "model.requires_grad_(True).eval()",
        "set_mode()",
        "model.train(epoch < 0)",
        "model.training = False",
        "if epoch > 0: model.eval()",
    ],
)
def test_mode_is_set_in_other_words(check_noop: Check, line: str) -> None:
    head = HEAD + "\n\ndef set_mode():\n    model.eval()\n\n"
    check_noop(
        functions(True, True, head=head).replace(
            "    model.eval()\n    for", f"    {line}\n    for"
        )
    )


def test_eval_at_the_call(check_noop: Check) -> None:
    check_noop(functions(True, False).replace("    test()", "    model.eval()\n    test()"))


def test_eval_around_the_loop(check_noop: Check) -> None:
    before, loop = "    correct = 0\n", "    for x, y in test_loader"
    text = functions(True, False).replace(before + loop, f"    model.eval()\n{before}{loop}")
    check_noop(text)
    check_noop(
        functions(True, False).replace("in test_loader:", "in test_loader:\n        model.eval()")
    )


def test_layers_that_do_not_care(check_noop: Check) -> None:
    head = HEAD.replace("nn.Dropout()", "nn.LayerNorm(10)")
    check_noop(functions(True, False, head=head))


def test_pass_over_the_training_data(check_noop: Check) -> None:
    check_noop(functions(True, False).replace("in test_loader", "in loader"))


def test_network_frozen_on_purpose(check_noop: Check) -> None:
    check_noop(functions(False, False).replace("for epoch", "model.eval()\nfor epoch"))


def test_unknown_caller(check_noop: Check) -> None:
    check_noop(functions(True, False).replace("    test()\n", "    callbacks.append(test)\n"))


def test_another_network_is_set(check_transformed: Check) -> None:
    head = HEAD + "teacher = nn.Sequential(nn.Linear(2, 2), nn.Dropout())\n"
    lines = "    teacher.eval()\n    correct = 0"
    before = functions(True, False, head=head).replace("    correct = 0", lines)
    after = functions(True, True, head=head).replace("    correct = 0", lines)
    check_transformed(before, after)


def test_whole_of_which_it_is_a_part(check_noop: Check) -> None:
    whole = "\nwhole = nn.Sequential(nn.Identity(), model)\n"
    text = functions(True, True, head=HEAD + whole)
    check_noop(text.replace("    model.eval()", "    whole.eval()"))


def test_part_of_a_network(check_noop: Check) -> None:
    own = dedent("""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(10, 2), nn.Dropout())

            def forward(self, x):
                return self.body(x)


        net = Net()
        net.eval()
        for x, y in test_loader:
            print(net.body(x))
    """)
    check_noop(HEAD + own)


def test_framework_sets_the_modes(check_noop: Check) -> None:
    check_noop("import pytorch_lightning as pl\n" + functions(True, False))


def test_own_train_method(check_noop: Check) -> None:
    head = HEAD.replace("model = nn.Sequential(", "model = Net(").replace(
        "model =",
        "class Net(nn.Sequential):\n    def train(self, mode=True, deep=True):\n        return super().train(mode)\n\n\nmodel =",
    )
    check_noop(functions(True, False, head=head))


def test_below_its_tier_it_only_tells(rewrite: Callable[..., RewriteResult]) -> None:
    result = rewrite(functions(True, False), ["eval-mode"], tier=Tier.NUMERIC)
    (file,) = result.files
    assert not file.changes
    (advice,) = file.advice
    assert "`model` is evaluated in train mode" in advice.message


def test_together_with_no_grad(check_with: Check) -> None:
    after = functions(True, True).replace("def test():", "@torch.no_grad()\ndef test():")
    check_with(["eval-mode", "no-grad"], functions(True, False), after)


# Normalization, unlike dropout, draws no random numbers: what is evaluated leaves no trace in training.
RUNS = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
train_set = TensorDataset(torch.randn(64, 10), torch.randint(2, (64,)))
test_set = TensorDataset(3 + torch.randn(64, 10), torch.randint(2, (64,)))
model = nn.Sequential(nn.Linear(10, 10), nn.BatchNorm1d(10), nn.Linear(10, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
test_loader = DataLoader(test_set, batch_size=16)
for epoch in range(3):
    for x, y in DataLoader(train_set, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print("train", loss.item())
    for x, y in test_loader:
        print("test", nn.functional.cross_entropy(model(x), y).item(), model[1].num_batches_tracked.item())
"""


@pytest.mark.torch
def test_training_stays_the_same_and_scores_change(
    rewrite: Callable[..., RewriteResult],
    count_case: Callable[[str, str], None],
    tmp_path: Path,
    warm_python: Path,
) -> None:
    count_case("eval-mode", table.VERIFIED)
    (file,) = rewrite(RUNS, ["eval-mode"]).files
    assert [change.transform for change in file.changes] == ["eval-mode"]
    printed: list[list[list[str]]] = []
    for name, text in (("before.py", RUNS), ("after.py", file.text)):
        path = tmp_path / name
        path.write_text(text)
        run = subprocess.run([warm_python, path], capture_output=True, text=True, check=True)
        printed.append([line.split() for line in run.stdout.splitlines()])
    trained = [[line for line in lines if line[0] == "train"] for lines in printed]
    tested = [[line for line in lines if line[0] == "test"] for lines in printed]
    assert trained[0] == trained[1]
    assert len(tested[0]) == len(tested[1]) == 12
    assert all(one[1] != other[1] for one, other in zip(*tested, strict=True))
    # In train mode the test set goes into the statistics; in eval mode nothing is learnt from it.
    assert int(tested[0][-1][2]) == 24
    assert int(tested[1][-1][2]) == 12
