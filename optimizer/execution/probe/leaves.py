"""The tensors that gradients reach: the parameters of a script without an optimizer."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor


def leaves_of(outputs: Iterable[Tensor]) -> list[Tensor]:
    """The leaves that ``outputs`` were computed from and that take gradients, in the order they are met."""
    found: dict[int, Tensor] = {}
    waiting: list[Any] = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            found.setdefault(id(leaf), leaf)
        waiting += [following for following, _ in node.next_functions if following is not None]
    return list(found.values())


def among_leaves(tensors: Iterable[Any]) -> list[Tensor]:
    """Those of ``tensors`` that nothing was computed for: a gradient by an intermediate result trains nothing."""
    leaves = [t for t in tensors if isinstance(t, Tensor) and t.is_leaf and t.requires_grad]
    return list({id(leaf): leaf for leaf in leaves}.values())
