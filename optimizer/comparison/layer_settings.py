"""Settings of layers and losses whose effect no rounding can be told from, such as the ``eps`` of a normalization or a limit that is not reached."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from ..execution.observations import Observations

_TOLD = re.compile(r"(\w+)=([^,()]+)")
_SMALL = frozenset(
    {"alpha", "approximate", "beta", "eps", "lower", "max_norm", "max_val", "min_val", "momentum"}
    | {"negative_slope", "norm_type", "threshold", "upper"}
    | {"blank", "delta", "full", "ignore_index", "margin", "swap", "zero_infinity"}
)
"""Settings that choose a function, not its layout. Of dropout's ``p`` nothing is left to rounding where it drops anything."""
_DEFAULT = "its default"
"""What a layer does not print that only tells what it was given: an embedding's ``max_norm``."""


def unseen_settings(original: Observations, other: Observations) -> str | None:
    """The first layer that has another setting in the rewrite; None where there is none.

    It is asked for where all that was compared is within rounding: what it does to other weights shows nowhere.
    """
    for name, layer in original.layer_settings.items():
        kind, _, told = layer.partition("(")
        now, _, told_now = other.layer_settings.get(name, "").partition("(")
        before, after = dict(_TOLD.findall(told)), dict(_TOLD.findall(told_now))
        for key in sorted(_SMALL & (before.keys() | after.keys())):
            was, is_now = before.get(key, _DEFAULT), after.get(key, _DEFAULT)
            if kind == now and was != is_now:
                of_losses = name.startswith(f"{kind} #")
                told_as = name.removesuffix(" #1") if of_losses else f"{name} ({kind})"
                return (
                    f"{told_as} has {key}={is_now}, not {was}: here that is no more than rounding, "
                    "and nothing shows what it does to other weights and data"
                )
    return _of_functions(original, other)


def _of_functions(original: Observations, other: Observations) -> str | None:
    """The same of functions, which have no names to be told apart by.

    Where one is called as often before the first step, call by call; else nothing is said unless each version has settings of its own.
    """
    for name, (first, every) in original.function_settings.items():
        first_now, every_now = other.function_settings.get(name, ((), ()))
        pairs = _pairs(first, first_now) or _pairs(
            [one for one in every if one not in every_now],
            [one for one in every_now if one not in every],
        )
        for before, after in pairs:
            if before != after:
                return (
                    f"{name} is called with {after}, not {before}: here that is no more than rounding, "
                    "and nothing shows what it does to other weights and data"
                )
    return None


def _pairs(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[str, str]]:
    """Call by call, of as many calls; without the settings that both versions have as often."""
    if not ours or len(ours) != len(theirs):
        return []
    if Counter(ours) == Counter(theirs):  # in another order
        return []
    return list(zip(ours, theirs, strict=True))
