"""What to gate: flags, and ``[tool.torchopt.gate]`` of the nearest ``pyproject.toml``; a flag wins over a key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, cast

from ..config import above_zero, parsers, suggestion
from ..errors import TorchoptError
from ..options import Tier
from ..pyproject import TABLE, configuration_table, place_of

MINIMUM_AGAINST_ORIGINAL, MINIMUM_AGAINST_BASE = 1.0, 0.95
"""The least speedups by default. Two commits that do the same are measured at 1.00x give or take the noise, so that
the lower end of the interval lies below: a pull request may lose what cannot be told from nothing."""


class Device(str, Enum):
    """Where to gate: ``AUTO`` is a GPU if there is one, else the CPU, emulating CUDA for scripts that need it."""

    AUTO = "auto"
    CUDA = "cuda"
    CPU = "cpu"


@dataclass(frozen=True)
class GatedScript:
    """One script to gate. ``original`` is what it is compared with, None for the same script in the base commit.

    Where ``args``, ``minimum_speedup`` or ``steps`` are None the gate's own settings hold. ``configured_at`` is the
    file, line and column that ask for it, None for the command line.
    """

    script: Path
    original: Path | None = None
    args: tuple[str, ...] | None = None
    minimum_speedup: float | None = None
    steps: int | None = None
    configured_at: tuple[Path, int | None, int | None] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class GateSettings:
    """Every flag of ``gate``, and key of its table; None where nothing is said."""

    scripts: tuple[GatedScript, ...] | None = None
    base: str | None = None
    device: Device | None = None
    tier: Tier | None = None
    minimum_speedup: float | None = None
    steps: int | None = None
    repeats: int | None = None
    seed: int | None = None
    timeout: float | None = None
    nproc_per_node: int | None = None
    python: str | None = None
    junit: Path | None = None
    summary: Path | None = None

    def over(self, base: GateSettings) -> GateSettings:
        """These settings, and those of ``base`` where these say nothing."""
        return replace(base, **{k: v for k, v in vars(self).items() if v is not None})

    def minimum_for(self, script: GatedScript) -> float:
        """The least speedup that passes ``script``."""
        for said in (script.minimum_speedup, self.minimum_speedup):
            if said is not None:
                return said
        return MINIMUM_AGAINST_BASE if script.original is None else MINIMUM_AGAINST_ORIGINAL


def from_flags(flags: Mapping[str, object]) -> GateSettings:
    """The settings of ``flags``, as typed. Raises :class:`TorchoptError` naming the flag whose value is none."""
    values: dict[str, Any] = {}
    for key, value in flags.items():
        if value not in (None, [], ()):
            name = "--" + key.replace("_", "-")
            values[key] = _parsed(key, _number(key, value), name)
    return GateSettings(**values)


def load_gate_settings(folder: Path) -> GateSettings:
    """``[tool.torchopt.gate]`` of the nearest ``pyproject.toml`` with a ``[tool.torchopt]``, from ``folder`` upwards.

    Its paths are meant from the file. Raises :class:`TorchoptError` (path, line, column) for an unknown key or a wrong
    value.
    """
    found = configuration_table(folder)
    if found is None:
        return GateSettings()
    file = _File(*found[:2])
    gate = found[2].get("gate", {})
    if not isinstance(gate, dict):
        raise file.error("tool.torchopt.gate is not a table")
    table = dict(cast("dict[str, object]", gate))
    scripts = table.pop("scripts", None)
    settings = GateSettings(**file.values(table, _PARSERS, "in [tool.torchopt.gate]"))
    folder, python = file.path.parent, settings.python
    if python is not None and re.search(r"[/\\]", python):
        python = str(folder / Path(python).expanduser())
    return replace(
        settings,
        scripts=None if scripts is None else file.scripts(scripts),
        python=python,
        junit=settings.junit and folder / settings.junit,
        summary=settings.summary and folder / settings.summary,
    )


@dataclass(frozen=True)
class _File:
    """A ``pyproject.toml``, and the places in its ``[tool.torchopt.gate]``."""

    path: Path
    text: str

    def error(self, message: str, *names: str | int) -> TorchoptError:
        return TorchoptError(message, self.path, *place_of(self.text, *TABLE, "gate", *names))

    def scripts(self, value: object) -> tuple[GatedScript, ...]:
        entries = cast("list[object]", value if isinstance(value, list) else [value])
        return tuple(self._script(entry, number) for number, entry in enumerate(entries))

    def _script(self, entry: object, number: int) -> GatedScript:
        within = ("scripts", number)
        place = place_of(self.text, *TABLE, "gate", *within)
        if not isinstance(entry, dict):
            entry = {"script": entry}
        table = cast("dict[str, object]", entry)
        values = self.values(table, _SCRIPT_PARSERS, "of a script", within)
        if "script" not in values:
            raise self.error("scripts: no `script` says which", *within)
        folder, original = self.path.parent, values.pop("original", None)
        return GatedScript(
            **{**values, "script": folder / values["script"]},
            original=original and folder / original,
            configured_at=(self.path, *place),
        )

    def values(
        self,
        table: Mapping[str, object],
        known: Mapping[str, Callable[[object], object]],
        where: str,
        within: tuple[str | int, ...] = (),
    ) -> dict[str, Any]:
        """What ``table`` says, by the names of fields; it is the one of the keys ``within``."""
        values: dict[str, Any] = {}
        names = {name.replace("_", "-") for name in known}
        for key, value in table.items():
            name = key.replace("-", "_")
            if name not in known:
                close = suggestion(key.replace("_", "-"), names if within else {*names, "scripts"})
                raise self.error(f"unknown key {key!r} {where}{close}", *within, key)
            try:
                values[name] = known[name](value)
            except ValueError as error:
                raise self.error(f"{key}: {error}", *within, key) from None
        return values


def _number(key: str, value: object) -> object:
    """The number that a flag's text says, where the flag takes a number and the text is one."""
    kind = {"timeout": float, "minimum_speedup": float}
    kind |= dict.fromkeys(("steps", "repeats", "seed", "nproc_per_node"), int)
    if key not in kind or not isinstance(value, str):
        return value
    try:
        return kind[key](value)
    except ValueError:
        return value


