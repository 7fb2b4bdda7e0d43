"""What the user asked for: flags, and ``[tool.torchopt]`` of the nearest ``pyproject.toml``.

Every flag is a key of the same name and the other way round; both are read by the same parsers.
A flag wins over a key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast

from .environment import Environment, Version, find_python, inspect_environment
from .errors import TorchoptError
from .options import (
    MOST_SEEDS,
    NEWEST_TORCH,
    OLDEST_TORCH,
    AmpDtype,
    CompileMode,
    Options,
    Target,
    Tier,
)
from .pyproject import TABLE, configuration_table, place_of
from .requirements import TorchRequirement, required_torch

_E = TypeVar("_E", bound=Enum)


class Format(str, Enum):
    """How a command reports; ``GITHUB`` and ``SARIF`` are for `rewrite` alone, the others then report as text."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"
    SARIF = "sarif"


@dataclass(frozen=True)
class Settings:
    """Every flag of ``rewrite`` and ``verify``; None where nothing is said."""

    dry_run: bool | None = None
    check: bool | None = None
    interactive: bool | None = None
    output: Path | None = None
    split_patches: Path | None = None
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    tier: Tier | None = None
    target: Target | None = None
    gpus: int | None = None
    accumulate: int | None = None
    workers: int | None = None
    prefetch: int | None = None
    profile: Path | None = None
    sync_batchnorm: bool | None = None
    torch: Version | None = None
    amp: AmpDtype | None = None
    compile_mode: CompileMode | None = None
    format: Format | None = None
    verify: bool | None = None
    python: str | None = None
    steps: int | None = None
    seed: int | None = None
    seeds: int | None = None
    timeout: float | None = None
    memory_limit: int | None = None
    disk_limit: int | None = None
    nproc_per_node: int | None = None
    no_timing: bool | None = None
    repeats: int | None = None
    attribute: bool | None = None
    trace: Path | None = None
    nvtx: bool | None = None
    budget: float | None = None
    batch_sizes: tuple[int, ...] | None = None
    resume: bool | None = None
    emulate_cuda: bool | None = None
    jobs: int | None = None

    @classmethod
    def from_flags(cls, flags: Mapping[str, object]) -> Settings:
        """The settings of ``flags``: by field name, as typed, None or empty when absent.

        Raises :class:`TorchoptError` naming the flag when a value is none.
        """
        values: dict[str, Any] = {
            key: _parsed(key, _typed_number(key, value), f"--{_dashed(key)}")
            for key, value in flags.items()
            if value not in (None, [], ())
        }
        return cls(**values)

    def over(self, base: Settings) -> Settings:
        """These settings, and those of ``base`` where these say nothing."""
        said = {key: value for key, value in vars(self).items() if value is not None}
        return replace(base, **said)

    def options_in(self, folder: Path) -> Options:
        """The options of a rewrite of the scripts in ``folder``.

        They are for the interpreter that runs them and the torch it has; where it has none, for the
        torch that the project requires, else the newest. Raises :class:`TorchoptError` as
        :meth:`options` does.
        """
        environment = inspect_environment(find_python(self.python))
        unknown = self.torch is None and environment.torch_version is None
        return self.options(environment, required_torch(folder) if unknown else None)

    def options(
        self, environment: Environment, required: TorchRequirement | None = None
    ) -> Options:
        """The options of a rewrite for ``environment``, and for the torch ``required`` if that has none.

        Raises :class:`TorchoptError` when the script would run under a torch older than
        :data:`OLDEST_TORCH`.
        """
        torch_version = self.torch or environment.torch_version
        if torch_version is None:
            torch_version = required.version if required else NEWEST_TORCH
        if torch_version < OLDEST_TORCH:
            version, oldest = (".".join(map(str, v)) for v in (torch_version, OLDEST_TORCH))
            where = "" if self.torch or required else f" in {environment.python}"
            advice = f" (`--torch {oldest}` or newer writes for that all the same)"
            raise TorchoptError(
                f"{'' if required else '--torch: '}torch {version}{where} is older than {oldest}, "
                f"the oldest that torchopt writes for{advice if required else ''}",
                required.path if required else None,
                required.line if required else None,
            )
        defaults = Options()
        return Options(
            tier=defaults.tier if self.tier is None else self.tier,
            target=self.target or (Target.CUDA if self.emulate_cuda else defaults.target),
            amp=self.amp or defaults.amp,
            compile_mode=self.compile_mode or defaults.compile_mode,
            gpus=self.gpus,
            accumulate=self.accumulate,
            workers=self._workers(),
            prefetch=self.prefetch,
            sync_batchnorm=bool(self.sync_batchnorm),
            torch_version=torch_version,
            python_version=environment.python_version,
            select=frozenset(self.select or ()),
            ignore=frozenset(self.ignore or ()),
        )

    def _workers(self) -> int | None:
        """What was said, else what a profile measured. Raises :class:`TorchoptError` for what is no profile."""
        if self.workers is not None or self.profile is None:
            return self.workers
        from .profiling.document import measured_workers

        return measured_workers(self.profile)


