"""Compiles the networks that are trained, in place: ``model.compile()``.

``torch.compile`` fuses the many small operations of a training step into few kernels and saves most of the Python in
between. ``model.compile()`` compiles the module's own call: it stays the same object, with the same ``state_dict`` keys,
children and pickle, where ``model = torch.compile(model)`` puts ``_orig_mod.`` into checkpoints. Nothing is compiled until
the first batch, which takes up to a minute longer.

It is written above the training loop, where the network has been moved, loaded and wrapped. Where the loop calls the trained network
inside another one that was given it (`GaussianDiffusion(unet)`), that one is compiled. Scripts that may run without
a GPU compile only on one. For a CPU nothing is compiled unless asked for, by ``--target cpu`` with a mode: that needs a C++ compiler,
gains less, and makes steps of small networks slower. Networks whose batches are padded to
their longest sample are compiled with ``dynamic=True``, so that not every length is compiled anew. That takes longer: to trace the eight layers
of corpus/transformer_translation for any length took 70 s where one length took 9 (PyTorch 2.11, one core), before any kernel was compiled.

``--compile-mode`` writes a mode of ``torch.compile``, where `auto`, the default, and `default` write none. `torchopt tune` tries modes.
`reduce-overhead` and `max-autotune` run networks as CUDA graphs, which is nothing on a CPU, and which breaks code that still reads
what a network gave after its next call. So with these nothing is compiled where a step calls a network twice for its loss or trains several,
adds up gradients or fills them with zeros, where results are kept in a list or an attribute, in evaluation too, or where batches
are padded. What of this is out of sight makes the script fail there. On a CPU the autotuning modes choose between kernels for
batched products of fixed sizes only.

Not for networks that branch on the values in a tensor, take values out of the graph (``.item()``, ``int(..)`` of a
buffer, ``print``, what a mask picks: ``x[x > 0]``), take gradients in their forward pass, build tensors with legacy constructors, loop over a dimension of their input, or over a list that the script's own ``collate_fn`` hands them, or spend their time in ``nn.LSTM`` and its like; not with
layers of libraries other than torchvision, timm, transformers and einops, or from the hub, whose code may do any of this; not with
gradient penalties and other double backward, with a backward pass that keeps its graph after one that does not, under ``DataParallel``, with hooks on modules, or where the script scripts,
traces, exports or compiles by itself; not before PyTorch 2.14 for networks that run as PyTorch's own layers do, such as an `nn.Sequential`, for which
``model.compile()`` does nothing there; not before PyTorch 2.11, nor with an autotuning mode, where it sets `fp32_precision`, beside which
the compiler fails; not where a step calls methods of the network instead of the network; not for
a handful of steps; not for a single linear layer, nor a few that are small for the batches they are given, unless a mode is asked for; not on Windows, for which there is no Triton, nor on a Python that this PyTorch cannot compile for.

Source: https://docs.pytorch.org/docs/stable/generated/torch.compile.html and
https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.compile; for CUDA graphs:
https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import ClassVar, TypeAlias

from ..optimizer.analysis.compiling.compilation import (
    FEWEST_STEPS,
    compile_candidates,
    compiled_networks,
    copy_run,
    double_backward,
    gradient_graph_beside,
    late_kept_graph,
    pads_batches,
    provable_steps,
)
from ..optimizer.analysis.compiling.compile_points import CompilePoint, common_point
from ..optimizer.analysis.compiling.graph_breaks import CompileObstacle
from ..optimizer.analysis.compiling.graph_captures import capture_obstacle
from ..optimizer.analysis.compiling.support import unsupported
from ..optimizer.analysis.devices.network_device import condition_imports, network_device, uses_cuda
from ..optimizer.analysis.facts import CallFact, DeviceKind, Fact, Model, seen_at
from ..optimizer.analysis.networks.called_layers import library_layer
from ..optimizer.analysis.networks.forward_code import parts_given
from ..optimizer.analysis.networks.models import model_of
from ..optimizer.analysis.networks.single_layers import is_single_layer
from ..optimizer.analysis.networks.small_layers import MOST_LAYERS_AS_THEY_ARE, small_layers
from ..optimizer.analysis.networks.trained import trained_or_in_part
from ..optimizer.analysis.obstacles import Obstacle
from ..optimizer.analysis.precision.precision import FrameworkUse
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.analysis.training.steps import StepCode
from ..optimizer.analysis.values.values import External, Made
from ..optimizer.analysis.wording import listed
from ..optimizer.options import CompileMode, Options, Tier
from ..optimizer.rewriting.edits import FileEdit, InsertAfter, InsertBefore
from ..optimizer.terminal import counted
from .base import Change, Example, Skip, Stage, StepPart, Transform

_UNCALLED = "nothing in this file calls this step: where its network is final, its callers know"
_NO_MODE = frozenset({CompileMode.AUTO, CompileMode.DEFAULT})
_ANY_LENGTH = "dynamic=True"
_SINGLE = "the network is one linear layer, in which there is nothing to fuse (`--compile-mode default` compiles it all the same)"
_DOUBLE_BACKWARD = "the step differentiates its gradients, which compiled code cannot"
_COMPILES_ITS_OWN = (2, 14)
"""The first PyTorch release whose ``Module.compile`` compiles a network that runs one of PyTorch's own ``forward`` methods; seen to do nothing
with 2.11, and as it was then in 2.12 and 2.13 (``torch/_dynamo/eval_frame.py``)."""
_Candidate: TypeAlias = tuple[CallFact, Model, CompilePoint | CompileObstacle]
_Named: TypeAlias = tuple[ast.AST, str]
"""A call of a network, and the name that the network has above the training loop."""


@dataclass(frozen=True, eq=False)
class _Final:
    """A network a step trains, and where it is final."""

    step: StepCode
    network: Model
    point: CompilePoint


class Compile(Transform):
    name: ClassVar[str] = "compile"
    tier: ClassVar[Tier] = Tier.NUMERIC
    stage: ClassVar[Stage] = Stage.COMPILE
    relieves: ClassVar[StepPart | None] = StepPart.SMALL_OPERATORS
    only_on_cuda = True
    example: ClassVar[Example] = Example(
        before="""
            import torch
            from torch import nn

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
            optimizer = torch.optim.Adam(model.parameters())

            for epoch in range(20):
                for images, labels in loader:
                    optimizer.zero_grad()
                    outputs = model(images.to(device))
                    loss = nn.functional.cross_entropy(outputs, labels.to(device))
                    loss.backward()
                    optimizer.step()
        """,
        after="""
            import torch
            from torch import nn

            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
            optimizer = torch.optim.Adam(model.parameters())
            if device.type == "cuda":
                model.compile()

            for epoch in range(20):
                for images, labels in loader:
                    optimizer.zero_grad()
                    outputs = model(images.to(device))
                    loss = nn.functional.cross_entropy(outputs, labels.to(device))
                    loss.backward()
                    optimizer.step()
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        steps = [step for step in script.step_code if script.runs(step)]
        if not steps:
            yield from self._frameworks(script)
        refusal = unsupported(script, options) if steps else None
        refusal = refusal or gradient_graph_beside(script.resolver, steps, script.functions_run)
        refusal = refusal or late_kept_graph(script.resolver, steps, script.functions_run)
        compiled = {network.node for network in compiled_networks(script.resolver)}
        trained = [
            network
            for network in trained_or_in_part(script.resolver, script.optimizers)
            if not script.is_anothers(network.path, network.span.line)
        ]
        final: dict[tuple[ast.stmt, str], _Final] = {}
        unfit = _differentiated_twice(script, steps, trained)
        for step in steps:
            reason = refusal or _step_refusal(script, step, options)
            if reason is not None:
                told = reason is refusal and isinstance(reason, str) and not script.is_called(step)
                yield self._skip(step, _UNCALLED if told else reason)
                continue
            found = list(compile_candidates(script.resolver, step, trained, script.functions_run))
            if not found:
                yield self._skip(step, _untrained(script, step))
            obstacle = _capture_obstacle(script, step, found, options)
            if obstacle is not None:
                yield self._skip(step, obstacle)
                continue
            done = _compiled_at(found, compiled)
            for call, network, point in found:
                if network.node in compiled or _named_at(call, point) in done:
                    continue
                obstacle = _obstacle(script, (call, network, point), unfit, options)
                if obstacle is not None:
                    yield self.skip(call.path, call.span, obstacle)
                elif isinstance(point, CompilePoint) and not _compiled_above(
                    final.values(), network, point
                ):
                    final.setdefault((point.statement, point.code), _Final(step, network, point))
        once = _once(final.values())
        for place in dict.fromkeys(each.point.statement for each in once):
            yield self._compiled(script, [f for f in once if f.point.statement is place], options)

    def _frameworks(self, script: TrainingScript) -> Iterator[Skip]:
        """That Trainers of Lightning run the steps of a script that has none of its own."""
        for trainer in script.lightning.trainers:
            if script.lightning.trains(trainer):
                why = "not compiled: Lightning runs the step in its own way (`torch.compile(model)` before `fit` is for you to measure)"
                yield self.skip(trainer.path, trainer.span, why)

    def _compiled(
        self, script: TrainingScript, together: Sequence[_Final], options: Options
    ) -> Change | Skip:
        step, point = together[0].step, together[0].point
        device = network_device(script.resolver, [each.network for each in together])
        if device.kind is DeviceKind.CPU:  # it may be moved part by part
            device = network_device(script.resolver, _parts(script, together))
        condition = None
        if script.targets_cuda(options):
            if device.kind is DeviceKind.CPU:
                return self._skip(step, "the network is not seen to be moved to a GPU")
            condition = uses_cuda(
                script.resolver, device, point.statement, point.module, is_test=True
            )
        names = [each.point.code for each in together]
        arguments = _arguments(options.compile_mode, script, step)
        why = "the network is final there, and its forward code runs in one graph"
        if _ANY_LENGTH in arguments:
            why += "; compiled for batches of any length, which can take minutes at the first one"
        code = _code(names, condition, arguments)
        return self.change(
            step.path,
            step.backwards[0].span,
            f"{listed(f'`{name}`' for name in names)} compiled in place{_place(point, step)}",
            why,
            (
                FileEdit(point.module.path, _insertion(point, code)),
                *condition_imports(condition, point.module),
            ),
        )

    def _skip(self, step: StepCode, reason: Fact | str) -> Skip:
        return self.skip(step.path, step.backwards[0].span, _said(reason, step))


