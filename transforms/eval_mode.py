"""Evaluates networks in eval mode: `model.eval()` before the loop, and `model.train()` before training goes on.

Dropout and batch normalization work differently in training and in evaluation. Without `model.eval()` activations are dropped
at random while a network is evaluated, and batch normalization uses the statistics of each test batch, and learns from
them. Without `model.train()` behind an evaluation, all epochs but the first train without dropout and with frozen statistics.

This is a bug fix, not an optimization: scores change, mostly for the better. It is only made with `--tier semantic`; below
that the places are pointed out.

Left alone: networks without layers that depend on the mode; loops that are reached in eval mode on every way, or where that
cannot be told (`model.train(flag)`); passes over the training data, which may be there for the statistics; networks that
define `train` or `eval` themselves.

Source: https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval and
https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.eval
"""

from __future__ import annotations

from collections.abc import Iterator

from ..optimizer.analysis.networks.network_modes import Mode, ModeSlip
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import FileEdit, InsertAfter, InsertBefore
from .base import Advice, Change, Example, Skip, Stage, StepPart, Transform

_WHY = {
    Mode.EVAL: "dropout and batch normalization evaluate otherwise than they train; scores change",
    Mode.TRAIN: "an evaluation before it leaves the network in eval mode; training changes",
}


class EvalMode(Transform):
    name = "eval-mode"
    tier = Tier.SEMANTIC
    stage = Stage.EVALUATION
    rank = -1  # `no-grad` takes the line into its block
    relieves = StepPart.EVALUATION
    advises = True
    example = Example(
        before="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from data import train_set, test_set

            model = nn.Sequential(nn.Linear(10, 64), nn.Dropout(), nn.ReLU(), nn.Linear(64, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for epoch in range(10):
                for x, y in DataLoader(train_set, batch_size=32, shuffle=True):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                correct = 0
                for x, y in DataLoader(test_set, batch_size=32):
                    correct += (model(x).argmax(1) == y).sum().item()
                print(correct / len(test_set))
        """,
        after="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from data import train_set, test_set

            model = nn.Sequential(nn.Linear(10, 64), nn.Dropout(), nn.ReLU(), nn.Linear(64, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for epoch in range(10):
                for x, y in DataLoader(train_set, batch_size=32, shuffle=True):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                correct = 0
                model.eval()
                for x, y in DataLoader(test_set, batch_size=32):
                    correct += (model(x).argmax(1) == y).sum().item()
                model.train()
                print(correct / len(test_set))
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip | Advice]:
        for slip in script.mode_slips:
            what = f"`{slip.network}` {_mistake(slip)}"
            if slip.obstacle is not None:
                yield self.advice(slip.path, slip.span, f"{what}; {slip.obstacle}")
            elif options.tier < self.tier:
                yield self.advice(slip.path, slip.span, f"{what} (--tier semantic corrects it)")
            else:
                yield self._change(slip)

    def _change(self, slip: ModeSlip) -> Change:
        line = f"{slip.network}.{slip.wanted.value}()"
        edits = [FileEdit(slip.path, InsertBefore(slip.span, line))]
        message = f"sets `{line}` before the loop"
        if slip.restore:
            back = f"{slip.network}.train()"
            edits.append(FileEdit(slip.path, InsertAfter(slip.span, back)))
            message += f" and `{back}` behind it"
        return self.change(slip.path, slip.span, message, _WHY[slip.wanted], tuple(edits))


def _mistake(slip: ModeSlip) -> str:
    if slip.wanted is Mode.EVAL:
        return "is evaluated in train mode"
    return "is trained in eval mode once it was evaluated"
