"""What optimizers' parameters are after every step: kept by one run, lent to another, which so goes in step with it.

Where rounding scatters a training (an agent that acts otherwise sees other states from then on), runs of the original tell nothing
about what a rewrite does late in its own. An original whose parameters are the rewrite's after every step can only be a step away.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# As they are before the hooks come, which take what is saved for a checkpoint.
from torch.serialization import load, save

from .fingerprints import total_bytes
from .perturbation import Perturbation

_FOLDER = "stepped"


def stepped_weights(
    keep: bool, lender: str | None, folder: Path, limit: int, perturbation: Perturbation | None
) -> KeptSteps | LentSteps | None:
    """To ``keep`` them in a run's ``folder``, or to take them from that of a ``lender``; None without either."""
    if lender is not None:
        return LentSteps(Path(lender), perturbation)
    return KeptSteps(folder, limit) if keep else None


def _file(step: int) -> str:
    return f"{step:06}.pt"


class KeptSteps:
    """Keeps the parameters that each step leaves, by their names, below ``folder``; of ``limit`` bytes in all."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._left = folder / _FOLDER, limit
        self._folder.mkdir(parents=True, exist_ok=True)
        self._steps = 0

    def after_step(self, parameters: Mapping[str, Tensor], rounds: int) -> None:
        """An optimizer has made a step, and left its ``parameters``; ``rounds`` were over before it."""
        self._left -= total_bytes(parameters.values())
        if self._left >= 0:
            values = {name: value.detach().cpu() for name, value in parameters.items()}
            save(values, self._folder / _file(self._steps))
        self._steps += 1

    def finish(self) -> dict[str, Any]:
        """What the record says of it."""
        return {}


class LentSteps:
    """Gives each step's parameters the values that they have after it in the run whose folder is ``lender``.

    It ends with the first step that is none of that run's. With a ``perturbation`` they are off by a rounding error each time.
    """

    def __init__(self, lender: Path, perturbation: Perturbation | None) -> None:
        self._folder, self._perturbation = lender / _FOLDER, perturbation
        self._steps, self._in_step = 0, True

    @torch.no_grad()
    def after_step(self, parameters: Mapping[str, Tensor], rounds: int) -> None:
        """An optimizer has made a step, and left its ``parameters``; ``rounds`` were over before it."""
        file = self._folder / _file(self._steps)
        self._in_step = self._in_step and file.exists()
        lent = load(file, weights_only=True) if self._in_step else {}
        shapes = {name: value.shape for name, value in lent.items()}
        self._in_step = self._in_step and shapes == {n: p.shape for n, p in parameters.items()}
        if not self._in_step:
            return
        for name, parameter in parameters.items():
            # By its data: the next gradients may be taken through a graph that has kept the parameter.
            parameter.data.copy_(lent[name])
        if self._perturbation:
            self._perturbation.again(parameters, self._steps, rounds + 1)
        self._steps += 1

    def finish(self) -> dict[str, Any]:
        """What the record says of it."""
        whole = self._in_step and not (self._folder / _file(self._steps)).exists()
        return {"steps_lent": self._steps if whole else 0}