def _obstacle(
    script: TrainingScript,
    candidate: _Candidate,
    unfit: Mapping[ast.Call, Fact],
    options: Options,
) -> str | None:
    """What keeps the one network from being compiled."""
    call, network, point = candidate
    if network.node in unfit:
        return f"{_DOUBLE_BACKWARD}{seen_at(unfit[network.node], call)}"
    if isinstance(point, CompileObstacle):
        return _said(point, call)
    made = Made(network.node, network.module, network.cls or External(network.library_name or ""))
    own = library_layer(script.resolver, made)
    if own not in (None, "Module") and options.torch_version < _COMPILES_ITS_OWN:
        version = ".".join(map(str, _COMPILES_ITS_OWN))
        return f"before PyTorch {version} compiling in place does nothing for a network that runs as `torch.nn.{own}` does"
    if _is_free(options) and is_single_layer(script.resolver, network):
        return _SINGLE
    return None


def _parts(script: TrainingScript, together: Iterable[_Final]) -> list[Model]:
    """The networks that were made before those of ``together``, which hold them: ``GaussianDiffusion(unet)``."""
    models = (
        model_of(script.resolver, made)
        for each in together
        for made in parts_given(script.resolver, each.network)
    )
    return [model for model in models if model is not None]


def _compiled_at(found: Sequence[_Candidate], compiled: Container[ast.Call]) -> set[_Named]:
    """The calls of which one network is compiled, by its name above the loop: that is whichever network the name stands for."""
    return {
        named
        for call, network, point in found
        if network.node in compiled and (named := _named_at(call, point)) is not None
    }


