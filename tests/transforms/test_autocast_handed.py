"""autocast: steps that hand their loss to a function which backpropagates it and updates the weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.options import AmpDtype
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Check = Callable[..., None]


@pytest.fixture
def name() -> str:
    return "autocast"


HELPER = """
def optimize(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""
HELPER_WITH_SCALER = """
def optimize(loss, optimizer, scaler):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
START = """\
import torch
from torch import nn

model = nn.Linear(8, 2).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters())
"""
SCALER = 'scaler = torch.amp.GradScaler("cuda")\n'
LOOP = """

for step in range(4):
    x, y = torch.randn(4, 8).cuda(), torch.randint(2, (4,)).cuda()
    loss = criterion(model(x), y)
    optimize(loss, optimizer)
    print(loss.item())
"""


def test_the_loss_under_autocast_and_the_scaler_in_the_helper(check_transformed: Check) -> None:
    after = LOOP.replace(
        "    loss = criterion",
        '    with torch.autocast("cuda", dtype=torch.float16):\n        loss = criterion',
    )
    after = after.replace("optimize(loss, optimizer)", "optimize(loss, optimizer, scaler)")
    check_transformed(
        START + HELPER + LOOP,
        START + SCALER + HELPER_WITH_SCALER + after,
        amp=AmpDtype.FP16,
    )


def test_a_helper_in_another_file(check_transformed: Check) -> None:
    helper = "from torch import nn\n\n" + HELPER.replace(
        "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", ""
    )
    start = START.replace(
        "from torch import nn\n", "from torch import nn\n\nfrom engine import optimize\n"
    )
    after = LOOP.replace(
        "    loss = criterion",
        '    with torch.autocast("cuda", dtype=torch.bfloat16):\n        loss = criterion',
    )
    check_transformed(
        {"train.py": start + LOOP, "engine.py": helper},
        {"train.py": start + after, "engine.py": helper},
        amp=AmpDtype.BF16,
    )


def test_a_scaler_wrapped_in_a_class_is_in_use(check_noop: Check) -> None:
    helper = """
class Scaler:
    def __init__(self):
        self._scaler = torch.amp.GradScaler("cuda")

    def __call__(self, loss, optimizer):
        self._scaler.scale(loss).backward()
        self._scaler.step(optimizer)
        self._scaler.update()


optimize = Scaler()
"""
    check_noop(START + helper + LOOP, reason="`GradScaler` is in use already")


def test_losses_without_a_name(check_noop: Check) -> None:
    named = "loss = criterion(model(x), y)\n    optimize(loss, optimizer)\n    print(loss.item())\n"
    loop = LOOP.replace(named, "optimize(criterion(model(x), y), optimizer)\n")
    check_noop(START + HELPER + loop, reason="no network is known")


@pytest.mark.parametrize(
    ("transforms", "code"),
    [
        (["autocast", "channels-last"], "memory_format=torch.channels_last"),
        (["cudnn-benchmark"], "cudnn.benchmark = True"),
        (["compile"], "model.compile()"),
    ],
)
def test_the_other_transforms_see_the_network_too(
    rewrite: Callable[..., object], transforms: list[str], code: str
) -> None:
    script = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import FakeData
from torchvision.transforms import ToTensor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)))


def optimize(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


loader = DataLoader(FakeData(transform=ToTensor()), batch_size=64, drop_last=True)
model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.CrossEntropyLoss()
for epoch in range(100):
    for x, y in loader:
        loss = criterion(model(x.cuda()), y.cuda())
        optimize(loss, optimizer)
"""
    assert code in rewrite(script, transforms).files[0].text  # type: ignore[attr-defined]


def test_a_loss_of_what_a_function_is_handed_stays_in_float32(check_transformed: Check) -> None:
    helper = HELPER.replace("(loss, optimizer)", "(out, y, optimizer)").replace(
        "    loss.backward", "    loss = criterion(out, y)\n    loss.backward"
    )
    loop = LOOP.replace("loss = criterion(model(x), y)", "out = model(x)")
    loop = loop.replace("loss, optimizer", "out, y, optimizer").replace(
        "    print(loss.item())\n", ""
    )
    after = loop.replace(
        "    out = model",
        '    with torch.autocast("cuda", dtype=torch.bfloat16):\n        out = model',
    )
    check_transformed(
        START + helper + loop,
        START + helper.replace("(out, y)\n", "(out.float(), y)\n") + after,
        amp=AmpDtype.BF16,
    )


def test_a_loss_on_the_host_stays_in_float32(check_transformed: Check) -> None:
    evaluation = """
with torch.no_grad():
    for x, y in loader:
        out = model(x.cuda()).cpu()
        loss = criterion(out, y)
        print(loss.item())
"""
    start = START + "loader = torch.utils.data.DataLoader(dataset)\n"
    covered = """
with torch.no_grad():
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(x.cuda()).cpu()
            loss = criterion(out.float(), y)
        print(loss.item())
"""
    after = LOOP.replace(
        "    loss = criterion",
        '    with torch.autocast("cuda", dtype=torch.bfloat16):\n        loss = criterion',
    )
    check_transformed(
        start + HELPER + LOOP + evaluation,
        start + HELPER + after + covered,
        amp=AmpDtype.BF16,
    )


