"""Brings Lightning scripts up to date: today's `Trainer` arguments, mixed precision, no waiting for the GPU to log.

Lightning 2 refuses a `Trainer(gpus=8, distributed_backend="ddp", precision=16, profile=True)`; it wants
`Trainer(accelerator="gpu", devices=8, strategy="ddp", precision="16-mixed", profiler="simple")`. All old arguments of a
call are translated together, or none (the result needs Lightning 2): when one has no equal, or its value is not known (`gpus=args.gpus`), the message
says which, and what does its work today. `gpus=None` and `gpus=0` meant the CPU and become `accelerator="cpu"`.
`distributed_backend="dp"` no longer exists; `strategy="ddp"` trains on a batch per GPU instead of a part of one, so that
is done only with `--tier semantic`.

A `Trainer` for GPUs that says nothing about precision gets `precision="bf16-mixed"`, or `"16-mixed"` (which scales the loss)
on GPUs without bfloat16; `--amp` decides otherwise. One that takes whatever device there is (`accelerator="auto"`)
gets it only where there is a GPU with bfloat16. Not when code of the modules does not survive half precision, not
when they run their optimizers by hand, and not where what steps keep or return goes to NumPy later, which has no bfloat16; what
they hand to it themselves becomes float32 again (`output.float().numpy()`).

In LightningModules, `self.log("loss", loss.item())` waits for the GPU in every step, `self.log("loss", loss)` does not (also of the terms
that the loss is added up from). A list of an epoch's losses (`self.losses.append(loss.item())`) holds tensors until `on_train_epoch_end` looks at
it. `.cuda()` on new tensors becomes `.to(self.device)`, which is right on every device and in every process.

Reported: `validation_epoch_end` and its siblings, `Trainer.from_argparse_args`, `return {"log": ...}`.

Source: https://lightning.ai/docs/pytorch/stable/upgrade/migration_guide.html,
https://lightning.ai/docs/pytorch/stable/common/trainer.html and
https://lightning.ai/docs/pytorch/stable/accelerators/accelerator_prepare.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from ..optimizer.analysis.editing.references import quoted, reference
from ..optimizer.analysis.editing.replacing import replacement
from ..optimizer.analysis.facts import seen_at
from ..optimizer.analysis.frameworks.lightning import (
    LightningTrainer,
    LightningUse,
    accelerator,
    keeps_whole_network,
)
from ..optimizer.analysis.frameworks.lightning_losses import KeptLosses
from ..optimizer.analysis.frameworks.lightning_precision import lightning_half_uses
from ..optimizer.analysis.frameworks.trainer_arguments import (
    Translation,
    Untranslatable,
    translated,
)
from ..optimizer.analysis.precision.region_edits import float_again, receiver
from ..optimizer.analysis.program.syntax import Module
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.options import AmpDtype, Options, Target, Tier
from ..optimizer.rewriting.edits import FileEdit, InsertBefore, ReplaceExpression, SetArgument
from .base import Change, Example, Skip, Stage, Transform

_NATIVE_CHECK_SINCE = (2, 5)
"""From here on ``is_bf16_supported`` can leave out emulation and answers on machines without CUDA."""
_EXACT = "it means the same to Lightning 2"


class LightningTrainerTransform(Transform):
    name = "lightning-trainer"
    tier = Tier.NUMERIC
    stage = Stage.PRECISION
    rank = -5
    example = Example(
        before="""\
            import pytorch_lightning as pl

            from model import Classifier

            trainer = pl.Trainer(gpus=2, distributed_backend="ddp", precision=16, profile=True)
            trainer.fit(Classifier())
        """,
        after="""\
            import pytorch_lightning as pl

            from model import Classifier

            trainer = pl.Trainer(
                accelerator="gpu",
                devices=2,
                strategy="ddp",
                precision="16-mixed",
                profiler="simple",
            )
            trainer.fit(Classifier())
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        use = script.lightning
        for trainer in use.trainers:
            yield from self._trainer(script, trainer, options)
        for item in use.logged_items:
            code = item.module.code(item.loss)
            change = self.change(
                item.path,
                item.span,
                f"logs `{code}` as it is",
                "Lightning detaches what is logged and reads it only when a logger wants it",
                (FileEdit(item.path, ReplaceExpression(item.span, code)),),
            )
            yield replace(change, tier=Tier.EXACT)
        if options.target is not Target.CPU:
            yield from map(self._kept, script.kept_losses)
        for copy in use.cuda_copies:
            tensor = receiver(copy.module.code(copy.tensor), copy.tensor)
            code = f"{tensor}.to({copy.owner}.device)"
            change = self.change(
                copy.path,
                copy.span,
                f"`{copy.excerpt}` goes to the device that Lightning chose",
                'it is the one that "cuda" means in each of Lightning\'s processes',
                (FileEdit(copy.path, ReplaceExpression(copy.span, code)),),
            )
            yield replace(change, tier=Tier.EXACT)
        for outdated in use.outdated:
            yield self.skip(outdated.path, outdated.span, outdated.message)

    def _kept(self, kept: KeptLosses) -> Change:
        items = (
            replacement(kept.module, number, f"{kept.module.code(loss)}.detach()")
            for number, loss in kept.items
        )
        numbers = f"{kept.attribute} = [value.item() for value in {kept.attribute}]"
        change = self.change(
            kept.path,
            kept.span,
            f"keeps the losses in `{kept.attribute}` on the GPU until the epoch ends",
            "the numbers are the same ones, read from the device later; nothing looks at them before",
            (
                *items,
                FileEdit(kept.path, InsertBefore(kept.module.span(kept.reader), numbers)),
            ),
        )
        return replace(change, tier=Tier.EXACT)

    def _trainer(
        self, script: TrainingScript, trainer: LightningTrainer, options: Options
    ) -> Iterator[Change | Skip]:
        if trainer.opaque is not None:
            code = trainer.module.code(trainer.opaque)
            message = f"the Trainer's arguments are not all known (`{code}`)"
            yield self.skip(trainer.path, trainer.span, message)
            return
        half = "bf16-mixed" if options.amp is AmpDtype.BF16 else "16-mixed"
        try:
            translation = translated(script.resolver, trainer, half)
        except Untranslatable as why:
            message = f"the Trainer's arguments stay as they are: {why}"
            yield self.skip(trainer.path, trainer.span, message)
            return
        if translation.arguments or translation.added:
            yield self._translated(trainer, translation)
        else:
            yield from self._precision(script.lightning, trainer, script, options)

    def _translated(self, trainer: LightningTrainer, translation: Translation) -> Change | Skip:
        code = _call(trainer, translation)
        if code is None:
            message = "the Trainer's arguments stay as they are: comments stand between them"
            return self.skip(trainer.path, trainer.span, message)
        olds = ", ".join(f"`{name}`" for name in translation.arguments)
        change = self.change(
            trainer.path,
            trainer.span,
            f"the Trainer's {olds} in the words of Lightning 2",
            "; ".join([_EXACT, *translation.notes]),
            (
                *translation.imports,
                FileEdit(trainer.path, ReplaceExpression(trainer.span, code)),
            ),
        )
        return replace(change, tier=Tier.SEMANTIC) if translation.other_batches else change

    def _precision(
        self,
        use: LightningUse,
        trainer: LightningTrainer,
        script: TrainingScript,
        options: Options,
    ) -> Iterator[Change | Skip]:
        if trainer.arguments.keys() & {"precision", "plugins"}:
            return
        refusal = _no_half(use, trainer, script, options)
        if refusal is not None:
            yield self.skip(trainer.path, trainer.span, f"no mixed precision: {refusal}")
            return
        restored = lightning_half_uses(script.resolver, use)
        unclear = next((half for half in restored if not half.is_float), None)
        if unclear is not None:
            why = f"what a step computes goes to {unclear.taker}, where half precision does not belong"
            message = f"no mixed precision: {why}{seen_at(unclear, trainer)}"
            yield self.skip(trainer.path, trainer.span, message)
            return
        value = _half_precision(use, trainer, script, options)
        uses = reference(trainer.module, "torch.cuda").edits if "cuda" in value else ()
        yield self.change(
            trainer.path,
            trainer.span,
            f"trains in mixed precision (`precision={value}`)",
            "weights and optimizer stay in float32; no operation of the modules is known to need it",
            (
                *uses,
                FileEdit(trainer.path, SetArgument(trainer.span, "precision", value)),
                *dict.fromkeys(map(float_again, restored)),
            ),
        )


