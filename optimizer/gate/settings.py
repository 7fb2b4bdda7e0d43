"""What to gate: flags, and ``[tool.torchopt.gate]`` of the nearest ``pyproject.toml``; a flag wins over a key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, cast

from ..config import above_zero, configuration_table, line_of, parsers, suggestion
from ..errors import TorchoptError
from ..options import Tier

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

    Where ``args``, ``minimum_speedup`` or ``steps`` are None the gate's own settings hold.
    """

    script: Path
    original: Path | None = None
    args: tuple[str, ...] | None = None
    minimum_speedup: float | None = None
    steps: int | None = None


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

    Its paths are meant from the file. Raises :class:`TorchoptError` (path, line) for an unknown key or a wrong value.
    """
    found = configuration_table(folder)
    if found is None:
        return GateSettings()
    path, text, table = found
    gate = table.get("gate", {})
    if not isinstance(gate, dict):
        raise TorchoptError("tool.torchopt.gate is not a table", path, line_of(text, "gate"))
    values = _values(path, text, cast("dict[str, object]", gate), "[tool.torchopt.gate]", _PARSERS)
    settings = GateSettings(**values)
    scripts = settings.scripts and tuple(_from(path.parent, one) for one in settings.scripts)
    python = settings.python
    if python is not None and re.search(r"[/\\]", python):
        python = str(path.parent / Path(python).expanduser())
    return replace(
        settings,
        scripts=scripts,
        python=python,
        junit=settings.junit and path.parent / settings.junit,
        summary=settings.summary and path.parent / settings.summary,
    )


def _from(folder: Path, one: GatedScript) -> GatedScript:
    return replace(one, script=folder / one.script, original=one.original and folder / one.original)


def _values(
    path: Path,
    text: str,
    table: Mapping[str, object],
    section: str,
    known: Mapping[str, Callable[[object], object]],
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    names = {name.replace("_", "-") for name in known}
    for key, value in table.items():
        line, name = line_of(text, key), key.replace("-", "_")
        if name not in known:
            close = suggestion(key.replace("_", "-"), names)
            raise TorchoptError(f"unknown key {key!r} in {section}{close}", path, line)
        try:
            values[name] = known[name](value)
        except ValueError as error:
            raise TorchoptError(f"{key}: {error}", path, line) from None
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


def _scripts(value: object) -> tuple[GatedScript, ...]:
    items = cast("list[object]", value if isinstance(value, (list, tuple)) else [value])
    return tuple(_script(item) for item in items)


def _script(value: object) -> GatedScript:
    if isinstance(value, GatedScript):
        return value
    if not isinstance(value, dict):
        return GatedScript(_path(value))
    table = cast("dict[str, object]", value)
    unknown = [key for key in table if key.replace("-", "_") not in _SCRIPT_PARSERS]
    if unknown:
        names = {name.replace("_", "-") for name in _SCRIPT_PARSERS}
        raise ValueError(f"unknown key {unknown[0]!r} of a script{suggestion(unknown[0], names)}")
    if "script" not in table:
        raise ValueError(f"{value!r} does not say which script")
    parsed = {key.replace("-", "_"): entry for key, entry in table.items()}
    known: dict[str, Any] = {key: _SCRIPT_PARSERS[key](entry) for key, entry in parsed.items()}
    return GatedScript(**known)


_SCRIPT_PARSERS: Mapping[str, Callable[[object], object]] = {
    "script": _path,
    "original": _path,
    "args": _arguments,
    "minimum_speedup": _factor,
    "steps": parsers["steps"],
}
_PARSERS: Mapping[str, Callable[[object], object]] = {
    "scripts": _scripts,
    "base": _reference,
    "device": _device,
    "minimum_speedup": _factor,
    "junit": _path,
    "summary": _path,
    **{name: parsers[name] for name in ("tier", "steps", "repeats", "seed", "timeout", "python")},
    "nproc_per_node": parsers["nproc_per_node"],
}
assert set(_PARSERS) == {field.name for field in fields(GateSettings)}
