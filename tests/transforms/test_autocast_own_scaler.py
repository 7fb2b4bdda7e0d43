"""autocast: steps whose losses the script scales itself, without autocast around its forward pass."""

from collections.abc import Callable
from typing import Any

import pytest

from torchopt_cli.optimizer.options import AmpDtype

Check = Callable[..., None]
Rewrite = Callable[..., Any]

SCRIPT = """\
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true")
args = parser.parse_args()
device = torch.device("cuda")
loader = DataLoader(data, batch_size=64)
model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Flatten(), nn.Linear(57600, 10)).to(device)
other = nn.Linear(8, 2).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters())
second = torch.optim.Adam(other.parameters())
{scaler}

for x, y in loader:
    optimizer.zero_grad()
    {forward}
    {backward}
    {step}
    {update}
"""
PARTS = {
    "scaler": 'scaler = torch.amp.GradScaler("cuda", enabled=args.amp)',
    "forward": "output = model(x.to(device))\n    loss = criterion(output, y.to(device))",
    "backward": "scaler.scale(loss).backward()",
    "step": "scaler.step(optimizer)",
    "update": "scaler.update()",
}
CONTEXT = 'with torch.autocast("cuda", dtype=torch.float16, enabled=scaler.is_enabled()):'
UNDER_AUTOCAST = (
    f"{CONTEXT}\n        output = model(x.to(device))\n"
    "        loss = criterion(output, y.to(device))"
)
CLIPPING = "nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    scaler.step(optimizer)"


@pytest.fixture
def name() -> str:
    return "autocast"


def written(**changed: str) -> str:
    return SCRIPT.format(**PARTS | changed)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {
            "scaler": "from torch.cuda.amp import GradScaler\n\nscaler = GradScaler(init_scale=1024.0)"
        },
        {"step": f"scaler.unscale_(optimizer)\n    {CLIPPING}"},
        {"backward": "scaler.scale(loss / 4).backward()"},
    ],
)
def test_the_forward_pass_of_a_scaled_loss(
    check_transformed: Check, changed: dict[str, str]
) -> None:
    check_transformed(written(**changed), written(**changed, forward=UNDER_AUTOCAST))


def test_a_loss_that_is_computed_where_it_is_scaled(check_transformed: Check) -> None:
    forward = "output = model(x.to(device))"
    before = written(
        forward=forward, backward="scaler.scale(criterion(output, y.to(device))).backward()"
    )
    check_transformed(before, written(forward=UNDER_AUTOCAST))


def test_a_scaler_that_is_handed_to_the_training(check_transformed: Check) -> None:
    engine = """
def train(model, loader, criterion, optimizer, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        {loss}
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
    loss = "loss = criterion(model(x.cuda()), y.cuda())"
    start = (
        written()
        .partition("\n\nfor x")[0]
        .replace("from torch.utils", "from engine import train\nfrom torch.utils")
    )
    main = f"{start}\ntrain(model, loader, criterion, optimizer, scaler)\n"
    wrapped = "import torch\n\n" + engine.format(loss=f"{CONTEXT}\n            {loss}")
    check_transformed(
        {"train.py": main, "engine.py": "import torch\n\n" + engine.format(loss=loss)},
        {"train.py": main, "engine.py": wrapped},
    )


def test_the_evaluation_follows(rewrite: Rewrite) -> None:
    evaluation = """    model.eval()
    with torch.no_grad():
        for x, y in loader:
            output = model(x.to(device))
            print((output.argmax(1).cpu() == y).sum().item())
