"""The parameters that a run trains: their names, and what they are after chosen rounds."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.optim import Optimizer

from .fingerprints import dtype_name, sha256, total_bytes, write_safetensors
from .names import entries_of, label_roots, name_parameters, root_modules


class Parameters:
    """The optimizers of a run, in the order in which they were built, and the parameters they were given.

    Snapshots go to ``folder``; larger ones than ``whole_bytes`` are kept as hashes only.
    """

    def __init__(self, folder: Path, whole_bytes: int) -> None:
        self._folder = folder
        self._whole_bytes = whole_bytes
        self._optimizers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._infos: list[dict[str, Any]] = []
        self._names: dict[int, str] = {}
        self._named: dict[str, Tensor] = {}
        self._roots: list[tuple[nn.Module, str]] = []  # kept: they die with the script's frames
        self._shown: set[int] = set()
        self.snapshots: list[dict[str, Any]] = []

    @property
    def optimizer_seen(self) -> bool:
        """Whether any optimizer was built."""
        return bool(self._infos)

    def number(self, optimizer: Optimizer) -> int:
        """Its place in the order of building; one met for the first time is the next."""
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = len(self._infos)
            info = {"class_name": type(optimizer).__name__, "groups": [], "hyperparameters": []}
            self._infos.append(info)
        return self._optimizers[optimizer]

    def of(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """The optimizer's parameters by name, in the order of its groups; notes its groups the first time."""
        number = self.number(optimizer)
        groups = [group["params"] for group in optimizer.param_groups]
        if any(id(parameter) not in self._names for group in groups for parameter in group):
            self.name()
        if number not in self._shown:
            self._shown.add(number)
            self._infos[number] = {
                "class_name": type(optimizer).__name__,
                "groups": [[self._names[id(p)] for p in group] for group in groups],
                "hyperparameters": [
                    {key: repr(value) for key, value in group.items() if key != "params"}
                    for group in optimizer.param_groups
                ],
            }
        return {self._names[id(p)]: p for group in groups for p in group}

    def name(self) -> None:
        """Name the parameters of the optimizers alive; without any, those of every module."""
        optimizers = sorted(self._optimizers.items(), key=lambda item: item[1])
        positions = {
            f"optimizer{number}.group{g}.{i}": parameter
            for optimizer, number in optimizers
            for g, group in enumerate(optimizer.param_groups)
            for i, parameter in enumerate(group["params"])
        }
        if not optimizers:
            every = [entries_of(root, "_parameters") for root in root_modules()]
            trained = (p for entries in every for _, p in entries if p.requires_grad)
            positions = {f"parameter{i}": parameter for i, parameter in enumerate(trained)}
        self._named |= name_parameters(positions)
        self._names = {id(parameter): name for name, parameter in self._named.items()}
        self._roots = label_roots(self._named.values())

    def snapshot(self, after_round: int) -> None:
        """Keep every named parameter as it is now; once per round."""
        if any(snapshot["round"] == after_round for snapshot in self.snapshots) or not self._named:
            return
        file = None
        if total_bytes(self._named.values()) <= self._whole_bytes:
            file = f"parameters-{after_round:06}.safetensors"
            write_safetensors(self._folder / file, self._named)
        hashes = {name: sha256(parameter) for name, parameter in self._named.items()}
        self.snapshots.append({"round": after_round, "hashes": hashes, "file": file})

    def buffers(self) -> dict[str, Tensor]:
        """The buffers of the root modules that hold a named parameter."""
        return {
            f"{label}.{name}": buffer
            for root, label in self._roots
            for name, buffer in entries_of(root, "_buffers")
        }

    def live_hashes(self) -> dict[str, list[str]]:
        """The names of the parameters and buffers by their hash, as they are now; several may hold the same."""
        found: dict[str, list[str]] = {}
        for name, tensor in {**self._named, **self.buffers()}.items():
            found.setdefault(sha256(tensor), []).append(name)
        return found

    def layers(self) -> list[str]:
        """The classes of the modules in those root modules."""
        return sorted(
            {type(module).__name__ for root, _ in self._roots for module in root.modules()}
        )

    def finish(self) -> dict[str, Any]:
        """What the record says of optimizers and parameters."""
        described = {
            name: {
                "shape": list(parameter.shape),
                "dtype": dtype_name(parameter),
                "device": str(parameter.device),
                "requires_grad": parameter.requires_grad,
            }
            for name, parameter in self._named.items()
        }
        return {
            "optimizers": self._infos,
            "parameters": described,
            "snapshots": self.snapshots,
            "optimizer_seen": self.optimizer_seen,
        }
