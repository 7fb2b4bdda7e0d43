"""What a training script *is*: the facts every transform reads."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property

from ..options import Options, Target
from .cache_release import CacheRelease, find_cache_releases
from .devices import device_kind, find_devices, mentions_cuda
from .facts import (
    DataLoader,
    DeviceKind,
    DeviceName,
    Loop,
    LoopKind,
    Model,
    Optimizer,
)
from .loaders import find_loaders
from .loops import find_loops
from .models import find_models, find_optimizers, models_in
from .project import Project
from .resolver import Resolver, Values
from .syntax import Module


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
    def loops(self) -> tuple[Loop, ...]:
        return find_loops(self.resolver, self.loaders)

    @cached_property
    def cache_releases(self) -> tuple[CacheRelease, ...]:
        return find_cache_releases(self.resolver, self.loops)

    @cached_property
    def training_loops(self) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.loops if loop.kind is LoopKind.TRAINING)

    @cached_property
    def evaluation_loops(self) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.loops if loop.kind is LoopKind.EVALUATION)

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
        """Whether the rewritten script is meant for a CUDA GPU."""
        if options.target is Target.AUTO:
            return any(mentions_cuda(module) for module in self.modules)
        return options.target is Target.CUDA
