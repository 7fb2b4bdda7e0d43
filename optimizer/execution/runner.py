"""Run one version of a training script under observation, without touching the user's files."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from ..errors import TorchoptError
from .library_output import without_library_output
from .limits import (
    Bound,
    Exceeded,
    Limits,
    default_disk_limit,
    default_memory_limit,
    default_process_limit,
)
from .module_runs import module_run
from .observations import (
    STEPPED_ELSEWHERE,
    Observations,
    Status,
    Timing,
    WrittenFile,
    rounds_counted,
)
from .overlay import Overlay, make_overlay
from .probe.start import RECORD, STEPPED, UNFIT, UNOBSERVED
from .processes import KEPT_BYTES, Finished, run_bounded
from .ranks import merged
from .record import load
from .shuffled_passes import ShuffledPass
from .time_stamps import TimeStamps, without_time_stamps
from .told_places import told_in, written_in
from .written_files import written_files


class Mode(str, Enum):
    """What a run is for.

    ``OBSERVE`` records everything under aligned randomness, ``TIME`` alters nothing, ``PROFILE`` finds where the time
    of a step goes (:mod:`.profile_record`), under the script's own randomness.
    """

    OBSERVE = "observe"
    TIME = "time"
    PROFILE = "profile"


class BatchLayers(str, Enum):
    """Layers of which ranks give something else than one process: BatchNorm, dropout, means over weighted targets.

    ``WATCH`` notes which there are. With ``ALIGN`` nothing is dropped out, and the ranks of a DistributedDataParallel
    normalize, and take means, over the whole batch together.
    """

    WATCH = "watch"
    ALIGN = "align"


@dataclass(frozen=True)
class ScriptVersion:
    """A script to run: the user's own path, the texts that stand in for files of the project, its arguments.

    ``absent`` are files that it does not have, though they are there. With ``processes`` it is started by torchrun, as that many on this machine; without, by Python. ``brought_by`` is
    the user's file whose text stands in for that of ``entry``, None where it was made here. What it writes in its own folder is told as if that was
    the folder ``written_in``, where one is given.
    """

    entry: Path
    overrides: Mapping[Path, str] = field(default_factory=dict[Path, str])
    args: tuple[str, ...] = ()
    processes: int | None = None
    brought_by: Path | None = None
    absent: frozenset[Path] = frozenset()
    written_in: Path | None = None


@dataclass(frozen=True)
class Perturbation:
    """Multiply the initial parameters by ``1 ± scale * eps`` of ``dtype`` (``bfloat16``, ``float16``, ``float32``,
    ``float64``; ``tfloat32`` has an epsilon of ``2**-10``).

    The signs are drawn with ``seed``. Done before the first forward pass of a root module in training mode ``after`` so
    many rounds. From then on the gradients of the parameters named in ``one_way`` have the same signs in every step, and their size, or
    the L2 norm beside the name where that is larger: what is nothing but rounding may be biased like that, and be larger in another
    kernel, and an optimizer that scales it makes full steps of it.

    With ``evaluations`` it is done to root modules each time they are called in eval mode instead, ``after`` so many such
    calls, and undone afterwards.
    """

    dtype: str
    seed: int = 0
    scale: float = 1.0
    after: int = 0
    one_way: tuple[tuple[str, float], ...] = ()
    evaluations: bool = False


@dataclass(frozen=True)
class RunSettings:
    """How to run a version.

    ``steps`` is the number of rounds (see :mod:`.observations`) after which the run is ended; with ``epoch_seconds`` it goes on in
    OBSERVE mode, about that long at most, where that shows the end of its first epoch, or its own (:mod:`.probe.extent`). ``cwd`` is the
    directory the user would have started the script in. ``env`` is added to our environment. ``block_steps`` is the
    number of rounds between two rests in TIME mode, ``device_block_steps`` the same where a device computes, which is
    waited for then. ``cache`` is a folder that compiled kernels are
    kept in from run to run; without it each run compiles anew. ``timeout_s`` (seconds), ``memory_limit`` and
    ``disk_limit`` (bytes) bound all processes of the run together; see :class:`.limits.Limits` for the defaults.

    ``full_precision`` takes away, in OBSERVE mode, what only changes rounding, so that what is left of a rewrite must
    be the original's arithmetic: autocast regions are entered disabled, TF32 is off, ``torch.compile`` and
    ``Module.compile`` leave the code as it is. A GradScaler goes on scaling: by a power of two, which is exact. Tensors that the script asks for in
    bfloat16 or float16 are rounded to that and kept in float32. With ``unrounded``, in full precision or not, they are not rounded.

    ``keep_evaluated`` keeps, in OBSERVE mode, what models weigh where they are evaluated; ``evaluated_with`` is the folder of a run
    that kept it, whose weights they are given for their evaluations. So ``keep_steps`` keeps the parameters that each optimizer step
    leaves, and a run ``stepped_with`` these goes on with them from step to step (:mod:`.probe.stepped_weights`).

    ``batch_layers`` says, in OBSERVE mode, what to do about layers whose result hangs on the whole batch or on draws for
    it; None leaves them alone. ``without_dropout`` has nothing dropped out, in OBSERVE mode.
    With ``more_digits`` the project's code prints its numbers with eight digits more.
    With ``training_draws`` a module in training mode draws in OBSERVE mode what training would draw next, also where no gradients are taken.

    ``shuffled`` are the shuffles that a script is given which draws its epochs' orders by itself (:mod:`.shuffled_passes`).

    With ``until_next`` the run ends no sooner than gradients are taken for one round more, as that of a script without an optimizer does.

    ``emulated_gpus`` is how many CUDA devices the script shall see, emulated on the CPU (docs/emulation.md), whatever
    devices the machine has. With 0 it sees those.

    ``in_turns``, in TIME mode, has the run rest between its blocks (:mod:`.turn_taking` makes the pipes for that).
    ``ended_by`` is a descriptor that ends the run once it can be read from.
    """

    python: Path
    cwd: Path
    steps: int = 20
    epoch_seconds: float = 0.0
    seed: int = 0
    mode: Mode = Mode.OBSERVE
    timeout_s: float = 600.0
    memory_limit: int | None = None
    disk_limit: int | None = None
    perturb: Perturbation | None = None
    keep_evaluated: bool = False
    evaluated_with: Path | None = None
    keep_steps: bool = False
    stepped_with: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    block_steps: int = 10
    device_block_steps: int = 10
    cache: Path | None = None
    snapshot_bytes: int = 1 << 30
    full_precision: bool = False
    unrounded: bool = False
    batch_layers: BatchLayers | None = None
    without_dropout: bool = False
    training_draws: bool = False
    more_digits: bool = False
    shuffled: tuple[ShuffledPass, ...] = ()
    until_next: bool = False
    resident_batch: bool = False
    trace: bool = False
    nvtx: bool = False
    emulated_gpus: int = 0
    in_turns: bool = False
    ended_by: int | None = None


def run(version: ScriptVersion, settings: RunSettings, folder: Path) -> Observations:
    """Run ``version`` in a process of its own and tell what it did; what it leaves is written below ``folder``.

    ``folder`` is made if need be, must be empty and belongs to the caller, who removes it when the observations
    (whose tensors are read from it on demand) are no longer wanted. Files the script itself writes are gone
    afterwards. Never raises for what the script does; raises TorchoptError when the interpreter cannot run it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    if settings.cache is not None:
        settings.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="torchopt-", ignore_cleanup_errors=True) as temporary:
        overlay = make_overlay(
            folder / "scratch",
            Path(temporary),
            entry=version.entry,
            overrides=version.overrides,
            absent=version.absent,
            cwd=settings.cwd,
            environment=_environment(settings),
            cache=settings.cache,
            writable=(folder,),
        )
        try:
            return _told_of(version, settings, _run_in(overlay, version, settings, folder))
        finally:
            shutil.rmtree(overlay.scratch, ignore_errors=True)


