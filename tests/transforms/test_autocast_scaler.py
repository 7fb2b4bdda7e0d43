"""autocast: where the GradScaler of float16 is updated, where it cannot be, and checks that its first steps would not pass."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent

import pytest

from torchopt_cli.optimizer.options import AmpDtype
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Rewrite = Callable[..., RewriteResult]


@pytest.fixture
def name() -> str:
    return "autocast"


GAN = """
import torch
from torch import nn

G, D = nn.Linear(8, 8).cuda(), nn.Linear(8, 1).cuda()
opt_g = torch.optim.Adam(G.parameters())
opt_d = torch.optim.Adam(D.parameters())


def main():
    for step, real in enumerate(loader):
"""
D_STEP = """
fake = G(torch.randn(4, 8, device="cuda"))
d_loss = D(real.cuda()).mean() - D(fake.detach()).mean()
opt_d.zero_grad()
d_loss.backward()
opt_d.step()
"""
G_STEP = """
g_loss = D(fake).mean()
opt_g.zero_grad()
g_loss.backward()
opt_g.step()
"""


def gan(*parts: str) -> str:
    """A script that trains by ``parts`` in every pass of its loop."""
    body = "\n".join(part.strip("\n") for part in parts)
    return f"{GAN}{indent(body, ' ' * 8)}\n\n\nmain()\n"


def scaled(rewrite: Rewrite, source: str) -> list[str]:
    """What of the rewritten ``source`` steps, updates and leaves passes, in order."""
    (file,) = rewrite(source, ["autocast"], amp=AmpDtype.FP16).files
    assert not file.errors
    assert file.changes, file.skips
    lines = [line.strip() for line in file.text.splitlines()]
    words = ("scaler.step", "scaler.update", "break", "continue", "return", "raise", "if ", "else")
    return [line for line in lines if line.startswith(words)]


LEAVING = {
    "a break": ("if step >= 9:\n    break", ["if step >= 9:", "scaler.update()", "break"]),
    "a break on the line of its test": (
        "if step >= 9: break",
        ["if step >= 9:", "scaler.update()", "break"],
    ),
    "a continue": (
        "if step % 5:\n    print(step)\n    continue",
        ["if step % 5:", "scaler.update()", "continue"],
    ),
    "a return": ("if step > 9:\n    return", ["if step > 9:", "scaler.update()", "return"]),
    "a return inside of a with": (
        "with open(log) as file:\n    if step > 9:\n        return",
        ["if step > 9:", "scaler.update()", "return"],
    ),
    "a raise that nothing catches": (
        "if step > 9:\n    raise ValueError",
        ["if step > 9:", "raise ValueError"],
    ),
    "a loop of its own": (
        "for p in D.parameters():\n    if p.dim() == 1: break\n    p.data.clamp_(-1, 1)",
        ["if p.dim() == 1: break"],
    ),
}


@pytest.mark.parametrize(("between", "expected"), LEAVING.values(), ids=LEAVING)
def test_updated_before_a_pass_is_left(rewrite: Rewrite, between: str, expected: list[str]) -> None:
    assert scaled(rewrite, gan(D_STEP, between, G_STEP)) == [
        "scaler.step(opt_d)",
        *expected,
        "scaler.step(opt_g)",
        "scaler.update()",
    ]


PLACES = {
    "left before anything has stepped": (
        (
            "if step > 9:\n    break",
            D_STEP,
            G_STEP,
        ),
        [
            "if step > 9:",
            "break",
            "scaler.step(opt_d)",
            "scaler.step(opt_g)",
            "scaler.update()",
        ],
    ),
    "left after the update": (
        (D_STEP, G_STEP, "if step > 9:\n    break"),
        ["scaler.step(opt_d)", "scaler.step(opt_g)", "scaler.update()", "if step > 9:", "break"],
    ),
    "the last one steps in some passes": (
        (D_STEP, "if step % 5 == 0:\n" + indent(G_STEP.strip(), "    ")),
        ["scaler.step(opt_d)", "if step % 5 == 0:", "scaler.step(opt_g)", "scaler.update()"],
    ),
    "the last one steps in some passes and leaves": (
        (
            D_STEP,
            "if step % 5 == 0:\n" + indent(G_STEP.strip(), "    ") + "\n    continue\nprint(step)",
        ),
        [
            "scaler.step(opt_d)",
            "if step % 5 == 0:",
            "scaler.step(opt_g)",
            "scaler.update()",
            "continue",
            "scaler.update()",
        ],
    ),
    "either of the two": (
        (
            'fake = G(torch.randn(4, 8, device="cuda"))',
            "if step % 2:",
            indent(D_STEP.split("\n", 2)[2], "    "),
            "else:",
            indent(G_STEP.strip("\n"), "    "),
            "if step > 9:\n    break",
        ),
        [
            "if step % 2:",
            "scaler.step(opt_d)",
            "else:",
            "scaler.step(opt_g)",
            "scaler.update()",
            "if step > 9:",
            "break",
        ],
    ),
}


@pytest.mark.parametrize(("parts", "expected"), PLACES.values(), ids=PLACES)
def test_places_of_the_update(
    rewrite: Rewrite, parts: tuple[str, ...], expected: list[str]
) -> None:
    assert scaled(rewrite, gan(*parts)) == expected


def test_a_raise_that_ends_an_epoch(rewrite: Rewrite) -> None:
    passes = gan(D_STEP, "if step > 9:\n    raise ValueError", G_STEP)
    head, body = passes.split("def main():\n")
    loop, call = body.split("\n\n\nmain")
    caught = f"    try:\n{indent(loop, '    ')}\n    except ValueError:\n        pass"
    source = f"{head}def main():\n{caught}\n\n\nfor epoch in range(9):\n    main{call}"
    assert scaled(rewrite, source) == [
        "scaler.step(opt_d)",
        "if step > 9:",
        "scaler.update()",
        "raise ValueError",
        "scaler.step(opt_g)",
        "scaler.update()",
    ]


UNCLEAR = {
    "a step in some passes": (
        (
            D_STEP.replace("opt_d.step()", "if step % 2:\n    opt_d.step()"),
            "if step > 9:\n    break",
            G_STEP,
        ),
        "an optimizer may or may not have stepped",
    ),
    "an exception between the two": (
        (
            "try:",
            indent(D_STEP + G_STEP, "    "),
            "except RuntimeError:\n    continue",
        ),
        "an optimizer may or may not have stepped",
    ),
    "another step, in a function, ahead of its own": (
        (
            D_STEP.replace("opt_d.step()", "generator(fake)\nopt_d.step()"),
            "def generator(fake):\n" + indent(G_STEP.strip("\n"), "    "),
        ),
        "gradients of a backward pass before another update",
    ),
}


@pytest.mark.parametrize(("parts", "reason"), UNCLEAR.values(), ids=UNCLEAR)
def test_bfloat16_alone_where_an_update_has_no_place(
    rewrite: Rewrite, name: str, parts: tuple[str, ...], reason: str
) -> None:
    (file,) = rewrite(gan(*parts), [name]).files
    assert reason in file.changes[0].message
    assert "GradScaler" not in file.text


def test_an_exception_with_one_optimizer(rewrite: Rewrite) -> None:
    """Nothing comes between its step and the update."""
    only = D_STEP.replace("fake.detach()", "-real.cuda()").split("\n", 2)[2]
    source = gan("try:", indent(only, "    "), "except RuntimeError:\n    continue")
    assert scaled(rewrite, source) == ["scaler.step(opt_d)", "scaler.update()", "continue"]


def test_a_function_that_returns_early(rewrite: Rewrite) -> None:
    only = D_STEP.replace("fake.detach()", "-real.cuda()").split("\n", 2)[2]
    step = indent(f"{only}if d_loss < 0:\n    return 0\nd_loss = d_loss * 2", "    ")
    source = gan("train(real)").replace("def main", f"def train(real):\n{step}\n\n\ndef main")
    assert scaled(rewrite, source) == [
        "scaler.step(opt_d)",
        "scaler.update()",
        "if d_loss < 0:",
        "return 0",
    ]


def test_a_second_step_in_a_function_that_returns_early(rewrite: Rewrite) -> None:
    second = "if d_loss < 0:\n" + indent(G_STEP, "    ") + "\n    return 1\nreturn 0"
    step = indent(f"{D_STEP}{second}", "    ")
    source = gan("train(real)").replace("def main", f"def train(real):\n{step}\n\n\ndef main")
    assert scaled(rewrite, source) == [
        "scaler.step(opt_d)",
        "if d_loss < 0:",
        "scaler.step(opt_g)",
        "scaler.update()",
        "return 1",
        "scaler.update()",
        "return 0",
    ]


ONE = """
import math
import sys

