"""Rewrites many scripts in several processes: the same result as one after the other, sooner."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from ...transforms.base import Transform
from ..errors import TorchoptError
from ..options import Options
from .result import RewriteResult
from .rewrite import Rewritten, put_together, rewrite_all, rewrite_each

_Outcomes = list[RewriteResult | TorchoptError | None]


def rewrite_in_processes(
    scripts: Sequence[Path],
    groups: Sequence[Sequence[Path]],
    transforms: Sequence[Transform],
    options_for: Callable[[Path], Options],
    jobs: int,
    progress: Callable[[Sequence[Path]], Iterator[Path]],
) -> Rewritten:
    """What :func:`.rewrite.rewrite_all` makes of ``scripts``, by up to ``jobs`` processes.

    Each of ``groups``, which divide the scripts, is rewritten by one process, its scripts in their order. Where two groups
    turn out to share a file after all, or a trace went deeper than Python allows (how deep depends on the process), everything is done again in this process. ``progress`` is told of the scripts.
    """
    options = {script: options_for(script) for script in scripts}
    try:
        outcomes = _outcomes(scripts, groups, transforms, options, jobs, progress)
    except BrokenProcessPool as error:
        message = "a process of the rewrite was killed, perhaps for want of memory; try --jobs 1"
        raise TorchoptError(message) from error
    if _share_a_file(groups, outcomes) or _went_too_deep(outcomes):
        return rewrite_all(scripts, transforms, options_for)
    return put_together((outcomes[script] for script in scripts), transforms, options_for)


def _outcomes(
    scripts: Sequence[Path],
    groups: Sequence[Sequence[Path]],
    transforms: Sequence[Transform],
    options: Mapping[Path, Options],
    jobs: int,
    progress: Callable[[Sequence[Path]], Iterator[Path]],
) -> Mapping[Path, RewriteResult | TorchoptError | None]:
    # A forked process has everything imported; elsewhere than on Linux, forking is not safe or not there.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    found: dict[Path, RewriteResult | TorchoptError | None] = {}
    with ProcessPoolExecutor(min(jobs, len(groups)), context, _ignore_interrupts) as pool:
        try:
            # The largest first, so that no process is left with one at the end.
            futures: dict[Path, Future[_Outcomes]] = {}
            for group in sorted(groups, key=_size, reverse=True):
                wanted = {script: options[script] for script in group}
                future = pool.submit(_rewrite_group, group, transforms, wanted)
                futures |= dict.fromkeys(group, future)
            by_script = {script: group for group in groups for script in group}
            for script in progress(scripts):
                if script not in found:
                    group = by_script[script]
                    found |= dict(zip(group, futures[script].result(), strict=True))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def _rewrite_group(
    scripts: Sequence[Path], transforms: Sequence[Transform], options: Mapping[Path, Options]
) -> _Outcomes:
    return rewrite_each(scripts, transforms, options.__getitem__)


def _ignore_interrupts() -> None:
    """The parent is interrupted, too, and ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _size(group: Sequence[Path]) -> int:
    return sum(os.path.getsize(script) for script in group if os.path.isfile(script))


def _share_a_file(
    groups: Sequence[Sequence[Path]],
    outcomes: Mapping[Path, RewriteResult | TorchoptError | None],
) -> bool:
    owner: dict[str, int] = {}
    for number, group in enumerate(groups):
        for script in group:
            outcome = outcomes[script]
            for file in outcome.files if isinstance(outcome, RewriteResult) else ():
                if owner.setdefault(os.path.realpath(file.path), number) != number:
                    return True
    return False


def _went_too_deep(outcomes: Mapping[Path, RewriteResult | TorchoptError | None]) -> bool:
    return any(
        "RecursionError" in error.message
        for outcome in outcomes.values()
        if isinstance(outcome, RewriteResult)
        for file in outcome.files
        for error in file.errors
    )