def _call(trainer: LightningTrainer, translation: Translation) -> str | None:
    """The call with its new arguments, one to a line where the old ones are; None where comments would be lost."""
    module, call = trainer.module, trainer.node
    if any("#" in line for line in _comment_lines(module, call)):
        return None
    codes: list[str] = []
    for keyword in call.keywords:
        new = translation.arguments.get(keyword.arg or "")
        codes += [module.code(keyword)] if new is None else list(new)
    codes += translation.added
    function = module.code(call.func)
    span = module.span(call)
    starts = [module.span(keyword).line for keyword in call.keywords]
    if len(set(starts)) < len(starts) or span.line in starts:
        return f"{function}({', '.join(codes)})"
    first = module.lines[starts[0] - 1]
    margin = first[: len(first) - len(first.lstrip())]
    closing = module.lines[span.end_line - 1][: span.end_column - 1]
    end = f"\n{closing}" if not closing.strip() else ""
    comma = "," if end else ""
    return f"{function}(\n{margin}" + f",\n{margin}".join(codes) + f"{comma}{end})"


def _comment_lines(module: Module, call: ast.Call) -> Iterator[str]:
    """The text of ``call`` that is no argument: brackets, commas, comments."""
    span = module.span(call)
    inside = {
        line
        for keyword in call.keywords
        for line in range(module.span(keyword).line, module.span(keyword).end_line + 1)
    }
    for number in range(span.line, span.end_line + 1):
        text = module.lines[number - 1]
        yield text.rpartition(",")[2] if number in inside else text


