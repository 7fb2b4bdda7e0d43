"""Tensors made on the device they are used on."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Check = Callable[..., None]

HEAD = """\
import numpy as np
import torch
from torch.autograd import Variable

use_cuda = torch.cuda.is_available()
device = torch.device("cuda" if use_cuda else "cpu")
n = 8
"""


def script(body: str) -> str:
    return HEAD + dedent(body).lstrip("\n")


IN_ONE_EXPRESSION = {
    "x = torch.randn(n, 3).to(device)": "x = torch.randn(n, 3, device=device)",
    "x = torch.zeros(n, dtype=torch.long).to(device)": (
        "x = torch.zeros(n, dtype=torch.long, device=device)"
    ),
    'x = torch.ones(n).to("cuda:0")': 'x = torch.ones(n, device="cuda:0")',
    "x = torch.ones(n).to(device=device, non_blocking=True)": "x = torch.ones(n, device=device)",
    "x = torch.ones(n).cuda(1)": "x = torch.ones(n, device=1)",
    "x = torch.ones(n).cuda(non_blocking=True)": "x = torch.ones(n, device=device)",
    "x = torch.zeros(n).cuda().to(device)": "x = torch.zeros(n, device=device)",
    "x = torch.tensor([1.0, 2.0]).to(device)": "x = torch.tensor([1.0, 2.0], device=device)",
    "x = torch.tensor(-0.5).to(device)": "x = torch.tensor(-0.5, device=device)",
    "x = torch.tensor(2 * -0.5).to(device)": "x = torch.tensor(2 * -0.5, device=device)",
    "x = torch.tensor(np.arange(n)).to(device)": "x = torch.tensor(np.arange(n), device=device)",
    "x = torch.arange(0, y).to(device)": "x = torch.arange(0, y, device=device)",
    "rows, columns = y.size()\nx = torch.arange(rows, columns).to(device)": (
        "rows, columns = y.size()\nx = torch.arange(rows, columns, device=device)"
    ),
    "_, *others = y.shape\nx = torch.FloatTensor(len(others)).fill_(0).to(device)": (
        "_, *others = y.shape\nx = torch.zeros(len(others), device=device)"
    ),
    "x = torch.arange(n).unsqueeze(1).to(device)": "x = torch.arange(n, device=device).unsqueeze(1)",
    "x = torch.full((n,), 0.5).to(device)": "x = torch.full((n,), 0.5, device=device)",
    "x = torch.eye(n).to(device, torch.float16)": (
        "x = torch.eye(n, device=device).to(torch.float16)"
    ),
    "x = torch.zeros(n).to(device, torch.float16)": (
        "x = torch.zeros(n, dtype=torch.float16, device=device)"
    ),
    "x = torch.randn(n).to(device, dtype=torch.float16)": (
        "x = torch.randn(n, device=device).to(torch.float16)"
    ),
    "x = torch.zeros(n).long().to(device)": "x = torch.zeros(n, dtype=torch.long, device=device)",
    "x = torch.zeros(n).type('torch.ByteTensor').to(device)": (
        "x = torch.zeros(n, dtype=torch.uint8, device=device)"
    ),
    "x = torch.tril(torch.ones(n, n)).type(torch.ByteTensor).cuda()": (
        "x = torch.tril(torch.ones(n, n, device=device)).to(torch.uint8)"
    ),
    "x = torch.zeros(n).type(torch.LongTensor).to(device)": (
        "x = torch.zeros(n, dtype=torch.long, device=device)"
    ),
    "x = torch.randint(n, (n,)).type('torch.FloatTensor').view(-1).to(device)": (
        "x = torch.randint(n, (n,), device=device).to(torch.float32).view(-1)"
    ),
    "x = torch.tensor(1).float().cuda()": "x = torch.tensor(1, dtype=torch.float32, device=device)",
    "x = torch.tensor(1000).half().to(device)": "x = torch.tensor(1000, device=device).half()",
    "x = torch.tensor(0.1).double().to(device)": "x = torch.tensor(0.1, device=device).double()",
    "x = torch.ones(n, dtype=torch.int).float().to(device)": (
        "x = torch.ones(n, dtype=torch.int, device=device).float()"
    ),
    "x = torch.zeros(n).long().view(2, 4).to(device)": (
        "x = torch.zeros(n, device=device).long().view(2, 4)"
    ),
    "x = torch.triu(torch.ones(n, n), diagonal=1).bool().to(device)": (
        "x = torch.triu(torch.ones(n, n, device=device), diagonal=1).bool()"
    ),
    "x = torch.zeros(n, pin_memory=True).to(device, non_blocking=True)": (
        "x = torch.zeros(n, device=device)"
    ),
    "x = torch.randn(n).to(device).requires_grad_()": (
        "x = torch.randn(n, device=device).requires_grad_()"
    ),
    "x = Variable(torch.zeros(n)).to(device)": "x = Variable(torch.zeros(n, device=device))",
    "y = torch.rand(n, device=device)\nx = torch.zeros(n).to(y.device)": (
        "y = torch.rand(n, device=device)\nx = torch.zeros(n, device=y.device)"
    ),
    "y = torch.rand(n, device=device)\nx = torch.zeros(n).type_as(y)": (
        "y = torch.rand(n, device=device)\nx = torch.zeros(n, dtype=y.dtype, device=y.device)"
    ),
    "y = torch.rand(n, device=device)\nx = torch.zeros(n).type_as(y).to(y.device)": (
        "y = torch.rand(n, device=device)\nx = torch.zeros(n, dtype=y.dtype, device=y.device)"
    ),
    "y = torch.rand(n, device=device)\nx = torch.eye(n).type_as(y).to(y.dtype)": (
        "y = torch.rand(n, device=device)\nx = torch.eye(n, device=y.device).type_as(y).to(y.dtype)"
    ),
    "torch.zeros(n).to(device)": "torch.zeros(n, device=device)",
    "x = torch.FloatTensor(n, 3).to(device)": "x = torch.empty(n, 3, device=device)",
    "x = torch.Tensor([0.5, n]).float().to(device)": (
        "x = torch.tensor([0.5, n], dtype=torch.float32, device=device)"
    ),
    "x = torch.FloatTensor([n]).long().to(device)": (
        "x = torch.tensor([n], dtype=torch.float32, device=device).long()"
    ),
    "x = torch.Tensor(np.reshape(range(n), [1, n])).to(device)": (
        "x = torch.tensor(np.reshape(range(n), [1, n]), dtype=torch.float32, device=device)"
    ),
    "x = torch.zeros(n, 3).to(w.device).type_as(w)": "x = torch.zeros(n, 3, device=w.device).type_as(w)",
    "x = torch.FloatTensor(torch.ones(n).size()).to(device)": (
        "x = torch.empty(torch.ones(n).size(), device=device)"
    ),
    "x = torch.LongTensor([1, 2]).to(device)": ("x = torch.tensor([1, 2], device=device)"),
    "x = torch.Tensor([10]).to(device, dtype=torch.float32)": (
        "x = torch.tensor([10], dtype=torch.float32, device=device)"
    ),
    "x = torch.Tensor([10]).to(device, torch.float)": (
        "x = torch.tensor([10], dtype=torch.float32, device=device)"
    ),
    "x = torch.Tensor([10]).to(device, dtype=torch.long)": (
        "x = torch.tensor([10], dtype=torch.float32, device=device).to(torch.long)"
    ),
    "x = torch.LongTensor(n).random_(5).to(device)": (
        "x = torch.empty(n, dtype=torch.long, device=device).random_(5)"
    ),
    "x = torch.zeros_like(y).to(device)": "x = torch.zeros_like(y, device=device)",
    "x = torch.zeros(1).expand(n).to(device)\nprint(x - y)": (
        "x = torch.zeros(1, device=device).expand(n)\nprint(x - y)"
    ),
    "x = torch.zeros(1).expand(n).clone().to(device)\nx[0] = 1": (
        "x = torch.zeros(1, device=device).expand(n).clone()\nx[0] = 1"
    ),
}


@pytest.mark.parametrize(("before", "after"), IN_ONE_EXPRESSION.items())
def test_made_and_moved_in_one_expression(
    check_transformed: Check, before: str, after: str
) -> None:
    imports = "from elsewhere import y\n" if "_like(y)" in before else ""
    end = "\nprint(x.mean())\n"
    check_transformed(script(imports + before + end), script(imports + after + end))


@pytest.mark.parametrize(
    "made", ["torch.zeros(n, device=device)", "torch.full((n,), 2, device=device).unsqueeze(0)"]
)
def test_what_is_like_a_tensor_on_the_device_is_there_already(check_noop: Check, made: str) -> None:
    check_noop(script(f"y = {made}\nx = torch.zeros_like(y).to(device)\nprint(x.mean())\n"))


def test_what_is_like_a_tensor_is_on_its_device(check_noop: Check) -> None:
    code = "noise = torch.rand_like(y).to(y.device)\nprint(noise.mean())\n"
    check_noop(script(f"from elsewhere import y\n{code}"))
    check_noop(script(f"y = torch.ones(n, device=device)\n{code}"))


def test_layout_of_the_call_survives(check_transformed: Check) -> None:
    before = """
        mask = torch.ones(
            n,
            n,  # square
            dtype=torch.bool,
        ).to(
            device
        )
    """
    after = """
        mask = torch.ones(
            n,
            n,  # square
            dtype=torch.bool,
            device=device,
        )
    """
    check_transformed(script(before), script(after))


def test_without_a_device_name_cuda_is_written_out(check_transformed: Check) -> None:
    check_transformed(
        "import torch\n\nnoise = torch.randn(4, 100).cuda()\n",
        'import torch\n\nnoise = torch.randn(4, 100, device="cuda")\n',
    )


def test_name_of_another_device_is_not_taken_for_cuda(check_transformed: Check) -> None:
    head = """\
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument('--gpu', action='store_true')
args = parser.parse_args()
device = torch.device('cuda' if args.gpu and torch.cuda.is_available() else 'cpu')
"""
    check_transformed(
        head + "noise = torch.randn(4, 100).cuda()\n",
        head + "noise = torch.randn(4, 100, device='cuda')\n",
    )


def test_attribute_and_argument_name_the_device(check_transformed: Check) -> None:
    def text(first: str, second: str) -> str:
        return f"""\
