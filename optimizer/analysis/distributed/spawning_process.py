"""What the process does that starts others, and whether each of those may do it itself.

A process that is spawned imports the script anew and gets what it is given: it has the environment of the one that starts it,
but not its global variables (https://docs.python.org/3/library/multiprocessing.html#contexts-and-start-methods).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from ..obstacles import Obstacle
from ..program.scopes import Imported
from ..program.syntax import Module
from ..program.trees import walk
from ..values.changed_objects import changed_objects
from ..values.resolver import Resolver
from ..values.values import Display, Made, Value

_READS = re.compile(
    r"argparse\..*|torch\.cuda\.(device_count|is_available)|torch\.multiprocessing\.set_start_method|"
    r"builtins\.(int|str|len|min|max|range)|os\.environ\.(get|setdefault)|os\.getenv"
)
"""What may run in every process as well as in the one that starts them: it draws, writes and tells nothing."""
_FOR_ONE = "every process would run what stands around their start"


class SpawningProcess:
    """The ``statements`` of ``module`` that run around the one that starts the processes."""

    def __init__(self, resolver: Resolver, module: Module, statements: Sequence[ast.stmt]) -> None:
        self._resolver, self._module, self._statements = resolver, module, statements
        self._run = dict.fromkeys(node for one in statements for node in walk(one))

    def for_one_only(self) -> Obstacle | None:
        """What not every process may do; None where there is nothing."""
        for statement in self._statements:
            if not self._runs_anywhere(statement):
                return Obstacle(self._module, statement, _FOR_ONE)
        for node in self._changes_unseen():
            why = "processes that are spawned do not see this change, and torchrun's would"
            return Obstacle(self._module, self._module.statement(node), why)
        return None

    def _runs_anywhere(self, statement: ast.stmt) -> bool:
        definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        if isinstance(statement, ast.Import | ast.ImportFrom | definition | ast.Pass):
            return True
        return all(map(self._only_reads, _calls(statement)))

    def _only_reads(self, call: ast.Call) -> bool:
        resolver, module = self._resolver, self._module
        callees = resolver.callees(call, module)
        if callees:
            return all(
                callee.module is module and self._calls_library_only(callee.node)
                for callee in callees
            )
        return self._is_reading(call)

    def _calls_library_only(self, function: ast.AST) -> bool:
        """Whether ``function``, such as one that reads the arguments, is understood without looking further."""
        self._run.update(dict.fromkeys(walk(function)))
        return all(map(self._is_reading, _calls(function)))

    def _is_reading(self, call: ast.Call) -> bool:
        resolver, module = self._resolver, self._module
        names = resolver.names(call.func, module)
        if not names and isinstance(call.func, ast.Attribute):
            names = resolver.maker_names(call.func.value, module)
        return bool(names) and all(_READS.fullmatch(name) for name in names)

    def _changes_unseen(self) -> Iterator[ast.AST]:
        """What changes globals, or objects of others, of this process alone."""
        for bindings in self._module.scopes.by_node[self._module.tree].bindings.values():
            here = [b.node for b in bindings if b.node in self._run]
            if len(here) < len(bindings) and not all(
                isinstance(b.source, Imported) for b in bindings
            ):
                yield from here
        for node in self._run:
            for changed in changed_objects(self._resolver, node, self._module):
                if "os.environ" not in self._resolver.names(changed, self._module) and not all(
                    map(self._is_own, self._resolver.values(changed, self._module))
                ):
                    yield node

    def _is_own(self, value: Value) -> bool:
        """Whether ``value`` was made here: the arguments, say."""
        match value:
            case Made(call=made) | Display(node=made):
                return made in self._run
            case _:
                return False


def _calls(node: ast.AST) -> list[ast.Call]:
    return [one for one in walk(node) if isinstance(one, ast.Call)]
