from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.options import Target

GPU = "on a GPU kernels may differ from run to run unless `torch.use_deterministic_algorithms(True)`, which is slower"
TORCH = "PyTorch's generator is never seeded, which draws initial weights, shuffling and dropout (`torch.manual_seed(seed)`)"
TRAINING = """
import random
import numpy as np
import torch
from torch import nn
{setup}
model = nn.Linear(2, 1){device}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    {draw}
    loss = model(torch.ones(4, 2{on})).mean()
    loss.backward()
    optimizer.step()
"""
Check = Callable[..., None]


def training(setup: str = "", draw: str = "pass", *, cuda: bool = False) -> str:
    on = dict(device=".cuda()", on=', device="cuda"') if cuda else dict(device="", on="")
    return TRAINING.format(setup=setup, draw=draw, **on)


def never_seeded(draw: str, seed: str, where: str = "(line 9)") -> str:
    return f"`{draw}` {where} draws from a generator that is never seeded (`{seed}(seed)`)"


@pytest.mark.parametrize(
    ("setup", "draw"),
    [
        ("", "pass"),
        ("", "random.random()"),
        ("torch.manual_seed(0)", "pass"),
        ("torch.manual_seed(0); np.random.seed(0)", "np.random.rand(3)"),
        ("torch.manual_seed(0)", "np.random.default_rng(3).random()"),
        ("torch.manual_seed(0)", "random.Random(3).random()"),
        ("torch.manual_seed(0); random.seed(1)", "random.shuffle([1])"),
        ("import lightning as L; L.seed_everything(1)", "random.random() + np.random.rand()"),
        ("from transformers import set_seed; set_seed(1)", "random.random() + np.random.rand()"),
        ("torch.backends.cudnn.benchmark = True", "pass"),
        ("random.seed(0); random.shuffle([1, 2])", "pass"),
        ("torch.use_deterministic_algorithms(False)", "pass"),
        ("def set_seed(x): torch.manual_seed(x)\nset_seed(1)", "pass"),
    ],
)
def test_silent_where_nothing_is_lacking_or_wished_for(
    check_advised: Check, setup: str, draw: str
) -> None:
    check_advised(training(setup, draw), select=frozenset[str]())


def test_silent_on_a_gpu_with_deterministic_kernels(check_advised: Check) -> None:
    setup = "torch.manual_seed(0); torch.backends.cudnn.deterministic = True"
    check_advised(training(setup, cuda=True))
    check_advised(
        training("torch.manual_seed(0); torch.use_deterministic_algorithms(True)", cuda=True)
    )


@pytest.mark.parametrize(
    ("setup", "draw", "lacking"),
    [
        ("torch.manual_seed(0)", "random.random()", never_seeded("random.random()", "random.seed")),
        (
            "import torch as th; th.manual_seed(0)",
            "np.random.rand(2)",
            never_seeded("np.random.rand(2)", "np.random.seed"),
        ),
        ("np.random.seed(0)", "np.random.rand(2)", TORCH),
        ("torch.cuda.manual_seed_all(0); np.random.seed(0)", "pass", TORCH),
    ],
)
def test_says_which_generator_is_never_seeded(
    check_advised: Check, setup: str, draw: str, lacking: str
) -> None:
    check_advised(training(setup, draw), f"runs may not repeat: {lacking}", target=Target.CPU)


def test_says_what_the_gpu_may_do(check_advised: Check) -> None:
    check_advised(training("torch.manual_seed(0)", cuda=True), f"runs may not repeat: {GPU}")
    benchmark = "`cudnn.benchmark = True` (line 5) measures which convolutions are fastest, in each run anew"
    check_advised(
        training(
            "torch.manual_seed(0); from torch.backends import cudnn; cudnn.benchmark = True",
            cuda=True,
        ),
        f"runs may not repeat: {benchmark}; {GPU}",
    )


def test_settings_of_other_transforms_are_not_the_user_s(rewrite: Check) -> None:
    source = training("torch.manual_seed(0)", cuda=True).replace(
        "nn.Linear(", "nn.Conv2d(3, 8, 3), nn.Linear("
    )
    files = rewrite(source, ["reproducibility", "cudnn-benchmark", "tf32"]).files
    (advice,) = [advice for file in files for advice in file.advice]
    assert advice.message == f"runs may not repeat: {GPU}"


def test_finds_draws_in_other_files(check_advised: Check) -> None:
    files = {
        "train.py": training("import data\ntorch.manual_seed(0)", "data.noise()"),
        "data.py": "from numpy.random import rand\n\n\ndef noise():\n    return rand(3)\n",
    }
    lacking = never_seeded("rand(3)", "np.random.seed", "(line 5 of data.py)")
    check_advised(files, f"runs may not repeat: {lacking}")


def test_asked_for_by_name_it_tells_the_whole_recipe(check_advised: Check) -> None:
    lacking = never_seeded("random.random()", "random.seed")
    check_advised(
        training("", "random.random()", cuda=True),
        f"runs may not repeat: {TORCH}; {lacking}; {GPU}",
    )


def test_a_comment_silences_it(check_advised: Check) -> None:
    setup = "np.random.seed(0)  # torchopt: ignore[reproducibility]"
    check_advised(training(setup))
