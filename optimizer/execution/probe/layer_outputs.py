"""What each layer gave in a model's first training call: where a rewrite begins to compute something else."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .evaluations import tensors_in
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

    @property
    def watching(self) -> bool:
        """Whether a call is going on whose layers are noted."""
        return bool(self._names)

    def begin(self, model: nn.Module) -> None:
        """``model`` is called, from outside any module."""
        self._names = {}  # of a call that failed
        name = class_name(model)
        if name in self._done or not model.training or not torch.is_grad_enabled():
            return
        self._done.add(name)
        self._model = name
        self._names = {id(layer): path for path, layer in unwrap(model).named_modules() if path}

    @torch.no_grad()
    def called(self, layer: nn.Module, output: Any) -> None:
        """A layer of it has given ``output``."""
        path = self._names.get(id(layer))
        tensor = next(tensors_in(output), None)
        if path is None or tensor is None or len(self._noted) >= _MOST:
            return
        kind = type(layer).__name__
        self._noted.append(
            {"layer": f"{self._model}.{path}", "class_name": kind, "output": summary(tensor)}
        )

    def end(self) -> None:
        """The call is over."""
        self._names = {}

    def finish(self) -> dict[str, Any]:
        """What the record says of them, in the order in which they were done."""
        return {"layer_outputs": self._noted}