EVALUATED = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Flatten(), nn.Linear(57600, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = DataLoader(train_set, batch_size=64)
val_loader = DataLoader(val_set, batch_size=64)


def compute_loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x.cuda()), y.cuda())


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        {evaluate}


for batch in train_loader:
    optimizer.zero_grad()
    loss = compute_loss(model, batch)
    loss.backward()
    optimizer.step()
{after}
"""
EVALUATION_LOOP = """total = 0.0
        for batch in loader:
            total += compute_loss(model, batch).item()
        return total"""


@pytest.mark.parametrize(
    ("evaluate", "after", "regions", "told"),
    [
        (
            EVALUATION_LOOP,
            "evaluate(model, val_loader)",
            2,
            "the training step and of the evaluation under",
        ),
        (
            EVALUATION_LOOP,
            "evaluate(model, val_loader)\nfor x, y in val_loader:\n    with torch.no_grad():\n"
            "        print(F.cross_entropy(model(x.cuda()), y.cuda()))",
            3,
            "the training step and of 2 evaluations under",
        ),
        (
            "return sum(compute_loss(model, batch).item() for batch in loader)",
            "evaluate(model, val_loader)",
            1,
            "the training step under",
        ),
    ],
)
def test_evaluations_by_a_function_of_the_steps(
    rewrite: Callable[..., RewriteResult], evaluate: str, after: str, regions: int, told: str
) -> None:
    """What such a function runs outside of autocast is float32 as it is."""
    source = EVALUATED.format(evaluate=evaluate, after=after)
    (file,) = rewrite(source, ["autocast"], amp=AmpDtype.BF16).files
    assert file.text.count("with torch.autocast(") == regions
    assert told in file.changes[0].message
    assert ".float()" not in file.text


GUARDED = """\
import torch
from torch import nn


def train(model, optimizer, loader):
    criterion = nn.CrossEntropyLoss()
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    model = nn.Linear(512, 2048).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, batches)
"""


@pytest.mark.parametrize("reads_globals", [False, True])
def test_a_type_below_the_main_guard(
    rewrite: Callable[..., RewriteResult], reads_globals: bool
) -> None:
    """Whoever imports ``train`` has no global of the script; where it reads one already, another changes nothing."""
    source = GUARDED
    if reads_globals:
        source = source.replace("train(model, optimizer, loader)", "train(loader)")
        source = source.replace("train(model, optimizer, batches)", "train(batches)")
    text = rewrite(source, ["autocast"], amp=AmpDtype.AUTO).files[0].text
    own = "    amp_dtype = torch.float16 if scaler.is_enabled() else torch.bfloat16\n    for"
    assert (own in text) is not reads_globals
    assert text.count("amp_dtype = ") == 1


def test_a_prediction_in_the_units_of_the_data_is_float32(check_transformed: Check) -> None:
    """A speed of 61.3 is 61.25 in bfloat16: scaled to a mean of 0, as the network gives it, it has more digits."""
    loop = LOOP.replace(
        "    loss = criterion(model(x), y)",
        "    predicted = scale.inverse_transform(model(x))\n    loss = criterion(predicted, y)",
    )
    kept = "def inverse_transform(self, data):\n        return data * self.std + self.mean\n"
    scale = f"class Scale:\n    def __init__(self):\n        self.mean, self.std = 54.4, 19.5\n    {kept}\nscale = Scale()\n"
    text = loop.replace(
        "    optimize(loss, optimizer)",
        "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()",
    )
    after = text.replace(
        "    predicted = scale.inverse_transform(model(x))\n    loss",
        '    with torch.autocast("cuda", dtype=torch.bfloat16):\n'
        "        predicted = scale.inverse_transform(model(x).float())\n        loss",
    )
    check_transformed(START + scale + text, START + scale + after, amp=AmpDtype.BF16)


NESTED = """\
import torch
from torch import nn


class Trainer:
    def __init__(self, model, loader):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = model.to(self.device)
        self.loader = loader
        {kept}

    def train(self):
        {local}

        def run_epoch(split):
            for x, y in self.loader:
                loss = nn.functional.cross_entropy({own}model(x.to(self.device)), y.to(self.device))
                if split == "train":
                    {own}optimizer.zero_grad()
                    loss.backward()
                    {own}optimizer.step()

        for epoch in range(100):
            run_epoch("train")


net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Flatten(), nn.Linear(57600, 10))
Trainer(net, loader).train()
"""


MADE = "optimizer = torch.optim.Adam(self.model.parameters())"


@pytest.mark.parametrize(
    ("own", "kept", "local"),
    [
        ("", "self.epochs = 100", f"model = self.model\n        {MADE}"),
        ("self.", f"self.{MADE}", "epochs = 100"),
    ],
)
def test_a_step_in_a_function_inside_a_method(
    rewrite: Callable[..., RewriteResult], own: str, kept: str, local: str
) -> None:
    """There ``self`` is that of the method around it, not what the function is given first."""
    code = NESTED.format(own=own, kept=kept, local=local)
    (file,) = rewrite(code, ["autocast", "compile"]).files
    assert not file.errors
    assert "split.device" not in file.text
    assert f"{own}scaler.scale(loss).backward()" in file.text
    assert f"            {own}model.compile()\n        for epoch" in file.text
    made = " ".join(file.text.split()).replace("( ", "(")
    assert f'{own}scaler = torch.amp.GradScaler("cuda", enabled=self.device == "cuda" and ' in made
