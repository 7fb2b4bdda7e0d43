"""Weights that are off by a rounding error, to see how far rounding alone takes a run, or its evaluations."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from .fingerprints import checksum
from .randomness import derive

_TF32_EPS = 2.0**-10  # ten bits of mantissa; torch has no type for it


def perturbation(evaluations: bool = False, **how: Any) -> Perturbation:
    """The one that ``how`` describes, of the training or of the ``evaluations`` alone."""
    return EvaluationPerturbation(**how) if evaluations else Perturbation(**how)


class _Moved(NamedTuple):
    """A parameter, the how manieth to be perturbed it is, and the checksum of what it was before."""

    parameter: Tensor
    number: int
    before: int


class Perturbation:
    """Multiplies each parameter given to an optimizer by ``1 ± scale * eps`` of ``dtype``, once, with signs from ``seed``.

    It happens when a module with parameters is first called in training mode after the optimizer was built: what
    the script loads into the model between the two is perturbed too. At the latest it happens at the first step. A script that puts back what was
    there before (behind a learning-rate range test, for the next fold) has it perturbed again, with the same signs.
    Then the gradients of the parameters named in ``one_way`` are given the same signs in every step, drawn with ``seed``, and at least
    the L2 norm that stands beside the name, spread evenly.
    None of this before ``after`` rounds.

    What a module computes with and no optimizer has (a frozen backbone, a teacher) is rounded as well. It is multiplied likewise
    for the time of each call alone, since nothing is to be made of such weights but what is computed: not where gradients are
    taken and no optimizer was built yet, by a script that trains by hand; and only of types that are coarser than float32.
    """

    def __init__(
        self,
        dtype: str,
        seed: int,
        scale: float = 1.0,
        after: int = 0,
        one_way: Sequence[tuple[str, float]] = (),
    ) -> None:
        eps = _TF32_EPS if dtype == "tfloat32" else torch.finfo(getattr(torch, dtype)).eps
        self._relative = scale * eps
        # A reduced type rounds every weight in every call; of float32 only the order of sums is in question.
        self._rounds_weights = dtype not in ("float32", "float64")
        self._seed = seed
        self.after = after
        self._one_way = one_way
        self._waiting: list[Tensor] = []
        self._done: dict[int, _Moved] = {}
        self._witness: tuple[Tensor, Tensor] | None = None
        self._trained: set[int] = set()
        self._frozen: list[tuple[Tensor, Tensor, Tensor]] = []
        self._frozen_signs: dict[tuple[int, torch.Size], Tensor] = {}

    def add(self, optimizer: Optimizer) -> None:
        """Perturb the optimizer's parameters at the next occasion."""
        self._trained |= {id(p) for group in optimizer.param_groups for p in group["params"]}
        self.add_tensors(p for group in optimizer.param_groups for p in group["params"])

    def add_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Perturb these at the next occasion."""
        self._waiting += tensors

    def before_call(self, module: nn.Module, rounds: int) -> None:
        """``module`` is about to be called, when ``rounds`` have begun."""
        if module.training and next(module.parameters(), None) is not None:
            if self._waiting:
                self.apply(rounds)
            self._apply_again()
        self.after_call()  # of a call that failed
        known = bool(self._trained) or not torch.is_grad_enabled()
        if self._rounds_weights and rounds >= self.after and known:
            self._move_frozen(module)

    @torch.no_grad()
    def _move_frozen(self, module: nn.Module) -> None:
        for number, parameter in enumerate(module.parameters()):
            if (
                id(parameter) in self._trained
                or not parameter.is_floating_point()
                or is_lazy(parameter)
            ):
                continue
            key = number, parameter.shape
            if key not in self._frozen_signs:
                signs = self._signs(parameter, "frozen", number)
                self._frozen_signs[key] = signs.to(torch.int8).to(parameter.device)
            signs = self._frozen_signs[key].to(parameter.device)
            before = parameter.detach().clone()
            moved = before + before * (self._relative * signs).to(before.dtype)
            parameter.data.copy_(moved)
            self._frozen.append((parameter, before, moved))

    @torch.no_grad()
    def after_call(self) -> None:
        """That call is over: what it was only rounded for is put back, unless the call itself has changed it."""
        for parameter, before, moved in self._frozen:
            if torch.equal(parameter, moved):
                parameter.data.copy_(before)
        self._frozen.clear()

    @torch.no_grad()
    def apply(self, rounds: int) -> None:
        """Perturb what waits, if it is time."""
        if rounds < self.after:
            return
        for parameter in self._waiting:
            if id(parameter) in self._done or not parameter.is_floating_point():
                continue
            before = parameter.detach().clone()
            moved = _Moved(parameter, len(self._done), int(checksum(before)))
            self._done[id(parameter)] = moved
            self._move(parameter, moved.number)
            smaller = self._witness is None or before.numel() < self._witness[1].numel()
            if smaller and not torch.equal(before, parameter):
                self._witness = parameter, before
        self._waiting.clear()

    @torch.no_grad()
    def _apply_again(self) -> None:
        """Perturb once more what is again as it was before; whether anything is, the smallest of what was moved tells."""
        if self._witness is None:
            return
        parameter, before = self._witness
        if parameter.device != before.device or not torch.equal(parameter, before):
            return
        for moved in self._done.values():
            if int(checksum(moved.parameter)) == moved.before:
                self._move(moved.parameter, moved.number)

    def _move(self, parameter: Tensor, number: int) -> None:
        factor = 1 + self._relative * self._signs(parameter, "perturb", number)
        # By its data: there may be a graph that has kept the parameter, and autograd is not to notice.
        parameter.data.copy_(
            (parameter.double().cpu() * factor).to(parameter.device, parameter.dtype)
        )

    @torch.no_grad()
    def direct(self, named: Mapping[str, Tensor], rounds: int) -> None:
        """Turn the gradients that go one way, before a step."""
        if rounds < self.after:
            return
        for name, norm in self._one_way:
            gradient = named[name].grad if name in named else None
            if gradient is not None and not gradient.is_sparse:
                signs = self._signs(gradient, "direct", name)
                sizes = gradient.abs().clamp_min(norm / (gradient.numel() or 1) ** 0.5)
                gradient.copy_(sizes * signs.to(gradient.device, gradient.dtype))

    def _signs(self, tensor: Tensor, *purpose: object) -> Tensor:
        """1 and -1 in the shape of ``tensor``."""
        generator = torch.Generator()
        generator.manual_seed(derive(*purpose[:1], self._seed, *purpose[1:]))
        signs = torch.randint(0, 2, tensor.shape, generator=generator, device="cpu") * 2 - 1
        return signs.to(torch.float64)


class EvaluationPerturbation(Perturbation):
    """Multiplies the parameters of a module likewise, each time it is called in eval mode, and puts them back afterwards.

    Training is that of the original then, bit for bit, unless such calls are part of it. None of this in the first ``after`` calls.
    """

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._moved: list[tuple[Tensor, Tensor]] = []
        self._calls = 0

    def add_tensors(self, tensors: Iterable[Tensor]) -> None:
        """What is trained stays as it is."""

    @torch.no_grad()
    def before_call(self, module: nn.Module, rounds: int) -> None:
        """``module`` is about to be called."""
        self.after_call()  # of a call that failed
        if module.training:
            return
        self._calls += 1
        if self._calls <= self.after:
            return
        for number, parameter in enumerate(module.parameters()):
            if parameter.is_floating_point() and not is_lazy(parameter):
                self._moved.append((parameter, parameter.detach().clone()))
                self._move(parameter, number)

    @torch.no_grad()
    def after_call(self) -> None:
        """Put the parameters back."""
        for parameter, before in self._moved:
            parameter.data.copy_(before)
        self._moved.clear()
