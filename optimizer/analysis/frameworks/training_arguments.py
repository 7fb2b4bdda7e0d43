"""What a script that trains with the Hugging Face Trainer says: where its ``TrainingArguments`` are made, and its Trainers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..calls.reach import Reached, reached_nodes
from ..calls.signatures import call_argument
from ..devices.devices import is_cuda_flag
from ..facts import Argument, DataLoader, Fact
from ..networks.forward_code import called_names
from ..networks.models import is_module_class, is_module_value
from ..obstacles import Obstacle
from ..precision.half_steps import code_obstacles, script_obstacle
from ..precision.precision import find_precision_uses, imported_packages, runs_in_double
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..training.loops import forward_calls
from ..values.resolver import Resolver
from ..values.values import Class, Made

_ARGUMENTS = frozenset(
    {
        "transformers.TrainingArguments",
        "transformers.training_args.TrainingArguments",
        "transformers.Seq2SeqTrainingArguments",
        "transformers.training_args_seq2seq.Seq2SeqTrainingArguments",
    }
)
_TRAINERS = frozenset(
    {
        "transformers.Trainer",
        "transformers.trainer.Trainer",
        "transformers.Seq2SeqTrainer",
        "transformers.trainer_seq2seq.Seq2SeqTrainer",
    }
)
_PARSERS = frozenset(
    {"transformers.HfArgumentParser", "transformers.hf_argparser.HfArgumentParser"}
)
_CPU_ONLY = ("no_cuda", "use_cpu")
_TRAINING = frozenset({"train", "hyperparameter_search"})
_OWN_STEP = frozenset({"compute_loss", "training_step", "prediction_step", "forward"})
_OWN_OPTIMIZER = frozenset({"create_optimizer", "create_optimizer_and_scheduler"})
_ITERABLE = frozenset(
    {
        "torch.utils.data.IterableDataset",
        "datasets.IterableDataset",
        "datasets.iterable_dataset.IterableDataset",
    }
)


@dataclass(frozen=True, eq=False)
class TrainingArguments(Fact):
    """A call of ``TrainingArguments``; ``opaque`` is what other arguments come through, if anything.

    ``said`` names what it or a later assignment (``args.bf16 = True``) says.
    """

    node: ast.Call
    arguments: Mapping[str, Argument]
    opaque: ast.expr | None
    said: frozenset[str]


class HuggingFaceUse:
    """What a project does with the Trainer of ``transformers``."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    @cached_property
    def _files(self) -> tuple[Module, ...]:
        modules = self._resolver.project.modules
        return tuple(m for m in modules if "transformers" in m.source.text)

    @cached_property
    def arguments(self) -> tuple[TrainingArguments, ...]:
        """The calls that make training arguments, in source order per module."""
        return tuple(
            TrainingArguments(
                module,
                call,
                {k.arg: Argument(k.value, module) for k in call.keywords if k.arg},
                next((k.value for k in call.keywords if k.arg is None), None)
                or next(iter(call.args[1:]), None),
                frozenset({k.arg for k in call.keywords if k.arg} | self._set_later(call)),
            )
            for module in self._files
            for call in module.calls
            if self._resolver.names(call.func, module) & _ARGUMENTS
        )

    def _set_later(self, call: ast.Call) -> set[str]:
        """The attributes that other code gives to what ``call`` makes."""
        return {
            node.attr
            for module in self._files
            for node in module.nodes_of(ast.Attribute)
            if not isinstance(node.ctx, ast.Load)
            and any(
                isinstance(value, Made) and value.call is call
                for value in self._resolver.values(node.value, module)
            )
        }

    def cpu_setting(self, made: TrainingArguments) -> Argument | None:
        """The argument by which ``made`` may keep the training on the CPU of a machine that has a GPU."""
        for name in _CPU_ONLY:
            given = made.arguments.get(name)
            if given is not None and not self._follows_gpu(given):
                return given
        return None

    def _follows_gpu(self, given: Argument) -> bool:
        """Whether ``given`` is False, or true only where there is no GPU: ``not torch.cuda.is_available()``."""
        match given.value:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return is_cuda_flag(self._resolver, operand, given.module)
            case value:
                return self._resolver.is_always(value, given.module, False)

    @cached_property
    def trains(self) -> bool:
        """Whether a Trainer may be asked for more than an evaluation."""
        return any(
            isinstance(call.func, ast.Attribute)
            and call.func.attr in _TRAINING
            and not self._is_network(call.func.value, module)
            for module in self._resolver.project.modules
            for call in module.calls
        )

    def _is_network(self, owner: ast.expr, module: Module) -> bool:
        """Whether ``owner.train()`` can only set the mode of a network."""
        values = self._resolver.values(owner, module)
        return bool(values) and all(is_module_value(self._resolver, value) for value in values)

    @cached_property
    def parsers(self) -> tuple[Fact, ...]:
        """The calls of ``HfArgumentParser`` that read training arguments from the command line."""
        return tuple(
            Fact(module, call)
            for module in self._files
            for call in module.calls
            if self._resolver.names(call.func, module) & _PARSERS
            and any(self._is_arguments_class(node, module) for node in walk(call))
        )

    def _is_arguments_class(self, node: ast.AST, module: Module) -> bool:
        if not isinstance(node, ast.Name | ast.Attribute):
            return False
        for value in self._resolver.values(node, module):
            if isinstance(value, Class) and self._resolver.base_names(value) & _ARGUMENTS:
                return True
        return bool(self._resolver.names(node, module) & _ARGUMENTS)

    @cached_property
    def own_optimizer(self) -> Fact | None:
        """Where a Trainer is given an optimizer, or makes one itself."""
        for module in self._files:
            for call in module.calls:
                optimizers = call_argument(call, "optimizers")
                if optimizers is not None and self._is_trainer(call, module):
                    return Fact(module, optimizers)
        for cls, method in self._methods():
            if method.name in _OWN_OPTIMIZER and self._resolver.base_names(cls) & _TRAINERS:
                return Fact(cls.module, method)
        return None

    @cached_property
    def loaders(self) -> tuple[DataLoader, ...]:
        """The loaders that Trainers make of the datasets they are given; ``node`` is the Trainer's call."""
        return tuple(
            DataLoader(
                module,
                call,
                {"dataset": Argument(dataset, module)}
                | ({"collate_fn": Argument(collator, module)} if collator is not None else {}),
                None,
                (),
            )
            for module in self._files
            for call in module.calls
            if self._is_trainer(call, module)
            for dataset in (
                call_argument(call, "train_dataset", 3),
                call_argument(call, "eval_dataset", 4),
            )
            if dataset is not None
            for collator in (call_argument(call, "data_collator", 2),)
        )

    def _is_trainer(self, call: ast.Call, module: Module) -> bool:
        if self._resolver.names(call.func, module) & _TRAINERS:
            return True
        return any(
            isinstance(value, Class) and self._resolver.base_names(value) & _TRAINERS
            for value in self._resolver.values(call.func, module)
        )

    @cached_property
    def streamed(self) -> Fact | None:
        """Where a dataset is one that can only be gone through: every worker would give all of it."""
        for module in self._resolver.project.modules:
            for call in module.calls:
                streaming = call_argument(call, "streaming")
                off = isinstance(streaming, ast.Constant) and streaming.value is False
                method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
                if (streaming is not None and not off) or method == "to_iterable_dataset":
                    return Fact(module, call)
        for module in self._resolver.project.modules:
            for node in module.nodes:
                if isinstance(node, ast.ClassDef) and (
                    self._resolver.base_names(Class(node, module)) & _ITERABLE
                ):
                    return Fact(module, node)
        return None

    def _methods(self) -> Iterator[tuple[Class, FunctionNode]]:
        for module in self._resolver.project.modules:
            for node in module.nodes:
                if isinstance(node, ast.ClassDef):
                    for method in node.body:
                        if isinstance(method, ast.FunctionDef):
                            yield Class(node, module), method

    def half_precision_obstacle(self, *, float16: bool) -> Obstacle | None:
        """What in the script's own losses and networks, or in the script, does not survive mixed precision in ``float16``, or else bfloat16."""
        resolver = self._resolver
        uses = find_precision_uses(resolver)
        if uses:
            return Obstacle(uses[0].module, uses[0].node, f"{uses[0].what} is in use already")
        double = runs_in_double(resolver)
        if double is not None:
            return Obstacle(double.module, double.node, double.what)
        script = script_obstacle(resolver, imported_packages(resolver.project))
        if script is not None:
            return script
        for cls, method in self._methods():
            if method.name in _OWN_STEP and (
                resolver.base_names(cls) & _TRAINERS or is_module_class(resolver, cls)
            ):
                nodes = list(reached_nodes(resolver, method.body, cls.module, into_forward=True))
                found = [*self._by_hand(nodes), *self._in_code(nodes)]
                found = [obstacle for obstacle in found if obstacle.forbids(float16=float16)]
                if found:
                    return found[0]
        return None

    def _in_code(self, nodes: list[Reached]) -> Iterator[Obstacle]:
        yield from code_obstacles(self._resolver, nodes, forward_calls(self._resolver, nodes))

    def _by_hand(self, nodes: list[Reached]) -> Iterator[Obstacle]:
        for reached in nodes:
            if "torch.autograd.grad" in called_names(self._resolver, reached):
                yield Obstacle(reached.module, reached.node, "gradients are taken by hand")
