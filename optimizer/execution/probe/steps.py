"""What each optimizer step did. Figures stay on the device until the end."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import Optimizer

from .fingerprints import checksum, dtype_name, norm, plain, storable, write_safetensors
from .parameters import Parameters
from .stepped_weights import KeptSteps, LentSteps

GRADIENTS = "gradients.safetensors"
NO_OPTIMIZER = -1
"""The number of the optimizer where the script updates its parameters by hand."""


_Loss: TypeAlias = "tuple[Tensor, Tensor | None, str, bool]"
"""Its value, a GradScaler's factor in it, its dtype, and whether its gradients were taken instead of accumulated."""


@dataclass
class _Step:
    """A step in the making; ``values`` are the parameters before it, ``first_gradients`` those that its closure gave first of all ``evaluations``."""

    round: int
    optimizer: int
    closure: bool
    learning_rates: list[Any]
    parameters: dict[str, Tensor]
    values: list[Tensor]
    losses: list[_Loss]
    skipped: bool | Tensor = False
    unguarded: bool = False
    grad_norms: list[Tensor | None] | None = None
    weight_terms: list[Tensor] = field(default_factory=list)
    figures: Tensor | None = None
    checksums: Tensor | None = None
    evaluations: int = 0
    first_gradients: dict[str, Tensor] | None = None

    def weigh(self, gradients: Mapping[str, Tensor]) -> None:
        """``gradients`` by name: how long each is, by itself and with every element times the weight it is that of."""
        norms = {name: norm(gradient) for name, gradient in gradients.items()}
        self.grad_norms = [norms.get(name) for name in self.parameters]
        self.weight_terms = [
            norm(plain(gradients[name]).double() * plain(value).double())
            for name, value in zip(self.parameters, self.values, strict=True)
            if name in gradients
        ]

    def measure(self, after: Sequence[Tensor]) -> None:
        """The step is over, and has left its parameters as they are ``after`` it."""
        changes = [norm(new.detach() - old) for new, old in zip(after, self.values, strict=True)]
        if after:
            self.figures = torch.stack([change.to(after[0].device) for change in changes])
        self.values = []

    def close(self, after: Sequence[Tensor]) -> None:
        """What follows is computed with its parameters as they are now, ``after`` it."""
        if after:
            sums = [checksum(parameter).to(after[0].device) for parameter in after]
            self.checksums = torch.stack(sums)


