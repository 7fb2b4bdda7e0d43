"""Command-line options: what ``args.workers`` is when ``args`` comes from argparse."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..calls.signatures import call_argument
from ..program.syntax import Module
from .values import Made, Option

if TYPE_CHECKING:
    from ..program.project import Project
    from .resolver import Resolver


def option_value(resolver: Resolver, namespace: Made, name: str) -> Option | None:
    """The option that attribute ``name`` of an argparse namespace holds, None when no parser declares it."""
    call, module = resolver.options.get(name, (None, None))
    if call is None or module is None:
        return None
    return Option(name, call, module, call_argument(call, "default"))


def declared_options(project: Project) -> dict[str, tuple[ast.Call, Module]]:
    """The first ``add_argument`` call of the project for each attribute of an argparse namespace."""
    found: dict[str, tuple[ast.Call, Module]] = {}
    for module in project.modules:
        for call in module.calls_named("add_argument"):
            name = destination(call) if isinstance(call.func, ast.Attribute) else None
            if name is not None:
                found.setdefault(name, (call, module))
    return found


def destination(call: ast.Call) -> str | None:
    """The attribute an ``add_argument`` call fills: ``dest``, else the first long flag, else the first name."""
    dest = call_argument(call, "dest")
    if isinstance(dest, ast.Constant) and isinstance(dest.value, str):
        return dest.value
    flags = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    long_flags = [flag for flag in flags if flag.startswith("--")]
    chosen = (long_flags or flags)[:1]
    return chosen[0].lstrip("-").replace("-", "_") if chosen else None
