"""How names are put into sentences."""

from __future__ import annotations

from collections.abc import Iterable


def listed(names: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``: each name once."""
    *before, last = dict.fromkeys(names)
    return f"{', '.join(before)} and {last}" if before else last
