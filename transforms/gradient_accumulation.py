"""Makes each training step of N smaller batches, to fit memory: `--accumulate N`.

What a training step keeps for its backward pass grows with the batch. With `--accumulate 4` the DataLoader gives batches
of a quarter of the size, the gradients of four of them add up, and the optimizer steps on their mean, the gradient of
the whole batch. The loss that the script prints stays what it was, the mean over a batch; only what goes backward is
divided. Clipping, schedulers and a `GradScaler` move with the step. The last batches of an epoch make a step too, also
when they are fewer.

It runs only when asked for, with `--accumulate N` or `accumulate = N` in `[tool.torchopt]`, whatever `--tier` and
`--select` say: it uses less memory and is rather slower. The batch size, a number or an option, is divided where the loader is
made. Batch sizes that N does not divide are left alone; one that is given when the script runs should be a multiple of N.

What changes: BatchNorm normalizes by the smaller batches. A last group that is not full counts for less. Whatever counts
passes of the loop (what is printed every 100 batches, a loss summed over an epoch) counts smaller batches.

Left alone: several optimizers or backward passes, closures, loops that may skip a batch or stop early, gradients that
are read or hooked, states carried from batch to batch, averages of weights, `DistributedDataParallel`, steps that
accumulate already; losses that are not known to be a mean over samples (`reduction="sum"`, class weights,
`ignore_index`, targets that do not come with the batch, losses that compare samples); datasets without a length; batch
sizes that other code uses, `len(loader)` in a learning-rate schedule. Lightning, Accelerate and the Hugging Face
Trainer have a setting for this.

Source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from ..optimizer.analysis.facts import Fact, not_one, seen_at
from ..optimizer.analysis.obstacles import Obstacle
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.training.accumulation import (
    Accumulation,
    find_accumulation,
    framework_obstacle,
)
from ..optimizer.analysis.training.mean_losses import batch_norms
from ..optimizer.options import Options, Tier
from .base import Change, Example, Skip, Stage, Transform


class GradientAccumulation(Transform):
    name: ClassVar[str] = "gradient-accumulation"
    tier: ClassVar[Tier] = Tier.SEMANTIC
    stage: ClassVar[Stage] = Stage.PRECISION
    rank: ClassVar[int] = 90
    asked_by: ClassVar[str | None] = "accumulate"
    example: ClassVar[Example] = Example(
        before="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            train_set = datasets.MNIST("data", transform=transforms.ToTensor())
            loader = DataLoader(train_set, batch_size=64, shuffle=True)
            model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for images, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
        """,
        after="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms

            train_set = datasets.MNIST("data", transform=transforms.ToTensor())
            loader = DataLoader(train_set, batch_size=16, shuffle=True)
            model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for step, (images, labels) in enumerate(loader):
                if step % 4 == 0:
                    optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(images), labels)
                (loss / 4).backward()
                if (step + 1) % 4 == 0 or step + 1 == len(loader):
                    optimizer.step()
        """,
        options={"accumulate": 4},
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        parts = options.accumulate
        if parts is None:
            return
        steps = script.step_code
        if len(steps) != 1:
            framework = next(iter(script.frameworks), None)
            for place in [framework] if framework is not None else [s.backwards[0] for s in steps]:
                why = not_one(steps, "training step", "training steps")
                if framework is not None:
                    why = framework_obstacle(framework).message
                yield self.skip(place.path, place.span, f"gradients are not accumulated: {why}")
            return
        found = find_accumulation(script, steps[0], parts)
        place = steps[0].backwards[0]
        if not isinstance(found, Accumulation):
            yield self.skip(
                place.path, place.span, f"gradients are not accumulated: {_said(found, place)}"
            )
            return
        norms = ""
        if batch_norms(script.resolver):
            norms = f"; BatchNorm normalizes by batches of {found.batch.number // parts} now"
        yield self.change(
            place.path,
            place.span,
            f"each step made of {parts} batches of a {_fraction(parts)} of the size",
            "the loss is a mean over samples, so the gradients of equal parts add up to that of the whole batch; a last "
            f"group that is not full counts for less{norms}",
            found.edits,
        )


def _said(why: Fact, place: Fact) -> str:
    text = why.message if isinstance(why, Obstacle) else "that is not possible here"
    return f"{text}{seen_at(why, place)}"


def _fraction(parts: int) -> str:
    named = {2: "half", 3: "third", 4: "quarter"}
    return named.get(parts, f"{parts}th")
