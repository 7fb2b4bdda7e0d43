"""The scratch area of a run: a mirror of the user's files with the rewritten texts in it, and an environment.

What runs there never creates, changes or deletes a file of the user's. Three layers see to it: the mirror
(:mod:`.probe.mirror`: relative paths lead to links and copies), redirection inside every Python process
(:mod:`.probe.redirect`: what would be written through a link, or to an absolute path, is written in the mirror) and,
on Linux, the kernel (:mod:`.probe.landlock`: native code and other programs are refused). Where the kernel cannot, an
audit hook (:mod:`.probe.audit`) refuses what Python code does past the redirection.
"""

from __future__ import annotations

import io
import os
import shutil
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .probe.mirror import Mirror
from .probe.protection import OPEN, SCRATCH

PROBE = Path(__file__).parent / "probe"
START = "torchopt_start.py"
_CACHE_VARIABLES = ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE")

_SITECUSTOMIZE = '''\
"""Protect the user's files in every Python process of the run, then do what sitecustomize would have done."""
import importlib.machinery
import importlib.util
import os
import sys

from _torchopt_probe.protection import protect

protect()
here = os.path.dirname(os.path.abspath(__file__))
spec = importlib.machinery.PathFinder.find_spec("sitecustomize", [p for p in sys.path if p != here])
if spec is not None:
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
'''


@dataclass(frozen=True)
class Overlay:
    """A scratch area ready to run in: ``program`` is what to start the interpreter with, in ``cwd``.

    ``given`` is what stands in for the user's files there, by their paths.
    """

    scratch: Path
    temporary: Path
    cwd: Path
    entry: Path
    program: Path
    environment: Mapping[str, str]
    given: Mapping[str, bytes]

    @property
    def mark(self) -> str:
        """The ``NAME=value`` that every process of the run has in its environment."""
        return f"{SCRATCH}={self.scratch}"

    @property
    def shown_paths(self) -> tuple[tuple[str, str], ...]:
        """What to show for which path of ours: the user's own for the mirror's."""
        scratch, temporary = str(self.scratch), str(self.temporary)
        return ((f"{scratch}/root", ""), (scratch, "<scratch>"), (temporary, "<temporary>"))

    def shown(self, text: str) -> str:
        """``text`` of the run as the user should see it."""
        for ours, shown in self.shown_paths:
            text = text.replace(ours, shown)
        return text


def make_overlay(
    scratch: Path,
    temporary: Path,
    *,
    entry: Path,
    overrides: Mapping[Path, str],
    cwd: Path,
    environment: Mapping[str, str],
    cache: Path | None = None,
    writable: tuple[Path, ...] = (),
    absent: Iterable[Path] = (),
) -> Overlay:
    """Make the mirror in the new folder ``scratch``, for a script ``entry`` started in ``cwd``.

    ``temporary`` is for the run's temporary files; its path must be short, for sockets are made there (Unix allows
    them some hundred characters). ``overrides`` are the texts that stand in for the files of those paths; ``environment`` is what the script would
    see; ``cache`` is where compiled kernels outlive the run; ``writable`` are further folders it may write to;
    ``absent`` are files that the run does not see.
    """
    scratch.mkdir(parents=True)
    scratch = scratch.resolve()
    temporary = temporary.resolve()
    writable = (*writable, temporary) if cache is None else (*writable, temporary, cache)
    mirror = Mirror(str(scratch), tuple(str(folder.resolve()) for folder in writable))
    mirror.make()
    cwd, entry = cwd.resolve(), Path(os.path.abspath(entry))
    folders = (cwd, entry.parent, entry.resolve().parent, *(p.resolve().parent for p in overrides))
    for folder in dict.fromkeys(folders):
        mirror.open_folder(mirror.root + str(folder.parent), copy=False)
        mirror.open_folder(mirror.root + str(folder).rstrip("/"))
    for path in absent:
        mirror.remove(str(path.resolve()))
    given = {str(path.resolve()): _encoded(text) for path, text in overrides.items()}
    for path, content in given.items():
        mirror.write(path, content)
    site = _make_site(scratch / "site")
    return Overlay(
        scratch,
        temporary,
        Path(mirror.root + str(cwd)),
        Path(mirror.root + str(entry)),
        site / START,
        _environment(environment, mirror, site, cwd)
        | {"TMPDIR": str(temporary)}
        | _caches(cache or scratch / "cache"),
        given,
    )


