"""Lets activations overwrite their input where nothing else reads it: `nn.ReLU(inplace=True)`.

An activation writes its result to new memory, although its input is mostly not needed any more. `inplace=True` overwrites the
input instead: the step needs less memory at its peak, and where the activation keeps its input for the backward pass
(`LeakyReLU`, `ReLU6`, `Hardtanh`) one tensor per layer less until then. The numbers are the same, bit for bit.

It is only done where the input is seen to be a new tensor that is used once and that autograd does not keep: the result of a
convolution, a normalization, a pool, a linear layer, a sum. For a layer in `nn.Sequential` that is the layer before it; for
`F.relu(x)` and `self.relu(x)` every assignment that may give `x`.

Left alone: activations after something that keeps its result (sigmoid, tanh, another ReLU) or may return a view or its own
input (`view`, dropout, layers of the project's own); inputs that are read again, such as residual branches and lists of
features; the first layer of a sequence, whose input is the caller's; layers whose place cannot be told. All of them if the
script compiles (the compiler reuses memory by itself), registers hooks, checkpoints activations, or takes sequences apart;
layers also if a network is printed or saved whole, which shows their settings. ELU, SELU and CELU would round differently,
and dropout would draw another mask on a GPU.

Source: https://docs.pytorch.org/docs/stable/notes/autograd.html#in-place-operations-with-autograd and
https://docs.pytorch.org/docs/stable/generated/torch.nn.ReLU.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ..optimizer.analysis.script import TrainingScript
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import FileEdit, SetArgument
from .base import Change, Example, Skip, Stage, Transform


class InplaceActivation(Transform):
    name = "inplace-activation"
    tier = Tier.EXACT
    stage = Stage.COMPILE
    rank = 1  # nothing is gained in what `compile` compiles
    example = Example(
        before="""\
            import torch.nn.functional as F
            from torch import nn


            class Block(nn.Module):
                def __init__(self, width):
                    super().__init__()
                    self.first = nn.Sequential(
                        nn.Conv2d(width, width, 3, padding=1),
                        nn.BatchNorm2d(width),
                        nn.LeakyReLU(0.2),
                    )
                    self.second = nn.Conv2d(width, width, 3, padding=1)

                def forward(self, x):
                    return F.relu(self.second(self.first(x)) + x)
        """,
        after="""\
            import torch.nn.functional as F
            from torch import nn


            class Block(nn.Module):
                def __init__(self, width):
                    super().__init__()
                    self.first = nn.Sequential(
                        nn.Conv2d(width, width, 3, padding=1),
                        nn.BatchNorm2d(width),
                        nn.LeakyReLU(0.2, inplace=True),
                    )
                    self.second = nn.Conv2d(width, width, 3, padding=1)

                def forward(self, x):
                    return F.relu(self.second(self.first(x)) + x, inplace=True)
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        activations = script.inplace_activations
        if activations.ruled_out is not None:
            fact, why = activations.ruled_out
            yield self.skip(fact.path, fact.span, f"activations are not in-place: {why}")
        for activation in activations.found:
            if activation.obstacle is not None:
                message = f"not in-place: {activation.obstacle}"
                yield self.skip(activation.path, activation.span, message)
                continue
            edit = SetArgument(activation.span, "inplace", "True", activation.position)
            yield self.change(
                activation.path,
                activation.span,
                "overwrites its input (`inplace=True`)",
                "its input is a new tensor that nothing else reads and autograd does not keep",
                (FileEdit(activation.path, edit),),
            )
