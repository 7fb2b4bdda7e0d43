"""Run the user's script as ``python script.py ARGS`` or ``python -m package.script ARGS`` would, and tell how it ended."""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import sys
import traceback
from dataclasses import dataclass
from types import CodeType, ModuleType

from . import more_digits as more
from .rounds import StopRun

_HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass(frozen=True)
class Ending:
    """How a script ended: its exit status, and what Python says last: the traceback, or what ``sys.exit`` was given.

    Stopped by us, it has no status.
    """

    exit_code: int | None
    traceback: str | None = None


def run_script(
    path: str,
    program: str,
    args: list[str],
    module: tuple[str, str] | None = None,
    *,
    more_digits: bool = False,
) -> Ending:
    """Execute the file ``path`` as ``__main__`` with ``sys.argv`` of ``program`` and ``args``.

    ``module`` is its name as a module, and the folder that is found from, where it has to run as one. With ``more_digits`` it
    prints its numbers with more digits.
    """
    sys.argv = [program, *args]
    if not getattr(sys.flags, "safe_path", False):
        folders = [os.path.dirname(os.path.realpath(path))]
        if module is not None:  # `python -m` has the working directory there
            folders = list(dict.fromkeys((module[1], os.getcwd())))
        sys.path[:0] = folders
    # A module that stays in place: worker processes look for it, atexit handlers use its globals.
    main = ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    try:
        if module is not None:
            package, _, _ = module[0].rpartition(".")
            importlib.import_module(package)
            spec = importlib.util.spec_from_file_location(module[0], path)
            main.__dict__.update(__package__=package, __spec__=spec)
        exec(_compiled(path, more_digits), main.__dict__)
    except BaseException as error:
        return ending_of(error)
    return Ending(0)


def ending_of(error: BaseException | None) -> Ending:
    """How what ends with ``error``, or without one, has ended."""
    if error is None:
        return Ending(0)
    if isinstance(error, StopRun):
        return Ending(None)
    if isinstance(error, SystemExit):
        return _exited(error.code)
    return Ending(1, traceback_of(error))


def _compiled(path: str, more_digits: bool) -> CodeType:
    with io.open_code(path) as file:
        if more_digits:
            return more.compiled(file.read(), path)
        return compile(file.read(), path, "exec", dont_inherit=True)


def _exited(code: object) -> Ending:
    """What ``sys.exit(code)`` means for the shell."""
    if code is None or isinstance(code, int):
        return Ending(int(code or 0))
    return Ending(1, f"{code}\n")


def traceback_of(error: BaseException) -> str:
    """The traceback as the user would have seen it: without our own frames."""
    told = traceback.TracebackException.from_exception(error)
    waiting, seen = [told], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        frames = [frame for frame in one.stack if not frame.filename.startswith(_HERE)]
        one.stack = traceback.StackSummary.from_list(frames)
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
    return "".join(told.format())
