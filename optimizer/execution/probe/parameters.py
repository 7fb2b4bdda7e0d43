"""The parameters that a run trains: their names, and what they are after chosen rounds."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from .fingerprints import dtype_name, sha256, total_bytes, write_safetensors
from .last_step import LastStep
from .names import entries_of, label_roots, name_parameters, root_modules, unwrap
from .variables import reachable

_EPSILONS = ("eps", "epsilon", "variance_epsilon")
_NOT_SETTINGS = ("params", "lr", "initial_lr")


class Parameters:
    """The optimizers of a run, in the order in which they were built, and the parameters they were given.

    Snapshots go to ``folder``; larger ones than ``whole_bytes`` are kept as hashes only.
    """

    def __init__(self, folder: Path, whole_bytes: int) -> None:
        self._folder = folder
        self._whole_bytes = whole_bytes
        self._optimizers: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._infos: list[dict[str, Any]] = []
        self._settings: dict[int, list[dict[str, str]]] = {}
        self._names: dict[int, str] = {}
        self.named: dict[str, Tensor] = {}
        self.roots: list[tuple[nn.Module, str]] = []  # kept: they die with the script's frames
        self._by_hand: dict[tuple[torch.Size, ...], list[str]] = {}
        self._shown: set[int] = set()
        self._looked_into: set[int] = set()
        self._criteria: dict[str, dict[str, None]] = {}
        self._first: dict[int, Tensor] = {}
        self.last_step = LastStep(whole_bytes)
        self.snapshots: list[dict[str, Any]] = []

    @property
    def optimizer_seen(self) -> bool:
        """Whether any optimizer was built."""
        return bool(self._infos)

    @property
    def known(self) -> Container[int]:
        """The ``id`` of every parameter that has a name."""
        return self._names

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
                "hyperparameters": _settings(optimizer, but=("params",)),
            }
        return {self._names[id(p)]: p for group in groups for p in group}

    def note_settings(self, optimizer: Optimizer, round_number: int) -> None:
        """Note the optimizer's settings in that round, learning rates aside, where they have changed."""
        number, settings = self.number(optimizer), _settings(optimizer, but=_NOT_SETTINGS)
        if self._settings.setdefault(number, settings) != settings:
            self._settings[number] = settings
            self._infos[number].setdefault("changes", []).append([round_number, settings])

    def name(self, by_hand: Mapping[str, Tensor] | None = None) -> None:
        """Name the parameters of the optimizers alive; without any, what is updated ``by_hand``."""
        optimizers = sorted(self._optimizers.items(), key=lambda item: item[1])
        positions = {
            f"optimizer{number}.group{g}.{i}": parameter
            for optimizer, number in optimizers
            for g, group in enumerate(optimizer.param_groups)
            for i, parameter in enumerate(group["params"])
        }
        if not optimizers:
            positions = self.named | dict(by_hand or {})
        modules = root_modules()
        self.named |= name_parameters(positions, modules)
        self._names = {id(parameter): name for name, parameter in self.named.items()}
        self.roots = label_roots(self.named.values(), modules)

    def by_hand(self, leaves: Sequence[Tensor]) -> dict[str, Tensor]:
        """The names of the ``leaves`` that the script updates by hand, in the order in which gradients reach them.

        Those of no module are called by shape and number (``tensor 3x4 #2``). Where each step makes new tensors, they
        take the names of those before.
        """
        names = {id(parameter): name for name, parameter in self.named.items()}
        shapes = tuple(leaf.shape for leaf in leaves)
        if not all(id(leaf) in names for leaf in leaves):
            if shapes in self._by_hand:
                self.named |= dict(zip(self._by_hand[shapes], leaves, strict=True))
            else:
                self.name(_by_shape(leaves, self.named))
            names = {id(parameter): name for name, parameter in self.named.items()}
        self._by_hand[shapes] = [names[id(leaf)] for leaf in leaves]
        return dict(zip(self._by_hand[shapes], leaves, strict=True))

    @torch.no_grad()
    def given(self) -> Iterator[Tensor]:
        """All parameters that optimizers have been given, which are not named before one steps."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]

    def keep_first(self, module: nn.Module) -> None:
        """``module`` is called before any step: what it holds is the start, whatever its ``forward`` does to it."""
        given = set(map(id, self.given()))
        for parameter in module.parameters():
            if (
                id(parameter) in given
                and id(parameter) not in self._first
                and not is_lazy(parameter)
            ):
                self._first[id(parameter)] = parameter.detach().clone()

    def snapshot(self, after_round: int) -> None:
        """Keep every named parameter as the last step left it; once per round. Before any step, as it was first called with."""
        if any(snapshot["round"] == after_round for snapshot in self.snapshots) or not self.named:
            return
        first, self._first = self._first, {}
        tensors = self.last_step.left(self.named)
        if after_round == 0:
            tensors = {name: first.get(id(p), p) for name, p in self.named.items()}
        file = None
        if total_bytes(tensors.values()) <= self._whole_bytes:
            file = f"parameters-{after_round:06}.safetensors"
            write_safetensors(self._folder / file, tensors)
        hashes = {name: sha256(tensor) for name, tensor in tensors.items()}
        self.snapshots.append({"round": after_round, "hashes": hashes, "file": file})

    def buffers(self) -> dict[str, Tensor]:
        """The buffers of the root modules that hold a named parameter."""
        return {
            f"{label}.{name}": buffer
            for root, label in self.roots
            for name, buffer in entries_of(root, "_buffers")
        }

    def label_of(self, module: nn.Module) -> str:
        """What it is called in these names; nothing where it is none of the root modules."""
        own = unwrap(module)
        return next((label for root, label in self.roots if unwrap(root) is own), "")

    def is_part(self, module: nn.Module) -> bool:
        """Whether it is a part of one of the root modules."""
        own = unwrap(module)
        return any(
            one is own for root, _ in self.roots for one in root.modules() if one is not root
        )

    def trained(self) -> dict[str, Tensor]:
        """The named parameters and those buffers."""
        return {**self.named, **self.buffers()}

    def live_hashes(self) -> dict[str, list[str]]:
        """The names of the parameters and buffers by their hash, as the last step left them; several may hold the same.

        Without the parameters that are changed by hand since.
        """
        found: dict[str, list[str]] = {}
        left = self.last_step.left(self.trained())
        for name, tensor in self.last_step.as_stepped(left).items():
            found.setdefault(sha256(tensor), []).append(name)
        return found

    def layers(self) -> list[str]:
        """The classes of the modules in those root modules."""
        return sorted(
            {type(module).__name__ for root, _ in self.roots for module in root.modules()}
        )

    def note_criteria(self, module: nn.Module) -> None:
        """``module`` is called, from outside any module: note the settings of torch's own losses in it."""
        if id(module) in self._looked_into:
            return
        parts = list(module.modules())
        if len(parts) > 1:  # not one that is built anew for each call
            self._looked_into.add(id(module))
        for part in parts:
            if type(part).__module__ == "torch.nn.modules.loss":
                kind, told = type(part).__name__, _as_told(part)
                self._criteria.setdefault(kind, {})[told] = None

    def layer_settings(self) -> dict[str, str]:
        """Torch's own layers in them, as they print themselves; its losses with all settings, by class and number of such."""
        criteria = {
            f"{kind} #{number}": told
            for kind, alike in self._criteria.items()
            for number, told in enumerate(alike, start=1)
        }
        own = {
            f"{label}.{name}": f"{type(module).__name__}(eps={epsilon!r})"
            for root, label in self.roots
            for name, module in root.named_modules()
            if (epsilon := _epsilon(module)) is not None
        }
        return (
            own
            | criteria
            | {
                f"{label}.{name}": f"{type(module).__name__}({module.extra_repr()})"
                for root, label in self.roots
                for name, module in root.named_modules()
                if type(module).__module__.startswith("torch.nn.modules.")
            }
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
            for name, parameter in self.named.items()
        }
        return {
            "optimizers": self._infos,
            "parameters": described,
            "snapshots": self.snapshots,
            "optimizer_seen": self.optimizer_seen,
        }


