"""What each layer, and at last the model, gave in a model's first training call: where a rewrite begins to compute something else."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .batch_samples import outputs_of, tensors_in
from .fingerprints import summary
from .names import class_name, unwrap

_MOST = 500


class LayerOutputs:
    """Notes the outputs of the layers of each model class while it is called for the first time to train."""

    def __init__(self) -> None:
        self._noted: list[dict[str, Any]] = []
        self._done: set[str] = set()
        self._names: dict[int, str] = {}
        self._model = ""
        self._rounds = 0

    @property
    def watching(self) -> bool:
        """Whether a call is going on whose layers are noted."""
        return bool(self._names)

    def begin(self, model: nn.Module, rounds: int) -> None:
        """``model`` is called, from outside any module, when ``rounds`` rounds are over."""
        self._names, self._model = {}, ""  # of a call that failed
        name = class_name(model)
        if name in self._done or not model.training or not torch.is_grad_enabled():
            return
        self._done.add(name)
        self._model, self._rounds = name, rounds
        self._names = {id(layer): path for path, layer in unwrap(model).named_modules() if path}

    @torch.no_grad()
    def called(self, layer: nn.Module, output: Any) -> None:
        """A layer of it has given ``output``."""
        path = self._names.get(id(layer))
        tensor = next(tensors_in(output), None)
        if path is None or tensor is None or len(self._noted) >= _MOST:
            return
        self._note(f"{self._model}.{path}", type(layer).__name__, tensor)

    @torch.no_grad()
    def end(self, output: Any) -> None:
        """The call is over, and the model has given ``output``."""
        for tensor in outputs_of(output) if self._model else ():
            self._note(self._model, self._model, tensor)
        self._names, self._model = {}, ""

    def _note(self, layer: str, kind: str, tensor: Tensor) -> None:
        self._noted.append(
            {"layer": layer, "class_name": kind, "output": summary(tensor), "rounds": self._rounds}
        )

    def finish(self) -> dict[str, Any]:
        """What the record says of them, in the order in which they were done."""
        return {"layer_outputs": self._noted}