def load_settings(folder: Path) -> Settings:
    """``[tool.torchopt]`` of the nearest ``pyproject.toml`` that has one, from ``folder`` upwards.

    Raises :class:`TorchoptError` (path, line, column) for what is not TOML, an unknown key or a wrong
    value. The table of the gate in it is the gate's to read.
    """
    found = configuration_table(folder)
    if found is None:
        return Settings()
    path, text, table = found
    return _settings(path, text, {key: value for key, value in table.items() if key != "gate"})


def suggestion(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` when ``known`` holds something close to ``name``, else nothing."""
    import difflib

    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _settings(path: Path, text: str, table: Mapping[str, object]) -> Settings:
    known = {_dashed(field.name) for field in fields(Settings)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        name, place = key.replace("-", "_"), place_of(text, *TABLE, key)
        if _dashed(key) not in known:
            close = suggestion(_dashed(key), known)
            raise TorchoptError(f"unknown key {key!r} in [tool.torchopt]{close}", path, *place)
        try:
            values[name] = _parsed(name, value, key)
        except TorchoptError as error:
            raise TorchoptError(error.message, path, *place) from None
    return _relative_to(path.parent, Settings(**values))


def _relative_to(folder: Path, settings: Settings) -> Settings:
    """Paths in a configuration file are meant from that file, not from the working directory."""
    if settings.output is not None:
        settings = replace(settings, output=folder / settings.output)
    if settings.split_patches is not None:
        settings = replace(settings, split_patches=folder / settings.split_patches)
    if settings.trace is not None:
        settings = replace(settings, trace=folder / settings.trace)
    if settings.profile is not None:
        settings = replace(settings, profile=folder / settings.profile)
    if settings.python is not None and re.search(r"[/\\]", settings.python):
        settings = replace(settings, python=str(folder / Path(settings.python).expanduser()))
    return settings


def _dashed(key: str) -> str:
    return key.replace("_", "-")


def _typed_number(key: str, value: object) -> object:
    """The number that a flag's text says, where the flag takes a number and the text is one."""
    whole = key in {"gpus", "accumulate", "workers", "steps", "seed", "seeds", "repeats"}
    whole = whole or key in {"nproc_per_node", "jobs", "prefetch"}
    if not (whole or key in {"timeout", "budget"}) or not isinstance(value, str):
        return value
    try:
        return int(value) if whole else float(value)
    except ValueError:
        return value


def _parsed(key: str, value: object, place: str) -> Any:
    try:
        return parsers[key](value)
    except ValueError as error:
        raise TorchoptError(f"{place}: {error}") from None


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"{value!r} is neither true nor false")


def _text(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise ValueError("it is empty" if value == "" else f"{value!r} is not a string")


def _names(value: object) -> tuple[str, ...]:
    items = cast("list[object]", value) if isinstance(value, (list, tuple)) else [value]
    return tuple(name for item in items for name in re.split(r"[\s,]+", _text(item)) if name)


def _at_least(smallest: int) -> Callable[[object], int]:
    def parse(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= smallest:
            return value
        raise ValueError(f"{value!r} is not a whole number of at least {smallest}")

    return parse


def _sizes(value: object) -> tuple[int, ...]:
    """Sizes as a flag has them, ``64,128``, or as a list of numbers."""
    items: list[object] = [value]
    if isinstance(value, str):
        items = [int(item) if item.strip().isdigit() else item for item in value.split(",")]
    elif isinstance(value, (list, tuple)):
        items = list(cast("list[object]", value))
    return tuple(dict.fromkeys(map(_at_least(1), items)))


def _between(smallest: int, largest: int) -> Callable[[object], int]:
    at_least = _at_least(smallest)

    def parse(value: object) -> int:
        number = at_least(value)
        if number <= largest:
            return number
        raise ValueError(f"{number} is more than {largest}")

    return parse


def above_zero(what: str) -> Callable[[object], float]:
    """Reads a finite number above 0; raises ValueError saying that a value is not ``what`` for any other."""

    def parse(value: object) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf:
            return float(value)
        raise ValueError(f"{value!r} is not {what}")

    return parse


def _bytes(value: object) -> int:
    match = (
        re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])(i?B)?", value.strip())
        if isinstance(value, str)
        else None
    )
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"{value!r} is not a size such as '12GiB'")
    unit = 1000 if match[3] == "B" else 1024
    return int(float(match[1]) * unit ** (1 + "KMGT".index(match[2])))


def _one_of(choices: Mapping[str, _E]) -> Callable[[object], _E]:
    def parse(value: object) -> _E:
        if isinstance(value, str) and value in choices:
            return choices[value]
        raise ValueError(f"{value!r} is not one of {', '.join(choices)}")

    return parse


def _version(value: object) -> Version:
    match = re.match(r"v?(\d+)\.(\d+)", value) if isinstance(value, str) else None
    if isinstance(value, float):
        raise ValueError(f"{value!r} is a number: a version stands in quotes, such as '2.4'")
    if match is None:
        raise ValueError(f"{value!r} is not a version such as '2.4'")
    return int(match[1]), int(match[2])


parsers: Mapping[str, Callable[[object], object]] = {
    "dry_run": _flag,
    "check": _flag,
    "interactive": _flag,
    "output": lambda value: Path(_text(value)),
    "split_patches": lambda value: Path(_text(value)),
    "select": _names,
    "ignore": _names,
    "tier": _one_of({tier.label: tier for tier in Tier}),
    "target": _one_of({target.value: target for target in Target}),
    "gpus": _at_least(1),
    "accumulate": _at_least(2),
    "workers": _at_least(0),
    "prefetch": _at_least(1),
    "profile": lambda value: Path(_text(value)),
    "sync_batchnorm": _flag,
    "torch": _version,
    "amp": _one_of({dtype.value: dtype for dtype in AmpDtype}),
    "compile_mode": _one_of({mode.value: mode for mode in CompileMode}),
    "format": _one_of({kind.value: kind for kind in Format}),
    "verify": _flag,
    "python": _text,
    "steps": _at_least(1),
    "seed": _at_least(0),
    "seeds": _between(1, MOST_SEEDS),
    "timeout": above_zero("a number of seconds above 0"),
    "memory_limit": _bytes,
    "disk_limit": _bytes,
    "nproc_per_node": _at_least(1),
    "jobs": _at_least(1),
    "no_timing": _flag,
    "repeats": _at_least(1),
    "attribute": _flag,
    "trace": lambda value: Path(_text(value)),
    "nvtx": _flag,
    "budget": above_zero("a number of minutes above 0"),
    "batch_sizes": _sizes,
    "resume": _flag,
    "emulate_cuda": _flag,
}
"""What reads the value of each key: raises ValueError, which says why, for one that is none."""
