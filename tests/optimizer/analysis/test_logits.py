"""From binary cross entropy of probabilities to that of logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis import understand
from torchopt_cli.optimizer.analysis.precision.logits import logits_form
from torchopt_cli.optimizer.rewriting.apply import apply_edits
from torchopt_cli.optimizer.source import Sources

Rewritten = Callable[..., str]
IMPORTS = """\
import torch
import torch.nn.functional as F
from torch import nn

"""
NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)
        self.main = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())

    def forward(self, x):
        {}


"""


@pytest.fixture
def rewritten(tmp_path: Path) -> Rewritten:
    def run(source: str | Mapping[str, str]) -> str:
        files = {"train.py": source} if isinstance(source, str) else source
        for name, text in files.items():
            (tmp_path / name).write_text(IMPORTS + dedent(text))
        entry = tmp_path / next(iter(files))
        sources = Sources()
        found = logits_form(understand(entry, sources).resolver)
        if not isinstance(found, tuple):
            return found.message
        edits = [each.edit for each in found if each.path == entry]
        return apply_edits(sources.read(entry), edits).removeprefix(IMPORTS)

    return run


def script(returned: str, step: str, made: str = "criterion = nn.BCELoss()") -> str:
    return (
        NET.format(returned)
        + f"model = Net()\n{made}\nfor x, y in loader:\n"
        + "".join(f"    {line}\n" for line in step.splitlines())
    )


STEP = "loss = criterion(model(x), y)"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return torch.sigmoid(self.fc(x))", "return self.fc(x)"),
        ("return self.fc(x).sigmoid()", "return self.fc(x)"),
        ("return F.sigmoid(self.fc(x)).view(-1)", "return self.fc(x).view(-1)"),
        (
            "x = self.fc(x)\n        x = torch.sigmoid(x)\n        return x.squeeze(1)",
            "x = self.fc(x)\n        return x.squeeze(1)",
        ),
    ],
)
def test_network_that_returns_a_sigmoid(rewritten: Rewritten, before: str, after: str) -> None:
    assert rewritten(script(before, STEP)) == script(
        after, STEP, "criterion = nn.BCEWithLogitsLoss()"
    )


def test_last_layer_of_a_container(rewritten: Rewritten) -> None:
    step = "loss = F.binary_cross_entropy(model(x), y, reduction='sum')"
    text = rewritten(script("return self.main(x)", step))
    assert "self.main = nn.Sequential(nn.Linear(4, 4))\n" in text
    assert "F.binary_cross_entropy_with_logits(model(x), y, reduction='sum')" in text


def test_container_that_is_the_network(rewritten: Rewritten) -> None:
    source = """\
    model = nn.Sequential(
        nn.Linear(4, 4),
        nn.ReLU(),
        nn.Linear(4, 1),
        nn.Sigmoid(),  # between 0 and 1
    ).cuda()
    criterion = nn.BCELoss().cuda()
    loss = criterion(model(x).squeeze(), y)
    """
    text = rewritten(source)
    assert "nn.Sigmoid()" not in text
    assert "    nn.Linear(4, 1),\n" in text


def test_other_readers_get_a_sigmoid_of_their_own(rewritten: Rewritten) -> None:
    step = """\
output = model(x).view(-1)
loss = criterion(output, y)
print(output.mean().item(), output.size(0))
hits += (output > 0.5).eq(y).sum()"""
    text = rewritten(
        script("return torch.sigmoid(self.fc(x))", step)
        + "with torch.no_grad():\n    save(model(samples))\n"
    )
    assert "    loss = criterion(output, y)\n" in text
    assert "print(torch.sigmoid(output).mean().item(), output.size(0))" in text
    assert "hits += (torch.sigmoid(output) > 0.5).eq(y).sum()" in text
    assert "save(torch.sigmoid(model(samples)))" in text


