"""Files that a script opens to write its log, and keeps open: only the first of several processes may write them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...rewriting.edits import FileEdit
from ..calls.signatures import call_argument
from ..editing.replacing import replacement
from ..program.module_names import reads_of
from ..program.syntax import Module
from ..values.resolver import Resolver
from .process_names import Place, ProcessNames

_WRITES = frozenset({"write", "writelines", "flush", "close", "isatty"})
_READS = frozenset({"read", "readline", "readlines", "closed"})
"""What no file that is open for writing does: where a variable has such a use, it also holds another file by then."""
_WRITERS = frozenset({"csv.writer", "csv.DictWriter"})


def is_log(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` opens a file that is only written to, by way of a variable: ``log = open(path, "w")``."""
    if resolver.names(call.func, module) != frozenset({"builtins.open"}) or not call.args:
        return False
    mode = call_argument(call, "mode", 1)
    if not (isinstance(mode, ast.Constant) and mode.value in {"w", "a", "wt", "at"}):
        return False
    match module.parents[call]:
        case ast.Assign(targets=[ast.Name() | ast.Attribute() as target]):
            uses = list(reads_of(resolver, target, module))
            writes = [use for use in uses if not _is_of_other_file(*use)]
            return bool(writes) and all(_only_writes(resolver, *use) for use in writes)
        case _:
            return False


def log_edits(
    resolver: Resolver, modules: tuple[Module, ...], names: ProcessNames
) -> Iterator[FileEdit]:
    """Let every process but the first write its log to nowhere."""
    for module in modules:
        for call in module.calls:
            if is_log(resolver, call, module):
                nowhere = f"{names.spelled(module, 'os')}.devnull"
                first = f"{names.name(Place.RANK, module)} == 0"
                code = f"{module.code(call.args[0])} if {first} else {nowhere}"
                yield replacement(module, call.args[0], code)


def _is_of_other_file(use: ast.expr, module: Module) -> bool:
    """Whether ``use`` reads a file, or asks whether there is one."""
    match module.parents[use]:
        case ast.Attribute(attr=method):
            return method in _READS
        case ast.For(iter=iterable) | ast.comprehension(iter=iterable):
            return iterable is use
        case ast.Compare(ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case _:
            return False


def _only_writes(resolver: Resolver, use: ast.expr, module: Module) -> bool:
    match module.parents[use]:
        case ast.Attribute(attr=method):
            return method in _WRITES
        case ast.keyword(arg="file"):
            return True
        case ast.Call(func=function, args=[first, *_]) if first is use:
            return bool(resolver.names(function, module) & _WRITERS)
        case _:
            return False
