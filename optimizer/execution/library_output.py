"""What libraries print by themselves, which is nothing that the script says."""

from __future__ import annotations

import re

_OPENING = "[Gloo] Rank "
_PIECES = re.compile(
    r"(\[Gloo\] Rank )|( is connected to | peer ranks\. |Expected number of connected peer ranks is : |\d+)|(\n|\Z)"
)
"""A message is written piece by piece, so that the pieces of several ranks' may come in turns."""


def without_library_output(text: str) -> str:
    """``text`` as the script itself printed it.

    With PyTorch 2.8 every rank of a group over gloo tells on standard output how many peers it is connected to.
    """
    kept: list[str] = []
    place = 0
    while (start := text.find(_OPENING, place)) >= 0:
        end = _end(text, start) if start == 0 or text[start - 1] == "\n" else None
        stop = start if end is not None else start + len(_OPENING)
        kept.append(text[place:stop])
        place = stop if end is None else end
    return "".join(kept) + text[place:]


def _end(text: str, start: int) -> int | None:
    """Where the messages that begin at ``start``, one or several at once, are over; None where it is another text."""
    opened = 0
    place = start
    while (piece := _PIECES.match(text, place)) is not None:
        place = piece.end()
        if piece[1]:
            opened += 1
        elif not piece[2]:
            opened -= 1
            if opened == 0 or not piece[3]:
                return place
    return None
