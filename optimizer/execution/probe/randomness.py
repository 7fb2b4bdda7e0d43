"""Make random draws depend on what they are for, not on where and when they happen.

Each draw belongs to a purpose (the permutation of an epoch, a sample, a step), and the generators are seeded by the
run's seed and that purpose. So a rewrite that moves draws into workers, or to another device, draws the same numbers.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
import hashlib
import math
import random
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from .functions import Functions
from .patches import Patches
from .symbolic import in_backend
from .thread_draws import FACTORIES, FILLS, SAMPLERS, host_generator, own_draws


def derive(*purpose: object) -> int:
    """A seed of 62 bits for ``purpose``."""
    return (
        int.from_bytes(hashlib.blake2b(repr(purpose).encode(), digest_size=8).digest(), "big") >> 2
    )


def permutation_seed(seed: int, number: int) -> int:
    """What the permutation of a pass is drawn from, by the number of the pass, in a run with ``seed``."""
    return derive(seed, "permutation", number)


def seed_host(seed: int) -> None:
    """Seed torch's CPU generator (this thread's, beside the main one), numpy's and Python's global ones."""
    host_generator().manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        numpy.random.seed(seed % 2**32)


def seed_everything(seed: int) -> None:
    """Seed the generators of the host and of every device."""
    seed_host(seed)
    torch.manual_seed(seed)


def seed_start(seed: int) -> None:
    """Seed all generators for a process of a run with ``seed``, as nothing has drawn yet.

    Not by that number, which the script may choose itself: nobody would see that it no longer does.
    """
    seed_everything(derive(seed, "start"))


def device_generators() -> Sequence[torch.Generator]:
    """The generators of the devices in use."""
    return torch.cuda.default_generators if torch.cuda.is_initialized() else ()


class States:
    """The states of the host's global generators and of ``others``, to come back to."""

    def __init__(self, others: Sequence[torch.Generator] = ()) -> None:
        self._others = [(generator, generator.get_state()) for generator in others]
        self._torch = host_generator().get_state()
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if hasattr(numpy, "random") else None  # pyright: ignore

    def __eq__(self, other: object) -> bool:
        """Whether the same generators would draw the same."""
        if not isinstance(other, States):
            return NotImplemented
        return self._bits() == other._bits()

    def _bits(self) -> tuple[object, ...]:
        tensors = [state for _, state in self._others] + [self._torch]
        numpy = None
        if self._numpy is not None:
            name, keys, *rest = self._numpy
            numpy = (name, keys.tobytes(), *rest)
        return (*(t.numpy().tobytes() for t in tensors), self._python, numpy)

    def restore(self) -> None:
        """Set the generators back."""
        for generator, state in self._others:
            generator.set_state(state)
        host_generator().set_state(self._torch)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


_isolation = threading.local()


def is_isolated() -> bool:
    """Whether what this thread draws now does not show outside."""
    return bool(getattr(_isolation, "depth", 0))


@contextmanager
def isolated(others: Sequence[torch.Generator] = ()) -> Generator[None, None, None]:
    """Whatever is drawn or seeded inside does not show outside."""
    states = States(others)
    _isolation.depth = getattr(_isolation, "depth", 0) + 1
    try:
        with own_draws():
            yield
    finally:
        _isolation.depth -= 1
        states.restore()


class Stream:
    """A stream of random draws of its own, which goes on where it stopped."""

    def __init__(self, seed: int, others: Sequence[torch.Generator] = ()) -> None:
        self._others = others
        with isolated(others):
            seed_host(seed)
            for generator in others:
                generator.manual_seed(seed)
            self._states = States(others)

    def run(self, function: Callable[[], Any]) -> Any:
        """Call ``function`` with the generators in this stream."""
        with isolated(self._others):
            self._states.restore()
            try:
                return function()
            finally:
                self._states = States(self._others)


def draw_on_host(patches: Patches) -> None:
    """Have tensors of any device filled with what the CPU's generator would draw.

    So ``torch.randn(n).cuda()`` and ``torch.randn(n, device="cuda")`` give the same numbers, and noise for what autocast has computed
    (``torch.randn_like(h)``) the same but for its rounding. Calls that name a generator or an output are left alone. Dropout draws on its device, whose generator is seeded at each step (see
    :mod:`.dropout_draws`).
    """
    functions = Functions(patches)
    for name in FACTORIES:
        functions.wrap(name, _factory, torch)
    for name in SAMPLERS:
        functions.wrap(name, _sampler, torch)
    for name in ("bernoulli", "multinomial"):
        patches.wrap(torch.Tensor, name, _sampler)
    for name in FILLS:
        patches.wrap(torch.Tensor, name, _fill)


