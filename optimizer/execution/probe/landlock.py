"""Have the Linux kernel refuse writes outside some folders, to this process and all its children.

Redirection covers Python; native code and other programs write as they please. Landlock (Linux >= 5.19 for what is
needed here) stops those without privileges: https://docs.kernel.org/userspace-api/landlock.html. Since Linux 6.12 it
also keeps signals from leaving the run.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_PR_SET_NO_NEW_PRIVS = 38
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_CHANGE_FOLDERS = sum(
    1 << bit for bit in range(4, 14)
)  # remove, make and move entries of every kind

_SCOPE_SIGNAL = 1 << 1


class Confinement(NamedTuple):
    """What the kernel sees to: that nothing is written elsewhere, that no other process is signalled."""

    writes: bool = False
    signals: bool = False


def confine(folders: Iterable[str]) -> Confinement:
    """Allow writing below ``folders`` only, and signals to this process and those it will start, from now on.

    Must be called while the process has one thread. Reading, sockets and descriptors already open are not affected.
    """
    if not sys.platform.startswith("linux"):
        return Confinement()
    system = ctypes.CDLL(None, use_errno=True).syscall
    version = system(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 2:  # version 1 forbids every move from one folder to another
        return Confinement()
    rights = _WRITE_FILE | _CHANGE_FOLDERS | (_TRUNCATE if version >= 3 else 0)
    attributes = struct.pack("=Q", rights)
    if version >= 6:
        attributes = struct.pack("=QQQ", rights, 0, _SCOPE_SIGNAL)  # the second is for the network
    ruleset = system(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return Confinement()
    try:
        for folder in folders:
            if os.path.isdir(folder):
                _allow(system, ruleset, folder, rights)
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        confined = system(_RESTRICT_SELF, ruleset, 0) == 0
        return Confinement(confined, confined and version >= 6)
    finally:
        os.close(ruleset)


def _allow(system: Callable[..., int], ruleset: int, folder: str, rights: int) -> None:
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        system(_ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)
