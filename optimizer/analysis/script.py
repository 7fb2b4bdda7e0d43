"""What a training script *is*: the facts every transform reads."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..options import Options, Target
from .attention.attention import Attention, find_attention
from .attention.causal_hints import CausalHint, find_causal_hints
from .autograd.frozen_networks import FrozenForward, KeptGradients, find_frozen
from .autograd.graph_leaks import GraphLeak, find_graph_leaks
from .calls.reach import functions_run
from .devices.cache_release import CacheRelease, find_cache_releases
from .devices.computed_moves import ComputedMove, find_computed_moves
from .devices.construction import Construction, find_constructions
from .devices.converted_copies import ConvertedCopy, find_converted_copies
from .devices.devices import device_kind, find_devices, mentions_accelerator, mentions_cuda
from .devices.host_moves import HostMove, find_host_moves
from .devices.joined_constructions import JoinedConstruction, find_joined_constructions
from .devices.tensor_aliases import TensorAlias, find_tensor_aliases
from .evaluation.comprehensions import EvaluatingComprehension, find_evaluating_comprehensions
from .evaluation.evaluation import Inference, Unproven, find_inference
from .evaluation.evaluation_code import find_evaluation_code
from .facts import (
    DataLoader,
    DeviceKind,
    DeviceName,
    Fact,
    Loop,
    LoopKind,
    Model,
    Optimizer,
)
from .frameworks.framework_wrapping import wrapper_of_loader
from .frameworks.lightning import LightningUse
from .frameworks.lightning_losses import KeptLosses, find_kept_losses
from .frameworks.lightning_passes import TrainerRuns
from .frameworks.training_arguments import HuggingFaceUse
from .images.image_batches import ImageBatches, find_image_batches
from .loading.batch_writes import BatchWrite, find_batch_writes
from .loading.batches import BatchCopy, BatchTrace, find_batch_copies
from .loading.datasets import Dataset, find_datasets
from .loading.file_reads import FileReader, find_file_readers
from .loading.iterations import Iteration, find_iterations
from .loading.loaders import find_loaders
from .networks.functional_dropout import FunctionalDropout, find_functional_dropouts
from .networks.inplace_activations import InplaceActivations, find_inplace_activations
from .networks.models import find_models, find_optimizers, models_in
from .networks.network_modes import ModeSlip, find_mode_slips
from .optimizers.gradient_clearing import GradientClearing, find_gradient_clearings
from .optimizers.parameter_loops import ParameterLoop, find_parameter_loops, find_state_dict_loops
from .precision.backend_settings import BackendSetting, find_backend_settings
from .precision.precision import LIGHTNING, FrameworkUse, find_frameworks
from .program.project import Project
from .program.syntax import FunctionNode, Module
from .syncs.deferral_plan import LoopPlan, plan_loops
from .syncs.joint_plans import agreed
from .tensors.tensor_kinds import TensorKinds
from .training.lifetimes import LateRelease, find_late_releases
from .training.loops import find_loops
from .training.phases import with_phases
from .training.profiling import DebuggingAid, StepProfile, find_debugging_aids, find_step_profiles
from .training.seeding import Seeding, find_seeding
from .training.steps import EvaluationCode, StepCode, find_step_code
from .values.resolver import Resolver, Values


@dataclass(frozen=True, eq=False)
class TrainingScript:
    """A script, its first-party modules and what was understood of them.

    Facts are found when first asked for and remembered; the sources behind them do not change. A question about a
    particular expression (``values``, ``device_of``, ``models_of``) is answered by tracing it.
    """

    project: Project
    resolver: Resolver

    @property
    def entry(self) -> Module:
        return self.project.entry

    @property
    def modules(self) -> tuple[Module, ...]:
        return self.project.modules

    @cached_property
    def loaders(self) -> tuple[DataLoader, ...]:
        return find_loaders(self.resolver)

    @cached_property
    def models(self) -> tuple[Model, ...]:
        return find_models(self.resolver)

    @cached_property
    def optimizers(self) -> tuple[Optimizer, ...]:
        return find_optimizers(self.resolver)

    @cached_property
    def devices(self) -> tuple[DeviceName, ...]:
        return find_devices(self.resolver)

    @cached_property
    def backend_settings(self) -> tuple[BackendSetting, ...]:
        return find_backend_settings(self.resolver)

    @cached_property
    def frameworks(self) -> tuple[FrameworkUse, ...]:
        """The uses of frameworks that own the training step, in source order per module."""
        return find_frameworks(self.resolver)

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        found = find_loops(self.resolver, self.loaders)
        return with_phases(self.resolver, self.loaders, found)

    @cached_property
    def constructions(self) -> tuple[Construction, ...]:
        return find_constructions(self.resolver)

    @cached_property
    def joined_constructions(self) -> tuple[JoinedConstruction, ...]:
        return find_joined_constructions(self.resolver)

    @cached_property
    def computed_moves(self) -> tuple[ComputedMove, ...]:
        return find_computed_moves(self.resolver)

    @cached_property
    def host_moves(self) -> tuple[HostMove, ...]:
        return find_host_moves(self.resolver)

    @cached_property
    def tensor_aliases(self) -> tuple[TensorAlias, ...]:
        return find_tensor_aliases(self.resolver)

    @cached_property
    def functional_dropouts(self) -> tuple[FunctionalDropout, ...]:
        return find_functional_dropouts(self.resolver)

    @cached_property
    def attention(self) -> tuple[Attention, ...]:
        """Attention that the script's own code writes out operation by operation."""
        return find_attention(self.resolver)

    @cached_property
    def inplace_activations(self) -> InplaceActivations:
        return find_inplace_activations(self.resolver)

    @cached_property
    def mode_slips(self) -> tuple[ModeSlip, ...]:
        return find_mode_slips(self.resolver, self.loops)

    @cached_property
    def cache_releases(self) -> tuple[CacheRelease, ...]:
        return find_cache_releases(self.resolver, self.loops)

    @cached_property
    def late_releases(self) -> tuple[LateRelease, ...]:
        """The loops that keep a network's results alive while the next pass computes new ones."""
        return find_late_releases(self.resolver, self.loops, self.tensor_kinds)

    @cached_property
    def step_profiles(self) -> tuple[StepProfile, ...]:
        return find_step_profiles(self.resolver, self.loops)

    @cached_property
    def debugging_aids(self) -> tuple[DebuggingAid, ...]:
        return find_debugging_aids(self.resolver)

    @cached_property
    def tensor_kinds(self) -> TensorKinds:
        """Which expressions are tensors on a device, and of what kind."""
        return TensorKinds(self.resolver, BatchTrace(self.resolver, self.loaders))

    @cached_property
    def graph_leaks(self) -> tuple[GraphLeak, ...]:
        """Where sums and lists hold on to the graph of every step."""
        return find_graph_leaks(self.resolver, self.loops, self.tensor_kinds)

    @cached_property
    def causal_hints(self) -> tuple[CausalHint, ...]:
        """Masks that PyTorch's transformers have to look at, and wait for, to find out whether they are causal."""
        return find_causal_hints(self.resolver)

    @cached_property
    def loop_plans(self) -> tuple[LoopPlan, ...]:
        """The loops over steps that ask the device for numbers, and which of these can wait."""
        return agreed(plan_loops(self.resolver, self.loops, self.tensor_kinds))

    @cached_property
    def hugging_face(self) -> HuggingFaceUse:
        return HuggingFaceUse(self.resolver)

    @cached_property
    def lightning(self) -> LightningUse:
        return LightningUse(self.resolver)

    @cached_property
    def kept_losses(self) -> tuple[KeptLosses, ...]:
        """The lists of losses that Lightning's training steps fill with numbers."""
        return tuple(find_kept_losses(self.resolver, self.lightning))

    @cached_property
    def trainer_runs(self) -> TrainerRuns:
        return TrainerRuns(self.resolver, self.lightning, self.loaders)

    @cached_property
    def copying_frameworks(self) -> dict[DataLoader, str]:
        """The frameworks that copy the batches of loaders to a GPU by themselves, where there is one."""
        found = {
            loader: LIGHTNING
            if self.trainer_runs.moves_batches(loader)
            else wrapper_of_loader(self.resolver, loader)
            for loader in self.loaders
        }
        return {loader: framework for loader, framework in found.items() if framework is not None}

    @cached_property
    def gradient_clearings(self) -> tuple[GradientClearing, ...]:
        return find_gradient_clearings(self.resolver)

    @cached_property
    def parameter_loops(self) -> tuple[ParameterLoop, ...]:
        """The loops over parameters that update, average or clip them one by one."""
        return find_parameter_loops(self.resolver)

    @cached_property
    def state_dict_loops(self) -> tuple[Fact, ...]:
        return find_state_dict_loops(self.resolver)

    @cached_property
    def iterations(self) -> tuple[Iteration, ...]:
        by_hand = find_iterations(self.resolver, self.loaders, self.loops)
        return (*by_hand, *self.trainer_runs.all)

    @cached_property
    def batch_copies(self) -> tuple[BatchCopy, ...]:
        return find_batch_copies(self.resolver, self.loaders)

    @cached_property
    def converted_copies(self) -> dict[BatchCopy, ConvertedCopy]:
        return find_converted_copies(self.resolver, self.batch_copies, self.loaders)

    @cached_property
    def batch_writes(self) -> tuple[BatchWrite, ...]:
        return find_batch_writes(self.resolver, self.loaders)

    @cached_property
    def image_batches(self) -> tuple[ImageBatches, ...]:
        """The images that become floats in a dataset's transforms, and where they are copied to the device."""
        return find_image_batches(self.resolver, self.loaders)

    @cached_property
    def datasets(self) -> dict[DataLoader, tuple[Dataset, ...]]:
        """The datasets each loader may read."""
        return {loader: find_datasets(self.resolver, loader) for loader in self.loaders}

    @cached_property
    def file_readers(self) -> tuple[FileReader, ...]:
        """The project's datasets whose items come from files."""
        datasets = [dataset for group in self.datasets.values() for dataset in group]
        return find_file_readers(self.resolver, datasets)

    @cached_property
    def seeding(self) -> Seeding:
        """Which random generators are seeded and drawn from, and what is asked of cuDNN."""
        return find_seeding(self.resolver)

    @cached_property
    def _inference(self) -> tuple[tuple[Inference, ...], tuple[Unproven, ...]]:
        return find_inference(self.resolver, self.loops)

    @property
    def inference(self) -> tuple[Inference, ...]:
        """Code that runs networks with gradients on and is proven not to need them."""
        return self._inference[0]

    @property
    def unproven_evaluation(self) -> tuple[Unproven, ...]:
        """Evaluation loops with gradients on, where that is not proven."""
        return self._inference[1]

    @cached_property
    def _frozen(self) -> tuple[tuple[FrozenForward, ...], tuple[KeptGradients, ...]]:
        if self.frameworks:
            return (), ()
        return find_frozen(
            self.resolver,
            BatchTrace(self.resolver, self.loaders),
            self.models,
            self.optimizers,
            self.loops,
            self.step_code,
        )

    @property
    def frozen_forwards(self) -> tuple[FrozenForward, ...]:
        """Forward passes in training steps of networks that nothing trains, and that need no gradients."""
        return self._frozen[0]

    @property
    def kept_gradients(self) -> tuple[KeptGradients, ...]:
        """Forward passes in training steps of networks that no optimizer is given, where gradients stay on."""
        return self._frozen[1]

    @cached_property
    def _own_loops(self) -> tuple[Loop, ...]:
        """The loops but for those that only an imported file's own start as a script gets to."""
        return tuple(loop for loop in self.loops if not loop.module.leaves_out(loop.node))

    @cached_property
    def training_loops(self) -> tuple[Loop, ...]:
        return tuple(loop for loop in self._own_loops if loop.kind is LoopKind.TRAINING)

    @cached_property
    def evaluation_loops(self) -> tuple[Loop, ...]:
        return tuple(loop for loop in self._own_loops if loop.kind is LoopKind.EVALUATION)

    @cached_property
    def step_code(self) -> tuple[StepCode, ...]:
        return find_step_code(self.resolver, self._own_loops)

    @cached_property
    def evaluation_code(self) -> tuple[EvaluationCode, ...]:
        return find_evaluation_code(self.resolver, self._own_loops)

    @cached_property
    def evaluating_comprehensions(self) -> tuple[EvaluatingComprehension, ...]:
        return tuple(find_evaluating_comprehensions(self.resolver, self.iterations))

    @cached_property
    def functions_run(self) -> frozenset[FunctionNode | ast.Lambda]:
        """The first-party functions that run, as far as can be seen, when the script does."""
        return functions_run(self.resolver, self.entry)

    def runs(self, code: StepCode | EvaluationCode) -> bool:
        """Whether ``code`` is seen to run with the script; in the script's own file it is taken to."""
        return code.module is self.entry or self.is_called(code)

    def may_run(self, node: ast.AST, module: Module) -> bool:
        """Whether ``node`` is not in a function that the script never comes to, as those of other scripts are."""
        function = module.function(node)
        return function is None or function in self.functions_run

    def is_called(self, code: StepCode | EvaluationCode) -> bool:
        """Whether something in the script leads to ``code``: without, only who imports it knows its devices."""
        is_function = isinstance(code.node, ast.FunctionDef | ast.AsyncFunctionDef)
        function = code.node if is_function else code.function
        return function is None or function in self.functions_run

    def is_anothers(self, path: Path, line: int) -> bool:
        """Whether ``line`` is not run by this script: of an imported file, what runs when it is itself started, and what nothing names that runs."""
        for module in self.modules[1:]:
            if module.path != path:
                continue
            for statement in (*module.main_only, *module.tree.body):
                if statement.lineno <= line <= (statement.end_lineno or line) and (
                    self.resolver.started.leaves_out(statement, module)
                    or (statement in module.main_only and not getattr(statement, "orelse", []))
                ):
                    return True
        return False

    def values(self, expression: ast.expr, module: Module) -> Values:
        """What ``expression`` may evaluate to."""
        return self.resolver.values(expression, module)

    def names(self, expression: ast.expr, module: Module) -> frozenset[str]:
        """The library names ``expression`` may stand for, such as ``torch.nn.Linear``."""
        return self.resolver.names(expression, module)

    def models_of(self, expression: ast.expr, module: Module) -> tuple[Model, ...]:
        """The networks ``expression`` may be, seen through parallel and compiled wrappers."""
        return models_in(self.resolver, self.values(expression, module))

    def device_of(self, expression: ast.expr, module: Module) -> DeviceKind:
        """Which device ``expression`` names."""
        return device_kind(self.resolver, expression, module)

    def targets_cuda(self, options: Options) -> bool:
        """Whether the rewritten script is meant for a CUDA GPU: it speaks of one, or its Trainer takes one that it finds."""
        if options.target is Target.AUTO:
            return any(map(mentions_cuda, self.modules)) or self.lightning.may_use_gpu
        return options.target is Target.CUDA

    def is_for_cpu(self, options: Options) -> bool:
        """Whether the rewritten script is meant for a CPU and nothing else: asked for, or no accelerator is in it.

        What a framework runs may find a GPU by itself.
        """
        if options.target is Target.AUTO:
            return not self.frameworks and not any(map(mentions_accelerator, self.modules))
        return options.target is Target.CPU
