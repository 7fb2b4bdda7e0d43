"""Gives the Hugging Face `TrainingArguments` what makes training faster: bfloat16, workers, the fused optimizer.

Left out, `TrainingArguments` train in float32 and make batches in the main process. Added are, where they are not said:

- `bf16`, true where there is a GPU that computes in bfloat16 (`--amp fp16`: `fp16`). Hard-coded, `bf16=True` raises on
  older GPUs and on machines without one.
- `dataloader_num_workers=2` (or as many as `--workers N` says), so that batches are collated while the GPU computes; on a CPU, whose
  cores the training needs, only where asked for. (`dataloader_pin_memory` is on by
  default.) Where nothing is seen to change the datasets between epochs, `dataloader_persistent_workers=True` beside it
  (transformers 4.36 or newer), so that the workers do not start anew in every epoch and evaluation.
- `optim="adamw_torch_fused"`, one kernel for all parameters; the default up to transformers 4, and the same update. Not for a CPU.

`torch_compile` is not added: batches padded to their longest sample would be compiled anew for every length.

Left alone: what is said already, on or off; arguments that come through `**`; scripts that name a precision themselves,
and losses or networks of their own that do not survive bfloat16; DeepSpeed and FSDP, which have settings of their own; streamed
datasets, of which every worker would give all, and datasets that store something or use the GPU, which workers must not; Trainers with
an optimizer of their own. Scripts that read their arguments with `HfArgumentParser` get the options to call them with.

Source: https://huggingface.co/docs/transformers/perf_train_gpu_one and
https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..optimizer.analysis.editing.references import quoted, reference
from ..optimizer.analysis.facts import Fact, seen_at
from ..optimizer.analysis.frameworks.training_arguments import HuggingFaceUse, TrainingArguments
from ..optimizer.analysis.loading.workers import copies_refused, persistence_refused
from ..optimizer.analysis.program.syntax import Module
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.options import AmpDtype, Options, Target, Tier
from ..optimizer.rewriting.edits import FileEdit, SetArgument
from .base import Change, Example, Skip, Stage, Transform

_NATIVE_CHECK_SINCE = (2, 5)
"""From here on ``is_bf16_supported`` can leave out emulation and answers on machines without CUDA."""
_FUSED_ON_CPU_SINCE = (2, 4)
_PRECISION = frozenset({"bf16", "fp16", "half_precision_backend", "fp16_opt_level"})
_WORKERS = 2
_SHARDED = frozenset({"deepspeed", "fsdp", "fsdp_config"})
_OPTIMIZER = frozenset({"optim", "adafactor", *_SHARDED})


class HfTrainer(Transform):
    name = "hf-trainer"
    tier = Tier.NUMERIC
    stage = Stage.PRECISION
    rank = -4
    example = Example(
        before="""\
            import torch
            from transformers import Trainer, TrainingArguments

            args = TrainingArguments(
                output_dir="out",
                num_train_epochs=3,
            )
            Trainer(model, args, train_dataset=train_set).train()
        """,
        after="""\
            import torch
            from transformers import Trainer, TrainingArguments

            args = TrainingArguments(
                output_dir="out",
                num_train_epochs=3,
                bf16=torch.cuda.is_bf16_supported(including_emulation=False),
                dataloader_num_workers=2,
                optim="adamw_torch_fused",
            )
            Trainer(model, args, train_dataset=train_set).train()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        use = script.hugging_face
        for made in use.arguments:
            yield from self._completed(script, made, options)
        if not use.arguments:
            for parser in use.parsers:
                message = (
                    "the training arguments come from the command line; faster with `--bf16 --dataloader_num_workers 2 "
                    "--optim adamw_torch_fused` (`--bf16` on GPUs since Ampere)"
                )
                yield self.skip(parser.path, parser.span, message)

    def _completed(
        self, script: TrainingScript, made: TrainingArguments, options: Options
    ) -> Iterator[Change | Skip]:
        use = script.hugging_face
        if made.opaque is not None:
            code = made.module.code(made.opaque)
            message = f"the training arguments are not all known (`{code}`)"
            yield self.skip(made.path, made.span, message)
            return
        settings: dict[str, str] = {}
        left_out: list[str] = []
        for name, value, said, refusal in (
            (*_half(made.module, options), _PRECISION, _no_half(use, made, options)),
            (
                "dataloader_num_workers",
                str(options.workers or _WORKERS),
                {"dataloader_num_workers"},
                _no_workers(script, made, options),
            ),
            (
                "optim",
                quoted(made.module, "adamw_torch_fused"),
                _OPTIMIZER,
                _not_fused(use, made, options),
            ),
        ):
            if made.said & said:
                continue
            if refusal is None:
                settings[name] = value
            else:
                left_out.append(f"no `{name}`: {refusal}")
            if name == "dataloader_num_workers" and name in settings and _live_on(script, made):
                settings["dataloader_persistent_workers"] = "True"
        if settings:
            yield self._change(made, settings, left_out)
        else:
            yield from (self.skip(made.path, made.span, message) for message in left_out)

    def _change(
        self, made: TrainingArguments, settings: dict[str, str], left_out: list[str]
    ) -> Change:
        edits = [FileEdit(made.path, SetArgument(made.span, n, v)) for n, v in settings.items()]
        imports = reference(made.module, "torch.cuda").edits if _asks_torch(settings) else ()
        reasons = {
            "bf16": "weights stay in float32; nothing in the script is known to need more than bfloat16",
            "fp16": "weights stay in float32 and the loss is scaled; nothing in the script is known to need more",
            "dataloader_num_workers": "a sampler's order does not depend on workers; what items and collators draw does",
            "dataloader_persistent_workers": "nothing changes the datasets between epochs",
            "optim": "the fused AdamW computes the same update",
        }
        said = [f"`{name}={value}`" for name, value in settings.items()]
        return self.change(
            made.path,
            made.span,
            "; ".join([f"{', '.join(said)} added to the training arguments", *left_out]),
            "; ".join(reasons[name] for name in settings),
            (*imports, *edits),
        )