def _named_at(call: CallFact, point: CompilePoint | CompileObstacle) -> _Named | None:
    return (call.node, point.code) if isinstance(point, CompilePoint) else None


def _compiled_above(final: Iterable[_Final], network: Model, point: CompilePoint) -> bool:
    """Whether an earlier training loop of the same code has ``network`` compiled already, under the same name."""
    return any(
        other.network.node is network.node
        and other.point.code == point.code
        and other.point.statement in point.module.block(point.statement)
        and other.point.statement.lineno < point.statement.lineno
        for other in final
    )


def _once(final: Iterable[_Final]) -> list[_Final]:
    """``final``, with what a branch trains ahead of a loop, in a warm-up say, compiled above both."""
    found = list(final)
    for first, second in permutations(found, 2):
        is_same = first.network.node is second.network.node
        point = common_point(first.point, second.point) if is_same else None
        if point is not None and first in found and second in found:
            found[found.index(first)] = replace(first, point=point)
            found.remove(second)
    return found


def _insertion(point: CompilePoint, code: str) -> InsertBefore | InsertAfter:
    """Below the statement that ends the set-up, above the comments and blank lines that lead up to the loop."""
    block = point.module.block(point.statement)
    index = block.index(point.statement)
    before = block[index - 1] if index else None
    if before is None or isinstance(
        before, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom
    ):
        return InsertBefore(point.module.span(point.statement), code)
    if isinstance(before, ast.Expr) and isinstance(before.value, ast.Constant):
        return InsertBefore(point.module.span(point.statement), code)
    return InsertAfter(point.module.span(before), code)