import torch as th


class Trainer:
    def __init__(self):
        self.device = th.device("cuda" if th.cuda.is_available() else "cpu")

    def noise(self, n):
        return {first}


def labels(n, device):
    return {second}


trainer = Trainer()
print(trainer.noise(3).sum(), labels(3, trainer.device).sum())
"""

    check_transformed(
        text("th.randn(n, 8).to(self.device)", "th.ones(n).to(device)"),
        text("th.randn(n, 8, device=self.device)", "th.ones(n, device=device)"),
    )


def test_moved_in_a_later_statement(check_transformed: Check) -> None:
    before = """
        h = torch.zeros(2, n)
        c = torch.zeros(2, n)
        mask = torch.ones(n, dtype=torch.bool)
        noise = torch.randn(n)
        print("made")
        h, c = h.to(device), c.to(device)
        if use_cuda:
            mask = mask.cuda()
        noise = noise.cuda() if use_cuda else noise
        print(h, c, mask, noise)
    """
    after = """
        h = torch.zeros(2, n, device=device)
        c = torch.zeros(2, n, device=device)
        mask = torch.ones(n, dtype=torch.bool, device=device)
        noise = torch.randn(n, device=device)
        print("made")
        print(h, c, mask, noise)
    """
    check_transformed(script(before), script(after))


def test_a_condition_around_several_moves_goes_with_them(check_transformed: Check) -> None:
    before = """
        noise = torch.randn(n)
        labels = torch.zeros(n).long()
        if use_cuda:
            noise = noise.cuda()
            labels = labels.cuda()
        print(noise, labels)
    """
    after = """
        noise = torch.randn(n, device=device)
        labels = torch.zeros(n, dtype=torch.long, device=device)
        print(noise, labels)
    """
    check_transformed(script(before), script(after))


def test_moved_on_a_condition_that_no_device_is_named_for(check_transformed: Check) -> None:
    """Twice under the same condition, at the end of a statement and in one of its own."""
    before = """
        def loss_of(model, x, on_gpu):
            mask = torch.triu(torch.ones(n, n), diagonal=1).bool()
            noise = torch.zeros(n)
            print("made")
            if on_gpu:
                mask = mask.cuda()
            noise = noise.cuda() if on_gpu else noise
            return model(x, mask, noise)
    """
    after = """
        def loss_of(model, x, on_gpu):
            mask = torch.triu(
                torch.ones(n, n, device="cuda" if on_gpu else "cpu"), diagonal=1
            ).bool()
            noise = torch.zeros(n, device="cuda" if on_gpu else "cpu")
            print("made")
            return model(x, mask, noise)
    """
    check_transformed(script(before), script(after))


def test_moved_to_where_another_tensor_is(check_transformed: Check) -> None:
    before = """
        def loss_of(anchor, pos):
            y = torch.ones((n, 1)).view(-1)
            if anchor.is_cuda: y = y.cuda()
            return torch.nn.functional.soft_margin_loss(anchor - pos, y)
    """
    after = """
        def loss_of(anchor, pos):
            y = torch.ones((n, 1), device=anchor.device).view(-1)
            return torch.nn.functional.soft_margin_loss(anchor - pos, y)
    """
    check_transformed(script(before), script(after))


def test_condition_that_also_moves_the_model_stays(check_transformed: Check) -> None:
    before = """
        model = torch.nn.Linear(n, 2)
        fixed = torch.randn(4, n)
        if use_cuda:
            model.cuda()
            fixed = fixed.cuda()
    """
    after = """
        model = torch.nn.Linear(n, 2)
        fixed = torch.randn(4, n, device=device)
        if use_cuda:
            model.cuda()
    """
    check_transformed(script(before), script(after))


# The Tensor alias

ALIAS_HEAD = """\
import numpy as np
import torch
from torch.autograd import Variable
from data import loader

