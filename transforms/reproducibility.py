"""Says what a script that seeds its random numbers still lacks for repeatable runs, and what that costs.

A seed is a wish for runs that can be repeated. It is granted only if every generator the script draws from is seeded:
PyTorch's (initial weights, shuffling, dropout), NumPy's and Python's `random` are three different ones. On a GPU the
kernels matter too: cuDNN may choose other algorithms in other runs, and some CUDA operations add in no fixed order.
`torch.use_deterministic_algorithms(True)` rules that out for all operations, `torch.backends.cudnn.deterministic = True`
with `benchmark = False` for convolutions; the kernels are slower, and operations without a deterministic version raise
an error. Whether repeatable runs
are worth it is the user's decision, so nothing is changed.

DataLoader workers need nothing of their own: PyTorch seeds the three generators in each from the loader's seed.

Silent: for scripts that seed nothing (or only Python's `random`, for a fixed split) and ask for nothing deterministic (`--select reproducibility` asks anyway), and for
scripts that lack nothing.

Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ..optimizer.analysis.facts import Fact
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.training.seeding import Seeding, Wish
from ..optimizer.options import Options
from .base import Advice, Advisor, Example

_SEED = {
    "torch": "torch.manual_seed(seed)",
    "numpy": "np.random.seed(seed)",
    "random": "random.seed(seed)",
}


class Reproducibility(Advisor):
    name = "reproducibility"
    looks_at_original = True
    example = Example(
        before="""\
            import random

            import torch
            from torch import nn

            torch.manual_seed(0)
            model = nn.Linear(8, 2).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(100):
                inputs = torch.randn(32, 8, device="cuda") * random.uniform(0.9, 1.1)
                loss = model(inputs).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
        advice=(
            "runs may not repeat: `random.uniform(0.9, 1.1)` (line 10) draws from a generator that is never seeded "
            "(`random.seed(seed)`); on a GPU kernels may differ from run to run unless "
            "`torch.use_deterministic_algorithms(True)`, which is slower",
        ),
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Advice]:
        seeding = script.seeding
        wish = _wish(script, seeding, asked=self.name in options.select)
        if wish is None:
            return
        lacks = [*_unseeded(script, seeding, wish), *_choices(script, seeding, wish, options)]
        if lacks:
            yield self.advice(wish.path, wish.span, f"runs may not repeat: {'; '.join(lacks)}")


def _wish(script: TrainingScript, seeding: Seeding, *, asked: bool) -> Fact | None:
    """The place at which the script shows that its runs should repeat; its beginning when the user says so."""
    deterministic = seeding.choice(Wish.DETERMINISTIC)
    for seed in seeding.seeds:
        if seed.libraries != ("random",):  # which often is a fixed split of the data and no more
            return seed
    if deterministic is not None:
        return deterministic
    body = script.entry.tree.body
    return Fact(script.entry, body[0]) if asked and body and script.training_loops else None


def _unseeded(script: TrainingScript, seeding: Seeding, wish: Fact) -> Iterator[str]:
    if not seeding.is_seeded("torch") and (script.models or script.loaders):
        yield (
            "PyTorch's generator is never seeded, which draws initial weights, shuffling and dropout "
            f"(`{_SEED['torch']}`)"
        )
    for library in ("numpy", "random"):
        draw = seeding.first_draw(library)
        if draw is not None and not seeding.is_seeded(library):
            where = f"({draw.place})"
            yield (
                f"`{draw.excerpt}` {where} draws from a generator that is never seeded (`{_SEED[library]}`)"
            )


def _choices(
    script: TrainingScript, seeding: Seeding, wish: Fact, options: Options
) -> Iterator[str]:
    if not script.targets_cuda(options):
        return
    benchmark = seeding.choice(Wish.BENCHMARK)
    deterministic = seeding.choice(Wish.DETERMINISTIC)
    if benchmark is not None and deterministic is None:
        yield (
            f"`{benchmark.excerpt}` ({benchmark.place}) measures which convolutions are fastest, in each run anew"
        )
    if deterministic is None:
        yield (
            "on a GPU kernels may differ from run to run unless `torch.use_deterministic_algorithms(True)`, which is slower"
        )
