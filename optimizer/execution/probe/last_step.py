"""What the last step left in the trained weights, where the script puts others in their place.

A script may end by loading its best weights back, or by saving the copy it has of them: both have trained the same. So the
end of a training is where its last step left it, and what is loaded later shows in what is evaluated and saved of it.

What is loaded may be just that again: where averaged weights were copied into the model for an evaluation, by hand, and the
trained ones are loaded back. The step's checksums tell which they are.
"""

# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .fingerprints import checksum, total_bytes
from .patches import Patches


class LastStep:
    """Keeps the tensors that ``trained`` tells of, of at most ``whole_bytes``, from a ``load_state_dict`` to the next step."""

    def __init__(self, whole_bytes: int) -> None:
        self._whole_bytes = whole_bytes
        self._trained: Callable[[], Mapping[str, Tensor]] = dict
        self._left: dict[str, Tensor] = {}
        self._surely = False
        self._sums: dict[tuple[str, ...], Tensor] = {}

    def install(self, trained: Callable[[], Mapping[str, Tensor]], patches: Patches) -> None:
        """Hear of weights that are loaded."""
        self._trained = trained

        def loading(original: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(original)
            def wrapper(module, *args, **kwargs):
                self._keep(module, trained())
                return original(module, *args, **kwargs)

            return wrapper

        patches.wrap(nn.Module, "load_state_dict", loading)

    def stepped(self) -> None:
        """The weights are those of a step again."""
        self._left, self._surely = {}, False

    def ended(self, names: Sequence[str], checksums: Tensor) -> None:
        """A step of an optimizer has left its parameters with these ``checksums``, whichever stepped on them before."""
        key = tuple(names)
        self._sums.pop(key, None)  # the latest come last, where optimizers share parameters
        self._sums[key] = checksums

    @torch.no_grad()
    def as_stepped(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those of ``tensors``, by their names, that the script has not changed by hand since an optimizer stepped on them."""
        sums = self._checksums()
        return {
            name: tensor
            for name, tensor in tensors.items()
            if name not in sums or int(checksum(tensor)) == sums[name]
        }

    def left(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """``tensors``, which have the names they are kept by, as the last step left them."""
        if not self._left or (not self._surely and self._are_of_the_step(self._trained())):
            return dict(tensors)
        return {name: self._left.get(name, tensor) for name, tensor in tensors.items()}

    @torch.no_grad()
    def _keep(self, module: nn.Module, trained: Mapping[str, Tensor]) -> None:
        loaded = set(map(id, (*module.parameters(), *module.buffers())))
        if self._surely or all(id(tensor) not in loaded for tensor in trained.values()):
            return
        surely = self._are_of_the_step(trained)
        if (surely or not self._left) and total_bytes(trained.values()) <= self._whole_bytes:
            self._left = {name: tensor.detach().clone() for name, tensor in trained.items()}
            self._surely = surely

    @torch.no_grad()
    def _are_of_the_step(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether the parameters among ``tensors`` are what the last steps have left, bit for bit."""
        known = self._checksums().keys() & tensors.keys()
        return bool(known) and known <= self.as_stepped(tensors).keys()

    def _checksums(self) -> dict[str, int]:
        """What each parameter was left with by the last step on it."""
        return {
            name: value
            for names, checksums in self._sums.items()
            for name, value in zip(names, checksums.tolist(), strict=True)
        }