cuda = True if torch.cuda.is_available() else False
"""


def test_alias_is_replaced_in_all_its_uses(check_transformed: Check) -> None:
    before = """
        Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
        LongTensor = torch.cuda.LongTensor if cuda else torch.LongTensor


        def noise(count):
            return Variable(Tensor(np.random.rand(count, 9)))


        for imgs, labels in loader:
            valid = Variable(Tensor(imgs.size(0), 1).fill_(1.0), requires_grad=False)
            fake = Variable(Tensor(imgs.shape[0], 1).fill_(0.0), requires_grad=False)
            smooth = Tensor(imgs.size(0), 1).fill_(0.9)
            ones = Tensor(np.ones((imgs.size(0), 4)))
            real = Variable(imgs.type(Tensor))
            labels = Variable(labels.type(LongTensor))
            style = Variable(torch.randn(imgs.size(0), 8).type(Tensor))
            target = LongTensor(imgs.size(0)).fill_(10)
            picked = LongTensor(np.arange(4))
            print(noise(4), valid, fake, smooth, ones, real, labels, style, target, picked)
    """
    after = """
        device = torch.device("cuda" if cuda else "cpu")


        def noise(count):
            return torch.tensor(np.random.rand(count, 9), dtype=torch.float32, device=device)


        for imgs, labels in loader:
            valid = torch.ones(imgs.size(0), 1, device=device)
            fake = torch.zeros(imgs.shape[0], 1, device=device)
            smooth = torch.full((imgs.size(0), 1), 0.9, device=device)
            ones = torch.ones((imgs.size(0), 4), device=device)
            real = imgs.to(device, dtype=torch.float32)
            labels = labels.to(device, dtype=torch.long)
            style = torch.randn(imgs.size(0), 8, device=device)
            target = torch.full((imgs.size(0),), 10, dtype=torch.long, device=device)
            picked = torch.tensor(np.arange(4), dtype=torch.long, device=device)
            print(noise(4), valid, fake, smooth, ones, real, labels, style, target, picked)
    """
    new_head = ALIAS_HEAD.replace("from torch.autograd import Variable\n", "")
    check_transformed(ALIAS_HEAD + dedent(before), new_head + dedent(after))


def test_moves_to_where_a_tensor_is_then_made(check_transformed: Check) -> None:
    head = ALIAS_HEAD + '\ndevice = torch.device("cuda" if cuda else "cpu")\n'
    before = """
        Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
        for imgs, labels in loader:
            real = Variable(imgs.type(Tensor)).to(device)
            z = Tensor(np.random.rand(len(imgs), 9)).to(device).to(device)
            half = imgs.type(Tensor).to(device, torch.float16)
            print(real, z, half)
    """
    after = """
        for imgs, labels in loader:
            real = imgs.to(device, dtype=torch.float32)
            z = torch.tensor(np.random.rand(len(imgs), 9), dtype=torch.float32, device=device)
            half = imgs.to(device, dtype=torch.float32).to(device, torch.float16)
            print(real, z, half)
    """
    new_head = head.replace("from torch.autograd import Variable\n", "")
    check_transformed(head + dedent(before), new_head + dedent(after))


@pytest.mark.parametrize(
    ("other", "stays"),
    [
        ("print('no importer')", False),
        ("from evaluation import evaluate", False),
        ("from evaluation import evaluate, Variable", True),
        ("from evaluation import (\n    evaluate,\n    Variable,\n)", True),
        ("from evaluation import *", True),
        ("import evaluation\nprint(evaluation.Variable)", True),
    ],
)
def test_an_imported_file_keeps_what_others_may_take_from_it(
    rewrite: Callable[..., RewriteResult], other: str, stays: bool
) -> None:
    evaluation = """\