import torch
from torch import nn

model = nn.Linear(8, 2).cuda()
optimizer = torch.optim.Adam(model.parameters())
best = torch.load("best.pt")
bad = 0


{functions}
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
{check}
    optimizer.step()
"""
CLIP = "norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
NORM = """
def norm_of(network):
    total = 0.0
    for p in network.parameters():
        total += p.grad.norm().item() ** 2
    return total ** 0.5
"""
HAS_NAN = """
def has_nan(network):
    for p in network.parameters():
        if torch.isnan(p.grad).any():
            return True
    return False
"""
STOP = """
def stop_if(value):
    if math.isnan(value):
        print("stopped")
        sys.exit(1)
"""
ABORT = """
def abort(text):
    print(text)
    raise RuntimeError(text)
"""


def one(check: str, functions: str = "") -> str:
    return ONE.format(check=indent(check.strip("\n"), "    "), functions=functions)


ENDING = {
    "raises at the norm": (CLIP + "if not torch.isfinite(norm):\n    raise ValueError(norm)", ""),
    "asserts": ("for p in model.parameters():\n    assert not torch.isnan(p.grad).any()", ""),
    "breaks": (CLIP + "norm = norm.item()\nif math.isnan(norm):\n    break", ""),
    "a norm of the script's own": ("if math.isinf(norm_of(model)):\n    sys.exit()", NORM),
    "a function that says so": ("if has_nan(model):\n    break", HAS_NAN),
    "a function that is handed the norm": (CLIP + "stop_if(norm.item())", STOP),
    "a function that raises": (CLIP + 'if norm > 1e4:\n    abort("diverged")', ABORT),
    "a flag": (
        "bad = False\nfor p in model.parameters():\n    if torch.isnan(p.grad).any():\n        bad = True\n"
        "if bad:\n    raise ValueError",
        "",
    ),
    "asked to raise": (
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=strict)",
        "strict = len(sys.argv) > 1",
    ),
    "returned to a loop": (
        "",
        """
