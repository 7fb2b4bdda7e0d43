"""The passes that a Lightning Trainer makes over loaders: ``trainer.fit(model, train_loader)``, a data module's loaders.

Lightning takes the loaders from the arguments of ``fit``, ``validate``, ``test`` and ``predict``, or asks a LightningDataModule or the
LightningModule for them, and copies their batches itself, without waiting where they are in pinned memory
(https://lightning.ai/docs/pytorch/stable/data/datamodule.html,
https://github.com/Lightning-AI/pytorch-lightning/blob/master/src/lightning/fabric/utilities/apply_func.py).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..facts import DataLoader, Fact
from ..loading.iterations import Iteration
from ..loading.loaders import loaders_in
from ..program.classes import class_attribute
from ..program.syntax import Module
from ..program.trees import walk
from ..values.composition import call_arguments, composed_of
from ..values.resolver import Resolver
from ..values.values import Class, Function, Made
from .lightning import LightningTrainer, LightningUse, TrainerCall, accelerator, is_lightning_class

_MAKERS: Mapping[str, tuple[str, ...]] = {
    "fit": ("train_dataloader", "val_dataloader"),
    "validate": ("val_dataloader",),
    "test": ("test_dataloader",),
    "predict": ("predict_dataloader",),
}
"""The methods of modules and data modules that each method of a Trainer asks for loaders."""
_PREPARES = frozenset(
    {"__init__", "prepare_data", "setup", *(name for names in _MAKERS.values() for name in names)}
)
_MOVES = frozenset({"transfer_batch_to_device", "on_before_batch_transfer"})
_REMAKES = ("reload_dataloaders_every_n_epochs", "reload_dataloaders_every_epoch")
_DATA = re.compile(r"((train|val|test|predict)_dataloaders?|datamodule)$")
_PART_OF_DATA = re.compile(r"(set|data|sampler|loader|transform)s?$", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class TrainerRun(Iteration):
    """A call that lets one of ``trainers`` go over ``loaders``; ``repeats`` where it goes over the same ones in every epoch."""

    node: ast.Call
    trainers: tuple[LightningTrainer, ...] = ()
    repeats: bool = False


@dataclass(frozen=True, eq=False)
class Hook(Fact):
    """A method that Lightning calls: of a module, a data module or a callback."""

    node: ast.FunctionDef


class TrainerRuns:
    """The runs of a project's Trainers, and what its hooks do with the data meanwhile."""

    def __init__(
        self, resolver: Resolver, use: LightningUse, loaders: tuple[DataLoader, ...]
    ) -> None:
        self._resolver, self._use, self._loaders = resolver, use, loaders

    @cached_property
    def all(self) -> tuple[TrainerRun, ...]:
        """The calls of Trainers that go over a loader, in source order per module."""
        return tuple(
            TrainerRun(
                call.module,
                call.node,
                over,
                trainers=call.trainers,
                repeats=call.method == "fit" and not any(map(self._remakes, call.trainers)),
            )
            for call in (self._use.calls if self._loaders else ())
            if (over := self._gone_over(call))
        )

    def _remakes(self, trainer: LightningTrainer) -> bool:
        """Whether ``trainer`` asks for new loaders in later epochs."""
        given = [trainer.arguments[name] for name in _REMAKES if name in trainer.arguments]
        return any(not self._resolver.is_always(a.value, a.module, 0) for a in given)

    def _gone_over(self, call: TrainerCall) -> tuple[DataLoader, ...]:
        """The loaders that ``call`` is given, or that what it is given makes."""
        found: list[DataLoader] = []
        for argument in call_arguments(call.node):
            values = self._resolver.values(argument, call.module)
            owners = [v.maker for v in values if isinstance(v, Made) and isinstance(v.maker, Class)]
            owners = [cls for cls in owners if is_lightning_class(self._resolver, cls)]
            if not owners:
                found += loaders_in(self._loaders, frozenset(composed_of(self._resolver, values)))
            for owner in owners:
                for name in _MAKERS[call.method]:
                    found += self._returned_by(owner, name)
        return tuple(found)

    def _returned_by(self, owner: Class, name: str) -> tuple[DataLoader, ...]:
        returned = (
            self._resolver.values(node.value, method.module)
            for method in class_attribute(self._resolver, owner, name)
            if isinstance(method, Function)
            for node in walk(method.node)
            if isinstance(node, ast.Return) and node.value is not None
        )
        values = [value for values in returned for value in values]
        return loaders_in(self._loaders, frozenset(composed_of(self._resolver, values)))

    @cached_property
    def _hooks(self) -> Mapping[ast.AST, Hook]:
        """The methods of the project's modules, data modules and callbacks."""
        return {
            method: Hook(module, method)
            for module in self._resolver.project.modules
            for node in module.nodes_of(ast.ClassDef)
            if is_lightning_class(self._resolver, Class(node, module))
            for method in node.body
            if isinstance(method, ast.FunctionDef)
        }

    def over(self, loader: DataLoader) -> list[TrainerRun]:
        return [run for run in self.all if loader in run.loaders]

    def moves_batches(self, loader: DataLoader) -> bool:
        """Whether Lightning copies the batches of ``loader`` to a GPU, where there is one."""
        return any(
            accelerator(self._resolver, t) for run in self.over(loader) for t in run.trainers
        )

    @cached_property
    def always_on_gpu(self) -> bool:
        """Whether every Trainer that goes over a loader uses a GPU and nothing else."""
        found = {accelerator(self._resolver, t) for run in self.all for t in run.trainers}
        return found == {"gpu"}

    @cached_property
    def batch_hook(self) -> Hook | None:
        """A hook that may copy or change batches before Lightning copies them."""
        return next((hook for hook in self._hooks.values() if hook.node.name in _MOVES), None)

    def makes_data(self, change: Fact) -> bool:
        """Whether ``change`` stands in a method that Lightning calls before it goes over the loaders."""
        hook = self._hooks.get(change.function) if change.function is not None else None
        return hook is not None and hook.node.name in _PREPARES

    def change_under_way(self, loader: DataLoader, changes: Iterable[Fact]) -> Fact | None:
        """What may change the dataset of ``loader`` while a Trainer goes over it: one of ``changes``, or a hook."""
        runs = self.over(loader)
        if not runs:
            return None
        beside = {run.function for run in runs}
        for change in changes:
            if change.function not in beside:
                return change
        return self._use_of_data

    @cached_property
    def _use_of_data(self) -> Fact | None:
        """Where the datasets of a Trainer may be changed through it: ``self.trainer.train_dataloader.dataset.epoch = 3``."""
        for module in self._resolver.project.modules:
            for node in module.nodes_of(ast.Attribute):
                if _DATA.match(node.attr) and _is_trainer(node.value):
                    whole = _whole_chain(node, module)
                    if not _only_reads(whole, module):
                        return Fact(module, whole)
        return None


def _is_trainer(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name == "trainer"
        case _:
            return False


def _whole_chain(node: ast.Attribute, module: Module) -> ast.expr:
    """``self.trainer.datamodule.train_set.epoch`` of its part ``self.trainer.datamodule``."""
    chain: ast.expr = node
    while isinstance(parent := module.parents[chain], ast.Attribute | ast.Subscript) and (
        parent.value is chain
    ):
        chain = parent
    return chain


def _only_reads(chain: ast.expr, module: Module) -> bool:
    """Whether ``chain`` gives a number or a length, and nothing that could be changed."""
    parent = module.parents[chain]
    match parent:
        case ast.Call(func=ast.Name(id="len")):
            return True
        case ast.Call(func=func) if func is chain:
            return False
        case _:
            pass
    last = chain.attr if isinstance(chain, ast.Attribute) else ""
    is_loaded = isinstance(chain, ast.Attribute) and isinstance(chain.ctx, ast.Load)
    return is_loaded and not _DATA.match(last) and not _PART_OF_DATA.search(last)
