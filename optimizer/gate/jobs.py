"""From settings to jobs, and jobs over the devices there are: one at a time on the CPU, else each on GPUs of its own."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ..analysis.program.project import load_project
from ..discovery import python_files
from ..errors import TorchoptError
from ..execution.runner import ScriptVersion
from ..execution.script_versions import beside, by_torchrun
from ..gpus import VISIBLE_GPUS
from ..source import SourceFile, Sources, parse
from ..terminal import counted, display_path, print_note
from ..verifying.settings import EPOCH_SECONDS
from .base import Base, read_base
from .judge import Job, Judgement, Limits, judge
from .settings import Device, GatedScript, GateSettings

DEFAULT_STEPS = 20
_MENTIONS_CUDA = re.compile(rb"\bcuda\b|\bnccl\b")
_IMPORTS_BY_NAME = re.compile(rb"\bimportlib\b|\b__import__\b|\bhydra\b")


def scripts_of(settings: GateSettings) -> tuple[GatedScript, ...]:
    """The scripts to gate. Raises TorchoptError where there are none, or one is no script."""
    scripts = settings.scripts or ()
    if not scripts:
        raise TorchoptError("nothing to gate: name scripts, or say which in [tool.torchopt.gate]")
    for one in scripts:
        for path in filter(None, (one.script, one.original)):
            if one.configured_at and not path.exists():
                raise TorchoptError(f"{display_path(path)}: no such file", *one.configured_at)
            parse(SourceFile.read(path))
        if one.original is not None and os.path.samefile(one.script, one.original):
            raise TorchoptError("is its own original: there is nothing to compare", one.script)
    return scripts


def jobs_of(
    settings: GateSettings, gpus: Sequence[str], folder: Path, arguments: tuple[str, ...]
) -> list[Job]:
    """The comparisons that ``settings`` ask for.

    ``arguments`` go to scripts that bring none of their own. Raises TorchoptError where there is nothing to compare
    with, or no GPU although one is asked for.
    """
    scripts = scripts_of(settings)
    base = None
    if any(one.original is None for one in scripts):
        if settings.base is None:
            told = "nothing to compare with: name its original (--original), or a commit (--base)"
            raise TorchoptError(told, next(s.script for s in scripts if s.original is None))
        base = read_base(settings.base, folder)
        if base.unreadable:
            print_note(_same_for_both(base))
    return [_job(one, settings, gpus, base, arguments) for one in scripts]


def _same_for_both(base: Base) -> str:
    first, more = display_path(base.unreadable[0]), len(base.unreadable) - 1
    others = f" and {counted(more, 'other file')}" if more else ""
    return (
        f"{first}{others}: not as in {base.name}, and no text: both versions read what is there now"
    )


def _job(
    one: GatedScript,
    settings: GateSettings,
    gpus: Sequence[str],
    base: Base | None,
    arguments: tuple[str, ...],
) -> Job:
    script = Path(os.path.abspath(one.script))
    args = arguments if one.args is None else one.args
    if one.original is not None:
        original = Path(os.path.abspath(one.original))
        before, after = ScriptVersion(original, args=args), beside(original, script, args)
        name = f"{display_path(script)} against {display_path(original)}"
    else:
        assert base is not None
        before, after = base.version_of(script, args), ScriptVersion(script, args=args)
        name = f"{display_path(script)} against {base.name}"
    before, after = (by_torchrun(one, settings.nproc_per_node) for one in (before, after))
    emulated = _emulated(settings, gpus, after)
    steps = one.steps or settings.steps
    return Job(
        name=name,
        before=before,
        after=after,
        tier=settings.tier,
        minimum=settings.minimum_for(one),
        expected=1.0 if one.original is None else None,
        steps=steps or DEFAULT_STEPS,
        epoch_seconds=0.0 if steps else EPOCH_SECONDS,
        env={VISIBLE_GPUS: ""} if settings.device is Device.CPU else {},
        emulated=emulated,
    )


def _emulated(settings: GateSettings, gpus: Sequence[str], version: ScriptVersion) -> bool:
    """Whether CUDA has to be emulated: a GPU is wanted, and there is none."""
    if gpus or settings.device is Device.CPU:
        return False
    if settings.device is Device.CUDA:
        return True
    texts = _texts(version)
    return any(_MENTIONS_CUDA.search(text) for text in texts)


def _texts(version: ScriptVersion) -> list[bytes]:
    """The texts of the script and what it imports of its project; all in its folder where it imports by names it makes.

    Not those of an environment in that folder, whose torch speaks of CUDA.
    """
    sources = Sources().with_texts(version.overrides)
    modules = load_project(version.entry, sources).modules
    texts = [module.source.text.encode(errors="replace") for module in modules]
    if any(_IMPORTS_BY_NAME.search(text) for text in texts):
        files = (path for path in python_files(version.entry.parent) if path.is_file())
        texts += [path.read_bytes() for path in files]
    return texts


def judge_all(
    jobs: Sequence[Job],
    limits: Limits,
    gpus: Sequence[str],
    progress: Callable[[int, str], None],
) -> list[Judgement]:
    """Judge ``jobs``, in their order; ``progress`` is told how many are done, and what runs.

    With several GPUs as many jobs run at a time as there are devices for: one each, or one per process that torchrun starts.
    """
    places = _Places(gpus)
    done: list[Job] = []

    def work(job: Job) -> Judgement:
        with places.lent(max(job.before.processes or 1, job.after.processes or 1)) as place:
            try:
                placed = replace(job, env={**place, **job.env})
                told = f"{job.name}: "
                return judge(placed, limits, lambda what: progress(len(done), told + what))
            finally:
                done.append(job)

    if len(gpus) < 2 or len(jobs) < 2:
        return [work(job) for job in jobs]  # in this thread: an interrupt ends the run
    return _at_a_time(work, jobs)


def _at_a_time(work: Callable[[Job], Judgement], jobs: Sequence[Job]) -> list[Judgement]:
    """What ``work`` makes of each of ``jobs``, of all at a time.

    An interrupt does not wait for them, as a pool would: their threads end with the program, and with it the runs.
    """
    futures: list[Future[Judgement]] = [Future() for _ in jobs]

    def settle(job: Job, future: Future[Judgement]) -> None:
        try:
            future.set_result(work(job))
        except BaseException as error:  # raised where the result is asked for
            future.set_exception(error)

    for pair in zip(jobs, futures, strict=True):
        threading.Thread(target=settle, args=pair, daemon=True).start()
    return [future.result() for future in futures]


class _Places:
    """The ``gpus`` that no job has at the moment."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self._free, self._all = list(gpus), len(gpus)
        self._given_back = threading.Condition()

    @contextmanager
    def lent(self, count: int) -> Generator[Mapping[str, str], None, None]:
        """The environment with ``count`` GPUs, all there are at most, once they are free; the user's where there are none."""
        if not self._all:
            yield {}
            return
        count = min(count, self._all)
        with self._given_back:
            self._given_back.wait_for(lambda: len(self._free) >= count)
            taken, self._free = self._free[:count], self._free[count:]
        try:
            yield {VISIBLE_GPUS: ",".join(taken)}
        finally:
            with self._given_back:
                self._free += taken
                self._given_back.notify_all()