def _run_in(
    overlay: Overlay, version: ScriptVersion, settings: RunSettings, folder: Path
) -> Observations:
    spec = overlay.scratch / "spec.json"
    spec.write_text(json.dumps(_spec(version, settings, overlay, folder)), encoding="utf-8")
    begun, started = time.time(), time.perf_counter()
    finished = run_bounded(
        _command(version, settings, overlay, spec),
        cwd=overlay.cwd,
        env=_with_ranks(overlay.environment) if version.processes else overlay.environment,
        mark=overlay.mark,
        limits=_limits(settings),
        folders=(folder, overlay.temporary),
        ended_by=settings.ended_by,
    )
    seconds = time.perf_counter() - started
    stamps = TimeStamps(begun, begun + seconds)
    whole = _observations(settings, overlay, folder, finished, seconds)
    files = written_files(overlay, folder) if settings.mode is Mode.OBSERVE else ()
    folders = _rank_folders(version, folder)
    if not folders:
        return without_time_stamps(_with_files(whole, files), stamps)
    ranks = [_rank(settings, overlay, one, finished, seconds) for one in folders]
    together = merged(ranks, whole)
    beside = [_kept_beside(file, together.folder, folder) for file in files]
    return without_time_stamps(_with_files(together, beside), stamps)


def _told_of(version: ScriptVersion, settings: RunSettings, run: Observations) -> Observations:
    if version.brought_by is not None:
        return told_in(run, version.entry, version.brought_by)
    if version.written_in is not None:
        return written_in(run, version.entry.parent, version.written_in, settings.cwd)
    return run


