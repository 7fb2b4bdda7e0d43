"""Calls inside of ``torch.func``'s transformations (``vmap``, ``grad``): what is told of them has to outlive these.

The tensors there are wrappers that end with the transformation, and ``vmap`` forbids to look at a value or to draw. So what
is told is what they wrap, and it is told outside: a call that ``vmap`` makes once for many is one call on all of them.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._C._functorch import (
    TransformType,
    get_interpreter_stack,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_get_bdim,
)
from torch._functorch import pyfunctorch
from torch.utils._pytree import tree_map

_cleared: Callable[[], Any] = getattr(
    pyfunctorch, "temporarily_clear_interpreter_stack", contextlib.nullcontext
)


def transforming() -> bool:
    """Whether a transformation is going on."""
    return bool(get_interpreter_stack())


def only_mapping() -> bool:
    """Whether all transformations that are going on are ``vmap``: gradients taken there are those of many at once."""
    stack = get_interpreter_stack() or ()
    return all(level.key() == TransformType.Vmap for level in stack)


def stacked(thing: Tensor) -> Tensor | None:
    """What ``thing`` is one of, for each of the many that all transformations, being ``vmap``, do at once; None where it is the same for some of them.

    So the weights of a network in an ensemble are a part of those of all, and what is told of them is what would be told without ``vmap``.
    """
    inside = thing
    for _ in get_interpreter_stack() or ():
        if not is_batchedtensor(inside):
            return None
        place = maybe_get_bdim(inside)
        inside = get_unwrapped(inside)
        inside = inside.movedim(place, 0) if place else inside
    return inside


def tell(listener: Callable[..., object], *things: Any) -> None:
    """Have ``listener`` hear of ``things``, as they are outside of all transformations."""
    if not transforming():
        listener(*things)
        return
    told = [tree_map(unwrapped, thing) for thing in things]
    with _cleared():
        listener(*told)


def unwrapped(thing: Any) -> Any:
    """A tensor without the wrappers of transformations, with the samples of all that ``vmap`` does at once; else ``thing``."""
    while isinstance(thing, Tensor) and is_functorch_wrapped_tensor(thing):
        batched = is_batchedtensor(thing)
        place = maybe_get_bdim(thing) if batched else 0
        inside = get_unwrapped(thing)
        if batched:
            inside = inside.movedim(place, 0)
            inside = inside.flatten(0, 1) if inside.dim() > 1 else inside
        thing = inside
    return thing
