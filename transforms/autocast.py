"""Runs the forward pass and the loss in half precision where that is safe (automatic mixed precision).

Matrix products and convolutions in bfloat16 or float16 run several times faster on GPUs with tensor cores and move half
the bytes; ``torch.autocast`` picks the type per operation and keeps losses, norms and softmax in float32. Weights,
gradients and optimizer states stay float32, so checkpoints do not change.

float16 has a small range: its gradients are scaled by a ``GradScaler``, which unscales them before they are clipped or
looked at, steps the optimizers, and is updated once they all have stepped. bfloat16 needs none of that. ``--amp auto``
(the default) writes the form that picks at run time: bfloat16 where the GPU has it, otherwise float16 with a scaler.
``--amp bf16`` and ``--amp fp16`` write one of the two. On a machine without a GPU the regions switch themselves off.
Evaluation loops of the same networks run under autocast too (under that of the script, where its training steps have one and the
evaluation sees what it is made of: ``with torch.autocast("cuda", dtype=amp_dtype, enabled=args.amp)``), unless something in them needs float32, such as a ranking of
many candidates, in which half precision makes ties, or are written as a comprehension. What a network returns is float32 again (``.float()``) where it goes on to
NumPy, a file, a float32 matrix, or a softmax, sigmoid, exponential or logarithm behind the region. The state of the
scaler is not added to checkpoints: a resumed run finds its scale again within a few steps.

A script that scales its losses by a ``GradScaler`` and has no autocast, half of mixed precision that does nothing, gets the other half where that scaler
serves every optimizer of a step: float16 where it is enabled (``enabled=scaler.is_enabled()``). Of the scaler nothing changes.

Not when the script uses mixed precision already, or a framework that owns the step; where nothing is known of what computes a loss (``getattr(nn, args.loss)()``); with gradient penalties and other
double backward; where a backward pass may need weights that an optimizer has changed since; for adversarial attacks, which go by the signs of gradients, or whose optimizer changes an input; with binary cross entropy of probabilities (``BCELoss``; ``BCEWithLogitsLoss`` on the values before the
sigmoid is fine, and ``--tier semantic`` rewrites the one to the other where every sigmoid and every reader is known); with LBFGS; with autograd functions that lack ``custom_fwd``; with solvers of differential equations; with Fourier transforms, complex, sparse or
float64 tensors and in-place writes that want one type; where what CUDA has for float32 alone, such as ``torch.special`` and
``torch.linalg`` (also inside ``MultivariateNormal``), may be given half precision, or a matrix is decomposed that came of it; with squared distances made of a matrix product (a nearest
code or neighbour found so is another one in half precision) or differences of Gram matrices or covariances, also from the identity (an orthogonality penalty); with positions in an
image that a network computes (``F.grid_sample``, ``F.affine_grid``); with sines and cosines of a matrix product whose angles may be
larger than about one (Fourier features, SIREN's factor of 30, rotary positions by ``einsum``, positions or times that go into a sine layer
as they are) or of positions that take the type of what a network computes; with constants that overflow in
bfloat16 as well (``masked_fill(mask, torch.finfo(torch.float32).min)`` raises); with ratios of probabilities to
those kept before, as in PPO (``torch.exp(new_log_prob - old_log_prob)``: half precision alone moves them by 0.05 to 0.2); for networks that a library quantizes, or that never move to a GPU;
for networks of linear layers that are small for the batches they are given, where the host is what a step waits for, and for those that
compute no products at all, such as embeddings of a knowledge graph, or choose one action after the other in an environment (``--amp bf16`` asks for it anyway); for networks of `nn.LSTM`, `nn.GRU` or `nn.RNN`
with linear layers, which use TF32 by themselves where the GPU has it, and became slower beside an H100 (``--amp fp16``).
bfloat16 alone is written where float16 is not safe or cannot be scaled: constants beyond its range (``masked_fill(-1e9)``),
logarithms of sigmoids (zero in float16 below 3e-8), Gram matrices, checks that end the training where gradients overflow, closures, optimizers that step out of sight, gradients that nothing clears, updates written by hand,
backward passes of which some stay in float32.
float16 with a scaler alone is written for networks with convolutions or attention beside `nn.LSTM`, `nn.GRU` or `nn.RNN`, which cuDNN computes in float16 under autocast,
for `nn.DataParallel`, whose replicas run in float16, and for cosines that are multiplied by a constant above 51 (a contrastive loss with a temperature of 0.01, where bfloat16
moves gradients by 5.5 % and float16 by 0.8 %; above 410 both are too coarse), also where bfloat16 was asked for.

Source: https://docs.pytorch.org/docs/stable/amp.html and https://docs.pytorch.org/docs/stable/notes/amp_examples.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import ClassVar

from ..optimizer.analysis.devices.network_device import network_device
from ..optimizer.analysis.facts import DeviceKind, Fact
from ..optimizer.analysis.obstacles import ProbabilityLoss
from ..optimizer.analysis.precision.autocast_edits import AutocastPlan
from ..optimizer.analysis.precision.autocast_wording import (
    counted,
    leaves,
    left_out,
    network_given,
    said,
)
from ..optimizer.analysis.precision.half_gain import no_gain
from ..optimizer.analysis.precision.half_steps import HalfCode, half_code, script_obstacle
from ..optimizer.analysis.precision.half_values import HalfUse, half_uses
from ..optimizer.analysis.precision.logits import logits_form
from ..optimizer.analysis.precision.own_autocast import outside_autocast, switch_of_autocast
from ..optimizer.analysis.precision.own_scaling import (
    OwnScaling,
    beyond_scaling,
    edits_beside_scaler,
    with_own_scaler,
)
from ..optimizer.analysis.precision.precision import (
    PrecisionUse,
    find_precision_uses,
    imported_packages,
    reaches_autocast,
    runs_in_double,
    under_autocast,
)
from ..optimizer.analysis.precision.precision_choice import (
    by_fitness,
    chosen_precision,
    cpu_refusal,
)
from ..optimizer.analysis.precision.region_edits import float_again, in_context
from ..optimizer.analysis.precision.shared_autocast import SharedAutocast, SharedContext
from ..optimizer.analysis.program.sharing import user_of_definition
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.training.steps import EvaluationCode, StepCode
from ..optimizer.options import AmpDtype, Options, Tier
from ..optimizer.rewriting.edits import FileEdit, Span
from .base import Change, Example, Skip, Stage, StepPart, Transform

_UNCALLED = "nothing in this file calls this step: on which device it runs, its callers know"

_UNMOVED = "the network is not seen to be moved to a GPU"
_HALF_FINISHED = "`GradScaler` is in use already, without autocast, which is not added: "
_BESIDE = "the step stays in float32: the script's own autocast is around other steps alone"
_IN_PLACE = "the evaluation stays in float32: it is written as a comprehension, not as a loop"


class Autocast(Transform):
    name: ClassVar[str] = "autocast"
    tier: ClassVar[Tier] = Tier.NUMERIC
    stage: ClassVar[Stage] = Stage.PRECISION
    relieves: ClassVar[StepPart | None] = StepPart.PRODUCTS
    only_on_cuda = True
    rests_first = True
    example: ClassVar[Example] = Example(
        before="""
            import torch
            from torch import nn

            model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
            optimizer = torch.optim.Adam(model.parameters())

            for images, labels in loader:
                optimizer.zero_grad()
                outputs = model(images.cuda())
                loss = nn.functional.cross_entropy(outputs, labels.cuda())
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        """,
        after="""
            import torch
            from torch import nn

            model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
            optimizer = torch.optim.Adam(model.parameters())
            amp_dtype = (
                torch.bfloat16
                if torch.cuda.is_bf16_supported(including_emulation=False)
                else torch.float16
            )
            scaler = torch.amp.GradScaler("cuda", enabled=amp_dtype == torch.float16)

            for images, labels in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=amp_dtype):
                    outputs = model(images.cuda())
                    loss = nn.functional.cross_entropy(outputs, labels.cuda())
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        steps = [step for step in script.step_code if script.runs(step)]
        if not steps:
            yield from self._unreached(script)
            return
        refusal = cpu_refusal(options, is_for_cuda=script.targets_cuda(options)) or _framework(
            script
        )
        if refusal is not None:
            for step in steps:
                told = isinstance(refusal, str) and not script.is_called(step)
                yield self._skip(step, _UNCALLED if told else refusal)
            return
        codes, done, stopped = by_fitness(script.resolver, steps)
        unmoved = _on_host(script, codes) if script.targets_cuda(options) else []
        yield from (self._skip(half.code, _UNMOVED) for half in unmoved)
        codes = [half for half in codes if half not in unmoved]
        useless = None if done else _no_gain(script, codes, options)
        if useless is not None:
            yield from (self._skip(half.code, useless) for half in codes)
            codes = []
        uses = find_precision_uses(script.resolver)
        other = beyond_scaling(uses)
        if uses and not done and other is None:
            for step, obstacle in stopped:
                yield self._skip(step, network_given(script, step, obstacle) or obstacle)
            yield from self._scaled(script, codes, uses, options)
            return
        refusal = other or next(iter(uses), None) or _refusal(script)
        if stopped and refusal is None and all(isinstance(o, ProbabilityLoss) for _, o in stopped):
            rewritten = logits_form(script.resolver)
            if isinstance(rewritten, tuple):
                yield self._logits(stopped[0][0], rewritten)
                return
        beside = any(under_autocast(script.resolver, step) for step in steps)
        told = None if beside else refusal  # that it is in use already says nothing about others
        for step, obstacle in stopped:
            yield self._skip(step, told or network_given(script, step, obstacle) or obstacle)
        if refusal is not None:
            told = _BESIDE if beside else refusal
            yield from (self._skip(half.code, told) for half in codes)
            yield from self._left(script, done)
            yield from self._shared(script, done)
        elif codes:
            yield from self._planned(script, codes, options)

    def _unreached(self, script: TrainingScript) -> Iterator[Skip]:
        why = f"no call from {script.entry.path.name} to this step is seen"
        yield from (replace(self._skip(s, why), unreached=True) for s in script.step_code)

    def _left(self, script: TrainingScript, done: Sequence[HalfCode]) -> Iterator[Skip]:
        """What stays in float32 of steps that the script runs under an autocast of its own."""
        for step in (half.code for half in done if isinstance(half.code, StepCode)):
            switch = switch_of_autocast(script.resolver, step)
            if switch is not None:
                yield self._skip(step, f"the step runs under autocast where {switch}")
            outside = outside_autocast(script.resolver, step)
            if outside is not None:
                why = f"`{outside.excerpt}` stays in float32: the script's own autocast is not around it"
                yield self.skip(outside.path, outside.span, why)

    def _logits(self, step: StepCode, edits: tuple[FileEdit, ...]) -> Change:
        """The change that makes a step with a loss of probabilities fit for autocast, which then follows."""
        change = self.change(
            step.path,
            _span(step),
            "binary cross entropy taken from logits instead of probabilities, as autocast requires",
            "every input of the loss comes from a sigmoid that moves into it, and whatever else reads the probabilities "
            "gets one of its own; the loss no longer clamps logarithms at -100",
            edits,
        )
        return replace(change, tier=Tier.SEMANTIC)

    def _planned(
        self, script: TrainingScript, codes: list[HalfCode], options: Options
    ) -> Iterator[Change | Skip]:
        resolver, first = script.resolver, codes[0].code
        on_cpu = not script.targets_cuda(options)
        device = network_device(resolver, [n for half in codes for n in half.networks])
        chosen = chosen_precision(resolver, codes, script.loops, options)
        if not isinstance(chosen, tuple):
            yield self._skip(first, chosen)
            return
        precision, scaling, doubt = chosen
        restored = _half_uses(script, codes)
        unclear = next((use for use in restored if not use.is_float), None)
        if unclear is not None:
            yield self._skip(first, leaves(unclear))
            return
        evaluated = list(self._evaluations(script, codes, float16=scaling is not None))
        yield from (item for item in evaluated if isinstance(item, Skip))
        codes = [*codes, *(item for item in evaluated if isinstance(item, HalfCode))]
        restored = _half_uses(script, codes)
        plan = AutocastPlan(
            resolver,
            tuple(codes),
            precision,
            scaling,
            None if on_cpu else device,
            restored,
            options.torch_version,
        )
        yield self.change(
            first.path,
            _span(first),
            f"forward and loss of {counted(codes)} under autocast in {precision.value}{doubt}"
            f"{left_out(resolver, codes)}",
            "every loss, backward and update of the step is known, and no operation in it needs float32",
            plan.edits(),
        )

    def _scaled(
        self,
        script: TrainingScript,
        codes: Sequence[HalfCode],
        uses: Sequence[PrecisionUse],
        options: Options,
    ) -> Iterator[Change | Skip]:
        """Steps whose losses the script scales, but computes in float32; ``uses`` are those of its scaler."""
        resolver = script.resolver
        refusal = _refusal(script)
        found = {half: refusal or with_own_scaler(resolver, half, uses, options) for half in codes}
        for half, scaled in found.items():
            if not isinstance(scaled, OwnScaling):
                yield self._skip(half.code, scaled, _HALF_FINISHED)
        scalings = [scaled for scaled in found.values() if isinstance(scaled, OwnScaling)]
        halves = [scaling.half for scaling in scalings]
        restored = _half_uses(script, halves)
        unclear = next((use for use in restored if not use.is_float), None)
        if unclear is not None:
            yield self._skip(halves[0].code, leaves(unclear), _HALF_FINISHED)
        elif halves:
            yield self.change(
                halves[0].code.path,
                _span(halves[0].code),
                f"forward and loss of {counted(halves)} under autocast in float16, as its scaler is for"
                f"{left_out(resolver, halves)}",
                "every loss is scaled, every optimizer steps through the scaler, and no operation needs float32",
                edits_beside_scaler(resolver, scalings, restored, options),
            )

    def _shared(self, script: TrainingScript, done: Sequence[HalfCode]) -> Iterator[Change | Skip]:
        """Evaluations under the autocast that the script itself writes around the training steps ``done``."""
        shared = SharedAutocast(script.resolver, done, imported_packages(script.project))
        for item in self._evaluations(script, done, float16=False):
            if isinstance(item, Skip):
                yield item
                continue
            found = shared.around(item)
            if not isinstance(found, SharedContext):
                yield self._skip(item.code, found, "the evaluation stays in float32: ")
                continue
            edits = [*found.edits]
            edits += [in_context(region, found.code) for region in item.code.regions]
            edits += [float_again(use) for use in _half_uses(script, [item])]
            yield self.change(
                item.code.path,
                _span(item.code),
                f"the evaluation under the autocast of the training step (`{found.code}`)",
                "it runs the same network, and no operation in it needs float32",
                tuple(edits),
            )

    def _evaluations(
        self, script: TrainingScript, codes: Sequence[HalfCode], *, float16: bool
    ) -> Iterator[HalfCode | Skip]:
        """The evaluations of the trained networks, or why they stay in float32."""
        trained = {network.node for half in codes for network in half.networks}
        for evaluation in script.evaluation_code:
            if not evaluation.regions or not script.runs(evaluation):
                continue
            if under_autocast(script.resolver, evaluation):
                continue
            user = _other_user(script, evaluation)
            if user is not None:
                yield self._skip(evaluation, user, "the evaluation stays in float32: ")
                continue
            found = half_code(script.resolver, evaluation)
            if isinstance(found, HalfCode):
                if not any(network.node in trained for network in found.networks):
                    continue
                uses = _half_uses(script, [found])
                unclear = next((use for use in uses if not use.is_float), None)
                obstacle = (
                    found.float16_obstacles[0] if float16 and found.float16_obstacles else None
                )
                if unclear is None and obstacle is None:
                    yield found
                    continue
                reason = obstacle or leaves(unclear)
            else:
                reason = found
            yield self._skip(evaluation, reason, "the evaluation stays in float32: ")
        yield from self._comprehensions(script, codes, trained)

    def _comprehensions(
        self, script: TrainingScript, codes: Sequence[HalfCode], trained: Set[ast.Call]
    ) -> Iterator[Skip]:
        """The evaluations of ``trained`` networks that are written as comprehensions, but for those under autocast."""
        covered = {node for half in codes for node in half.covered}
        for found in script.evaluating_comprehensions:
            if found.node in covered or trained.isdisjoint(n.node for n in found.networks):
                continue
            if not reaches_autocast(script.resolver, found.node, found.module):
                yield self.skip(found.path, found.span, _IN_PLACE)

    def _skip(self, code: StepCode | EvaluationCode, reason: Fact | str, before: str = "") -> Skip:
        return self.skip(code.path, _span(code), before + said(reason, code))