def train_step(x, y):
    loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return norm


for x, y in loader:
    norm = train_step(x, y)
    if not torch.isfinite(norm):
        raise ValueError(norm)
""",
    ),
    "weights loaded": (CLIP + "if torch.isnan(norm):\n    model.load_state_dict(best)", ""),
}


@pytest.mark.parametrize(("check", "functions"), ENDING.values(), ids=ENDING)
def test_bfloat16_alone_where_overflowing_gradients_end_the_training(
    rewrite: Rewrite, name: str, check: str, functions: str
) -> None:
    (file,) = rewrite(one(check, functions), [name]).files
    assert not file.errors
    reasons = ("gradients that overflow", "clipping raises when gradients overflow")
    assert any(reason in file.changes[0].message for reason in reasons)
    assert "GradScaler" not in file.text


GOING_ON: dict[str, tuple[str, list[str]]] = {
    "the loss is checked": (
        "if not math.isfinite(loss.item()):\n    raise ValueError",
        ["if not math.isfinite(loss.item()):", "raise ValueError"],
    ),
    "the loss is checked by a function": ("stop_if(loss.item())", []),
    "the norm is shown": (
        CLIP + "if torch.isnan(norm):\n    print(norm)",
        ["if torch.isnan(norm):"],
    ),
    "a step is left out": (
        CLIP + "if not torch.isfinite(norm):\n    bad += 1\n    continue",
        ["if not torch.isfinite(norm):", "scaler.update()", "continue"],
    ),
    "a kind of gradients is not supported": (
        "for p in model.parameters():\n    grad = p.grad.data\n    if grad.is_sparse:\n        raise RuntimeError",
        ["if grad.is_sparse:", "raise RuntimeError"],
    ),
    "gradients are missing": (
        "for p in model.parameters():\n    grad = p.grad\n    if grad is None:\n        raise RuntimeError",
        ["if grad is None:", "raise RuntimeError"],
    ),
    "the weights are checked": (
        "for p in model.parameters():\n    assert not torch.isnan(p).any()",
        [],
    ),
    "another loop is left": (
        "for p in model.parameters():\n    if p.grad.norm() > 9:\n        print(p.shape)\n        break",
        ["if p.grad.norm() > 9:", "break"],
    ),
}


@pytest.mark.parametrize(("check", "expected"), GOING_ON.values(), ids=GOING_ON)
def test_scaled_where_the_training_goes_on(
    rewrite: Rewrite, check: str, expected: list[str]
) -> None:
    found = scaled(rewrite, one(check, STOP))
    assert found[-2:] == ["scaler.step(optimizer)", "scaler.update()"]
    assert found[-2 - len(expected) : -2] == expected


ACCUMULATED = "if step % 4 == 0:\n    optimizer.step()\n    optimizer.zero_grad()"
LOOKED_AT = "print(model.weight.grad.norm())"


def accumulating(*parts: str) -> str:
    """A script whose optimizer steps in every fourth pass."""
    source = ONE.format(check="", functions="step = 0").replace("    optimizer.zero_grad()\n", "")
    body = "\n".join(["step += 1", *parts])
    return source.replace("\n    optimizer.step()\n", indent(body, "    ") + "\n")


@pytest.mark.parametrize("parts", [(LOOKED_AT, ACCUMULATED), (ACCUMULATED, LOOKED_AT)])
def test_gradients_looked_at_in_passes_that_do_not_step(
    rewrite: Rewrite, name: str, parts: tuple[str, ...]
) -> None:
    (file,) = rewrite(accumulating(*parts), [name]).files
    assert "looked at in steps, too, that the optimizer does not make" in file.changes[0].message
    assert "GradScaler" not in file.text


UNSCALED = {
    "by a loop": ("for p in model.parameters():\n    p.grad += 0.01 * p.detach()", ""),
    "written anew": ("for p in model.parameters():\n    p.grad = torch.full_like(p, 0.01)", ""),
    "in a function": ("print(norm_of(model))", NORM),
    "by a library": (
        "dispatch_clip_grad(model.parameters(), 1.0)",
        "from timm.utils import dispatch_clip_grad",
    ),
    "by a library that is handed the network": (
        "clip_gradients(model, 3.0)",
        "from dino_utils import clip_gradients",
    ),
    "by a method of what is not known": (
        "tools['logs'].log_grad_norm(model)",
        "tools = torch.load('tools')",
    ),
    "by its name": (
        "print([getattr(p, 'grad') for p in model.parameters()])",
        "",
    ),
}


OPTION = "if len(sys.argv) > 1:\n    "


@pytest.mark.parametrize(
    ("check", "unscaled"),
    [
        (
            OPTION + CLIP,
            "    if len(sys.argv) > 1:\n        scaler.unscale_(optimizer)\n        norm",
        ),
        (
            OPTION + "print(1)\nelse:\n    print(2)\n    " + CLIP,
            "        print(2)\n        scaler.unscale_(optimizer)\n        norm",
        ),
        (
            OPTION + "print(1)\nelif math.pi:\n    " + CLIP,
            "    elif math.pi:\n        scaler.unscale_(optimizer)\n        norm",
        ),
        (OPTION + CLIP + CLIP, "    scaler.unscale_(optimizer)\n    if len("),
        (
            OPTION + CLIP + "else:\n    " + CLIP.replace("1.0", "2.0"),
            "    scaler.unscale_(optimizer)\n    if len(",
        ),
        (
            OPTION + "print(1)\nelif next(model.parameters()).grad.sum() > 0:\n    " + CLIP,
            "    scaler.unscale_(optimizer)\n    if len(",
        ),
        ("for _ in range(2):\n    " + CLIP, "    scaler.unscale_(optimizer)\n    for _ in"),
    ],
)
def test_unscaled_in_the_branch_that_looks_at_gradients(
    rewrite: Rewrite, name: str, check: str, unscaled: str
) -> None:
    (file,) = rewrite(one(check, ""), [name], amp=AmpDtype.FP16).files
    assert unscaled in file.text
    assert file.text.count("unscale_") == 1


@pytest.mark.parametrize(("check", "functions"), UNSCALED.values(), ids=UNSCALED)
def test_unscaled_above_what_looks_at_gradients(
    rewrite: Rewrite, name: str, check: str, functions: str
) -> None:
    (file,) = rewrite(one(check, functions), [name], amp=AmpDtype.FP16).files
    first = "    " + check.splitlines()[0]
    assert f"    scaler.unscale_(optimizer)\n{first}\n" in file.text
    assert file.text.count("unscale_") == 1


NOT_UNSCALED = {
    "gradients are set to nothing": "for p in model.parameters():\n    p.grad = None",
    "gradients are cleared": "tools.zero_grad(model)",
    "an average follows": "tools.update(model)",
    "weights are counted": "print(sum(p.numel() for p in model.parameters()))",
}


@pytest.mark.parametrize("check", NOT_UNSCALED.values(), ids=NOT_UNSCALED)
def test_not_unscaled_for_what_looks_at_no_gradient(
    rewrite: Rewrite, name: str, check: str
) -> None:
    (file,) = rewrite(one(check), [name], amp=AmpDtype.FP16).files
    assert "scaler.step" in file.text
    assert "unscale_" not in file.text


def test_each_optimizer_unscaled_in_its_own_branch(rewrite: Rewrite) -> None:
    branches = """