def _rank_folders(version: ScriptVersion, folder: Path) -> list[Path]:
    """Those of the ranks that torchrun started, else of the processes that the script has started as ranks by itself."""
    if version.processes:
        return [folder / f"rank{number}" for number in range(version.processes)]
    return sorted(folder.glob("rank*"), key=lambda one: int(one.name.removeprefix("rank")))


def _kept_beside(file: WrittenFile, own: Path, folder: Path) -> WrittenFile:
    """``file``, kept in ``folder``, as seen from the folder ``own`` of a rank."""
    kept, content = (
        None if name is None else os.path.relpath(folder / name, own)
        for name in (file.kept_as, file.bytes_as)
    )
    return replace(file, kept_as=kept, bytes_as=content)


def _with_files(run: Observations, files: Sequence[WrittenFile]) -> Observations:
    """``run`` with those of ``files`` that are no checkpoints of its own; what holds pickled bytes is one."""
    known = {one.path for one in run.checkpoints}
    pickled = tuple(
        replace(run.pickled[file.digest], path=file.path)
        for file in files
        if file.digest is not None and file.digest in run.pickled and file.path not in known
    )
    known |= {one.path for one in pickled}
    own = tuple(file for file in files if file.path not in known)
    return replace(run, files=own + run.told, checkpoints=run.checkpoints + pickled)


def _command(
    version: ScriptVersion, settings: RunSettings, overlay: Overlay, spec: Path
) -> list[str]:
    program = [str(overlay.program), str(spec)]
    if not version.processes:
        return [str(settings.python), *program]
    # A rendezvous of its own on a free port: https://docs.pytorch.org/docs/stable/elastic/run.html
    launcher = ["-m", "torch.distributed.run", "--standalone"]
    return [str(settings.python), *launcher, f"--nproc-per-node={version.processes}", *program]


