"""What the root modules gave in eval mode."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .batch_samples import (
    count_samples,
    is_per_sample,
    listed_samples,
    outputs_of,
    tensors_in,
)
from .fingerprints import checksum, row_checksums, storable, summary, write_safetensors
from .modes import heeds_mode
from .names import class_name
from .padding import Padding
from .transformations import unwrapped

KEPT_CALLS = 4
"""How many calls of modules of a class have their outputs kept whole."""
_KEPT_IN_ALL = 16
_FURTHER_CALLS = 4096
"""How many calls are told that may be evaluations besides: a policy acts as often as it likes."""
_TOLD_SAMPLES = 1 << 18
"""Of how many samples it is told what goes in: some megabytes of a record."""
EVAL_OUTPUTS = "eval.safetensors"


class _Weights:
    """The parameters of a module that no optimizer has been seen to train, from its first call in eval mode on."""

    def __init__(self) -> None:
        self._first: list[Tensor] | None = None
        self._same: list[Tensor] = []
        self._ids: set[int] = set()

    def called(self, module: nn.Module) -> None:
        """The module is called. Not their versions but their bits: ``p.data.mul_`` leaves no other trace."""
        parameters = [unwrapped(p) for p in module.parameters() if not is_lazy(p)]
        now = [checksum(parameter) for parameter in parameters]
        self._ids.update(map(id, parameters))
        if self._first is None:
            self._first = now
        else:
            self._same += [old == new for old, new in zip(self._first, now, strict=False)]

    def constant(self, trained: Container[int]) -> bool:
        """Whether they were the same in all calls, and none is among those ``trained``, which are given by ``id``."""
        return (
            bool(self._ids)
            and not any(i in trained for i in self._ids)
            and all(map(bool, self._same))
        )

    @property
    def bits(self) -> int:
        """An integer in which every bit of them counts, as the first call found them."""
        return _combined(int(one) for one in self._first or ())


class Evaluations:
    """Records the outputs of calls in eval mode; the first ones go to ``folder``. Counts calls in training mode.

    ``padding`` tells what is padded of what they give, ``trained`` gives the ``id`` of every parameter known to be an optimizer's, ``label`` what a module that has such is called
    in their names, ``is_part`` whether a module is a part of one.
    """

    def __init__(
        self,
        folder: Path,
        padding: Padding,
        trained: Callable[[], Container[int]],
        label: Callable[[nn.Module], str],
        is_part: Callable[[nn.Module], bool],
    ) -> None:
        self._folder, self._label, self._is_part = folder, label, is_part
        self._trained, self._padding = trained, padding
        self._calls: list[dict[str, Any]] = []
        self._further: list[dict[str, Any]] = []
        self._kept: dict[str, Tensor] = {}
        self._kept_of: Counter[str] = Counter()
        self._training: dict[tuple[str, int], list[int]] = {}
        self._inputs = 0
        self._each: list[int] = []
        self._each_listed: list[int] = []
        self._samples_left = _TOLD_SAMPLES
        self._weights: WeakKeyDictionary[nn.Module, _Weights] = WeakKeyDictionary()

    @property
    def count(self) -> int:
        """How many calls in eval mode there have been."""
        return len(self._calls)

    @torch.no_grad()
    def begin(self, module: nn.Module, inputs: Any) -> None:
        """``module`` is about to be called as a root; afterwards it may have changed its ``inputs``."""
        self._padding.begin(heeds=not module.training)
        if not module.training or not torch.is_grad_enabled():
            tensors = list(tensors_in(inputs))
            self._inputs = _sum(tensors)
            samples = count_samples(inputs)
            told = bool(tensors) and samples <= self._samples_left
            self._each = row_checksums(tensors, samples) if told else []
            listed = listed_samples(inputs) if told else ()
            self._each_listed = [_sum(tensors_in(sample)) for sample in listed]
            self._samples_left -= len(self._each)

    def called(self, module: nn.Module, inputs: Any, output: Any, rounds: int) -> None:
        """``module`` was called as a root, after ``rounds`` rounds."""
        if not module.training:
            self._evaluated(module, inputs, output, rounds)
            return
        if is_evaluation(module):
            self._tell_further(module, inputs, output, rounds)
        counts = self._training.setdefault((class_name(module), rounds), [0, 0])
        samples = count_samples(inputs)
        counts[0] += samples
        counts[1] += 0 if torch.is_grad_enabled() else samples

    def _evaluated(self, module: nn.Module, inputs: Any, output: Any, rounds: int) -> None:
        name = class_name(module)
        outputs = list(outputs_of(output))
        padded = self._padding.of(outputs)
        outputs = self._padding.left_out(outputs, padded)
        if self._kept_of[name] < KEPT_CALLS and self._kept_of.total() < _KEPT_IN_ALL:
            self._kept_of[name] += 1
            for position, tensor in enumerate(outputs):
                self._kept[f"{len(self._calls)}.{position}"] = storable(tensor).clone()
        trains = torch.is_grad_enabled() and not heeds_mode(module)
        told = self._told(module, inputs, output, rounds)
        if padded:
            told["outputs"] = [summary(tensor) for tensor in outputs]
        self._calls.append({**told, "trains": trains, "padded": padded})

    def called_inside(self, layer: nn.Module, output: Any, rounds: int) -> None:
        """``layer`` was called inside of such a call: it may be a part that is frozen, and called by itself elsewhere."""
        if not layer.training and any(True for _ in layer.children()):
            self._tell_further(layer, output, output, rounds, inside=True)

    def _tell_further(self, *call: Any, inside: bool = False) -> None:
        if len(self._further) < _FURTHER_CALLS:
            self._further.append({**self._told(*call), "inside": inside})

    @torch.no_grad()
    def _told(self, module: nn.Module, inputs: Any, output: Any, rounds: int) -> dict[str, Any]:
        """What is told of a call."""
        listed = listed_samples(inputs)
        per_sample = is_per_sample(output, listed)
        return {
            "weights": self._weights_of(module),
            "module": class_name(module),
            "trained_as": self._label(module),
            "part": self._is_part(module),
            "layer": is_layer(module),
            "stateless": not any(True for _ in chain(module.parameters(), module.buffers())),
            "rounds": rounds,
            "number": len(self._calls) + len(self._further),
            "samples": len(listed) if per_sample else count_samples(inputs),
            "inputs": self._inputs,
            "each": self._each_listed if per_sample else self._each,
            "outputs": [summary(tensor) for tensor in outputs_of(output)],
        }

    def _weights_of(self, module: nn.Module) -> _Weights | None:
        """What is known of the weights of ``module``, with this call; None where an optimizer trains them."""
        trained = self._trained()
        if any(id(parameter) in trained for parameter in module.parameters()):
            return None
        known = self._weights.setdefault(module, _Weights())
        known.called(module)
        return known

    def finish(self) -> dict[str, Any]:
        """What the record says of evaluations."""
        trained = self._trained()
        for call in (*self._calls, *self._further):
            weights = call.pop("weights")
            call["constant"] = weights is not None and weights.constant(trained)
            call["weights"] = weights.bits if weights is not None and call["constant"] else 0
        file = EVAL_OUTPUTS if self._kept else None
        if file is not None:
            write_safetensors(self._folder / file, self._kept)
        training = [
            {"module": module, "rounds": rounds, "samples": samples, "without_gradients": without}
            for (module, rounds), (samples, without) in self._training.items()
        ]
        return {
            "eval_calls": self._calls,
            "further_calls": self._further,
            "eval_file": file,
            "training_calls": training,
        }


def _sum(tensors: Iterable[Tensor]) -> int:
    """An integer in which every bit of the ``tensors`` counts, and their order."""
    return _combined(int(checksum(tensor)) for tensor in tensors)


def _combined(sums: Iterable[int]) -> int:
    return sum(one * (2 * n + 1) for n, one in enumerate(sums)) % 2**64


def is_layer(module: nn.Module) -> bool:
    """Whether ``module`` is one of torch's own that holds no other: most of these have a function that does the same."""
    own = type(module).__module__.startswith("torch.nn.modules.")
    return own and next(module.children(), None) is None


def is_evaluation(module: nn.Module) -> bool:
    """Whether a call of ``module`` is one: in eval mode, or without gradients where it does the same in either mode."""
    return not module.training or (not torch.is_grad_enabled() and not heeds_mode(module))
