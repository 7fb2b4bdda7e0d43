"""Command-line options: what ``args.workers`` is when ``args`` comes from argparse."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..calls.signatures import call_argument
from ..program.syntax import Module
from .values import Attribute, Class, Function, Made, Option, Value, union

if TYPE_CHECKING:
    from ..program.project import Project
    from .resolver import Resolver


def namespace_values(resolver: Resolver, namespace: Made, name: str) -> frozenset[Value]:
    """What attribute ``name`` of an argparse namespace may be: an option, or what ``set_defaults(func=train)`` gives."""
    given = [
        resolver.values(keyword.value, module)
        for keyword, module in resolver.set_defaults.get(name, ())
    ]
    defaults = frozenset(value for value in union(given) if isinstance(value, Function | Class))
    call, module = resolver.options.get(name, (None, None))
    if call is not None and module is not None:
        return defaults | {Option(name, call, module, call_argument(call, "default"))}
    if all(values <= defaults for values in given) and not _is_assigned(resolver.project, name):
        return defaults or frozenset([Attribute(namespace, name)])
    return defaults | {Attribute(namespace, name)}


def _is_assigned(project: Project, name: str) -> bool:
    return any(
        not isinstance(attribute.ctx, ast.Load)
        for module in project.modules
        for attribute in module.attributes_of(name)
    )


def parser_defaults(project: Project) -> dict[str, list[tuple[ast.keyword, Module]]]:
    """What ``parser.set_defaults(..)`` gives to each attribute of an argparse namespace."""
    found: dict[str, list[tuple[ast.keyword, Module]]] = {}
    for module in project.modules:
        for call in module.calls_named("set_defaults"):
            for keyword in call.keywords if isinstance(call.func, ast.Attribute) else ():
                if keyword.arg is not None:
                    found.setdefault(keyword.arg, []).append((keyword, module))
    return found


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
