from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.training.seeding import Wish

IMPORTS = "import random, torch\nimport numpy as np\nfrom torch.backends import cudnn\n"


@pytest.mark.parametrize(
    ("source", "seeded", "drawn"),
    [
        ("torch.manual_seed(1)", {"torch"}, set()),
        ("torch.cuda.manual_seed_all(1)", set(), set()),
        ("random.seed(1); random.random()", {"random"}, {"random"}),
        ("from numpy.random import randn as r\nr(3)", set(), {"numpy"}),
        ("np.random.default_rng(); random.Random(3); np.random.get_state()", set(), set()),
        ("from lightning.pytorch import seed_everything as s\ns(1)", {"torch", "numpy", "random"}, set()),
        ("def random(): ...\nrandom()", set(), set()),
    ],
)  # fmt: skip
def test_seeds_and_draws(
    script: Callable[..., TrainingScript], source: str, seeded: set[str], drawn: set[str]
) -> None:
    seeding = script(IMPORTS + source).seeding
    assert {name for name in ("torch", "numpy", "random") if seeding.is_seeded(name)} == seeded
    assert {name for name in ("numpy", "random") if seeding.first_draw(name)} == drawn


@pytest.mark.parametrize(
    ("source", "wishes"),
    [
        ("cudnn.deterministic = True; cudnn.benchmark = False", {Wish.DETERMINISTIC}),
        ("torch.backends.cudnn.benchmark = True", {Wish.BENCHMARK}),
        ("torch.use_deterministic_algorithms(mode=True)", {Wish.DETERMINISTIC}),
        ("torch.use_deterministic_algorithms(False)", set()),
        ("class Other: ...\nother = Other()\nother.benchmark = True", set()),
    ],
)
def test_choices_of_kernels(
    script: Callable[..., TrainingScript], source: str, wishes: set[Wish]
) -> None:
    seeding = script(IMPORTS + source).seeding
    assert {wish for wish in Wish if seeding.choice(wish)} == wishes
