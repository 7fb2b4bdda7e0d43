"""Lays convolutional networks and their images out channels last: `memory_format=torch.channels_last`.

Tensor cores compute convolutions on images whose channels lie next to each other. In the usual layout cuDNN transposes
before and after such a kernel; laid out channels last, every layer passes on what the next one wants. Shapes, indices
and values stay what they are, only the order in memory changes, so results differ by rounding. Checkpoints hold the same names
and shapes: weights saved in one layout load into the other.

It pays in half precision. In float32 it often makes no difference, or a slower one, so it is written only where the
training step runs under autocast (`autocast` runs first). On a CPU it pays for some networks only, so that it is written where it is asked
for (`--target cpu --select channels-last`); `torchopt tune` tries it. The network gets the format where it is moved to the device, a batch
where it is copied there.

Applied to networks of which every operation is known: convolutions, norms, pooling, activations, concatenation,
interpolation, linear layers behind a `flatten`, and torchvision's classifiers. A `.view(x.size(0), -1)` that flattens images for those
fails in this layout, unless they are pooled to 1x1, and becomes `.reshape`: the same values in the same order. Left alone: any other
`.view` on images, or one that is written through; dropout of single pixels and noise drawn by `randn_like`, whose order is that of memory; weights drawn after the network was moved; several networks in one step; inputs that are changed between copy and
network; `DataParallel`, hooks, scripting and export; 1-D and 3-D convolutions.

Source: https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html and
https://docs.pytorch.org/docs/stable/tensor_attributes.html#torch-memory-format
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import ClassVar

from ..optimizer.analysis.editing.references import reference
from ..optimizer.analysis.editing.replacing import replacement
from ..optimizer.analysis.editing.splice import Piece, bounds, spliced
from ..optimizer.analysis.facts import CallFact, Fact, excerpt, seen_at
from ..optimizer.analysis.networks.layout_neutral import LayoutObstacle
from ..optimizer.analysis.networks.memory_formats import ChannelsLast, channels_last
from ..optimizer.analysis.precision.precision import may_do_without_autocast, under_autocast
from ..optimizer.analysis.program.syntax import Module
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.training.steps import StepCode
from ..optimizer.options import Options, Target, Tier
from ..optimizer.rewriting.edits import FileEdit, ReplaceExpression, SetArgument
from .base import Change, Example, Skip, Stage, StepPart, Transform

_ALREADY = re.compile("channels_last")
_FLOAT32 = "the step runs in float32, where the format seldom pays"


class ChannelsLastFormat(Transform):
    name: ClassVar[str] = "channels-last"
    tier: ClassVar[Tier] = Tier.NUMERIC
    stage: ClassVar[Stage] = Stage.MEMORY_FORMAT
    relieves: ClassVar[StepPart | None] = StepPart.CONVOLUTIONS
    example: ClassVar[Example] = Example(
        before="""
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import models
            from data import train_set

            loader = DataLoader(train_set, batch_size=64, shuffle=True)
            model = models.resnet50(num_classes=10).to("cuda")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for images, labels in loader:
                images = images.to("cuda")
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(images), labels.to("cuda"))
                loss.backward()
                optimizer.step()
        """,
        after="""
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import models
            from data import train_set

            loader = DataLoader(train_set, batch_size=64, shuffle=True)
            model = models.resnet50(num_classes=10).to("cuda", memory_format=torch.channels_last)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            for images, labels in loader:
                images = images.to("cuda", memory_format=torch.channels_last)
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(images), labels.to("cuda"))
                loss.backward()
                optimizer.step()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        steps = [step for step in script.step_code if script.runs(step)]
        if not steps or any(module.search(_ALREADY) for module in script.modules):
            return
        found = channels_last(script, steps)
        if found is None:
            return
        refusal = _refusal(script, options, steps)
        if refusal is None and isinstance(found, ChannelsLast):
            yield self._laid_out(found, _why_it_pays(script, steps, options))
            return
        reason = refusal or found
        assert not isinstance(reason, ChannelsLast)
        told = next((s for s in steps if not under_autocast(script.resolver, s)), steps[0])
        step = told if reason == _FLOAT32 else steps[0]
        yield self.skip(step.path, step.backwards[0].span, _said(reason, step))

    def _laid_out(self, found: ChannelsLast, why_it_pays: str) -> Change:
        edits = [*_moved(found.move.module, found.move.node)]
        for copy in found.copies:
            edits += _with_format(copy.module, copy.node)
        edits += [_reshaped(view) for view in found.views]
        as_well = ", and `.view` becomes `.reshape`, which takes them so" if found.views else ""
        network = excerpt(found.move.module, found.move.node.func.value)  # type: ignore[attr-defined]
        return self.change(
            found.move.path,
            found.move.span,
            f"`{network}` and its batches are laid out channels last{as_well}",
            f"every operation of the network takes either layout{why_it_pays}",
            tuple(dict.fromkeys(edits)),
        )


def _why_it_pays(script: TrainingScript, steps: list[StepCode], options: Options) -> str:
    if options.target is Target.CPU:
        return ""
    if any(may_do_without_autocast(script.resolver, step) for step in steps):
        return ", and the step runs under autocast where that is switched on"
    return ", and the step runs under autocast"


def _moved(module: Module, call: ast.Call) -> list[FileEdit]:
    """The move of a network: ``cuda()`` of a module takes no memory format."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "to":
        return _with_format(module, call)
    format_ = reference(module, "torch.channels_last")
    code = f"{module.code(call)}.to(memory_format={format_.code})"
    return [*format_.edits, replacement(module, call, code)]


def _with_format(module: Module, call: ast.Call) -> list[FileEdit]:
    format_ = reference(module, "torch.channels_last")
    edit = SetArgument(module.span(call), "memory_format", format_.code)
    return [*format_.edits, FileEdit(module.path, edit)]


def _reshaped(view: CallFact) -> FileEdit:
    end = bounds(view.module, view.node.func)[1]
    code = spliced(view.module, view.node, [Piece(end - len(view.name), end, "reshape")])
    return FileEdit(view.path, ReplaceExpression(view.span, code))


def _refusal(script: TrainingScript, options: Options, steps: list[StepCode]) -> str | None:
    on_cpu = options.target is Target.CPU
    if on_cpu and ChannelsLastFormat.name not in options.select:
        return (
            "on a CPU it pays for some networks only, and is written where it is selected by name"
        )
    if not (on_cpu or script.targets_cuda(options)):
        return "the script does not use a GPU"
    frameworks = script.frameworks
    if frameworks:
        return f"{frameworks[0].framework} runs the step in its own way"
    if not on_cpu and not all(under_autocast(script.resolver, step) for step in steps):
        return _FLOAT32
    return None


def _said(reason: Fact | str, step: StepCode) -> str:
    if isinstance(reason, LayoutObstacle):
        return f"not laid out channels last: {reason.message}{seen_at(reason, step)}"
    return f"not laid out channels last: {reason}"