def _parsed(key: str, value: object, place: str) -> Any:
    try:
        return _PARSERS[key](value)
    except ValueError as error:
        raise TorchoptError(f"{place}: {error}") from None


_factor = above_zero("a factor above 0 such as 1.2")


def _device(value: object) -> Device:
    try:
        return Device(value)
    except ValueError:
        raise ValueError(f"{value!r} is not one of {', '.join(Device)}") from None


def _arguments(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(one, str) for one in cast("list[object]", value)):
        return tuple(cast("list[str]", value))
    raise ValueError(f"{value!r} is not a list of strings")


def _path(value: object) -> Path:
    if isinstance(value, str) and value:
        return Path(value)
    raise ValueError(f"{value!r} is not a path")


def _reference(value: object) -> str:
    # What begins with a dash would be an option of git's.
    if isinstance(value, str) and value and not value.startswith("-"):
        return value
    raise ValueError(f"{value!r} is not a commit")


_SCRIPT_PARSERS: Mapping[str, Callable[[object], object]] = {
    "script": _path,
    "original": _path,
    "args": _arguments,
    "minimum_speedup": _factor,
    "steps": parsers["steps"],
}
_PARSERS: Mapping[str, Callable[[object], object]] = {
    "base": _reference,
    "device": _device,
    "minimum_speedup": _factor,
    "junit": _path,
    "summary": _path,
    **{name: parsers[name] for name in ("tier", "steps", "repeats", "seed", "timeout", "python")},
    "nproc_per_node": parsers["nproc_per_node"],
}
assert {"scripts", *_PARSERS} == {one.name for one in fields(GateSettings)}
