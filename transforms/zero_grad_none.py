"""Drops gradients between steps where the script fills them with zeros: `zero_grad()`.

`optimizer.zero_grad()` sets gradients to `None` since PyTorch 2.0: nothing is written, their memory is free during the
forward pass, and the next backward pass stores its gradients instead of adding them to zeros. Loops with
`p.grad.data.zero_()` and `zero_grad(set_to_none=False)` launch kernels that read and write every gradient once more.

The numbers are the same only if each parameter gets a gradient in every step, or in none: an optimizer skips a parameter
whose gradient is `None`, but with a gradient of zeros its momentum and its weight decay still move it. So this is done
where one backward pass and one optimizer step follow each other in every pass of one training loop, and nothing in the
network or in the loss decides at run time which parameters take part.

Left alone: scripts that look at or set `.grad` elsewhere, freeze parameters, branch or loop by their data in `forward` or
on the way to the loss, train several networks or with several optimizers, or pass more than one loss backward; layers
that are not known; classes with a `zero_grad` of their own.

Source: https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html and
https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
"""

from __future__ import annotations

from collections.abc import Iterator

from ..optimizer.analysis.autograd.constant_graphs import varying_graph
from ..optimizer.analysis.calls.reach import Reached
from ..optimizer.analysis.facts import Fact, not_one, seen_at
from ..optimizer.analysis.networks.trained import trained_networks
from ..optimizer.analysis.obstacles import Obstacle
from ..optimizer.analysis.optimizers.gradient_clearing import GradientClearing, other_gradient_use
from ..optimizer.analysis.program.classes import class_attribute
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.training.loops import backward_calls
from ..optimizer.analysis.training.steps import StepCode
from ..optimizer.analysis.values.values import Made
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import FileEdit
from .base import Change, Example, Skip, Stage, StepPart, Transform


class ZeroGradNone(Transform):
    name = "zero-grad-none"
    tier = Tier.EXACT
    stage = Stage.EVALUATION
    rank = 1
    relieves = StepPart.CLEARING
    example = Example(
        before="""\
            import torch
            from torch import nn

            model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

            for images, labels in loader:
                for p in model.parameters():
                    if p.grad is not None:
                        p.grad.data.zero_()
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
        """,
        after="""\
            import torch
            from torch import nn

            model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

            for images, labels in loader:
                model.zero_grad()
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
                optimizer.step()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        clearings = script.gradient_clearings
        if not clearings:
            return
        shared = _shared_refusal(script)
        for clearing in clearings:
            why = _refusal(script, clearing) if shared is None else shared
            if why is not None:
                text = why if isinstance(why, str) else _said(why, clearing)
                yield self.skip(
                    clearing.path, clearing.span, f"gradients are still filled with zeros: {text}"
                )
                continue
            yield self.change(
                clearing.path,
                clearing.span,
                "drops gradients instead of filling them with zeros",
                "in every step the same parameters get new ones, and nothing else looks at them",
                (FileEdit(clearing.path, clearing.edit),),
            )


def _said(why: Fact, clearing: GradientClearing) -> str:
    text = why.message if isinstance(why, Obstacle) else "the script looks at gradients elsewhere"
    return f"{text}{seen_at(why, clearing)}"


def _shared_refusal(script: TrainingScript) -> Fact | str | None:
    """What about the script as a whole keeps all its gradients filled with zeros."""
    framework = next(iter(script.frameworks), None)
    if framework is not None:
        return f"{framework.framework} runs the step in its own way"
    if len(script.optimizers) != 1:
        return not_one(script.optimizers, "optimizer", "optimizers")
    networks = trained_networks(script.resolver, script.optimizers)
    if len(networks) != 1:
        what = "that the optimizer trains"
        return not_one(networks, f"network {what}", f"networks {what}")
    nodes = (Reached(node, module, True) for module in script.modules for node in module.nodes)
    backwards = backward_calls(nodes)
    if len(backwards) != 1:
        return not_one(backwards, "backward pass", "backward passes")
    if len(script.step_code) != 1:
        return not_one(script.step_code, "training step", "training steps")
    return _reads(script)


def _reads(script: TrainingScript) -> Fact | None:
    return other_gradient_use(script.resolver, script.gradient_clearings) or varying_graph(
        script.resolver,
        script.step_code[0],
        trained_networks(script.resolver, script.optimizers),
    )


def _refusal(script: TrainingScript, clearing: GradientClearing) -> Fact | str | None:
    step = script.step_code[0]
    if not _is_plain_step(step, clearing):
        return "it does not stand beside one backward pass and one optimizer step"
    values = script.values(clearing.owner, clearing.module)
    if values and all(isinstance(v, Made) and v.call is script.optimizers[0].node for v in values):
        return None if script.optimizers[0].cls is None else "the optimizer is the script's own"
    (network,) = trained_networks(script.resolver, script.optimizers)
    models = script.models_of(clearing.owner, clearing.module)
    if [model.node for model in models] != [network.node] or len(values) != 1:
        code = clearing.module.code(clearing.owner)
        return f"`{code}` is not certainly the network that the optimizer trains"
    if network.cls is not None and class_attribute(script.resolver, network.cls, "zero_grad"):
        return f"`{network.cls.node.name}` has a `zero_grad` of its own"
    return None


def _is_plain_step(step: StepCode, clearing: GradientClearing) -> bool:
    """Whether one backward pass, one step and ``clearing`` stand in one block, and no step comes without gradients."""
    if len(step.backwards) != 1 or len(step.updates) != 1 or step.module is not clearing.module:
        return False
    backward, update = step.backwards[0].statement, step.updates[0].statement
    block = step.module.block(backward)
    places = [backward, update, clearing.statement]
    if any(step.module.block(place) is not block for place in places):
        return False
    computed, stepped, cleared = (block.index(place) for place in places)
    return computed < stepped and not computed <= cleared <= stepped