import torch
from torch.autograd import Variable


def evaluate(model, loader):
    Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
    for imgs in loader:
        print(model(Variable(imgs.type(Tensor))))
"""
    train = (
        "from evaluation import evaluate\nfrom data import model, loader\nevaluate(model, loader)\n"
    )
    files = {"train.py": train, "evaluation.py": evaluation, "other.py": other + "\n"}
    texts = {f.path.name: f.text for f in rewrite(files, ["device-construction"]).files}
    assert "imgs.to(device, dtype=torch.float32)" in texts["evaluation.py"]
    assert ("import Variable" in texts["evaluation.py"]) is stays


def test_alias_beside_a_device_uses_that(check_transformed: Check) -> None:
    before = """
        device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
        Tensor = torch.cuda.FloatTensor if cuda else torch.Tensor
        for imgs, labels in loader:
            real = Variable(imgs.type(Tensor))
            noise = Tensor(np.random.rand(3))
            print(Variable(labels), real, noise)
    """
    after = """
        device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
        for imgs, labels in loader:
            real = imgs.to(device, dtype=torch.float32)
            noise = torch.tensor(np.random.rand(3), dtype=torch.float32, device=device)
            print(Variable(labels), real, noise)
    """
    check_transformed(ALIAS_HEAD + dedent(before), ALIAS_HEAD + dedent(after))


def test_local_alias_follows_its_tensor(check_transformed: Check) -> None:
    before = """
        def sample(mu):
            Tensor = torch.cuda.FloatTensor if mu.is_cuda else torch.FloatTensor
            z = Variable(Tensor(np.random.rand(3)))
            return z + mu

        print(sample(torch.zeros(3)), Variable(torch.ones(1)))
    """
    after = """
        def sample(mu):
            z = torch.tensor(np.random.rand(3), dtype=torch.float32, device=mu.device)
            return z + mu

        print(sample(torch.zeros(3)), Variable(torch.ones(1)))
    """
    check_transformed(ALIAS_HEAD + dedent(before), ALIAS_HEAD + dedent(after))


def test_alias_assigned_in_branches(check_transformed: Check) -> None:
    before = """
        if cuda:
            FloatTensor = torch.cuda.FloatTensor
        else:
            FloatTensor = torch.FloatTensor
        print(FloatTensor(3, 4).zero_(), Variable(torch.ones(1)), np.pi)
    """
    after = """
        if cuda:
            device = torch.device("cuda")
        else:
            device = torch.device("cpu")
        print(torch.zeros(3, 4, device=device), Variable(torch.ones(1)), np.pi)
    """
    check_transformed(ALIAS_HEAD + dedent(before), ALIAS_HEAD + dedent(after))


def test_gradient_asked_for_keeps_variable(check_transformed: Check) -> None:
    before = """
        Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
        for imgs, labels in loader:
            real = Variable(imgs.type(Tensor), requires_grad=True)
            print(real, np.pi)
    """
    after = """
        device = torch.device("cuda" if cuda else "cpu")
        for imgs, labels in loader:
            real = Variable(imgs.to(device, dtype=torch.float32), requires_grad=True)
            print(real, np.pi)
    """
    check_transformed(ALIAS_HEAD + dedent(before), ALIAS_HEAD + dedent(after))


ALIAS_KEPT = {
    "print(isinstance(loader, Tensor))": "passed on",
    "kind = Tensor": "used as a value",
    "from elsewhere import size\nprint(Tensor(size))": "may be a size or data",
    "device = 3\nprint(Tensor(3, 4))": "already names something else",
    'torch.set_default_tensor_type("torch.FloatTensor")\nprint(Tensor(3, 4))': "default device",
}


@pytest.mark.parametrize(("use", "reason"), ALIAS_KEPT.items())
def test_alias_is_kept(check_noop: Check, use: str, reason: str) -> None:
    alias = "Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor\nprint(Tensor(2, 3))\n"
    check_noop(ALIAS_HEAD + alias + use + "\n", reason)


def test_alias_used_by_another_file_is_kept(check_noop: Check) -> None:
    common = """
        import torch

        Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
    """
    check_noop(
        {"train.py": "from common import Tensor\n\nprint(Tensor(3, 4))\n", "common.py": common},
        "also used at line 3 of train.py",
    )


# Left alone

LEFT = {
    "x = torch.randn(n, requires_grad=True).to(device)": "no leaf",
    "x = torch.randn(n).requires_grad_().to(device)": "no leaf",
    "x = Variable(torch.randn(n), requires_grad=True).cuda()": "no leaf",
    "x = torch.autograd.Variable(torch.randn(n), requires_grad=True).cuda()": "no leaf",
    "x = torch.zeros(n, out=y).to(device)": "`out=`",
    "x = torch.randn(n, generator=y).to(device)": "belongs to the CPU",
    "x = torch.randperm(n).to(device)": "order or a split",
    "x = torch.tensor(y).to(device)": "may be a tensor already",
    "x = torch.tensor(-y).to(device)": "may be a tensor already",
    "x = torch.tensor(y + 1).to(device)": "may be a tensor already",
    "x = torch.linspace(0, 1, n).to(device)": "makes fractions, which the GPU rounds differently",
    "x = torch.arange(y, n).to(device)": "may count in fractions",
    "_, *others = y.shape\nx = torch.arange(others, n).cuda()": "may count in fractions",
    "x = torch.arange(0, 1, 0.1).to(device)": "may count in fractions, which the GPU rounds differently",
    "x = torch.zeros(n).type(y).to(device)": "`torch.zeros(n).type` may cast to a type of the host",
    "x = torch.randn(n).exp().to(device)": "`.exp` would run on the device",
    "x = torch.normal(y, 1.0).to(device)": "takes no device",
    "x = torch.normal(mean=y, std=torch.ones(2)).to(device)": "takes no device",
    "x = torch.normal(0.0, std=y).to(device)": "takes no device",
    "x = torch.normal(y).to(device)": "takes no device",
    "x = torch.randn(n).to(y)": "could not be traced to a device",
    "x = torch.randn(n).cuda(y)": "may be None",
    "x = torch.nn.Parameter(torch.randn(n).to(device))": "initial weights",
    "x = torch.randint(0, n, (4,)).to(device)\nprint(y[x])": "the draw decides",
    "x = torch.rand(1).to(device)\nif x < 0.5:\n    print(n)": "the draw decides",
    "x = torch.randint(0, n, (1,)).to(device).item()": "the draw decides",
    "x = torch.randn(n).to(device)\ntorch.set_rng_state(y)": "saves or restores",
    "torch.set_default_device('cuda')\nx = torch.zeros(n).to(device)": "sets a default device",
    "x = torch.zeros(n)\nx[0] = 1\nx = x.to(device)": "used on the host at line",
    "x = torch.zeros(n)\nprint(x)\nif use_cuda:\n    x = x.cuda()": "used on the host at line",
    "x = torch.zeros_like(y)\nif cached:\n    x = x.cuda()": "it is made where `y` is, which need not be the host",
    "x = torch.zeros(n)\nif n > 3:\n    x = x.cuda()": "no variable names that device",
    "if use_cuda:\n    x = torch.zeros(n)\nx = x.to(device)": "in another block",
    "def f(flag):\n    x = torch.zeros(n)\n    flag = not flag\n    if flag:\n        x = x.cuda()": "may be another",
    "x = torch.zeros(1, n, n, n).to(device, memory_format=torch.channels_last)": "memory format",
    "x = torch.zeros(1, n, n, n).cuda(memory_format=torch.channels_last)": "memory format",
    "x = torch.zeros(n, **y).to(device)": "may name a device already",
    "x = torch.zeros(n).share_memory_().to(device)": "`.share_memory_` would run on the device",
    "x = torch.zeros(n).to(y).to(device)": "`.to(y)` may bring it back to the host",
    "x = torch.zeros(n).to('cpu').cuda()": "may bring it back to the host",
    "x = torch.bernoulli(y)\nz = torch.rand(n, generator=x).to(device)": "belongs to the CPU",
    "x = torch.logspace(0, 1, n).cuda()": "makes fractions, which the GPU rounds differently",
    "x = torch.Tensor(y.shape).to(device)": "`torch.Tensor(y.shape)` is given may be sizes or data",
    "x = torch.ByteTensor(size=(n,)).cuda()": "may be sizes or data",
    "x = torch.LongTensor(y).cuda()": "what `torch.LongTensor(y)` is given may be sizes or data",
    "x = torch.zeros(\n    n,  # long\n).to(device)": "comments stand",
    "x = torch.randint(0, n, (4,)).to(device)\nz = [y[i] for i in x]": "the draw decides",
    "x = torch.rand(1).to(device)\nz = 1 if x < 0.5 else 2": "the draw decides",
    "x = torch.rand(n).to(device) < 0.5\nz = y[x]": "the draw decides",
    "x = torch.rand(n).cuda().tolist()": "the draw decides",
    "torch.set_default_tensor_type(torch.DoubleTensor)\nx = torch.zeros(n).to(device)": (
        "sets a default device"
    ),
    "x = torch.zeros(1).expand(n).to(device)\nx[0] = 1": "share their memory",
    "x = torch.zeros(1).expand(n).to(device)\nx.add_(1)": "share their memory",
    "x = torch.zeros(1).expand_as(y).to(device).mul_(2)": "share their memory",
    "x = torch.zeros(3).expand(2, 3).cuda()\nprint(x.view(-1))": "share their memory",
    "model.weights = torch.zeros(1).expand(n).to(device)": "share their memory",
    "x = torch.zeros(1).expand(n)\nx = x.to(device)\nx[0] = 1": "share their memory",
    "x = torch.zeros(n)\nz = x.numpy()\nx = x.to(device)": "used on the host at line",
    "x = torch.zeros(n)\nfor i in range(n):\n    x[i] = i\nx = x.to(device)": (
        "used on the host at line"
    ),
}


@pytest.mark.parametrize(("body", "reason"), LEFT.items())
def test_left_on_the_host(check_noop: Check, body: str, reason: str) -> None:
    check_noop(script("from elsewhere import y\n" + body + "\n"), reason)


@pytest.mark.parametrize(
    "body",
    [
        "x = torch.zeros(n, device=device)",
        "x = torch.zeros(n).to(torch.float16)",
        'x = torch.zeros(n).to("cpu")',
        "x = torch.from_numpy(np.ones(3)).to(device)",
        "x = torch.load('x.pt').to(device)",
        "x = torch.zeros(n)\ny = x.to(device)\nprint(x, y)",
        "x = torch.nn.Linear(n, n).to(device)",
        "x = torch.zeros(n)",
        "x = torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2)).to(device)",
        "x = torch.multinomial(torch.ones(n), 2).to(device)",
        "x = torch.stack([torch.randn(n) for _ in range(4)]).to(device)",
        "x = (torch.randn(n) * 2).to(device)",
        "x = torch.eye(n)[[1, 2]].to(device)",
        "x = torch.as_tensor([1, 2]).to(device)",
        "x = torch.nn.init.xavier_normal_(torch.empty(n, n)).to(device)",
    ],
)
def test_not_concerned(check_noop: Check, body: str) -> None:
    check_noop(script(body + "\n"))


PROGRAM = """
import numpy as np
import torch
from torch import nn
from torch.autograd import Variable

