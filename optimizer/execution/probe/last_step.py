"""What the last step left in the trained weights, where the script puts others in their place.

A script may end by loading its best weights back, or by saving the copy it has of them: both have trained the same. So the
end of a training is where its last step left it, and what is loaded later shows in what is evaluated and saved of it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .fingerprints import total_bytes
from .patches import Patches


class LastStep:
    """Keeps the tensors that ``trained`` tells of, of at most ``whole_bytes``, from a ``load_state_dict`` to the next step."""

    def __init__(self, whole_bytes: int) -> None:
        self._whole_bytes = whole_bytes
        self._left: dict[str, Tensor] = {}

    def install(self, trained: Callable[[], Mapping[str, Tensor]], patches: Patches) -> None:
        """Hear of weights that are loaded."""

        def loading(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def wrapper(module, *args, **kwargs):
                self._keep(module, trained())
                return original(module, *args, **kwargs)

            return wrapper

        patches.wrap(nn.Module, "load_state_dict", loading)

    def stepped(self) -> None:
        """The weights are those of a step again."""
        self._left = {}

    def left(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """``tensors``, which have the names they are kept by, as the last step left them."""
        return {name: self._left.get(name, tensor) for name, tensor in tensors.items()}

    @torch.no_grad()
    def _keep(self, module: nn.Module, trained: Mapping[str, Tensor]) -> None:
        loaded = set(map(id, (*module.parameters(), *module.buffers())))
        if self._left or all(id(tensor) not in loaded for tensor in trained.values()):
            return
        if total_bytes(trained.values()) <= self._whole_bytes:
            self._left = {name: tensor.detach().clone() for name, tensor in trained.items()}
