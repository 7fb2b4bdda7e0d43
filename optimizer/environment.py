"""The interpreter that runs the user's script: where it is and which Python and torch it has.

Read from the files of the installation (``pyvenv.cfg``, ``torch/version.py``), because starting an
interpreter costs more than a whole rewrite; only one that cannot be read that way (a pyenv shim, a
wrapper script) is run.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import TorchoptError

Version = tuple[int, int]

_IN_NAME = r"python(\d)\.(\d+)"
_IN_CONFIG = r"(?m)^version(?:_info)?\s*=\s*(\d+)\.(\d+)"
_SYSTEM_SITE = r"(?mi)^include-system-site-packages\s*=\s*true"
_HOME = r"(?m)^home\s*=\s*(.+?)\s*$"
_TORCH_VERSION = r"(?m)^__version__\s*(?::[^=]*)?=\s*['\"](\d+)\.(\d+)"
_ASK = (
    "import sys, importlib.util as u; s = u.find_spec('torch'); "
    "print(*sys.version_info[:2]); print((s and s.origin) or '')"
)


@dataclass(frozen=True)
class Environment:
    """An interpreter; versions are ``(major, minor)``, torch's None when none was found."""

    python: Path
    python_version: Version
    torch_version: Version | None


def find_python(requested: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """The interpreter ``--python`` means, a path or a command.

    By default that of the active environment, else our own.
    Raises :class:`TorchoptError` when there is no such program.
    """
    if requested is not None:
        found = shutil.which(os.path.expanduser(requested), path=environ.get("PATH"))
        if found is None:
            raise TorchoptError(f"--python: no such interpreter: {requested}")
        return Path(os.path.abspath(found))
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = environ.get(variable)
        if not prefix:
            continue
        for place in ("bin/python", "Scripts/python.exe", "python.exe"):
            candidate = Path(prefix, place)
            if candidate.exists():
                return candidate.absolute()
    return Path(sys.executable)


def inspect_environment(python: Path) -> Environment:
    """What ``python`` (an absolute path) is.

    Raises :class:`TorchoptError` when it does not run as a Python 3.
    """
    if python == Path(sys.executable):
        version = (sys.version_info.major, sys.version_info.minor)
        return Environment(
            python, version, _torch_version(Path(entry) for entry in sys.path if entry)
        )
    installed_version = _installed_version(python)
    if installed_version is None or installed_version < (3, 0):
        return _ask(python)
    folders = _site_packages(python, installed_version)
    return Environment(python, installed_version, _torch_version(folders))


def _virtual_environment_config(python: Path) -> str:
    for folder in (python.parent, python.parent.parent):
        try:
            return (folder / "pyvenv.cfg").read_text(encoding="utf-8")
        except OSError:
            continue
    return ""


def _installed_version(python: Path) -> Version | None:
    config = _virtual_environment_config(python)
    match = re.search(_IN_CONFIG, config) or re.search(_IN_NAME, os.path.realpath(python))
    prefix = python.parent.parent
    # The name of a wrapper or a shim proves nothing: its folder must look like an installation too.
    if match is None or not (
        config or any(prefix.glob("lib*/python3*")) or (prefix / "Lib").is_dir()
    ):
        return None
    return int(match[1]), int(match[2])


def _site_packages(python: Path, version: Version) -> Iterator[Path]:
    name = f"python{version[0]}.{version[1]}"
    config = _virtual_environment_config(python)
    home = re.search(_HOME, config)
    prefixes = [python.parent.parent]
    if not config:
        prefixes.append(Path(os.path.realpath(python)).parent.parent)
    elif re.search(_SYSTEM_SITE, config) and home:
        prefixes.append(Path(home[1]).parent)
    for prefix in prefixes:
        yield from (prefix / lib / name / "site-packages" for lib in ("lib", "lib64", "local/lib"))
        yield from (prefix / place for place in ("Lib/site-packages", "lib/python3/dist-packages"))
        yield prefix / "local" / "lib" / name / "dist-packages"
    if not config:
        yield Path.home() / ".local" / "lib" / name / "site-packages"


def _torch_version(folders: Iterator[Path]) -> Version | None:
    for folder in folders:
        try:
            text = (folder / "torch" / "version.py").read_text(encoding="utf-8")
        except OSError:
            continue
        match = re.search(_TORCH_VERSION, text)
        if match is not None:
            return int(match[1]), int(match[2])
    return None


def _ask(python: Path) -> Environment:
    import subprocess

    try:
        answer = subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, timeout=60, check=True
        ).stdout.splitlines()
        major, minor = (int(part) for part in answer[0].split())
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        raise TorchoptError(f"--python: does not run as a Python 3 interpreter: {python}") from None
    origin = Path(answer[1]) if len(answer) > 1 and answer[1] else None
    return Environment(
        python, (major, minor), _torch_version(iter([origin.parent.parent])) if origin else None
    )