def _on_host(script: TrainingScript, codes: Sequence[HalfCode]) -> list[HalfCode]:
    """Those whose networks nothing moves to a GPU."""
    resolver = script.resolver
    return [h for h in codes if network_device(resolver, h.networks).kind is DeviceKind.CPU]


def _half_uses(script: TrainingScript, codes: Sequence[HalfCode]) -> tuple[HalfUse, ...]:
    forwards = frozenset(call for half in codes for call in half.forwards)
    covered = frozenset(node for half in codes for node in half.covered)
    return half_uses(script.resolver, forwards, covered)


def _other_user(script: TrainingScript, evaluation: EvaluationCode) -> str | None:
    """Which other script runs ``evaluation`` too, in words."""
    if evaluation.module is script.entry:
        return None
    return user_of_definition(script.project, evaluation.module, evaluation.span.line)


def _span(code: StepCode | EvaluationCode) -> Span:
    if isinstance(code, StepCode):
        return code.backwards[0].span
    return code.module.span(code.regions[0].first)


def _no_gain(script: TrainingScript, codes: Sequence[HalfCode], options: Options) -> str | None:
    """Why half precision is no gain, unless it is asked for."""
    if options.amp is not AmpDtype.AUTO or Autocast.name in options.select:
        return None
    return no_gain(script.resolver, codes)


def _framework(script: TrainingScript) -> Fact | None:
    return next(iter(script.frameworks), None)


def _refusal(script: TrainingScript) -> Fact | None:
    """What about the script as a whole keeps its steps as they are."""
    resolver = script.resolver
    return runs_in_double(resolver) or script_obstacle(resolver, imported_packages(script.project))
