"""Weights that are off by a rounding error, to see how far rounding alone takes a run, or its evaluations."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from .fingerprints import checksum
from .randomness import derive

_TF32_EPS = 2.0**-10  # ten bits of mantissa; torch has no type for it


def perturbation(evaluations: bool = False, **how: Any) -> Perturbation:
    """The one that ``how`` describes, of the training or of the ``evaluations`` alone."""
    return EvaluationPerturbation(**how) if evaluations else Perturbation(**how)


@dataclass
class _Together:
    """Parameters that an optimizer was given, with their numbers once they are perturbed.

    ``earlier`` are checksums of the smallest one before that: what it is put back to tells that all are.
    """

    parameters: list[Tensor]
    numbers: list[int] = field(default_factory=list[int])
    earlier: set[int] = field(default_factory=set[int])

    def now(self) -> int | None:
        """The checksum of the smallest; zeros are the same when they are perturbed, and tell nothing."""
        telling = (p for p in self.parameters if not is_lazy(p) and bool(p.any()))
        smallest = min(telling, key=lambda p: p.numel(), default=None)
        return None if smallest is None else int(checksum(smallest))


class Perturbation:
    """Multiplies each parameter given to an optimizer by ``1 ± scale * eps`` of ``dtype``, once, with signs from ``seed``.

    It happens when a module with parameters is first called in training mode after the optimizer was built: what
    the script loads into the model between the two is perturbed too. At the latest it happens at the first step, and the gradients it is made of are multiplied likewise (given random signs, where they
    are nothing but rounding). A script that puts back what was
    there before (behind a learning-rate range test, for the next fold) has it perturbed again, with the same signs.
    Then the gradients of the parameters named in ``one_way`` are given the same signs in every step, drawn with ``seed``, and at least
    the L2 norm that stands beside the name, spread evenly.
    None of this before ``after`` rounds.

    What a module computes with and no optimizer has (a frozen backbone, a teacher) is rounded as well. It is multiplied likewise
    for the time of each call alone, since nothing is to be made of such weights but what is computed: not where gradients are
    taken and no optimizer was built yet, by a script that trains by hand; and only of types that are coarser than float32.
    So is what an optimizer has, in calls without gradients that come before the first to train: what a script chooses by them, the classes that it
    trains for say, may be another for a rounding.
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
        self._waiting: list[_Together] = []
        self._done: set[int] = set()
        self._together: list[_Together] = []
        self._trained: set[int] = set()
        self._frozen: list[tuple[Tensor, Tensor, Tensor]] = []
        self._frozen_signs: dict[tuple[int, torch.Size], Tensor] = {}

    def add(self, optimizer: Optimizer) -> None:
        """Perturb the optimizer's parameters at the next occasion."""
        self._trained |= {id(p) for group in optimizer.param_groups for p in group["params"]}
        self.add_tensors(p for group in optimizer.param_groups for p in group["params"])

    def add_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Perturb these at the next occasion."""
        self._waiting.append(_Together([one for one in tensors if one.is_floating_point()]))

    def before_call(self, module: nn.Module, rounds: int) -> None:
        """``module`` is about to be called, when ``rounds`` have begun."""
        if module.training and next(module.parameters(), None) is not None:
            self._apply_again()
            self.apply(rounds)
        self.after_call()  # of a call that failed
        known = bool(self._trained) or not torch.is_grad_enabled()
        if self._rounds_weights and rounds >= self.after and known:
            self._move_frozen(module)

    @torch.no_grad()
    def _move_frozen(self, module: nn.Module) -> None:
        for number, parameter in enumerate(module.parameters()):
            waits = id(parameter) not in self._done and not torch.is_grad_enabled()
            if (id(parameter) in self._trained and not waits) or not _has_values(parameter):
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
        for together in self._waiting:
            together.parameters = [p for p in together.parameters if id(p) not in self._done]
            if (now := together.now()) is not None:
                together.earlier.add(now)
        if rounds < self.after:
            return
        for together in self._waiting:
            for parameter in together.parameters:
                if id(parameter) not in self._done:
                    together.numbers.append(len(self._done))
                    self._move(parameter, len(self._done))
                    self._done.add(id(parameter))
        self._together += self._waiting  # which keeps them, so that no other gets the number of one
        self._waiting.clear()

    @torch.no_grad()
    def before_step(self, rounds: int) -> None:
        """A step is about to be made. What is only perturbed then, for want of a module call, has had its gradients before: these are perturbed, too."""
        waiting = (p for together in self._waiting for p in together.parameters)
        late = [p for p in waiting if id(p) not in self._done]
        self.apply(rounds)
        gradients = [
            (number, p.grad)
            for number, p in enumerate(late)
            if id(p) in self._done and p.grad is not None and not p.grad.is_sparse
        ]
        total = math.hypot(*(float(torch.linalg.vector_norm(g)) for _, g in gradients))
        for number, gradient in gradients if math.isfinite(total) else ():
            signs = self._signs(gradient, "gradient", number).to(gradient.device, gradient.dtype)
            norm = float(torch.linalg.vector_norm(gradient))
            if norm > self._relative * total:
                gradient.mul_(1 + self._relative * signs)
            elif (
                norm
            ):  # nothing but rounding: of either sign, and of any size up to that of the others
                gradient.copy_(_at_least(gradient, norm) * signs)

    @torch.no_grad()
    def _apply_again(self) -> None:
        """Perturb once more what was put back to what it was before."""
        for together in self._together:
            if together.now() in together.earlier:
                for parameter, number in zip(together.parameters, together.numbers, strict=True):
                    self._move(parameter, number)

    @torch.no_grad()
    def again(self, named: Mapping[str, Tensor], step: int, rounds: int) -> None:
        """Perturb the parameters that ``step`` has left, when ``rounds`` are over."""
        if rounds >= self.after:
            for name, parameter in named.items():
                self._move(parameter, (step, name))

    def _move(self, parameter: Tensor, number: object) -> None:
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
                sizes = _at_least(gradient, norm)
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
            if _has_values(parameter):
                self._moved.append((parameter, parameter.detach().clone()))
                self._move(parameter, number)

    @torch.no_grad()
    def after_call(self) -> None:
        """Put the parameters back."""
        for parameter, before in self._moved:
            parameter.data.copy_(before)
        self._moved.clear()


def _at_least(gradient: Tensor, norm: float) -> Tensor:
    """The sizes of its elements, or if that is more, of those of a vector of that L2 norm, spread evenly."""
    return gradient.abs().clamp_min(norm / (gradient.numel() or 1) ** 0.5)


def _has_values(parameter: Tensor) -> bool:
    """Whether it can be moved: not where a transformation (``vmap``) has lent the module its wrapper of another tensor for the call."""
    lent = is_functorch_wrapped_tensor(parameter)
    return parameter.is_floating_point() and not is_lazy(parameter) and not lent
