"""Start from weights that are off by a rounding error, to see how far rounding alone takes a run."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .randomness import derive

_TF32_EPS = 2.0**-10  # ten bits of mantissa; torch has no type for it


class Perturbation:
    """Multiplies each parameter given to an optimizer by ``1 ± scale * eps`` of ``dtype``, once, with signs from ``seed``.

    It happens when a module with parameters is first called in training mode after the optimizer was built: what
    the script loads into the model between the two is perturbed too. At the latest it happens at the first step.
    Then the gradients of the parameters named in ``one_way`` are given the same signs in every step, drawn with ``seed``.
    None of this before ``after`` rounds.
    """

    def __init__(
        self,
        dtype: str,
        seed: int,
        scale: float = 1.0,
        after: int = 0,
        one_way: Sequence[str] = (),
    ) -> None:
        eps = _TF32_EPS if dtype == "tfloat32" else torch.finfo(getattr(torch, dtype)).eps
        self._relative = scale * eps
        self._seed = seed
        self.after = after
        self._one_way = one_way
        self._waiting: list[Tensor] = []
        self._done: set[int] = set()

    def add(self, optimizer: Optimizer) -> None:
        """Perturb the optimizer's parameters at the next occasion."""
        self.add_tensors(p for group in optimizer.param_groups for p in group["params"])

    def add_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Perturb these at the next occasion."""
        self._waiting += tensors

    def before_call(self, module: nn.Module, rounds: int) -> None:
        """``module`` is about to be called, when ``rounds`` have begun."""
        if self._waiting and module.training and next(module.parameters(), None) is not None:
            self.apply(rounds)

    @torch.no_grad()
    def apply(self, rounds: int) -> None:
        """Perturb what waits, if it is time."""
        if rounds < self.after:
            return
        for parameter in self._waiting:
            if id(parameter) in self._done or not parameter.is_floating_point():
                continue
            signs = self._signs(parameter, "perturb", len(self._done))
            self._done.add(id(parameter))
            factor = 1 + self._relative * signs
            # By its data: there may be a graph that has kept the parameter, and autograd is not to notice.
            parameter.data.copy_(
                (parameter.double().cpu() * factor).to(parameter.device, parameter.dtype)
            )
        self._waiting.clear()

    @torch.no_grad()
    def direct(self, named: Mapping[str, Tensor], rounds: int) -> None:
        """Turn the gradients that go one way, before a step."""
        if rounds < self.after:
            return
        for name in self._one_way:
            gradient = named[name].grad if name in named else None
            if gradient is not None and not gradient.is_sparse:
                signs = self._signs(gradient, "direct", name)
                gradient.copy_(gradient.abs() * signs.to(gradient.device, gradient.dtype))

    def _signs(self, tensor: Tensor, *purpose: object) -> Tensor:
        """1 and -1 in the shape of ``tensor``."""
        generator = torch.Generator()
        generator.manual_seed(derive(*purpose[:1], self._seed, *purpose[1:]))
        signs = torch.randint(0, 2, tensor.shape, generator=generator, device="cpu") * 2 - 1
        return signs.to(torch.float64)