if step % 2:
    nn.utils.clip_grad_norm_(D.parameters(), 1.0)
    opt_d.step()
else:
    nn.utils.clip_grad_norm_(G.parameters(), 1.0)
    opt_g.step()
    opt_g.zero_grad()
"""
    source = gan(D_STEP.replace(".detach()", "").replace("opt_d.step()", ""), branches)
    (file,) = rewrite(source, ["autocast"], amp=AmpDtype.FP16).files
    lines = [line.strip() for line in file.text.splitlines()]
    assert [line for line in lines if line.startswith("scaler.")] == [
        "scaler.scale(d_loss).backward()",
        "scaler.unscale_(opt_d)",
        "scaler.step(opt_d)",
        "scaler.unscale_(opt_g)",
        "scaler.step(opt_g)",
        "scaler.update()",
    ]


ANEW = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from data import folds, train_set

loader = DataLoader(train_set, batch_size=64)


def fit(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()


"""
NET = "net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.Flatten(), nn.Linear(57600, 10)).cuda()"


@pytest.mark.parametrize(
    ("body", "scales"),
    [
        (f"{NET}\nfit(net, loader)\n", True),
        (f"for fold in folds:\n    {NET}\n    fit(net, loader)\n", True),
        (f"{NET}\nfor epoch in range(9):\n    fit(net, loader)\n", False),
    ],
)
def test_a_scaler_is_not_made_anew_for_every_epoch(
    rewrite: Rewrite, body: str, scales: bool
) -> None:
    (file,) = rewrite(ANEW + body, ["autocast"]).files
    assert ("scaler.update()" in file.text) is scales
    assert "torch.autocast" in file.text
    assert ("made anew in a loop" in file.changes[0].message) is not scales


UNCLEARED = """
import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096)).cuda()
other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(30):
    {epoch}
    for x, y in torch.load("batches.pt"):
        {step}
        loss = nn.functional.mse_loss(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("epoch", "step", "scales"),
    [
        ("pass", "optimizer.zero_grad()", True),
        ("pass", "model.zero_grad()", True),
        ("pass", "for p in model.parameters(): p.grad = None", True),
        ("pass", "pass", False),
        ("optimizer.zero_grad()", "pass", False),
        ("pass", "other.zero_grad()", False),
    ],
)
def test_gradients_that_nothing_clears_are_not_scaled(
    rewrite: Rewrite, epoch: str, step: str, scales: bool
) -> None:
    (file,) = rewrite(UNCLEARED.format(epoch=epoch, step=step), ["autocast"]).files
    assert "torch.autocast" in file.text
    assert ("scaler" in file.text) is scales
