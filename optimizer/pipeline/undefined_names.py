"""The names a file reads and never binds: what a rewrite must not add to."""

from __future__ import annotations

import builtins
import re
import symtable
import warnings
from collections.abc import Iterator
from functools import lru_cache

_MODULE_ATTRIBUTES = frozenset(
    {"__annotations__", "__builtins__", "__cached__", "__file__", "__path__"}
)
_STAR_IMPORT = re.compile(r"import\s*\*")
_KNOWN = frozenset(dir(builtins)) | _MODULE_ATTRIBUTES


@lru_cache(maxsize=64)
def undefined_names(text: str) -> frozenset[str] | None:
    """Names ``text`` reads as globals although neither the module nor Python defines them.

    None when that cannot be told, because a star import may define any name. Raises SyntaxError when
    ``text`` is not Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the user's string escapes
        scopes = list(_scopes(symtable.symtable(text, "<text>", "exec")))
    if _STAR_IMPORT.search(text):
        return None
    module = scopes[0]
    defined = {symbol.get_name() for symbol in module.get_symbols() if _binds(symbol)}
    shared = [s for scope in scopes[1:] for s in scope.get_symbols() if s.is_declared_global()]
    defined |= {symbol.get_name() for symbol in shared if _binds(symbol)}
    # What `:=` binds in a comprehension of the module is declared global, from Python 3.12 on there alone.
    walrus = {s.get_name() for s in module.get_symbols() if s.is_declared_global()}
    defined |= walrus - {symbol.get_name() for symbol in shared}
    read = {
        symbol.get_name()
        for scope in scopes
        for symbol in scope.get_symbols()
        if symbol.is_referenced() and (symbol.is_global() or scope is module)
    }
    return frozenset(read - defined - _KNOWN)


def _scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _scopes(child)


def _binds(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported()
