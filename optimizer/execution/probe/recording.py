"""Whether the probe is at work itself: what it reads of a device, the script has not waited for."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from threading import local


class _Depth(local):
    depth = 0


_here = _Depth()


@contextmanager
def recording() -> Generator[None, None, None]:
    """What is done inside is the probe's own."""
    _here.depth += 1
    try:
        yield
    finally:
        _here.depth -= 1


def is_recording() -> bool:
    """Whether what this thread does is the probe's own."""
    return _here.depth > 0
