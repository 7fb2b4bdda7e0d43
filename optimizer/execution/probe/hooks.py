"""The hooks on torch that tell a :class:`Session` what happens."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
import pickle
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .compiled_calls import CompiledCalls
from .devices import is_capturing
from .direct_calls import DirectCalls
from .elsewhere import after_fork, leave_to_itself
from .gradient_hooks import GradientHooks, grad_scalers, is_tracing
from .names import label_roots, root_modules
from .patches import Patches
from .randomness import is_isolated
from .session import Session
from .session_calls import calls_of, leave_to_python, untraced
from .symbolic import in_backend
from .transformations import tell
from .variables import is_library

_COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "gather",
    "gather_object",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
)
_LAYERS = "torch.nn."
"""Of what SyncBatchNorm exchanges in every step, the script knows nothing."""
_PASS = "_torchopt_pass"


class Hooks:
    """Installs hooks for ``session``: those that count and time always, the others when it observes."""

    def __init__(self, session: Session, patches: Patches) -> None:
        self._session = calls_of(session)
        self._observing, self._folder = session.observing, session.folder
        self._parts = (
            session.schedulers,
            session.clipping,
            session.function_settings,
            session.padding,
            session.saves.moves,
            session.reading.shuffles,
            session.permutations,
            session.saves.pickled,
        )
        self._patches = patches
        self._iterators: WeakSet[Any] = WeakSet()
        self._in_module = threading.local()
        self._direct_calls = DirectCalls(self._called, patches)
        self._compiled_calls = CompiledCalls(self._called, session.module_starts)
        self._gradient_hooks = GradientHooks(self._session, observing=self._observing)
        self._in_dump, self._pickled = False, session.saves.pickled
        self._starting: dict[str, Any] | None = None
        self._hooked_steps = 0
        self.had_workers = False

    def install(self) -> None:
        """Hook everything the session wants to hear of."""
        wrap = self._patches.wrap
        wrap(Optimizer, "__init__", self._optimizer_init)
        wrap(DataLoader, "__iter__", self._loader_iter)
        wrap(_BaseDataLoaderIter, "__next__", self._loader_next)
        wrap(nn.Module, "eval", self._eval)
        self._gradient_hooks.install(self._patches)
        for scaler in grad_scalers():
            wrap(scaler, "step", self._scaler_step)
        if self._observing:
            wrap(nn.Module, "__call__", self._module_call)
            wrap(torch, "save", self._save)
            wrap(pickle, "dump", self._dump)
            self._direct_calls.install()
            for name in _COLLECTIVES if torch.distributed.is_available() else ():
                wrap(torch.distributed, name, self._collective)
            wrap(torch.autocast, "__enter__", self._autocast_enter)
            wrap(_BaseDataLoaderIter, "_next_index", self._next_index)
            for part in self._parts:
                part.install(self._patches)
            self._session.hear_of_loading(self._patches)
        # This imports Dynamo, which must find Module.__call__ replaced: it takes what it finds for torch's own.
        leave_to_python(self._session)
        if self._observing:
            self._compiled_calls.install(self._patches)
        for handle in (
            register_optimizer_step_pre_hook(untraced(self._step_begins)),
            register_optimizer_step_post_hook(untraced(self._step_ends)),
        ):
            self._patches.on_undo(handle.remove)
        after_fork(self._forked)

    def _forked(self) -> None:
        leave_to_itself(self._session, self._folder)

    def shut_down_workers(self) -> None:
        """End the worker processes of every loader that is still being iterated."""
        for iterator in list(self._iterators):
            shut_down = getattr(iterator, "_shutdown_workers", None)
            if shut_down is not None:
                shut_down()

    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """The arguments of the step, or None for those that it was given."""
        self._hooked_steps += 1
        if is_capturing():
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        self._session.step_begins(optimizer, closure is not None)
        if closure is None or not self._observing:
            return None

        def noted() -> Any:
            loss = closure()
            self._session.evaluated(optimizer)
            return loss

        if len(args) > 1:
            return (args[0], noted, *args[2:]), kwargs
        return args, {**kwargs, "closure": noted}

    def _step_ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not is_capturing():
            self._session.step_ends(optimizer)

    def _optimizer_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(optimizer, *args, **kwargs):
            original(optimizer, *args, **kwargs)
            self._session.optimizer_built(optimizer)
            if self._observing:
                trained = [p for group in optimizer.param_groups for p in group["params"]]
                held = label_roots(trained, root_modules())
                self._direct_calls.watch(root for root, _ in held)

        return wrapper

    def _scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(scaler, optimizer, *args, **kwargs):
            before = self._hooked_steps
            self._session.scaler_steps(True)
            try:
                result = original(scaler, optimizer, *args, **kwargs)
            finally:
                self._session.scaler_steps(False)
            if self._hooked_steps == before:  # Inf or NaN gradients: the optimizer was not asked
                self._session.step_begins(optimizer, False)
                self._session.step_ends(optimizer, skipped=True)
            return result

        return wrapper

    def _loader_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(loader):
            noted = self._session.pass_begins(loader)
            start = time.perf_counter()
            outer, self._starting = self._starting, noted
            try:
                iterator = original(loader)
            finally:
                self._starting = outer
            self._session.waited(time.perf_counter() - start)
            setattr(iterator, _PASS, noted)
            self._iterators.add(iterator)
            self.had_workers = self.had_workers or loader.num_workers > 0
            return iterator

        return wrapper

    def _eval(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(module):
            if not torch.compiler.is_compiling():
                self._session.evaluates()
            return original(module)

        return wrapper

    def _next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(iterator):
            # Workers are given their first indices while the iterator is still being made.
            noted = self._starting or iterator.__dict__.get(_PASS)
            index = original(iterator)
            if noted is not None:
                self._session.asked_for(noted, index, iterator._auto_collation)
            return index

        return wrapper

    def _loader_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(iterator):
            self._session.check()
            noted = iterator.__dict__.get(_PASS)
            start = time.perf_counter()
            try:
                batch = original(iterator)
            except StopIteration:
                if noted is not None:
                    noted["finished"] = True
                raise
            finally:
                self._session.waited(time.perf_counter() - start)
            if noted is not None:
                self._session.got_batch(noted, batch)
            return batch

        return wrapper

    def _module_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        # Not torch's global forward hooks: those would be traced into every compiled module.
        hooks = self

        # The profiler (`with_stack=True`) asks the local variable `self` of `Module.__call__` for a module's parameters.
        @functools.wraps(original)
        def wrapper(self, *args, **kwargs):
            if torch.compiler.is_compiling():
                return hooks._compiled_calls.make(self, original, args, kwargs)
            return hooks._called(self, original, args, kwargs)

        return wrapper

    def _called(
        self,
        module: nn.Module,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Make a call of ``module`` that is told to the session, unless another one makes it."""
        if getattr(self._in_module, "yes", False):
            return self._called_inside(module, original, args, kwargs)
        if (
            is_tracing()
            or is_capturing()
            or any(isinstance(arg, torch.fx.Proxy) for arg in args)
            or in_backend()
            or getattr(module, "_is_replica", False)
            or _is_transform(module)
        ):
            return original(module, *args, **kwargs)
        self._in_module.yes = self._compiled_calls.told = True
        try:
            tell(self._session.call_begins, module, (args, kwargs))
            output = original(module, *args, **kwargs)
        finally:
            self._in_module.yes = self._compiled_calls.told = False
        tell(self._session.call_ends, module, (args, kwargs), output)
        return output

    def _called_inside(
        self,
        module: nn.Module,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Make a call inside of one that is told; its ``forward``, where that is watched too, is the same call."""
        outer = getattr(self._in_module, "layer", None)
        if outer is module:
            return original(module, *args, **kwargs)
        self._in_module.layer = module
        try:
            output = original(module, *args, **kwargs)
        finally:
            self._in_module.layer = outer
        tell(self._session.layer_called, module, output)
        return output

    def _autocast_enter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(region):
            if region._enabled:
                self._session.computes_in(region.fast_dtype)
            return original(region)

        return wrapper

    def _collective(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            if not sys._getframe(1).f_globals.get("__name__", "").startswith(_LAYERS):
                self._session.communicates()
            return original(*args, **kwargs)

        return wrapper

    def _dump(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What the script pickles; what libraries do is a matter of theirs."""

        @functools.wraps(original)
        def wrapper(obj, file, *args, **kwargs):
            if is_library(sys._getframe(1).f_code.co_filename):
                return original(obj, file, *args, **kwargs)
            self._session.saved(obj, file)
            self._in_dump = True
            try:
                return original(obj, file, *args, **kwargs)
            finally:
                self._in_dump = False

        return wrapper

    def _save(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(obj, f, *args, **kwargs):
            if not (
                self._in_dump or self._pickled.at_work
            ):  # which saves the storage of each tensor
                self._session.saved(obj, f)
            return original(obj, f, *args, **kwargs)

        return wrapper


def _is_transform(module: nn.Module) -> bool:
    """Whether ``module`` is called to make a sample, and holds nothing that could be trained: an augmentation, seen in no worker process."""
    held = (*module.parameters(), *module.buffers()) if is_isolated() else (module,)
    return not held
