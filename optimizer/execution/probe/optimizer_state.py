"""What the optimizers keep between steps (momentum, second moments, counts), at the end of a run."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from .fingerprints import total_bytes, write_safetensors
from .parameters import Parameters

OPTIMIZER_STATE = "optimizer-state.safetensors"


class OptimizerStates:
    """Keeps the optimizers that stepped, which the script may drop before the run ends, and writes what they hold.

    What is larger than ``whole_bytes`` in all is not written.
    """

    def __init__(self, parameters: Parameters, folder: Path, whole_bytes: int) -> None:
        self._parameters = parameters
        self._folder = folder
        self._whole_bytes = whole_bytes
        self._stepped: dict[int, Optimizer] = {}

    def stepped(self, optimizer: Optimizer) -> None:
        """``optimizer`` has stepped."""
        self._stepped[self._parameters.number(optimizer)] = optimizer

    def finish(self) -> dict[str, Any]:
        """What the record says of it: a file of tensors called ``optimizer 0/exp_avg/Net.head.weight``."""
        found: dict[str, Tensor] = {}
        for number, optimizer in self._stepped.items():
            names = {id(p): name for name, p in self._parameters.of(optimizer).items()}
            for parameter, state in optimizer.state.items():
                name = names.get(id(parameter))
                if name is not None and isinstance(state, dict):
                    for key, value in state.items():
                        for path, tensor in _tensors(key, value):
                            found[f"optimizer {number}/{path}/{name}"] = tensor
        if not found or total_bytes(found.values()) > self._whole_bytes:
            return {"optimizer_state_file": None}
        write_safetensors(self._folder / OPTIMIZER_STATE, found)
        return {"optimizer_state_file": OPTIMIZER_STATE}


def _tensors(path: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors and numbers in ``value``, numbers as tensors of float64."""
    if isinstance(value, Tensor):
        # A count is a float32 tensor, an int64 one or a number, as the kernel wants it.
        yield path, value.double() if value.dim() == 0 else value
    elif isinstance(value, (bool, int, float)):
        yield path, torch.tensor(float(value), dtype=torch.float64, device="cpu")
    elif isinstance(value, (list, tuple)):
        for place, one in enumerate(value):
            yield from _tensors(f"{path}[{place}]", one)