def test_sigmoid_written_out_in_the_script(rewritten: Rewritten) -> None:
    step = "p = torch.sigmoid(model(x))\nloss = criterion(p, y)\nscore = p.round()"
    text = rewritten(script("return self.fc(x)", step))
    assert "    p = model(x)\n    loss = criterion(p, y)\n" in text
    assert "score = torch.sigmoid(p).round()" in text


def test_loss_handed_to_a_function(rewritten: Rewritten) -> None:
    source = NET.format("return torch.sigmoid(self.fc(x))") + dedent("""\
        def train(model, criterion, loader):
            for x, y in loader:
                criterion(model(x), y).backward()


        train(Net(), nn.BCELoss(), loader)
    """)
    text = rewritten(source)
    assert "return self.fc(x)" in text
    assert "train(Net(), nn.BCEWithLogitsLoss(), loader)" in text


SIGMOID = "return torch.sigmoid(self.fc(x))"


@pytest.mark.parametrize(
    ("returned", "step", "why"),
    [
        ("return self.fc(x)", STEP, "does not end in a sigmoid"),
        ("return torch.sigmoid(self.fc(x)) * 2", STEP, "does not end in a sigmoid"),
        ("return torch.sigmoid(self.fc(x)), x", STEP, "does not end in a sigmoid"),
        (
            "if x is None:\n            return x\n        return torch.sigmoid(self.fc(x))",
            STEP,
            "returns in several places",
        ),
        (
            "p = torch.sigmoid(self.fc(x))\n        self.last = p\n        return p",
            STEP,
            "uses `p` in another way",
        ),
        ("return self.main(x) if self.training else self.fc(x)", STEP, "does not end in a sigmoid"),
        (SIGMOID, "loss = criterion(model(x)[0], y)", "not traced to a sigmoid"),
        (SIGMOID, "loss = criterion(weights * model(x), y)", "not traced to a sigmoid"),
        (SIGMOID, "a, b = model(x)\nloss = criterion(a, y)", "not traced to a sigmoid"),
        (SIGMOID, "p = model(x)\np += 1e-6\nloss = criterion(p, y)", "not traced|in place"),
        (
            SIGMOID,
            "p = model(x)\nloss = criterion(p, y)\nf = lambda: p.mean()",
            "another scope",
        ),
        (SIGMOID, STEP + "\ntorch.save(model, 'model.pt')", "where the network goes"),
        (SIGMOID, STEP + "\nmodel.forward(x)", "where the network goes|by name"),
        (SIGMOID, STEP + "\nfit(model, criterion)", "goes is not followed"),
        (
            "return self.main(x)",
            STEP + "\nfeatures = model.main(x)",
            "used elsewhere",
        ),
    ],
)
def test_unproven(rewritten: Rewritten, returned: str, step: str, why: str) -> None:
    import re

    text = rewritten(script(returned, step))
    assert re.search(why, text), text


def test_one_of_two_losses_of_a_name(rewritten: Rewritten) -> None:
    made = "criterion = nn.BCELoss() if hard else nn.MSELoss()"
    assert "only loss that may be meant" in rewritten(script(SIGMOID, STEP, made))


def test_methods_that_call_the_network(rewritten: Rewritten) -> None:
    returned = SIGMOID + "\n\n    def predict(self, x):\n        return self(x) > 0.5"
    assert "calls itself" in rewritten(script(returned, STEP))


def test_subclass_of_the_network(rewritten: Rewritten) -> None:
    text = rewritten(script(SIGMOID, STEP) + "class Other(Net):\n    pass\n")
    assert "hands it down" in text


def test_file_beside_the_script_that_uses_the_network(rewritten: Rewritten) -> None:
    text = rewritten(
        {
            "train.py": "from models import Net\nmodel = Net()\n"
            "criterion = nn.BCELoss()\nloss = criterion(model(x), y)\n",
            "models.py": NET.format(SIGMOID),
            "predict.py": "from models import Net\n",
        }
    )
    assert "other files" in text