def _asks_torch(settings: dict[str, str]) -> bool:
    return any("cuda" in value for value in settings.values())


def _half(module: Module, options: Options) -> tuple[str, str]:
    """The argument for half precision, on where it helps."""
    available = f"{reference(module, 'torch.cuda.is_available').code}()"
    if options.amp is AmpDtype.FP16:
        return "fp16", available
    if options.amp is AmpDtype.BF16:
        return "bf16", available
    if options.torch_version >= _NATIVE_CHECK_SINCE:
        check = reference(module, "torch.cuda.is_bf16_supported").code
        return "bf16", f"{check}(including_emulation=False)"
    capability = reference(module, "torch.cuda.get_device_capability").code
    return "bf16", f"{available} and {capability}() >= (8, 0)"


def _no_half(use: HuggingFaceUse, made: TrainingArguments, options: Options) -> str | None:
    on_cpu = _on_cpu(use, made, options)
    if on_cpu is not None:
        return on_cpu
    sharded = sorted(made.said & _SHARDED)
    if sharded:
        return f"`{sharded[0]}` decides about precision"
    obstacle = use.half_precision_obstacle(float16=options.amp is AmpDtype.FP16)
    return None if obstacle is None else _said(obstacle.message, obstacle, made)


def _on_cpu(use: HuggingFaceUse, made: TrainingArguments, options: Options) -> str | None:
    if options.target is Target.CPU:
        return "the script runs on the CPU"
    given = use.cpu_setting(made)
    if given is None:
        return None
    if given.module is not made.module or isinstance(given.value, ast.Constant):
        return "the script runs on the CPU"
    return f"the script may run on the CPU (`{given.module.code(given.value)}`)"


def _no_workers(script: TrainingScript, made: TrainingArguments, options: Options) -> str | None:
    use = script.hugging_face
    if options.workers is None and _on_cpu(use, made, options):
        return "the training itself needs the CPU's cores (`--workers N` where making batches takes long)"
    if options.workers == 0:
        return "batches are to be made in the training process (`--workers 0`)"
    if not options.forks_workers and made.module.main_guard is None:
        return "processes are spawned here, and the script has no main guard"
    if not options.forks_workers:
        return "processes are spawned here: datasets and collators would have to be pickled"
    streamed = use.streamed
    if streamed is not None:
        return _said("every worker would give all of a streamed dataset", streamed, made)
    refused = (copies_refused(script, loader) for loader in use.loaders)
    return next((reason for reason in refused if reason is not None), None)


def _live_on(script: TrainingScript, made: TrainingArguments) -> bool:
    """Whether workers may be kept from epoch to epoch: all that they hold copies of is seen to stay as it is."""
    loaders = script.hugging_face.loaders
    return (
        "dataloader_persistent_workers" not in made.said
        and bool(loaders)
        and all(persistence_refused(script, loader) is None for loader in loaders)
    )


def _not_fused(use: HuggingFaceUse, made: TrainingArguments, options: Options) -> str | None:
    own = use.own_optimizer
    if own is not None:
        return _said("the Trainer has an optimizer of its own", own, made)
    if not use.trains:
        return "nothing is trained"
    on_cpu = _on_cpu(use, made, options)
    if on_cpu is not None:
        return on_cpu
    if options.torch_version < _FUSED_ON_CPU_SINCE:
        return "before PyTorch 2.4 it does not run without a GPU"
    return None


def _said(message: str, fact: Fact, made: TrainingArguments) -> str:
    return f"{message}{seen_at(fact, made)}"