def _arguments(mode: CompileMode, script: TrainingScript, step: StepCode) -> str:
    given = [] if mode in _NO_MODE else [f'mode="{mode.value}"']
    if pads_batches(script.resolver, step.loop.loaders):
        given.append(_ANY_LENGTH)
    return ", ".join(given)


def _code(names: Sequence[str], condition: str | None, arguments: str) -> str:
    lines = [f"{name}.compile({arguments})" for name in names]
    if condition is None:
        return "\n".join(lines)
    return "\n".join([f"if {condition}:", *(f"    {line}" for line in lines)])


def _place(point: CompilePoint, step: StepCode) -> str:
    where = "" if point.module is step.module else f" of {point.module.path.name}"
    return f" above the training loop{where}"


def _said(reason: Fact | str, place: Fact) -> str:
    """The reason in words, with the place where it was seen if that is another."""
    if isinstance(reason, str):
        return reason
    match reason:
        case CompileObstacle():
            text = reason.message
        case Obstacle():
            text = f"not as CUDA graphs: {reason.message}"
        case FrameworkUse():
            text = f"{reason.framework} runs the step in its own way"
        case _:
            text = _DOUBLE_BACKWARD
    return f"{text}{seen_at(reason, place, text)}"


def _differentiated_twice(
    script: TrainingScript, steps: Sequence[StepCode], trained: Sequence[Model]
) -> dict[ast.Call, Fact]:
    """The networks that some step differentiates twice, and where: compiled, they would fail there."""
    found: dict[ast.Call, Fact] = {}
    for step in steps:
        place = double_backward(script.resolver, step)
        if place is not None:
            for _, network, _ in compile_candidates(
                script.resolver, step, trained, script.functions_run
            ):
                found.setdefault(network.node, place)
    return found


def _untrained(script: TrainingScript, step: StepCode) -> Fact | str:
    """Why ``step`` has no network that could be compiled."""
    if not script.is_called(step):
        return _UNCALLED
    copy = copy_run(script.resolver, step)
    if copy is not None:
        network = copy.module.code(copy.node.func)
        why = f"`{network}` is a copy of a network, and copies are not compiled"
        return CompileObstacle(copy.module, copy.node, why)
    return "the step calls no network that an optimizer is seen to train"


def _capture_obstacle(
    script: TrainingScript,
    step: StepCode,
    found: Sequence[_Candidate],
    options: Options,
) -> Obstacle | None:
    """What about the networks that ``step`` would compile keeps CUDA graphs from them, where those are asked for."""
    networks = [network for _, network, point in found if isinstance(point, CompilePoint)]
    if not options.compile_mode.captures or not script.targets_cuda(options) or not networks:
        return None
    return capture_obstacle(
        script.resolver, step, networks, script.gradient_clearings, script.functions_run
    )


def _step_refusal(script: TrainingScript, step: StepCode, options: Options) -> Fact | str | None:
    count = provable_steps(script.resolver, step)
    if count is not None and count < FEWEST_STEPS:
        verb = "does" if count == 1 else "do"
        return f"{counted(count, 'step')} {verb} not pay back the time compiling takes"
    return double_backward(script.resolver, step) or _small(script, step, options)


def _is_free(options: Options) -> bool:
    """Whether nobody asks for compiled networks, so that those that gain nothing are left as they are."""
    return options.compile_mode is CompileMode.AUTO and Compile.name not in options.select


def _small(script: TrainingScript, step: StepCode, options: Options) -> str | None:
    """Why compiling is no gain for a network this small, unless it is asked for."""
    if not _is_free(options):
        return None
    small = small_layers(script.resolver, step)
    if small is None or small.layers is None or small.layers > MOST_LAYERS_AS_THEY_ARE:
        return None
    return (
        f"{small}, and there {'is' if small.layers == 1 else 'are'} {small.layers}: calling compiled code costs the host as much as it saves there "
        "(`torchopt tune` tries CUDA graphs)"
    )