class Steps:
    """Records steps and the losses that led to them; the first gradients of each optimizer go to ``folder``.

    ``scaled``: a GradScaler has scaled a loss since the last step; ``by_scaler``: one is making this step. ``weights`` keeps the
    parameters that steps leave, or puts others in their place.
    """

    def __init__(
        self, parameters: Parameters, folder: Path, weights: KeptSteps | LentSteps | None = None
    ) -> None:
        self._parameters = parameters
        self._folder = folder
        self._weights = weights
        self.scaled = self.by_scaler = False
        self._losses: list[_Loss] = []
        self._open: dict[int, _Step] = {}
        self._steps: list[_Step] = []
        self._gradients: dict[str, Tensor] = {}
        self._with_gradients: set[int] = set()

    @property
    def losses(self) -> int:
        """How many the gradients are made of that the next step will be made by."""
        return len(self._losses)

    @torch.no_grad()
    def backward(
        self, tensor: Tensor, gradient: Tensor | None, scale: Tensor | None, taken: bool
    ) -> None:
        """``backward`` is called on ``tensor``, which a GradScaler multiplied by ``scale``; or gradients are ``taken``."""
        value = tensor.detach().double()
        value = (value if gradient is None else value * gradient.detach()).sum()
        self._losses.append((value, scale, dtype_name(tensor), taken))

    @torch.no_grad()
    def begin(self, optimizer: Optimizer, round_number: int, closure: bool) -> None:
        """``optimizer`` is about to step."""
        named = self._parameters.of(optimizer)
        number = self._parameters.number(optimizer)
        self._parameters.note_settings(optimizer, round_number)
        rates = [group.get("lr", math.nan) for group in optimizer.param_groups]
        rates = [rate.clone() if isinstance(rate, Tensor) else rate for rate in rates]
        values = [parameter.detach().clone() for parameter in named.values()]
        step = _Step(round_number, number, closure, rates, named, values, [])
        self._open[number] = step
        if not closure:
            self._note_gradients(step, optimizer)

    @torch.no_grad()
    def evaluated(self, optimizer: Optimizer) -> None:
        """The closure of a step of ``optimizer`` has been called, and gradients are there."""
        step = self._open.get(self._parameters.number(optimizer))
        if step is None or step.optimizer in self._with_gradients:
            return
        step.evaluations += 1
        if step.first_gradients is None:
            given = {name: p.grad for name, p in step.parameters.items() if p.grad is not None}
            step.first_gradients = {name: storable(grad).clone() for name, grad in given.items()}

    @torch.no_grad()
    def end(self, optimizer: Optimizer, skipped: bool) -> None:
        """``optimizer`` has stepped, or its step was ``skipped`` by a GradScaler."""
        step = self._open.pop(self._parameters.number(optimizer))
        if step.closure:
            self._note_gradients(step, optimizer)
        found_inf = getattr(optimizer, "found_inf", None)  # a fused optimizer skips by itself
        step.skipped = found_inf.clone() if isinstance(found_inf, Tensor) else skipped
        after = list(step.parameters.values())
        step.measure(after)
        if self._weights:
            self._weights.after_step(step.parameters, step.round)
        step.close(after)
        if step.checksums is not None:
            self._parameters.last_step.ended(list(step.parameters), step.checksums)
        step.losses, self._losses = self._losses, []
        step.unguarded, self.scaled = self.scaled and not (self.by_scaler or skipped), False
        self._steps.append(step)

    @torch.no_grad()
    def by_hand(
        self, round_number: int, leaves: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
    ) -> None:
        """Without an optimizer: gradients were taken for ``leaves``. The step lasts until it happens again."""
        self._close_by_hand(leaves)
        values = [leaf.detach().clone() for leaf in leaves.values()]
        losses, self._losses = self._losses, []
        step = _Step(round_number, NO_OPTIMIZER, False, [], dict(leaves), values, losses)
        step.weigh(gradients)
        if NO_OPTIMIZER not in self._with_gradients and gradients:
            self._with_gradients.add(NO_OPTIMIZER)
            self._gradients |= {name: storable(grad).clone() for name, grad in gradients.items()}
        self._open[NO_OPTIMIZER] = step

    @torch.no_grad()
    def _close_by_hand(self, now: Mapping[str, Tensor] | None = None) -> None:
        step = self._open.pop(NO_OPTIMIZER, None)
        if step is None:
            return
        after = [(now or {}).get(name, leaf) for name, leaf in step.parameters.items()]
        step.measure(after)
        step.close(after)
        self._steps.append(step)

    def _note_gradients(self, step: _Step, optimizer: Optimizer) -> None:
        scale = getattr(
            optimizer, "grad_scale", None
        )  # set while a fused optimizer unscales by itself
        gradients = {name: p.grad for name, p in step.parameters.items() if p.grad is not None}
        if isinstance(scale, Tensor):
            gradients = {name: grad / scale.to(grad.device) for name, grad in gradients.items()}
        step.weigh(gradients)
        if step.optimizer not in self._with_gradients:
            self._with_gradients.add(step.optimizer)
            if step.evaluations > 1 and step.first_gradients is not None:
                # Behind them the weights have moved, and where they have come to rest gradients are nothing but rounding.
                gradients = step.first_gradients
            # Of several optimizers that train a parameter one after the other, those of the first.
            self._gradients |= {
                name: storable(grad).clone()
                for name, grad in gradients.items()
                if name not in self._gradients
            }

    def finish(self) -> dict[str, Any]:
        """What the record says of steps; waits for the device."""
        self._close_by_hand()
        file = GRADIENTS if self._gradients else None
        if file is not None:
            write_safetensors(self._folder / file, self._gradients)
        return {
            "steps": [_described(index, step) for index, step in enumerate(self._steps)],
            "gradients_file": file,
            **(self._weights.finish() if self._weights else {}),
        }


def _described(index: int, step: _Step) -> dict[str, Any]:
    """The fields of a ``Step``."""
    norms = [None if value is None else float(value) for value in step.grad_norms or ()]
    changes = [] if step.figures is None else step.figures.tolist()
    checksums = [] if step.checksums is None else step.checksums.tolist()
    return {
        "index": index,
        "round": step.round,
        "optimizer": step.optimizer,
        "losses": [
            [float(value) if scale is None else float(value) / float(scale), dtype, taken]
            for value, scale, dtype, taken in step.losses
        ],
        "learning_rates": [float(rate) for rate in step.learning_rates],
        "closure": step.closure,
        "skipped": bool(step.skipped),
        "unguarded": step.unguarded,
        "grad_norm": math.sqrt(sum(value * value for value in norms if value is not None)),
        "weight_terms": math.hypot(*map(float, step.weight_terms)),
        "parameters": {
            name: list(figures)
            for name, *figures in zip(step.parameters, norms, changes, checksums, strict=True)
        },
    }
