"""Where the parts of results are written: in tuples and dicts, in sums of tuples, in the calls that make the outputs of models."""

from __future__ import annotations

import ast

from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.unpacking import Path, element_at
from ..values.values import Class

_KEYWORDS_KEPT = ("transformers.", "builtins.dict", "types.SimpleNamespace")
"""What keeps its keyword arguments under their names."""
_IN_ORDER = "transformers."
"""The outputs of models there are tuples, too, of those of their fields that are not None."""


def part_written_in(
    resolver: Resolver, value: ast.expr, path: Path, module: Module
) -> tuple[ast.expr, Path] | None:
    """The expression in ``value`` that begins ``path``, and the rest of the path; None where it is not written there."""
    key, rest = path[0], path[1:]
    part: ast.expr | None = None
    match value:
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            part = element_at(elements, key)
        case ast.BinOp(left=ast.Tuple(elts=first), op=ast.Add(), right=others) if (
            isinstance(key, int) and key >= 0
        ):
            part = element_at(first, key)
            if part is None and not any(isinstance(e, ast.Starred) for e in first):
                return others, (key - len(first), *rest)
        case ast.Dict(keys=keys, values=values):
            named = (k.value if isinstance(k, ast.Constant) else None for k in keys)
            found = [v for name, v in zip(named, values, strict=True) if name == key]
            part = found[-1] if found and None not in keys else None
        case ast.Call(args=[], keywords=keywords):
            part = _keyword(resolver, value, keywords, key, module)
        case _:
            pass
    return None if part is None else (part, rest)


def _keyword(
    resolver: Resolver,
    call: ast.Call,
    keywords: list[ast.keyword],
    key: int | str,
    module: Module,
) -> ast.expr | None:
    if isinstance(key, str):
        given = [keyword.value for keyword in keywords if keyword.arg == key]
        return given[0] if given and _keeps_keywords(resolver, call, module) else None
    names = resolver.names(call.func, module)
    told = [k.value for k in keywords if getattr(k.value, "value", k.value) is not None]
    is_output = bool(names) and all(name.startswith(_IN_ORDER) for name in names)
    return element_at(told, key) if is_output else None


def _keeps_keywords(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` makes an object whose attributes, or entries, are its keyword arguments."""
    names = resolver.names(call.func, module)
    if names:
        return all(name.startswith(_KEYWORDS_KEPT) for name in names)
    classes = resolver.values(call.func, module)
    return bool(classes) and all(isinstance(c, Class) and _has_fields(c) for c in classes)


def _has_fields(cls: Class) -> bool:
    """Whether it is a class that sets the fields it declares and no others, as dataclasses and named tuples are."""
    body = cls.node.body
    made = any(isinstance(s, ast.FunctionDef) and s.name == "__init__" for s in body)
    return not made and any(isinstance(s, ast.AnnAssign) for s in body)
