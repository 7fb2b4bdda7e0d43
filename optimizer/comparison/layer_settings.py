"""Settings of layers and losses whose effect no rounding can be told from, such as the ``eps`` of a normalization or a limit that is not reached."""

from __future__ import annotations

import re

from ..execution.observations import Observations

_TOLD = re.compile(r"(\w+)=([^,()]+)")
_SMALL = frozenset(
    {"alpha", "approximate", "beta", "eps", "lower", "max_norm", "max_val", "min_val", "momentum"}
    | {"negative_slope", "norm_type", "threshold", "upper"}
    | {"blank", "delta", "full", "ignore_index", "margin", "swap", "zero_infinity"}
)
"""Settings that choose a function, not its layout. Of dropout's ``p`` nothing is left to rounding where it drops anything."""


def unseen_settings(original: Observations, other: Observations) -> str | None:
    """The first layer that has another setting in the rewrite; None where there is none.

    It is asked for where all that was compared is within rounding: what it does to other weights shows nowhere.
    """
    for name, layer in original.layer_settings.items():
        kind, _, told = layer.partition("(")
        now, _, told_now = other.layer_settings.get(name, "").partition("(")
        before, after = dict(_TOLD.findall(told)), dict(_TOLD.findall(told_now))
        for key in sorted(_SMALL & before.keys() & after.keys()):
            if kind == now and before[key] != after[key]:
                of_losses = name.startswith(f"{kind} #")
                told_as = name.removesuffix(" #1") if of_losses else f"{name} ({kind})"
                return (
                    f"{told_as} has {key}={after[key]}, not {before[key]}: here that is no more than rounding, "
                    "and nothing shows what it does to other weights and data"
                )
    return None
