"""The corpus as the benchmarks run it: scripts, their arguments and data, and the versions that are compared."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tests.verification.warm import COMPILES_BY_ITSELF, warm_interpreter
from torchopt_cli.optimizer.config import Settings, load_settings
from torchopt_cli.optimizer.execution.observations import ENDED_WELL
from torchopt_cli.optimizer.execution.runner import Mode, RunSettings, ScriptVersion, run
from torchopt_cli.optimizer.measuring.measurement import pace
from torchopt_cli.optimizer.options import Options, Tier
from torchopt_cli.optimizer.pipeline.rewrite import Rewritten, rewrite_all
from torchopt_cli.optimizer.profiling.opportunities import usable_cores
from torchopt_cli.optimizer.verifying.verified_rewrite import changed_version, claimed_tier
from torchopt_cli.transforms.registry import all_transforms

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
CORPUS = ROOT / "corpus"
PYTHON = Path(sys.executable)
PACE_ROUNDS = 15
TIMEOUT_S = 900.0


@dataclass(frozen=True)
class CorpusScript:
    """A folder of corpus/, run on ``device`` (cpu or cuda)."""

    name: str
    device: str

    @property
    def original(self) -> Path:
        return CORPUS / self.name / "train.py"

    @property
    def expert(self) -> Path:
        return CORPUS / self.name / "expert.py"

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return tomllib.loads((CORPUS / self.name / "manifest.toml").read_text(encoding="utf-8"))

    @property
    def missing(self) -> list[str]:
        """The packages that the script needs and this interpreter lacks."""
        return [p for p in self.manifest.get("requires", ()) if importlib.util.find_spec(p) is None]

    def arguments(self, *, timed: bool) -> tuple[str, ...]:
        """Those of a short run; with ``timed`` those of one that goes on until its steps are steady.

        A short run is the same on every device: what is told of it is whether it trains alike, many times over.
        """
        short, timing = (
            self.manifest["cpu"],
            self.manifest["gpu" if self.device == "cuda" else "cpu"],
        )
        if not timed:
            return (*short["args"],)
        return (*timing["args"], *timing.get("timed", ()))

    @property
    def environment(self) -> dict[str, str]:
        """What hides the GPUs from a run that is not about them; beside a GPU each run compiles its kernels by itself."""
        return COMPILES_BY_ITSELF if self.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}

    @property
    def tier(self) -> Tier:
        """How far the expert's numbers may differ from the original's."""
        return Tier[self.manifest["tier"].upper()]


def corpus(names: Iterable[str], device: str) -> list[CorpusScript]:
    """The scripts of these names, all of them when there are none."""
    wanted = list(names) or sorted(path.parent.name for path in CORPUS.glob("*/manifest.toml"))
    return [CorpusScript(name, device) for name in wanted]


@contextmanager
def interpreter(device: str, threads: int, jobs: int = 1) -> Generator[Path, None, None]:
    """A program to be used in place of Python, that has torch imported already, for runs whose time does not count.

    On a CPU torch has that many ``threads``. Beside a GPU ``jobs`` share the cores, as threads that wait for a core keep all others
    of their process waiting.
    """
    on_gpu = device == "cuda"
    shared = max(1, usable_cores() // jobs)
    with warm_interpreter(shared if on_gpu else threads, gpus=on_gpu) as python:
        yield python


@contextmanager
def timing_interpreter(device: str, python: Path) -> Generator[Path, None, None]:
    """The same for runs that are timed: beside a GPU torch has as many threads as Python would give it, on a CPU it is ``python``."""
    if device == "cpu":
        yield python
        return
    with warm_interpreter(usable_cores(), gpus=True) as timed:
        yield timed


@dataclass(frozen=True)
class Prepared:
    """Arguments of a script whose data is there; of the original the ``pace`` in seconds per step and the peak of
    device memory in bytes (0 without a device), both roughly."""

    arguments: tuple[str, ...]
    pace: float
    device_memory: int = 0


def prepare(
    script: CorpusScript,
    folder: Path,
    python: Path,
    *,
    timed: bool,
    timeout_s: float = TIMEOUT_S,
) -> Prepared:
    """Let ``python`` run the script until it has its data below ``folder``; what is there already is taken over.

    Raises RuntimeError when the script fails.
    """
    place = folder / script.name / ("timed" if timed else "short")
    arguments = (*script.arguments(timed=timed), "--data", str(place / "data"))
    known = place / "prepared.json"
    if known.exists():
        seen = json.loads(known.read_text())
        if seen["arguments"] == list(arguments):
            return Prepared(arguments, seen["pace"], seen["device_memory"])
    with tempfile.TemporaryDirectory() as cwd:
        settings = RunSettings(
            python,
            Path(cwd),
            steps=PACE_ROUNDS,
            mode=Mode.TIME,
            timeout_s=timeout_s,
            env=script.environment,
            block_steps=1,
            device_block_steps=1,
        )
        seen = run(ScriptVersion(script.original, args=arguments), settings, place)
    if seen.status not in ENDED_WELL:
        raise RuntimeError(f"{script.name} fails: {seen.failure_details}")
    prepared = Prepared(arguments, pace(seen.timing), seen.memory.device or 0)
    known.write_text(json.dumps(asdict(prepared)))
    return prepared


def rewrite_options(script: CorpusScript) -> Options:
    """Those of ``torchopt rewrite --target DEVICE`` for the device that is measured on."""
    flags = Settings.from_flags({"python": str(PYTHON), "target": script.device})
    folder = script.original.parent
    return flags.over(load_settings(folder)).options_in(folder)


@cache
def rewritten(script: CorpusScript) -> Rewritten:
    """What ``torchopt rewrite`` makes of the original."""
    options = rewrite_options(script)
    return rewrite_all([script.original], all_transforms(), lambda _: options)


def rewritten_version(done: Rewritten, script: CorpusScript) -> tuple[ScriptVersion, Tier]:
    """The rewritten script without its arguments, and the tier it claims.

    What torchrun would start on more GPUs than there are is started as before, as one process.
    """
    import torch

    version = changed_version(ScriptVersion(script.original), done.changed)
    if script.device == "cuda" and (version.processes or 0) > torch.cuda.device_count():
        version = replace(version, processes=None)
    return version, claimed_tier(done.changed)


def torchfix_version(script: CorpusScript, program: Path) -> ScriptVersion | None:
    """What ``torchfix --fix`` with all of its rules makes of the original; None when there is nothing to fix."""
    folder = script.original.parent
    files = [path for path in folder.rglob("*.py") if not path.name.startswith("expert")]
    with tempfile.TemporaryDirectory() as temporary:
        copies = {path: Path(temporary) / path.relative_to(folder) for path in files}
        for path, copy in copies.items():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
        command = [str(program), "--select=ALL", "--fix", "-j1", "."]
        subprocess.run(command, cwd=temporary, check=False, capture_output=True, input=b"")
        fixed = {path: copy.read_text(encoding="utf-8") for path, copy in copies.items()}
    changed = {p: text for p, text in fixed.items() if text != p.read_text(encoding="utf-8")}
    return ScriptVersion(script.original, changed) if changed else None
