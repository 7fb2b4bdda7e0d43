"""``autocast`` and evaluations of a script that trains under an autocast of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Rewrite = Callable[..., RewriteResult]
SCRIPT = """\
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true")
parser.add_argument("--amp-dtype", default="float16")
args = parser.parse_args()
loader, test_loader = DataLoader(read(), batch_size=64), DataLoader(read_other(), batch_size=64)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3)
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        y = self.fc(self.conv(x).relu().mean((2, 3)))
        {returned}


model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.CrossEntropyLoss()
{dtype}
scaler = torch.amp.GradScaler("cuda", enabled=args.amp)


def evaluate():
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in test_loader:
            {evaluated}
            correct += (output.argmax(1).cpu() == y).sum().item()
    return correct


{early}
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        with {context}:
            loss = criterion(model(x.cuda()), y.cuda())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print(evaluate())
"""
PARTS = {
    "returned": "return y",
    "dtype": "amp_dtype = getattr(torch, args.amp_dtype)",
    "evaluated": "output = model(x.cuda())",
    "early": "",
    "context": 'torch.autocast("cuda", dtype=amp_dtype)',
}
FLOAT16 = 'torch.autocast("cuda", dtype=torch.float16, enabled=args.amp)'
BFLOAT16 = 'torch.autocast("cuda", dtype=torch.bfloat16)'
MASKED = "return y.masked_fill(y > 3, -1e9)"


def written(**changed: str) -> str:
    return SCRIPT.format(**PARTS | changed)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"context": FLOAT16},
        {"context": BFLOAT16, "returned": MASKED},
        {"context": "autocast()", "dtype": "from torch.cuda.amp import autocast"},
    ],
)
def test_evaluates_under_the_autocast_of_the_training(
    rewrite: Rewrite, changed: dict[str, str]
) -> None:
    source = written(**changed)
    context = (PARTS | changed)["context"]
    wanted = source.replace(
        "            output = model(x.cuda())\n",
        f"            with {context}:\n                output = model(x.cuda())\n",
    )
    result = rewrite(source, ["autocast"]).files[0]
    assert result.text == wanted
    assert rewrite(result.text, ["autocast"]).files[0].text == wanted


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"context": FLOAT16, "returned": MASKED}, "overflows in float16"),
        ({"returned": MASKED}, "overflows in float16"),
        ({"context": BFLOAT16, "evaluated": "output = model.double()(x.cuda())"}, "torch.double"),
        ({"context": BFLOAT16, "dtype": "model.half()"}, "`.half()` is in use already"),
        (
            {"context": "torch.autocast('cuda', enabled=False)"},
            "no one autocast is around",
        ),
    ],
)
def test_evaluations_that_stay_in_float32(
    rewrite: Rewrite, changed: dict[str, str], reason: str
) -> None:
    source = written(**changed)
    result = rewrite(source, ["autocast"]).files[0]
    assert result.text == source
    assert any(reason in skip.message for skip in result.skips)


def test_a_type_that_is_set_after_the_evaluation(rewrite: Rewrite) -> None:
    source = written(dtype="", early="print(evaluate())\namp_dtype = torch.float16")
    result = rewrite(source, ["autocast"]).files[0]
    assert result.text == source
    assert any("`amp_dtype`, of which the autocast" in skip.message for skip in result.skips)


def test_a_switch_that_the_evaluation_is_not_given(rewrite: Rewrite) -> None:
    source = written(context="torch.autocast('cuda', enabled=use_amp)")
    start, _, steps = source.partition("for epoch in range(3):\n")
    loop = "def train(use_amp):\n    for epoch in range(3):\n"
    loop += "".join(f"    {line}\n" for line in steps.splitlines())
    result = rewrite(f"{start}{loop}\n\ntrain(args.amp)\n", ["autocast"]).files[0]
    assert not result.changes
    assert any("`use_amp`, of which the autocast" in skip.message for skip in result.skips)


METHODS = """\
import torch
from torch import nn
from torch.utils.data import DataLoader


class Trainer:
    def __init__(self, dtype):
        self.model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Flatten(), nn.LazyLinear(10)).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")
        {made}

    def train(self, loader):
        {set}
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=self.dtype):
                loss = nn.functional.cross_entropy(self.model(x.cuda()), y.cuda())
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    @torch.no_grad()
    def evaluate(self, loader):
        correct = 0
        for x, y in loader:
            output = self.model(x.cuda())
            correct += (output.argmax(1).cpu() == y).sum().item()
        return correct


trainer = Trainer(torch.float16)
trainer.train(DataLoader(read(), batch_size=64))
print(trainer.evaluate(DataLoader(read(), batch_size=64)))
"""


def test_a_type_that_is_an_attribute(rewrite: Rewrite) -> None:
    source = METHODS.format(made="self.dtype = dtype", set="pass")
    text = rewrite(source, ["autocast"]).files[0].text
    wanted = 'with torch.autocast("cuda", dtype=self.dtype):\n                output = '
    assert wanted in text
    source = METHODS.format(made="pass", set="self.dtype = torch.float16")
    assert rewrite(source, ["autocast"]).files[0].text == source


def test_says_which_option_the_training_waits_for(rewrite: Rewrite) -> None:
    result = rewrite(written(context=FLOAT16), ["autocast"]).files[0]
    assert any("under autocast where `--amp` is given" in skip.message for skip in result.skips)


EVALUATION = """\
import torch


def evaluate(model, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in loader:
            output = model(x.cuda())
            correct += (output.argmax(1).cpu() == y).sum().item()
    return correct
"""


def _in_two_files(context: str, dtype: str = "") -> dict[str, str]:
    main = written(context=context, dtype=dtype).replace("evaluate()", "evaluate(model, loader)")
    start, _, rest = main.partition("def evaluate")
    main = start + rest[rest.index("for epoch") :]
    return {"train.py": f"from evaluation import evaluate\n{main}", "evaluation.py": EVALUATION}


@pytest.mark.parametrize(
    ("context", "dtype", "there"),
    [
        (BFLOAT16, "", 'torch.autocast("cuda", dtype=torch.bfloat16)'),
        ("torch.autocast('cuda', amp_dtype)", "amp_dtype = torch.float16", "torch.float16)"),
        ("autocast()", "from torch.cuda.amp import autocast", "torch.cuda.amp.autocast()"),
    ],
)
def test_an_evaluation_in_another_file(
    rewrite: Rewrite, context: str, dtype: str, there: str
) -> None:
    files = {f.path.name: f for f in rewrite(_in_two_files(context, dtype), ["autocast"]).files}
    text = files["evaluation.py"].text
    assert f"{there}:\n                output = model(x.cuda())\n" in text
    assert not files["train.py"].changes


def test_an_evaluation_in_another_file_that_lacks_a_name(rewrite: Rewrite) -> None:
    files = {f.path.name: f for f in rewrite(_in_two_files(FLOAT16), ["autocast"]).files}
    assert files["evaluation.py"].text == EVALUATION
    reason = "`args.amp`, of which the autocast of the training step is made, is not sure"
    assert any(reason in skip.message for skip in files["evaluation.py"].skips)
