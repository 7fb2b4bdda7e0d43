"""Where a script clips gradients, and whether any was so large: of a limit that none comes to, nothing else would show."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad

from .devices import is_capturing
from .patches import Patches
from .rounds import Rounds

_NOT_ZERO = 1e-6
"""What torch adds to a norm that it divides by."""


class Clipping:
    """Notes every call of torch's functions that clip gradients, or clamp the gradient of one of the ``parameters`` by itself.

    ``losses`` is of how many these are made by then.
    """

    def __init__(
        self,
        rounds: Rounds,
        losses: Callable[[], int],
        parameters: Callable[[], Iterable[Tensor]] = tuple,
    ) -> None:
        self._rounds, self._losses, self._parameters = rounds, losses, parameters
        self._inside = False
        self._noted: list[dict[str, Any]] = []
        self._before_a_step = 0
        self.last: tuple[str, Any, float | None, Any, int] | None = None

    def install(self, patches: Patches) -> None:
        """Patch them in both places that scripts take them from."""
        for owner in (nn.utils, clip_grad):
            patches.wrap(owner, "clip_grad_norm_", self._by_norm)
            patches.wrap(owner, "clip_grad_value_", self._by_value)
            if hasattr(owner, "clip_grads_with_norm_"):  # since torch 2.6
                patches.wrap(owner, "clip_grads_with_norm_", self._by_known_norm)
        for name in ("clamp_", "clip_"):
            patches.wrap(Tensor, name, self._by_hand)

    def _by_norm(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(parameters, max_norm, norm_type=2.0, *args, **kwargs):
            parameters = _listed(parameters)
            total = original(parameters, max_norm, norm_type, *args, **kwargs)
            self._note("norm", max_norm, float(norm_type), total, parameters)
            return total

        return wrapper

    def _by_known_norm(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(parameters, max_norm, total_norm, *args, **kwargs):
            parameters = _listed(parameters)
            original(parameters, max_norm, total_norm, *args, **kwargs)
            self._note("norm", max_norm, None, total_norm, parameters)

        return wrapper

    def _by_value(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrapper(parameters, clip_value, *args, **kwargs):
            parameters = _listed(parameters)
            if not is_capturing():
                self._note("value", clip_value, None, _largest(parameters), parameters)
            outside, self._inside = self._inside, True
            try:
                return original(parameters, clip_value, *args, **kwargs)
            finally:
                self._inside = outside

        return wrapper

    def _by_hand(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Of ``p.grad.data.clamp_(-1, 1)``, which clips one gradient."""

        @functools.wraps(original)
        def wrapper(tensor, *args, **kwargs):
            limit = _limit(*args, **kwargs)
            if limit is not None and not self._inside and not torch.compiler.is_compiling():
                found = [p for p in self._parameters() if _is_gradient_of(p, tensor)][:1]
                if found and not is_capturing():
                    self._note("value", limit, None, _largest(found), found)
            return original(tensor, *args, **kwargs)

        return wrapper

    def _note(
        self,
        by: str,
        limit: Any,
        norm_type: float | None,
        size: Any,
        parameters: Sequence[Tensor],
    ) -> None:
        if is_capturing():
            return
        clipped = [p for p in parameters if p.grad is not None]
        if not clipped:
            return  # before there are any, say: nothing is clipped, whatever the gradients turn out to be
        elements = sum(p.numel() for p in clipped)
        # Where this is compiled, it is set anew whenever the compiled code has run, with a size of then.
        self.last = (by, limit, norm_type, size, elements)
        if not torch.compiler.is_compiling():
            self.note_last()

    def note_last(self) -> None:
        """Note the last call that is not noted yet: a step begins."""
        if self.last is None:
            return
        by, limit, norm_type, size, elements = self.last
        self.last = None
        if isinstance(size, Tensor):
            size = size.detach().clone()  # a script may do what it likes with the norm it is given
            above = size + _NOT_ZERO > limit
        else:
            above = size > limit
        noted = {"by": by, "limit": limit, "norm_type": norm_type, "acts": above, "size": size}
        now = {"rounds": self._rounds.begun, "losses": self._losses()}
        self._noted.append({**noted, **now, "elements": elements})

    def step_begins(self, finished: int) -> None:
        """A step begins in the round behind ``finished`` ones: what was clipped since the last step is clipped for it.

        Optimizers that step in one round may clip between their steps, or before all of them.
        """
        self.note_last()
        for one in self._noted[self._before_a_step :]:
            one["rounds"] = finished
        self._before_a_step = len(self._noted)

    def finish(self) -> dict[str, Any]:
        """What the record says of them."""
        return {
            "clips": [
                {
                    **one,
                    "limit": float(one["limit"]),
                    "acts": bool(one["acts"]),
                    "size": float(one["size"]),
                }
                for one in self._noted
            ]
        }


def _limit(
    min: Any = None,
    max: Any = None,
) -> float | None:
    """The limit of a clamp to as much on both sides of zero; None of any other."""
    if isinstance(min, int | float) and isinstance(max, int | float) and -min == max >= 0:
        return float(max)
    return None


def _is_gradient_of(parameter: Tensor, tensor: Tensor) -> bool:
    """Whether ``tensor`` is the gradient of ``parameter``, or ``.data`` of it."""
    gradient = parameter.grad
    if gradient is None or gradient.is_sparse or tensor.is_sparse:
        return gradient is tensor
    if gradient.shape != tensor.shape:
        return False
    try:
        return gradient.data_ptr() == tensor.data_ptr()
    except RuntimeError:  # one of torch.func's has no memory
        return False


def _listed(parameters: Any) -> Sequence[Tensor]:
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)


@torch.no_grad()
def _largest(parameters: Sequence[Tensor]) -> Tensor | float:
    """The largest element of their gradients, without its sign."""
    gradients = [p.grad for p in parameters if p.grad is not None and p.grad.numel()]
    sizes = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    largest = [size.abs().amax() for size in sizes if size.numel()]
    return torch.stack([one.to(largest[0]) for one in largest]).amax() if largest else 0.0
