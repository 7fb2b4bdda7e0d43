"""What models weigh where they are evaluated: kept by one run, lent to the evaluations of another.

What a script tells of an evaluation may jump where a weight is off by a rounding: the class of a sample is another, and so is the
accuracy. Whether that is all shows when the original evaluates with the weights of its rewrite, and tells what that does.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

# As they are before the hooks come, which take what is saved for a checkpoint.
from torch.serialization import load, save

from .fingerprints import checksum, total_bytes
from .names import class_name

_FOLDER = "evaluated"


def evaluated_weights(
    keep: bool, lender: str | None, folder: Path, limit: int
) -> KeptWeights | LentWeights | None:
    """To ``keep`` them in a run's ``folder``, or to take them from that of a ``lender``; None without either."""
    if lender is not None:
        return LentWeights(Path(lender), folder)
    return KeptWeights(folder, limit) if keep else None


def _weights(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers in their order, which is the same whatever wraps the module."""
    held = [*module.parameters(), *module.buffers()]
    return [tensor.detach() for tensor in held if not is_lazy(tensor)]


def _file(module: nn.Module, rounds: int) -> str:
    return f"{class_name(module)}-{rounds}.pt"


class KeptWeights:
    """Keeps the weights of each root module that is called in eval mode, below ``folder``; of ``limit`` bytes in all.

    Of what changes from call to call after the same round (another module of that class, a cache), nothing is kept.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._left = folder / _FOLDER, limit
        self._folder.mkdir(parents=True, exist_ok=True)
        self._sums: dict[str, Sequence[int | None]] = {}

    def before_call(self, module: nn.Module, rounds: int) -> None:
        """``module`` is about to be called, when ``rounds`` have begun."""
        if module.training:
            return
        weights, file = _weights(module), _file(module, rounds)
        sums = [int(checksum(tensor)) for tensor in weights]
        if file in self._sums:
            self._forget_changed(file, sums)
        elif total_bytes(weights) <= self._left:
            self._left -= total_bytes(weights)
            self._sums[file] = sums
            save([tensor.cpu() for tensor in weights], self._folder / file)

    def _forget_changed(self, file: str, sums: list[int]) -> None:
        known = self._sums[file]
        alike = len(known) == len(sums)
        still = [k if alike and k == sums[n] else None for n, k in enumerate(known)]
        if still == known:
            return
        self._sums[file] = still
        kept = load(self._folder / file, weights_only=True)
        left = [None if k is None else tensor for tensor, k in zip(kept, still, strict=True)]
        save(left, self._folder / file)

    def after_call(self) -> None:
        """That call is over."""


class LentWeights:
    """Has root modules called in eval mode weigh what they did in the run whose folder is ``lender``; undone after each call.

    What the call itself changes stays so. ``folder`` is that of this run: a rank takes from the same rank, or from the only process
    there is.
    """

    def __init__(self, lender: Path, folder: Path) -> None:
        places = (lender / folder.name / _FOLDER, lender / _FOLDER, lender / "rank0" / _FOLDER)
        self._folder = next((place for place in places if place.is_dir()), places[0])
        self._own: list[tuple[Tensor, Tensor, int]] = []

    @torch.no_grad()
    def before_call(self, module: nn.Module, rounds: int) -> None:
        """``module`` is about to be called, when ``rounds`` have begun."""
        self.after_call()  # of a call that failed
        file = self._folder / _file(module, rounds)
        if module.training or not file.exists():
            return
        weights, lent = _weights(module), load(file, weights_only=True)
        if len(weights) != len(lent):
            return
        pairs = [
            (own, other) for own, other in zip(weights, lent, strict=True) if other is not None
        ]
        if any(own.shape != other.shape for own, other in pairs):
            return
        for own, other in pairs:
            self._own.append((own, own.clone(), own._version))
            own.data.copy_(other)

    @torch.no_grad()
    def after_call(self) -> None:
        """Give the weights back."""
        for tensor, own, version in self._own:
            if tensor._version == version:  # which copying by its data leaves alone
                tensor.data.copy_(own)
        self._own.clear()
