"""Memory that a timed script frees stays with its process.

glibc gives free memory at the top of its heap back to the system, and the next step has to take it again, page by page.
Whether large tensors lie there is luck: two runs of the same script differ by up to half of a step in which
tensors of a MiB come and go, and by tens of thousands of page faults. Both versions are timed without that.
Source: https://man7.org/linux/man-pages/man3/mallopt.3.html
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NEVER = -1
_LARGEST = 32 << 20
"""Bytes: glibc maps what is larger than this by itself, whatever it is told (``DEFAULT_MMAP_THRESHOLD_MAX``)."""


def keep_freed_memory() -> None:
    """Tell glibc not to give memory back, unless the user told it something; other allocators are left alone."""
    if any(name.startswith("MALLOC_") for name in os.environ) or "GLIBC_TUNABLES" in os.environ:
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST)