torch.manual_seed(0)
np.random.seed(0)
cuda = torch.cuda.is_available()
device = torch.device("cuda" if cuda else "cpu")
generator, critic = nn.Linear(6, 4), nn.Linear(4, 1)
if cuda:
    generator.cuda()
    critic.cuda()
optimizer = torch.optim.SGD([*generator.parameters(), *critic.parameters()], lr=0.1)
Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
LOG = []
for step in range(4):
    imgs = torch.arange(8.0).reshape(2, 4)
    valid = Variable(Tensor(imgs.size(0), 1).fill_(1.0), requires_grad=False)
    z = Variable(Tensor(np.random.normal(0, 1, (2, 6))))
    extra = torch.randn(2, 4).to(device)
    mask = torch.ones(2, 4)
    mask = mask.to(device)
    real = Variable(imgs.type(Tensor))
    out = critic(generator(z) * mask + extra + real)
    loss = nn.functional.mse_loss(out, valid)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    LOG.append(loss.item())
"""


@pytest.mark.torch
def test_numbers_stay_bitwise_the_same_on_the_cpu(rewrite: Callable[..., Any]) -> None:
    (file,) = rewrite(PROGRAM, ["device-construction"]).files
    assert ".to(device)" not in file.text
    assert "Tensor(" not in file.text.replace("FloatTensor", "")
    logs: list[Any] = []
    for text in (PROGRAM, file.text):
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(text, "train.py", "exec"), namespace)
        logs.append(namespace["LOG"])
    assert logs[0] == logs[1]


def test_code_that_runs_when_an_imported_file_is_started(check_noop: Check) -> None:
    """It is no part of this script, and is rewritten with that file."""
    nets = """
        import torch

        class Net(torch.nn.Module):
            pass

        if __name__ == "__main__":
            x = torch.rand(4, 3).cuda()
            print(Net()(x))
    """
    check_noop({"train.py": "import nets\nnet = nets.Net()\n", "nets.py": dedent(nets)})


NETWORK = """\
import math
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.stack([torch.arange(4), torch.arange(4)]).to("cuda")
        self.fc = nn.Linear(8, 8)

    def {name}(self, x):
        {body}

    def forward(self, x):
        return self.fc(x + self.{name}(x))