def _epsilon(module: nn.Module) -> float | None:
    """What a normalization of the script's own keeps beside its weights, by one of the usual names."""
    known = (vars(module).get(name) for name in _EPSILONS)
    return next((value for value in known if isinstance(value, float)), None)


def _as_told(criterion: nn.Module) -> str:
    """One of torch's losses as it would print itself with all of its settings."""
    plain = (bool, int, float, str)
    settings = {
        name: value
        for name, value in sorted(vars(criterion).items())
        if isinstance(value, plain) and not name.startswith("_") and name != "training"
    }
    told = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"{type(criterion).__name__}({told})"


def _settings(optimizer: Optimizer, but: Sequence[str]) -> list[dict[str, str]]:
    """Of each group the options, but for those named, as Python writes them; numbers of numpy's, and tensors of one, as Python's."""
    return [
        {key: repr(_plain(value)) for key, value in group.items() if key not in but}
        for group in optimizer.param_groups
    ]


def _plain(value: Any) -> Any:
    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    if isinstance(value, Tensor):
        return value.item() if value.dim() == 0 else value
    return (
        value.item()
        if type(value).__module__ == "numpy" and not getattr(value, "shape", ())
        else value
    )


def _by_shape(leaves: Sequence[Tensor], named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names for tensors that have none.

    Of one shape they are numbered by their content, and those alike (zeros, say) by the names of the script's variables.
    """
    of_shape: dict[str, list[Tensor]] = {}
    for leaf in leaves:
        of_shape.setdefault("x".join(map(str, leaf.shape)) or "scalar", []).append(leaf)
    found: dict[str, Tensor] = {}
    paths: dict[int, str] = {}
    for shape, alike in of_shape.items():
        if len(alike) > 1:
            paths = paths or {id(thing): path for path, thing in reachable()}
            order = {id(leaf): (sha256(leaf), paths.get(id(leaf), "")) for leaf in alike}
            alike.sort(key=lambda leaf: order[id(leaf)])
        first = 1 + sum(name.startswith(f"tensor {shape} #") for name in named)
        found |= {f"tensor {shape} #{number}": leaf for number, leaf in enumerate(alike, first)}
    return found