def _no_half(
    use: LightningUse, trainer: LightningTrainer, script: TrainingScript, options: Options
) -> str | None:
    if options.target is Target.CPU:
        return "the script is meant for a CPU"
    kind = accelerator(script.resolver, trainer)
    if kind not in {"gpu", "auto"}:
        given = trainer.arguments.get("accelerator")
        code = given.module.code(given.value) if given else "auto"
        return f"it is not known to train on a GPU (`accelerator={code}`)"
    if not use.modules:
        return "no LightningModule of the script could be read"
    strategy = trainer.arguments.get("strategy")
    if strategy is not None and not keeps_whole_network(script.resolver, strategy):
        return f"the strategy may have its own (`strategy={strategy.module.code(strategy.value)}`)"
    if not use.trains(trainer):
        return "`fit` is not seen to be called on this Trainer"
    float16 = _is_float16(use, kind, options)
    obstacles = [o for o in use.half_precision_obstacles if o.forbids(float16=float16)]
    if obstacles:
        return f"{obstacles[0].message}{seen_at(obstacles[0], trainer)}"
    if kind == "auto" and options.amp is AmpDtype.FP16:
        return "float16 is no gain where there is no GPU, and `accelerator` is chosen at run time"
    return None


def _is_float16(use: LightningUse, kind: str | None, options: Options) -> bool:
    """Whether float16 was asked for, or is what is left on a GPU."""
    left = any(obstacle.bfloat16_only for obstacle in use.half_precision_obstacles)
    return options.amp is AmpDtype.FP16 or (options.amp is AmpDtype.AUTO and left and kind == "gpu")


def _half_precision(
    use: LightningUse, trainer: LightningTrainer, script: TrainingScript, options: Options
) -> str:
    module = trainer.module
    bfloat16, float16, single = (
        quoted(module, name) for name in ("bf16-mixed", "16-mixed", "32-true")
    )
    kind = accelerator(script.resolver, trainer)
    on_gpu = kind == "gpu"
    if _is_float16(use, kind, options):
        return float16
    other = float16 if on_gpu and not use.half_precision_obstacles else single
    available = f"{reference(module, 'torch.cuda.is_available').code}()"
    if options.amp is AmpDtype.BF16:
        return bfloat16 if on_gpu else f"{bfloat16} if {available} else {single}"
    if options.torch_version >= _NATIVE_CHECK_SINCE:
        check = reference(module, "torch.cuda.is_bf16_supported").code
        test = f"{check}(including_emulation=False)"
    else:
        capability = reference(module, "torch.cuda.get_device_capability").code
        test = f"{'' if on_gpu else f'{available} and '}{capability}() >= (8, 0)"
    return f"{bfloat16} if {test} else {other}"
