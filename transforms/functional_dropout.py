"""Lets `F.dropout` follow the mode of its network: `training=self.training`.

`nn.Dropout` stops dropping out when the network is set to eval mode. The function `F.dropout(x, p)` does not: its parameter
`training` is True unless it is said otherwise, so that activations are zeroed at random during validation and
testing too. Scores come out too low and differ from run to run. In a method of a network the mode is `self.training`.

This is a bug fix, not an optimization: training stays as it is, and evaluation gives other, better numbers. It is only made
with `--tier semantic`; below that the places are pointed out.

Left alone: calls that say `training=`, also `training=True`; functions outside of networks; code that already runs in
one mode only (`if self.training:`, `training_step`); dropout that may be wanted in evaluation (Monte Carlo dropout, Bayesian
networks, generators that take their noise from it); networks that define `train`, `eval` or `training` themselves.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.dropout.html and
https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval
"""

from __future__ import annotations

from collections.abc import Iterator

from ..optimizer.analysis.networks.functional_dropout import TRAINING_POSITION
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import FileEdit, SetArgument
from .base import Advice, Change, Example, Skip, Stage, Transform


class FunctionalDropout(Transform):
    name = "functional-dropout"
    tier = Tier.SEMANTIC
    stage = Stage.EVALUATION
    advises = True
    example = Example(
        before="""\
            import torch
            import torch.nn.functional as F
            from torch import nn


            class Classifier(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.hidden = nn.Linear(784, 256)
                    self.out = nn.Linear(256, 10)

                def forward(self, x):
                    x = F.dropout(F.relu(self.hidden(x)), 0.5)
                    return self.out(x)
        """,
        after="""\
            import torch
            import torch.nn.functional as F
            from torch import nn


            class Classifier(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.hidden = nn.Linear(784, 256)
                    self.out = nn.Linear(256, 10)

                def forward(self, x):
                    x = F.dropout(F.relu(self.hidden(x)), 0.5, training=self.training)
                    return self.out(x)
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip | Advice]:
        for dropout in script.functional_dropouts:
            if dropout.obstacle is not None:
                message = f"`training=` not added: {dropout.obstacle}"
                yield self.skip(dropout.path, dropout.span, message)
                continue
            value = f"{dropout.instance}.training"
            if options.tier < self.tier:
                what = f"it lacks `training={value}`, which --tier semantic adds"
                message = f"`{dropout.excerpt}` drops out in evaluation too: {what}"
                yield self.advice(dropout.path, dropout.span, message)
                continue
            edit = SetArgument(dropout.span, "training", value, TRAINING_POSITION)
            yield self.change(
                dropout.path,
                dropout.span,
                f"drops out only while the network trains (`training={value}`)",
                "unlike `nn.Dropout`, the function does not know about eval mode; evaluation gives other numbers",
                (FileEdit(dropout.path, edit),),
            )
