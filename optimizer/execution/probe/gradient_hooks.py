"""The hooks on torch that tell a :class:`Session` of gradients: what they are taken of, and for what."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import eager_transforms
from torch.utils._pytree import tree_leaves

from .devices import is_capturing
from .leaves import among_leaves, leaves_of
from .patches import Patches
from .session import Session
from .transformations import only_mapping, stacked, tell, transforming, unwrapped

_UNSCALED = "_torchopt_unscaled"
is_tracing: Callable[[], bool] = vars(torch.jit)["is_tracing"]


class GradientHooks:
    """Tells ``session`` of gradients; of those that are not taken by ``backward``, and of scaling, when it is ``observing``."""

    def __init__(self, session: Session, *, observing: bool) -> None:
        self._session, self._observing = session, observing
        self._in_backward = False
        self._scale: Tensor | None = None

    def install(self, patches: Patches) -> None:
        """Hook what takes gradients, and what scales the losses that they are taken of."""
        patches.wrap(torch.autograd, "backward", self._backward)
        if self._observing:
            patches.wrap(torch.autograd, "grad", self._grad)
            patches.wrap(eager_transforms, "grad_and_value_impl", self._func_gradients)
            for scaler in grad_scalers():
                patches.wrap(scaler, "scale", self._scaler_scale)

    def _scaler_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(scaler, outputs):
            scaled = original(scaler, outputs)
            if scaler.is_enabled() and isinstance(scaled, Tensor) and scaler._scale is not None:
                self._scale = scaler._scale.detach().clone()
                self._session.loss_scaled()
                setattr(scaled, _UNSCALED, outputs)
            return scaled

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

        What ``vmap`` takes for many samples has the losses of all; it is a step of a script that works by hand where
        each of the many has weights of its own, as the networks of an ensemble have.
        """

        @functools.wraps(original)
        def wrapper(func, argnums, has_aux, args, kwargs):
            places = (argnums,) if isinstance(argnums, int) else argnums
            taken = tree_leaves([args[place] for place in places])
            by_hand = self._session.by_hand()
            of_all = stacked if by_hand else unwrapped
            parts = [of_all(leaf) for leaf in taken if isinstance(leaf, Tensor)]
            leaves = [leaf for leaf in parts if leaf is not None]
            told = not transforming() or (only_mapping() and len(leaves) == len(parts))
            if not told or not self._session.trains(leaves):
                return original(func, argnums, has_aux, args, kwargs)
            tell(self._session.gradients_begin, leaves if by_hand else ())
            gradients, value = original(func, argnums, has_aux, args, kwargs)
            backward = functools.partial(self._session.backward, taken=True)
            tell(backward, value[0] if has_aux else value, None, None)
            if by_hand:
                of_leaves = [of_all(gradient) for gradient in tree_leaves(gradients)]
                tell(self._session.gradients_end, leaves, of_leaves)
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


def _is_traced(outputs: Any) -> bool:
    """Whether torch is taking gradients to trace or transform a function, not to train."""
    if torch.compiler.is_compiling() or is_tracing() or is_capturing():
        return True
    return any(type(t) not in (Tensor, nn.Parameter) for t in _several(outputs))


def _several(tensors: Any) -> tuple[Any, ...]:
    return (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)


def grad_scalers() -> list[type]:
    """The GradScaler classes with methods of their own; before torch 2.3 there was only CUDA's."""
    candidates = [getattr(torch.amp, "GradScaler", None), torch.cuda.amp.GradScaler]
    return [one for one in candidates if one is not None and "scale" in vars(one)]
