"""Command-line options: what ``args.workers`` is when ``args`` comes from argparse."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from .signatures import call_argument
from .values import Made, Option

if TYPE_CHECKING:
    from .resolver import Resolver


def option_value(resolver: Resolver, namespace: Made, name: str) -> Option | None:
    """The option that attribute ``name`` of an argparse namespace holds, None when no parser declares it."""
    for module in resolver.project.modules:
        for call in module.calls_named("add_argument"):
            if isinstance(call.func, ast.Attribute) and destination(call) == name:
                return Option(name, call, module, call_argument(call, "default"))
    return None


def destination(call: ast.Call) -> str | None:
    """The attribute an ``add_argument`` call fills: ``dest``, else the first long flag, else the first name."""
    dest = call_argument(call, "dest")
    if isinstance(dest, ast.Constant) and isinstance(dest.value, str):
        return dest.value
    flags = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    long_flags = [flag for flag in flags if flag.startswith("--")]
    chosen = (long_flags or flags)[:1]
    return chosen[0].lstrip("-").replace("-", "_") if chosen else None
