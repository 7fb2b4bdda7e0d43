"""How large the terminal is, for scripts that draw a bar as wide: a run has none.

``os.get_terminal_size()`` raises there, and ``stty size`` says nothing, which scripts unpack into rows and columns all the same
(``progress_bar`` of https://github.com/kuangliu/pytorch-cifar, copied into many). They are told what
``shutil.get_terminal_size`` makes of such a case: ``LINES`` and ``COLUMNS``, or 24 and 80. Libraries, which know what to do, are not.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from typing import Any

from .patches import Patches
from .variables import is_library

_SIZE_OF_TERMINAL = re.compile(r"\s*stty\s+size\b")
_get_size = shutil.get_terminal_size


def tell_a_size(patches: Patches) -> None:
    """Have the script told a size from here on."""
    patches.wrap(os, "get_terminal_size", _told)
    patches.wrap(os, "popen", _answered)


def _told(original: Callable[..., os.terminal_size]) -> Callable[..., os.terminal_size]:
    def get_terminal_size(*args: Any) -> os.terminal_size:
        try:
            return original(*args)
        except OSError:
            if is_library(sys._getframe(1).f_code.co_filename):
                raise
            return _get_size()

    return get_terminal_size


def _answered(original: Callable[..., Any]) -> Callable[..., Any]:
    def popen(cmd: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(cmd, str) and _SIZE_OF_TERMINAL.match(cmd):
            columns, lines = _get_size()
            cmd = f"echo {lines} {columns}"
        return original(cmd, *args, **kwargs)

    return popen
