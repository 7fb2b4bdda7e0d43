"""Draws of threads beside the main one: a hand-written prefetcher makes samples while the step draws its dropout.

Torch has one generator for the host. Were it seeded for a sample in another thread, the step would go on with the sample's
numbers. So such a thread has a generator of its own, which is put into whatever it draws.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

FACTORIES = ("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like")
SAMPLERS = ("normal", "bernoulli", "multinomial", "poisson")
FILLS = (
    "bernoulli_",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "normal_",
    "random_",
    "uniform_",
)
_DRAWS = frozenset((*FACTORIES, *SAMPLERS, *FILLS))
_LIKE = {"rand_like": "uniform_", "randn_like": "normal_", "randint_like": "random_"}
"""What fills a new tensor with the numbers of those that not every version of torch gives a generator."""

_own = threading.local()


def host_generator() -> torch.Generator:
    """The generator that this thread draws from."""
    if threading.current_thread() is threading.main_thread():
        return torch.default_generator
    if not hasattr(_own, "generator"):
        _own.generator = torch.Generator()
    return _own.generator


def own_draws() -> AbstractContextManager[object]:
    """Draws of this thread are those of its generator."""
    generator = host_generator()
    return nullcontext() if generator is torch.default_generator else _OwnDraws(generator)


class _OwnDraws(TorchFunctionMode):
    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self._generator = generator

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name not in _DRAWS or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        if name not in _LIKE:
            return func(*args, **{**kwargs, "generator": self._generator})
        bounds = {key: kwargs.pop(key) for key in ("low", "high") if key in kwargs}
        like = args[0] if args else kwargs.pop("input")
        made = torch.empty_like(like, **{k: v for k, v in kwargs.items() if k != "generator"})
        limits = args[1:] or tuple(bounds.values())
        limits = (0, *limits) if len(limits) == 1 else limits
        return getattr(made, _LIKE[name])(*limits, generator=self._generator)
