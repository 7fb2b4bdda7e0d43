"""What the root modules gave in eval mode."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .fingerprints import checksum, storable, summary, write_safetensors
from .names import class_name

KEPT_CALLS = 4
"""How many calls have their outputs kept whole."""
_OUTPUTS = 16
EVAL_OUTPUTS = "eval.safetensors"


class _Weights:
    """The parameters of a module from its first call in eval mode on; it is kept, so that its ``id`` stays its own."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._first: list[Tensor] | None = None
        self._same: list[Tensor] = []

    def called(self) -> None:
        """The module is called. Not their versions but their bits: ``p.data.mul_`` leaves no other trace."""
        now = [
            checksum(parameter) for parameter in self.module.parameters() if not is_lazy(parameter)
        ]
        if self._first is None:
            self._first = now
        else:
            self._same += [old == new for old, new in zip(self._first, now, strict=False)]

    def constant(self, trained: Container[int]) -> bool:
        """Whether they were the same in all calls, and none is among those ``trained``, which are given by ``id``."""
        parameters = list(self.module.parameters())
        if not parameters or any(id(parameter) in trained for parameter in parameters):
            return False
        return all(map(bool, self._same))


class Evaluations:
    """Records the outputs of calls in eval mode; the first ones go to ``folder``. Counts calls in training mode."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls: list[dict[str, Any]] = []
        self._kept: dict[str, Tensor] = {}
        self._training: dict[tuple[str, int], list[int]] = {}
        self._inputs = 0
        self._weights: dict[int, _Weights] = {}

    @property
    def count(self) -> int:
        """How many calls in eval mode there have been."""
        return len(self._calls)

    @torch.no_grad()
    def begin(self, module: nn.Module, inputs: Any) -> None:
        """``module`` is about to be called as a root; afterwards it may have changed its ``inputs``."""
        if not module.training:
            sums = [int(checksum(tensor)) for tensor in tensors_in(inputs)]
            self._inputs = sum(one * (2 * n + 1) for n, one in enumerate(sums)) % 2**64

    def called(self, module: nn.Module, inputs: Any, output: Any, rounds: int) -> None:
        """``module`` was called as a root, after ``rounds`` rounds."""
        if not module.training:
            self._evaluated(module, inputs, output, rounds)
            return
        counts = self._training.setdefault((class_name(module), rounds), [0, 0])
        samples = count_samples(inputs)
        counts[0] += samples
        counts[1] += 0 if torch.is_grad_enabled() else samples

    @torch.no_grad()
    def _evaluated(self, module: nn.Module, inputs: Any, output: Any, rounds: int) -> None:
        tensors = list(tensors_in(output))[:_OUTPUTS]
        if len(self._calls) < KEPT_CALLS:
            for position, tensor in enumerate(tensors):
                self._kept[f"{len(self._calls)}.{position}"] = storable(tensor).clone()
        self._calls.append(
            {
                "weights": self._weights_of(module),
                "module": class_name(module),
                "rounds": rounds,
                "samples": count_samples(inputs),
                "inputs": self._inputs,
                "outputs": [summary(tensor) for tensor in tensors],
            }
        )

    def _weights_of(self, module: nn.Module) -> _Weights:
        """What is known of the weights of ``module``, with this call."""
        known = self._weights.setdefault(id(module), _Weights(module))
        known.called()
        return known

    def finish(self, trained: Iterable[Tensor]) -> dict[str, Any]:
        """What the record says of evaluations; ``trained`` are the parameters that optimizers have."""
        held = set(map(id, trained))
        constant = {key: weights.constant(held) for key, weights in self._weights.items()}
        for call in self._calls:
            call["constant"] = constant[id(call.pop("weights").module)]
        file = EVAL_OUTPUTS if self._kept else None
        if file is not None:
            write_safetensors(self._folder / file, self._kept)
        training = [
            {"module": module, "rounds": rounds, "samples": samples, "without_gradients": without}
            for (module, rounds), (samples, without) in self._training.items()
        ]
        return {"eval_calls": self._calls, "eval_file": file, "training_calls": training}


def tensors_in(thing: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists and mappings, and in the attributes of output objects."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, Mapping):
        for value in thing.values():
            yield from tensors_in(value)
    elif isinstance(thing, (list, tuple)):
        for value in thing:
            yield from tensors_in(value)
    elif hasattr(thing, "__dict__") and not isinstance(thing, (nn.Module, type)):
        for value in vars(thing).values():
            if isinstance(value, Tensor):
                yield value


def count_samples(batch: Any) -> int:
    """How many samples a batch has: the length of its first tensor with a dimension, else of itself, else 1."""
    for tensor in tensors_in(batch):
        if tensor.dim():
            return int(tensor.shape[0])
    return len(batch) if isinstance(batch, (list, tuple)) else 1
