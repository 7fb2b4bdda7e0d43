"""What rank 0 of a distributed run prints of a single step: its own share of the loss, and of the samples."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .lines import NUMBER
from .text import last_digit


def own_share_as_whole(
    original: str, told: str, losses: Sequence[float], own_losses: Sequence[float], ranks: int
) -> tuple[str, int]:
    """``told`` with the numbers of ``original`` in lines that tell rank 0's own loss of a step, and how many these are.

    A number is one if for some step the original has printed that step's loss (of ``losses``) there, and rank 0 its own
    (of ``own_losses``), each to the last printed digit. In such a line a whole number may be a count of rank 0's samples,
    of which all ``ranks`` together have as many as the original. What is printed otherwise is left to be compared.
    """
    ours, theirs = original.splitlines(), told.splitlines()
    if len(ours) != len(theirs):
        return told, 0
    restored = 0
    for number, (before, after) in enumerate(zip(ours, theirs, strict=True)):
        if before == after or NUMBER.sub("#", before) != NUMBER.sub("#", after):
            continue
        pairs = list(zip(NUMBER.findall(before), NUMBER.findall(after), strict=True))
        others = [(x, y) for x, y in pairs if x != y]
        of_step = [_is_loss(x, y, losses, own_losses) for x, y in others]
        counts = [_is_count(x, y, ranks) for x, y in others]
        if any(of_step) and all(a or b for a, b in zip(of_step, counts, strict=True)):
            theirs[number] = before
            restored += 1
    return "\n".join(theirs), restored


def _is_loss(x: str, y: str, losses: Sequence[float], own_losses: Sequence[float]) -> bool:
    if not last_digit(x) or not last_digit(y):
        return False
    return any(
        abs(float(x) - whole) <= last_digit(x) and abs(float(y) - own) <= last_digit(y)
        for whole, own in zip(losses, own_losses, strict=False)
    )


def _is_count(x: str, y: str, ranks: int) -> bool:
    whole = re.fullmatch(r"\d+", x) and re.fullmatch(r"\d+", y)
    return bool(whole) and int(x) == int(y) * ranks
