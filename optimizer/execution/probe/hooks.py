"""The hooks on torch that tell a :class:`Session` what happens."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
import pickle
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch._functorch import eager_transforms
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .compiled_calls import CompiledCalls
from .devices import is_capturing
from .direct_calls import DirectCalls
from .elsewhere import Elsewhere, after_fork
from .leaves import among_leaves, leaves_of
from .names import label_roots
from .patches import Patches
from .session import Session
from .transformations import only_mapping, tell, transforming, unwrapped
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
_PASS = "_torchopt_pass"
_UNSCALED = "_torchopt_unscaled"


class Hooks:
    """Installs hooks for ``session``: those that count and time always, the others when it observes."""

    def __init__(self, session: Session, patches: Patches) -> None:
        self._session = session
        self._observing, self._folder = session.observing, session.folder
        self._patches = patches
        self._iterators: WeakSet[Any] = WeakSet()
        self._in_module = threading.local()
        self._direct_calls = DirectCalls(self._called, patches)
        self._compiled_calls = CompiledCalls(self._called)
        self._in_backward = self._in_dump = False
        self._scale: Tensor | None = None
        self._starting: dict[str, Any] | None = None
        self._hooked_steps = 0
        self.had_workers = False

    def install(self) -> None:
        """Hook everything the session wants to hear of."""
        wrap = self._patches.wrap
        wrap(Optimizer, "__init__", self._optimizer_init)
        wrap(DataLoader, "__iter__", self._loader_iter)
        wrap(_BaseDataLoaderIter, "__next__", self._loader_next)
        wrap(torch.autograd, "backward", self._backward)
        wrap(nn.Module, "eval", self._eval)
        for scaler in grad_scalers():
            wrap(scaler, "step", self._scaler_step)
            if self._observing:
                wrap(scaler, "scale", self._scaler_scale)
        if self._observing:
            wrap(nn.Module, "__call__", self._module_call)
            wrap(torch, "save", self._save)
            wrap(pickle, "dump", self._dump)
            self._direct_calls.install()
            for name in _COLLECTIVES if torch.distributed.is_available() else ():
                wrap(torch.distributed, name, self._collective)
            wrap(torch.autocast, "__enter__", self._autocast_enter)
            wrap(torch.autograd, "grad", self._grad)
            wrap(eager_transforms, "grad_and_value_impl", self._func_gradients)
            wrap(_BaseDataLoaderIter, "_next_index", self._next_index)
            self._session.schedulers.install(self._patches)
            self._session.clipping.install(self._patches)
            self._session.moves.install(self._patches)
            self._session.reading.shuffles.install(self._patches)
            self._session.permutations.install(self._patches)
            self._session.hear_of_loading(self._patches)
        # This imports Dynamo, which must find Module.__call__ replaced: it takes what it finds for torch's own.
        self._session = _untraced(self._session)
        if self._observing:
            self._compiled_calls.install(self._patches)
        for handle in (
            register_optimizer_step_pre_hook(_disabled(self._step_begins)),
            register_optimizer_step_post_hook(_disabled(self._step_ends)),
        ):
            self._patches.on_undo(handle.remove)
        after_fork(self._forked)

    def _forked(self) -> None:
        self._session = cast("Session", Elsewhere(self._folder))

    def shut_down_workers(self) -> None:
        """End the worker processes of every loader that is still being iterated."""
        for iterator in list(self._iterators):
            shut_down = getattr(iterator, "_shutdown_workers", None)
            if shut_down is not None:
                shut_down()

    def _step_begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._hooked_steps += 1
        if is_capturing():
            return
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        self._session.step_begins(optimizer, closure is not None)

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
                self._direct_calls.watch(root for root, _ in label_roots(trained))

        return wrapper

    def _scaler_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(scaler, outputs):
            scaled = original(scaler, outputs)
            if scaler.is_enabled() and isinstance(scaled, Tensor) and scaler._scale is not None:
                self._scale = scaler._scale.detach().clone()
                setattr(scaled, _UNSCALED, outputs)
            return scaled

        return wrapper

    def _scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(scaler, optimizer, *args, **kwargs):
            before = self._hooked_steps
            result = original(scaler, optimizer, *args, **kwargs)
            if self._hooked_steps == before:  # Inf or NaN gradients: the optimizer was not asked
                self._session.step_begins(optimizer, False)
                self._session.step_ends(optimizer, skipped=True)
            return result

        return wrapper

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(tensors, grad_tensors=None, *args, **kwargs):
            # Activation checkpointing calls backward inside of backward.
            inside = self._in_backward or is_capturing()
            if inside or not isinstance(tensors, (Tensor, list, tuple)):
                return original(tensors, grad_tensors, *args, **kwargs)
            leaves = self._leaves(tensors, kwargs.get("inputs"))
            self._announce_backward(tensors, grad_tensors, leaves)
            self._in_backward = True
            try:
                result = original(tensors, grad_tensors, *args, **kwargs)
            finally:
                self._in_backward = False
            self._session.gradients_end(leaves)
            return result

        return wrapper

    def _grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Gradients taken by hand; not those that a loss is made of, nor what torch itself does to trace.

        Nor those of inputs, for an adversarial example or a sampler: what they are taken of is no loss of a step.
        """

        @functools.wraps(original)
        def wrapper(outputs, inputs, grad_outputs=None, *args, **kwargs):
            created = kwargs.get("create_graph", args[1] if len(args) > 1 else False)
            if created or self._in_backward or _is_traced(outputs):
                return original(outputs, inputs, grad_outputs, *args, **kwargs)
            inputs = inputs if isinstance(inputs, Tensor) else tuple(inputs)
            if self._are_data(_several(inputs)):
                return original(outputs, inputs, grad_outputs, *args, **kwargs)
            leaves = self._leaves(outputs, inputs)
            self._announce_backward(outputs, grad_outputs, leaves, taken=True)
            result = original(outputs, inputs, grad_outputs, *args, **kwargs)
            by_input = dict(zip(map(id, _several(inputs)), result, strict=True))
            self._session.gradients_end(leaves, [by_input[id(leaf)] for leaf in leaves])
            return result

        return wrapper

    def _are_data(self, tensors: Sequence[Tensor]) -> bool:
        """Whether nothing was computed for ``tensors``, and no optimizer trains them."""
        return all(tensor.is_leaf for tensor in tensors) and not self._session.trains(tensors)

    def _func_gradients(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Gradients taken by ``torch.func``, other than those that another one differentiates.

        What ``vmap`` takes for many samples has the losses of all; it is no step of a script that works by hand.
        """

        @functools.wraps(original)
        def wrapper(func, argnums, has_aux, args, kwargs):
            places = (argnums,) if isinstance(argnums, int) else argnums
            taken = [args[place] for place in places]
            leaves = [unwrapped(leaf) for leaf in tree_leaves(taken) if isinstance(leaf, Tensor)]
            by_hand = self._session.by_hand()
            told = not transforming() or (only_mapping() and not by_hand)
            if not told or not self._session.trains(leaves):
                return original(func, argnums, has_aux, args, kwargs)
            self._session.gradients_begin(leaves if by_hand else ())
            gradients, value = original(func, argnums, has_aux, args, kwargs)
            backward = functools.partial(self._session.backward, taken=True)
            tell(backward, value[0] if has_aux else value, None, None)
            self._session.gradients_end(leaves, tree_leaves(gradients))
            return gradients, value

        return wrapper

    def _leaves(self, outputs: Any, inputs: Any) -> list[Tensor]:
        """What gradients are about to be taken for, where that is not known from an optimizer."""
        if not (self._observing and self._session.by_hand()):
            return []
        return among_leaves(leaves_of(_several(outputs)) if inputs is None else _several(inputs))

    def _announce_backward(
        self, tensors: Any, grad_tensors: Any, leaves: list[Tensor], *, taken: bool = False
    ) -> None:
        self._session.gradients_begin(leaves)
        tensors = _several(tensors)
        gradients = (
            (grad_tensors,) if isinstance(grad_tensors, Tensor) else tuple(grad_tensors or ())
        )
        gradients += (None,) * (len(tensors) - len(gradients))
        scale, self._scale = self._scale, None
        for tensor, gradient in zip(tensors, gradients, strict=False):
            unscaled = getattr(tensor, _UNSCALED, None)
            if unscaled is None:
                # What was computed from a scaled loss carries its factor on.
                self._session.backward(tensor, gradient, scale, taken=taken)
            else:
                self._session.backward(unscaled, gradient, None, taken=taken)

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
            _is_tracing()
            or is_capturing()
            or any(isinstance(arg, torch.fx.Proxy) for arg in args)
            or getattr(module, "_is_replica", False)
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
            if not self._in_dump:  # which saves the storage of each tensor
                self._session.saved(obj, f)
            return original(obj, f, *args, **kwargs)

        return wrapper


def _untraced(session: Session) -> Session:
    """``session`` with methods that Dynamo, where it compiles a whole training step, leaves to Python."""
    methods = [name for name in vars(Session) if not name.startswith("_")]
    return cast(
        Session, SimpleNamespace(**{name: _disabled(getattr(session, name)) for name in methods})
    )


def _is_traced(outputs: Any) -> bool:
    """Whether torch is taking gradients to trace or transform a function, not to train."""
    if torch.compiler.is_compiling() or _is_tracing() or is_capturing():
        return True
    return any(type(t) not in (Tensor, nn.Parameter) for t in _several(outputs))


def _several(tensors: Any) -> tuple[Any, ...]:
    return (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)


def _disabled(function: Callable[..., Any]) -> Callable[..., Any]:
    return cast("Callable[..., Any]", torch.compiler.disable(function))


_is_tracing: Callable[[], bool] = vars(torch.jit)["is_tracing"]


def grad_scalers() -> list[type]:
    """The GradScaler classes with methods of their own; before torch 2.3 there was only CUDA's."""
    candidates = [getattr(torch.amp, "GradScaler", None), torch.cuda.amp.GradScaler]
    return [one for one in candidates if one is not None and "scale" in vars(one)]