net = Net().cuda()
net(torch.ones(4, 8, device="cuda"))
"""
POSITIONS = """\
pos = torch.arange(4).unsqueeze(1)
pe = torch.zeros(4, 8)
pe[:, 0::2] = torch.sin(pos * 0.5)
return pe.to({0})"""
GRID = """\
ys = (torch.arange(4) + 0.5) * 8
gy, gx = torch.meshgrid(ys, ys, indexing="ij")
return torch.stack([gx, gy], -1).mul(2).to({0})"""


def network(body: str, name: str = "offsets") -> str:
    return NETWORK.format(name=name, body=body.replace("\n", "\n        "))


def skips(rewrite: Callable[..., Any], code: str) -> list[str]:
    (file,) = rewrite(code, ["device-construction"]).files
    return [skip.message for skip in file.skips]


@pytest.mark.parametrize(
    ("body", "factory"), [(POSITIONS, "torch.zeros(4, 8)"), (GRID, "torch.arange(4)")]
)
def test_what_a_network_computes_on_the_host_and_moves_is_told(
    rewrite: Callable[..., Any], body: str, factory: str
) -> None:
    said = f"made on the host, then moved: it is computed from `{factory}`, and a GPU may round otherwise"
    assert skips(rewrite, network(body.format("x.device"))) == [said]
    loop = "for x in range(3):\n    z = torch.stack([torch.arange(4) * x]).cuda()\n"
    assert any("computed from `torch.arange(4)`" in one for one in skips(rewrite, script(loop)))


def test_what_does_not_round_is_not_said_to(rewrite: Callable[..., Any]) -> None:
    joined = "a = torch.ones(4)\nb = torch.zeros(4)\nreturn torch.cat([a, b]).to(x.device)"
    said = (
        "made on the host, then moved: it is put together from `torch.ones(4)`, which is made above"
    )
    assert skips(rewrite, network(joined)) == [said]
    leaf = "self.w = nn.Parameter(torch.tensor([10.0])).to(x.device)\nreturn x * self.w"
    assert skips(rewrite, network(leaf)) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "torch.cat([torch.ones(4, 1), torch.zeros(2, 1)], 0).to(device)",
            "torch.cat([torch.ones(4, 1, device=device), torch.zeros(2, 1, device=device)], 0)",
        ),
        (
            "torch.stack((torch.LongTensor([1]), torch.zeros(1))).cuda()",
            "torch.stack((torch.tensor([1], device=device), torch.zeros(1, device=device)))",
        ),
        ("torch.cat([torch.ones(4), torch.zeros(4) * 2]).to(device)", None),
        ("torch.cat([torch.ones(4), batch]).to(device)", None),
        ("torch.cat([torch.ones(4), torch.ones(4, requires_grad=True)]).to(device)", None),
        ("torch.cat([torch.ones(4), torch.zeros(4)]).to(device, torch.long)", None),
        ("torch.cat([torch.ones(4), torch.zeros(4)]).to(find())", None),
    ],
)
def test_tensors_joined_where_they_are_moved(
    check_transformed: Check, check_noop: Check, before: str, after: str | None
) -> None:
    if after is None:
        check_noop(script(f"z = {before}\n"))
    else:
        check_transformed(script(f"z = {before}\n"), script(f"z = {after}\n"))


def test_long_computations_take_no_time(rewrite: Callable[..., Any]) -> None:
    steps = "".join(f"x{n + 1} = x{n} * x{n} + x{n}\n" for n in range(60))
    assert skips(rewrite, network(f"x0 = x\n{steps}return x60.to(x.device)")) == []


@pytest.mark.parametrize(
    "code",
    [
        network(POSITIONS.format("'cpu'")),
        network(POSITIONS.format("torch.float64")),
        network("pe = torch.zeros(4, 8, device=x.device)\npe[0] = 1\nreturn pe.to(x.device)"),
        network("pe = torch.zeros(4, 8).to(x.device) * 2\nreturn (pe + 1).to(x.device)"),
        network("pe = x.mean(0)\npe = pe * 2\nreturn pe.to(x.device)"),
        network("pe = torch.zeros(4)\nif len(x):\n    pe = x\nreturn (pe + 1).to(x.device)"),
        network(POSITIONS.format("x.device")) + "torch.set_default_device('cuda')\n",
        script("z = torch.stack([torch.arange(4), torch.arange(4)]).to(device)\n"),
    ],
)  # fmt: skip
def test_what_is_not_computed_on_the_host_in_every_pass_is_not_told(
    rewrite: Callable[..., Any], code: str
) -> None:
    assert not [one for one in skips(rewrite, code) if "is computed from" in one]