def _with_ranks(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a run of several processes on one machine: the sockets by which they meet need not leave it."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    sockets = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), loopback)
    return {**sockets, "OMP_NUM_THREADS": "1", **environment}


def _rank(
    settings: RunSettings, overlay: Overlay, folder: Path, finished: Finished, seconds: float
) -> Observations:
    """What one rank shows; one that left no record was ended with the others, or with the run."""
    folder.mkdir(exist_ok=True)
    told = b""
    with suppress(OSError), (folder / "stdout").open("rb") as file:  # rank 0 has none of its own
        told = file.read(KEPT_BYTES + 1)
    own = replace(
        finished,
        exceeded=None if (folder / RECORD).exists() else finished.exceeded,
        stdout=told[:KEPT_BYTES].decode("utf-8", "replace") if told else "",
        stdout_cut=len(told) > KEPT_BYTES,
    )
    if folder.name == "rank0":
        own = replace(own, stdout=finished.stdout, stdout_cut=finished.stdout_cut)
    seen = _observations(settings, overlay, folder, own, seconds)
    if (folder / UNOBSERVED).exists():
        told = f"another process that became {folder.name}, after the first"
        seen = replace(seen, unobserved=(*seen.unobserved, told))
    return seen


def _limits(settings: RunSettings) -> Limits:
    return Limits(
        seconds=settings.timeout_s,
        memory=settings.memory_limit or default_memory_limit(),
        disk=settings.disk_limit or default_disk_limit(),
        processes=default_process_limit(),
    )


def _environment(settings: RunSettings) -> dict[str, str]:
    """What the user's shell would give the script, and what makes an observed run repeatable."""
    environment = {**os.environ, **settings.env}
    if settings.mode is Mode.OBSERVE:
        environment.setdefault("PYTHONHASHSEED", "0")
        # https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if settings.emulated_gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    if settings.full_precision:
        environment["TORCHDYNAMO_DISABLE"] = "1"
        # https://docs.pytorch.org/docs/stable/cuda_environment_variables.html
        environment["NVIDIA_TF32_OVERRIDE"] = "0"
    return environment


def _spec(
    version: ScriptVersion, settings: RunSettings, overlay: Overlay, folder: Path
) -> dict[str, object]:
    """What the probe needs to know."""
    inside = overlay.entry.is_relative_to(overlay.cwd)
    module = module_run(overlay.entry, overlay.entry.read_bytes(), overlay.cwd)
    by_path = overlay.entry.relative_to(overlay.cwd) if inside else overlay.entry
    return {
        "mode": settings.mode.value,
        "processes": version.processes,
        "steps": settings.steps,
        "epoch_seconds": settings.epoch_seconds,
        "seed": settings.seed,
        "perturb": asdict(settings.perturb) if settings.perturb else None,
        "keep_evaluated": settings.keep_evaluated,
        "evaluated_with": str(settings.evaluated_with) if settings.evaluated_with else None,
        "keep_steps": settings.keep_steps,
        "stepped_with": str(settings.stepped_with) if settings.stepped_with else None,
        "block_steps": settings.block_steps,
        "device_block_steps": settings.device_block_steps,
        "full_precision": settings.full_precision,
        "unrounded": settings.unrounded,
        "batch_layers": settings.batch_layers.value if settings.batch_layers else None,
        "without_dropout": settings.without_dropout,
        "training_draws": settings.training_draws,
        "more_digits": settings.more_digits,
        "shuffled": settings.shuffled,
        "until_next": settings.until_next,
        "resident_batch": settings.resident_batch,
        "trace": settings.trace,
        "nvtx": settings.nvtx,
        "emulated_gpus": settings.emulated_gpus,
        "in_turns": settings.in_turns,
        "snapshot_bytes": settings.snapshot_bytes,
        "entry": str(overlay.entry),
        "program": str(by_path if module is None else overlay.entry),
        "module": None if module is None else [module.name, str(module.root)],
        "args": list(version.args),
        "output": str(folder),
        "shown_paths": overlay.shown_paths,
        "started_at": time.time(),
    }


def _observations(
    settings: RunSettings, overlay: Overlay, folder: Path, finished: Finished, seconds: float
) -> Observations:
    record: dict[str, Any] | None = load(folder)
    if record is not None and UNFIT in record:
        raise TorchoptError(f"{settings.python}: {record[UNFIT]}; name another with --python")
    exceeded = finished.exceeded
    if record is None:
        record = {
            "status": _status(exceeded),
            "exit_code": None if exceeded else finished.returncode,
            "traceback": None,
            "rounds": rounds_counted(folder),
            "optimizer_seen": False,
            "timing": Timing(total_seconds=seconds),
        }
    elif exceeded and record["status"] is not Status.FAILED:
        told = f"the script ends, and a thread or an exit handler keeps its process: {exceeded.message}"
        exceeded = Exceeded(exceeded.bound, told)
        record |= {"status": _status(exceeded), "exit_code": None}
    if (folder / STEPPED).exists():
        record["unobserved"] = (*record.get("unobserved", ()), STEPPED_ELSEWHERE)
    return Observations(
        folder=folder,
        stdout=without_library_output(overlay.shown(finished.stdout)),
        stderr=overlay.shown(finished.stderr),
        stdout_cut=finished.stdout_cut,
        stderr_cut=finished.stderr_cut,
        exceeded=exceeded,
        **record,
    )


def _status(exceeded: Exceeded | None) -> Status:
    """How a run without a record ended."""
    if exceeded is None or exceeded.bound is Bound.WATCH:
        return Status.KILLED
    return Status.TIMED_OUT if exceeded.bound is Bound.TIME else Status.OVER_LIMIT