_REDUCED = (torch.float16, torch.bfloat16)
_UNIFORM = frozenset({"rand", "rand_like", "uniform_"})
_NORMAL = frozenset({"randn", "randn_like", "normal", "normal_"})
"""What draws other numbers in half precision: the normal ones in another order, and of the uniform ones 0 for what is rounded to 1."""


def _wide(function: Callable[..., Any], dtype: torch.dtype | None) -> bool:
    """Whether ``function`` has to draw in float32 to draw the same numbers in ``dtype``."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    return dtype in _REDUCED and function.__name__ in _UNIFORM | _NORMAL


def _rounded(drawn: torch.Tensor, dtype: torch.dtype, end: float | None) -> torch.Tensor:
    """``drawn`` in ``dtype``, still below ``end``."""
    rounded = drawn.to(dtype)
    if end is None:
        return rounded
    limit = torch.tensor(end, dtype=dtype)
    below = torch.nextafter(limit, limit.new_tensor(-math.inf))
    return torch.where((rounded >= limit) & (drawn < end), below, rounded)


def _on_host(tensor: Any) -> Any:
    """A tensor moved to the CPU, anything else as it is."""
    return tensor.cpu() if isinstance(tensor, torch.Tensor) else tensor


def _elsewhere(device: Any) -> bool:
    return device is not None and torch.device(device).type != "cpu"


def _factory(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        like = args[0] if args and isinstance(args[0], torch.Tensor) else kwargs.get("input")
        device = kwargs.get("device")
        if device is None:
            device = like.device if like is not None else torch.empty(0).device
        if (
            not _elsewhere(device)
            or kwargs.get("generator") is not None
            or kwargs.get("out") is not None
            or in_backend()
        ):
            return function(*args, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        if like is not None:
            # An empty of the same strides, so that nothing is copied from the device.
            template = torch.empty_like(like, device="cpu")
            args = (template, *args[1:]) if args else args
            kwargs = {**kwargs, "input": template} if "input" in kwargs else kwargs
        dtype: Any = kwargs.get("dtype") or (None if like is None else like.dtype)
        if _wide(function, dtype):
            drawn = function(*args, **{**kwargs, "device": "cpu", "dtype": torch.float32})
            end = 1.0 if function.__name__ in _UNIFORM else None
            drawn = _rounded(drawn, dtype or torch.get_default_dtype(), end)
        else:
            drawn = function(*args, **{**kwargs, "device": "cpu"})
        return drawn.to(device, non_blocking=True).requires_grad_(requires_grad)

    return wrapper


def _sampler(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        device = tensors[0].device if tensors else kwargs.get("device")
        if (
            not _elsewhere(device)
            or kwargs.get("generator") is not None
            or kwargs.get("out") is not None
            or in_backend()
        ):
            return function(*args, **kwargs)
        if "device" in kwargs:
            kwargs["device"] = "cpu"
        args = tuple(map(_on_host, args))
        kwargs = {k: _on_host(v) for k, v in kwargs.items()}
        # Of a normal distribution with a mean, or a deviation, for each number.
        dtype = tensors[0].dtype if tensors else kwargs.get("dtype")
        if not _wide(function, dtype):
            return function(*args, **kwargs).to(device, non_blocking=True)
        if tensors:
            args = tuple(map(_widened, args))
            kwargs = {k: _widened(v) for k, v in kwargs.items()}
        else:
            kwargs["dtype"] = torch.float32
        return function(*args, **kwargs).to(
            device, dtype or torch.get_default_dtype(), non_blocking=True
        )

    return wrapper


def _widened(tensor: Any) -> Any:
    return tensor.float() if isinstance(tensor, torch.Tensor) else tensor


def _fill(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(tensor, *args, **kwargs):
        named = kwargs.get("generator") is not None
        if not _elsewhere(tensor.device) or named or in_backend():
            return function(tensor, *args, **kwargs)
        dtype = torch.float32 if _wide(function, tensor.dtype) else tensor.dtype
        drawn = torch.empty_like(tensor, device="cpu", dtype=dtype, requires_grad=False)
        function(drawn, *map(_on_host, args), **{k: _on_host(v) for k, v in kwargs.items()})
        if dtype is not tensor.dtype and function.__name__ in _UNIFORM:
            end = float(kwargs.get("to", args[1] if len(args) > 1 else 1.0))
            drawn = _rounded(drawn, tensor.dtype, end)
        return tensor.copy_(drawn)

    return wrapper
