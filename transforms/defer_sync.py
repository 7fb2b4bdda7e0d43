"""Adds up losses and counts on the GPU and reads them once, instead of waiting for the GPU in every step.

`loss.item()` stops the script until the GPU has finished everything it was given so far; then the GPU idles
until Python has prepared the next step. Where the number is only added to a sum (`running_loss += loss.item()`) or kept in a list,
the sum stays on the GPU (`running_loss += loss.detach().double()`) and becomes a number where it is looked at:
every 100 steps, at the end of the epoch, in the `return`. So does a number that a function of the step gives back
(`total += train_step(x, y)`, where that ends in `return loss.item()`), if such loops are all that calls it.

A meter of the script's own, such as the well-known `AverageMeter`, is given the tensor instead of the number
(`losses.update(loss.detach().double(), n)`) where its class only adds, subtracts, multiplies and divides; its figures become
numbers where they are looked at (`return float(losses.avg)`), and the class stays as it is. Its arithmetic then starts a handful of
tiny kernels in each step. A start costs Python a few microseconds; a wait lets the queue of kernels run empty, and the GPU idles
until Python has refilled it. Where the GPU has so little to do that no wait takes long, this gains nothing.

The numbers stay the same: sums are kept in float64, which is what Python's numbers are, and counts in integers. What is divided
on the device (the mean of a meter) may differ in the last of 16 digits: GPUs multiply with the reciprocal. Only
where the script may choose Apple's `mps` device, which has no float64, sums are kept in float32 and can differ in the
last digits. These two are left alone under `--tier exact`. `.detach()` keeps the sum from holding on to the graph of each step. A script that
adds up `loss` itself, or a part of it (`loss = first + second`), graph and all, gets it too (`total += loss.detach()`), also on the CPU: its memory no longer grows.
(A sum, or a meter's figure, that starts as the integer 0 is 0.0 after a loop that had nothing to add.)

`nn.Transformer`, its encoder and its decoder compare the mask they are given with a causal one, and wait for the answer in every call, unless they
are told (`tgt_is_causal=True`). Where a mask is made as such a triangle, or as zeros, they are told; this also lets them be compiled in one graph.

Left alone: loops in which something else waits in every step, because it prints, logs or shows the number, decides by it or
hands it to a learning-rate schedule, or looks at another tensor (`if torch.isnan(loss)`, `print(loss)`, `x[y > 0]`):
there is nothing to gain; loops that time their steps, which they can only do by waiting; variables that other functions or
files read; meters whose class does more (compares, calls functions, keeps lists), that are handed on (to a `ProgressMeter`, to
`print(losses)` or `"{loss.avg}".format(loss=losses)`), updated in several places, or looked at where the loop may just have set
them back; scripts for the CPU; scripts that use streams, several GPUs in one process or copies that do not wait, which may rely
on the waiting.

Source: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization and
https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ..optimizer.analysis.attention.causal_hints import CausalHint
from ..optimizer.analysis.autograd.graph_leaks import GraphLeak
from ..optimizer.analysis.editing.replacing import replacement
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.syncs.deferral_edits import (
    deferral_edits,
    function_edits,
    has_double,
    meter_edits,
)
from ..optimizer.analysis.syncs.deferral_plan import LoopPlan
from ..optimizer.analysis.syncs.deferred import Deferred
from ..optimizer.analysis.syncs.deferred_meters import DeferredMeter
from ..optimizer.analysis.syncs.joint_plans import joined
from ..optimizer.analysis.wording import listed
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import FileEdit, SetArgument
from .base import Change, Example, Skip, Stage, StepPart, Transform

_EXACT = (
    "float64 sums and integer counts on the device are the numbers that Python would have added up"
)
_KEPT = "the numbers are the same ones, read from the device later"
_DIVIDED = (
    "the figures are computed in float64, as Python's are; a GPU divides by multiplying with the reciprocal, which can "
    "differ in the last of their 16 digits"
)
_SPENT = "the loss is backpropagated in the same step, so that its graph cannot be used again"
_ROUNDED = (
    "sums on the device are float32, because the script may run on `mps`, which has no float64: long sums can differ "
    "from Python's in the last digits"
)


class DeferSync(Transform):
    name = "defer-sync"
    tier = Tier.EXACT
    stage = Stage.EVALUATION
    rank = 1
    relieves = StepPart.SYNCS
    example = Example(
        before="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from data import train_set

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            model = nn.Linear(784, 10).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loader = DataLoader(train_set, batch_size=64)

            for epoch in range(10):
                running_loss = 0.0
                correct = 0
                for x, y in loader:
                    x, y = x.to(device), y.to(device)
                    optimizer.zero_grad()
                    output = model(x)
                    loss = nn.functional.cross_entropy(output, y)
                    loss.backward()
                    optimizer.step()
                    running_loss += loss.item()
                    correct += (output.argmax(1) == y).sum().item()
                print(f"loss {running_loss / len(loader):.4f}, {correct} correct")
        """,
        after="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from data import train_set

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            model = nn.Linear(784, 10).to(device)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loader = DataLoader(train_set, batch_size=64)

            for epoch in range(10):
                running_loss = 0.0
                correct = 0
                for x, y in loader:
                    x, y = x.to(device), y.to(device)
                    optimizer.zero_grad()
                    output = model(x)
                    loss = nn.functional.cross_entropy(output, y)
                    loss.backward()
                    optimizer.step()
                    running_loss += loss.detach().double()
                    correct += (output.argmax(1) == y).sum()
                print(f"loss {float(running_loss) / len(loader):.4f}, {int(correct)} correct")
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        for leak in script.graph_leaks:
            yield self._detach(leak)
        plans = script.loop_plans
        if not script.targets_cuda(options):
            for plan in [plan for plan in plans if plan.asks][:1]:
                message = "nothing waits for a device: the script does not use a GPU"
                yield self.skip(plan.path, plan.span, message)
            return
        for hint in script.causal_hints:
            yield self._told(hint)
        for plan in plans:
            yield from self._left(plan)
        waiting = (plan for plan in plans if plan.reads and not plan.obstacles)
        for group in joined(waiting):
            yield self._defer(script, group)

    def _told(self, hint: CausalHint) -> Change:
        argument = f"{hint.keyword}={hint.is_causal}"
        mask = hint.module.code(hint.mask)
        edit = SetArgument(hint.module.span(hint.node), hint.keyword, str(hint.is_causal))
        return self.change(
            hint.path,
            hint.span,
            f"says what `{mask}` is (`{argument}`), which PyTorch otherwise compares it for, and waits for the answer",
            "the mask hides what follows and nothing else"
            if hint.is_causal
            else "the mask hides nothing",
            (FileEdit(hint.path, edit),),
        )

    def _left(self, plan: LoopPlan) -> Iterator[Skip]:
        for obstacle in plan.obstacles:
            message = f"the loop goes on waiting for the device in every step: {obstacle.message}"
            yield self.skip(obstacle.path, obstacle.span, message)

    def _detach(self, leak: GraphLeak) -> Change | Skip:
        losses = listed(f"`{loss.id}`" for loss in leak.losses)
        several = len({loss.id for loss in leak.losses}) > 1
        goes, its = ("go", "their graphs") if several else ("goes", "its graph")
        if leak.shown is not None:
            message = (
                f"{losses} {goes} into `{leak.total}` with {its}: `{leak.total}` is printed with it"
            )
            return self.skip(leak.path, leak.span, message)
        edits = tuple(replacement(leak.module, loss, f"{loss.id}.detach()") for loss in leak.losses)
        message = f"{losses} {goes} into `{leak.total}` without {its}, which filled the memory"
        return self.change(leak.path, leak.span, message, _SPENT, edits)

    def _defer(self, script: TrainingScript, plans: Sequence[LoopPlan]) -> Change:
        resolver = script.resolver
        deferred = [each for plan in plans for each in plan.deferred]
        meters = [meter for plan in plans for meter in plan.meters]
        edits = (
            *(edit for each in deferred for edit in deferral_edits(resolver, *each)),
            *(edit for meter in meters for edit in meter_edits(resolver, meter)),
            *function_edits(resolver, plans),
        )
        kept = (*(variable for variable, _ in deferred), *meters)
        first = min(kept, key=lambda each: (str(each.path), each.span))
        names = listed(f"`{each.name}`" for each in kept)
        message = f"keeps {names} on the device and reads the numbers only where they are looked at"
        reason, tier = self._precision(script, kept)
        change = self.change(first.path, first.span, message, reason, edits)
        return replace(change, tier=tier)

    def _precision(
        self, script: TrainingScript, kept: Iterable[Deferred | DeferredMeter]
    ) -> tuple[str, Tier]:
        """How close the numbers are to Python's, in words and as a tier."""
        sums = [each for each in kept if not (isinstance(each, Deferred) and each.is_kept)]
        is_exact = all(isinstance(each, Deferred) and each.is_integer for each in sums)
        if not is_exact and not has_double(script.project):
            return _ROUNDED, Tier.NUMERIC
        if any(each.divides for each in kept):
            return _DIVIDED, Tier.NUMERIC
        return (_EXACT if sums else _KEPT), Tier.EXACT