"""
    result = rewrite(written() + evaluation, ["autocast"]).files[0]
    assert result.text.count(CONTEXT) == 2
    assert f"{CONTEXT}\n                output = model(x.to(device))\n" in result.text


TWO = "scaler.scale(loss).backward()\n    loss_b = other(y.to(device)).sum()\n    {}"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"step": "optimizer.step()"}, "`optimizer.step()` does not step through the scaler"),
        (
            {"step": "scaler.step(optimizer)\n    second.step()"},
            "`second.step()` does not step through the scaler",
        ),
        ({"backward": TWO.format("loss_b.backward()")}, "`loss_b.backward()` is not scaled"),
        (
            {"backward": "(scaler.scale(loss) if args.amp else loss).backward()"},
            "is not scaled, or not always by the same scaler",
        ),
        ({"step": CLIPPING}, "gradients are looked at before they are unscaled"),
        (
            {"step": f"if args.amp:\n        scaler.unscale_(optimizer)\n    {CLIPPING}"},
            "gradients are looked at before they are unscaled",
        ),
        (
            {"step": f"scaler.unscale_(second)\n    {CLIPPING}"},
            "gradients are looked at before they are unscaled",
        ),
        ({"update": "pass"}, "the scaler is never updated"),
        (
            {"scaler": 'scaler = torch.amp.GradScaler("cpu")'},
            "the scaler is none for CUDA",
        ),
        (
            {
                "scaler": "scaler = torch.amp.GradScaler('cuda')\n"
                "spare = torch.amp.GradScaler('cuda')"
            },
            "which of several scalers is whose is not known",
        ),
        (
            {"scaler": "scaler = torch.amp.GradScaler() if args.amp else None"},
            "is not scaled, or not always by the same scaler",
        ),
        (
            {"backward": "scaler.scale(criterion(output, y.to(device)) / 4).backward()"},
            "the loss is computed where it is scaled",
        ),
        (
            {"step": "scaler = scaler\n    scaler.step(optimizer)"},
            "the scaler is not known where the forward pass runs",
        ),
        (
            {
                "forward": "output = model(x.to(device)).masked_fill(x > 1, -1e9)\n"
                "    loss = criterion(output, y.to(device))"
            },
            "float16",
        ),
        (
            {"forward": PARTS["forward"] + "\n    buffer = model.double()"},
            "`torch.double` is in use already",
        ),
        (
            {"forward": PARTS["forward"].replace(".to(device))\n", ".to(device)).half()\n")},
            "`.half()` is in use already",
        ),
    ],
)
def test_a_scaler_that_serves_a_part(
    check_noop: Check, changed: dict[str, str], reason: str
) -> None:
    check_noop(written(**changed), reason)


def test_bfloat16_that_is_asked_for(check_noop: Check) -> None:
    check_noop(written(), "the scaler is for float16", amp=AmpDtype.BF16)


def test_a_network_that_stays_on_the_cpu(check_noop: Check) -> None:
    check_noop(written().replace(".to(device)", ""), "not seen to be moved to a GPU")


def test_a_scaler_that_the_forward_pass_does_not_see(check_noop: Check) -> None:
    helper = """
def optimize(loss, optimizer, scaler):
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


for x, y in loader:"""
    source = written(backward="optimize(loss, optimizer, scaler)", step="pass", update="pass")
    check_noop(
        source.replace("\nfor x, y in loader:", helper),
        "the scaler is not known where the forward pass runs",
    )


def test_a_scaler_that_serves_two_optimizers(check_transformed: Check) -> None:
    second = """    second.zero_grad()
    {forward}
    scaler.scale(loss_b).backward()
    scaler.step(second)
    scaler.update()
"""
    loss = "loss_b = criterion(other(x.to(device)), y.to(device))"
    check_transformed(
        written() + second.format(forward=loss),
        written(forward=UNDER_AUTOCAST) + second.format(forward=f"{CONTEXT}\n        {loss}"),
    )


UNSEEN = """\
import importlib.util

import torch
from torch import nn

spec = importlib.util.spec_from_file_location("helpers", "10_helpers.py")
helpers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(helpers)
model = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
{scaler}
for x, y in loader:
    optimizer.zero_grad()
    with helpers.amp_context():
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    {scaled}.backward()
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize("scaler", ["scaler = helpers.make_scaler()", "scaler = find()"])
def test_a_loss_scaled_by_what_is_made_out_of_sight(check_noop: Check, scaler: str) -> None:
    """Where a step scales its loss, its forward pass runs in half precision, or in what its context decides."""
    code = UNSEEN.format(scaler=scaler, scaled="scaler.scale(loss)")
    check_noop(code, reason="`scaler.scale(loss)` is in use already")