def _encoded(text: str) -> bytes:
    """``text`` in the encoding that its coding cookie names (PEP 263)."""
    if text.startswith("\ufeff"):
        return text.encode()  # whose name for Python, utf-8-sig, would write the mark twice
    encoding, _ = tokenize.detect_encoding(io.BytesIO(text.encode("utf-8", "replace")).readline)
    return text.encode(encoding)


def _make_site(site: Path) -> Path:
    """The folder on PYTHONPATH: the probe under its own name, its activation, the program that starts it."""
    shutil.copytree(PROBE, site / "_torchopt_probe", ignore=shutil.ignore_patterns("__pycache__"))
    (site / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    (site / START).write_text("from _torchopt_probe.start import main\n\nmain()\n")
    return site


def _environment(given: Mapping[str, str], mirror: Mirror, site: Path, cwd: Path) -> dict[str, str]:
    """``given``, with PYTHONPATH mapped into the mirror and every writer we know of sent to the scratch area."""
    scratch = Path(mirror.scratch)
    environment = dict(given)
    given_path = environment.get("PYTHONPATH")
    entries = given_path.split(os.pathsep) if given_path else []
    entries = [_in_mirror(mirror, os.path.join(cwd, entry)) for entry in entries]
    folders = {name: scratch / name for name in ("wandb", "mlruns")}
    for folder in folders.values():
        folder.mkdir()
    return environment | {
        "PYTHONPATH": os.pathsep.join([str(site), *entries]),
        # Not PYTHONPYCACHEPREFIX: with that, Python would not read the compiled torch either.
        "PYTHONDONTWRITEBYTECODE": "1",
        "WANDB_MODE": "offline",
        **{
            f"WANDB_{what}_DIR": str(folders["wandb"])
            for what in ("CACHE", "CONFIG", "DATA", "ARTIFACT")
        },
        "WANDB_DIR": str(folders["wandb"]),
        "MLFLOW_TRACKING_URI": folders["mlruns"].as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        **_download_caches(given, mirror),
        "MPLBACKEND": "Agg",
        "GIT_OPTIONAL_LOCKS": "0",
        SCRATCH: mirror.scratch,
        OPEN: os.pathsep.join(mirror.extra),
    }


def _caches(folder: Path) -> dict[str, str]:
    """Where the compilers keep what they compile."""
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TRITON_CACHE_DIR": "triton",
        "TORCH_EXTENSIONS_DIR": "extensions",
        "CUDA_CACHE_PATH": "cuda",
    }
    return {variable: str(folder.resolve() / name) for variable, name in caches.items()}


def _download_caches(given: Mapping[str, str], mirror: Mirror) -> dict[str, str]:
    """The folders where libraries keep what they download and prepare, by their places in the mirror.

    Native code reads there what Python has just written: it has to be told the place, as no redirection reaches it. So does
    pyarrow with the tables of Hugging Face's `datasets`.
    """
    home = given.get("HOME") or os.path.expanduser("~")
    folders = {"XDG_CACHE_HOME": os.path.join(home, ".cache")}
    folders |= {
        name: given[name] for name in _CACHE_VARIABLES if os.path.isabs(given.get(name, ""))
    }
    places = {name: mirror.place(os.path.normpath(path)) for name, path in folders.items()}
    return {name: place for name, place in places.items() if place is not None}


def _in_mirror(mirror: Mirror, path: str) -> str:
    """``path`` in the mirror where that is unfolded, else as it is."""
    place = mirror.place(os.path.normpath(path))
    return place if place is not None and mirror.unfolded(place) else path
