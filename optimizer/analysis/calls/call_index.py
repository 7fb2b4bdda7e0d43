"""The calls of a project: which reach a function, for all that is known yet, and of which that is not yet known."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property

from ..program.project import Project
from ..program.syntax import FunctionNode, Module
from ..values.values import Function
from .call_names import CallNames
from .leftovers import Leftovers

Call = tuple[ast.Call, Module]


class CallIndex:
    """The calls of ``project``, settled and open.

    Leftovers call nothing. In large projects a function has thousands of candidates, and is asked about over and over. What each call reaches is noted here
    as far as it is known, and a call is no candidate any more once that is :meth:`settled <settle>`.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._names = CallNames(project)
        self._reached: dict[ast.Call, frozenset[tuple[ast.AST, bool]]] = {}
        self._sites: defaultdict[ast.AST, dict[tuple[ast.Call, bool], Module]] = defaultdict(dict)
        self._open: defaultdict[str, dict[ast.Call, Module]] = defaultdict(dict)
        for module in project.modules:
            for call in module.calls:
                if self.leftovers.hold(call, module):
                    continue
                for kind in self._names.kinds_of(call, module):
                    self._open[kind][call] = module

    def note(self, call: ast.Call, module: Module, callees: Iterable[Function]) -> set[ast.AST]:
        """Remember that ``call`` reaches ``callees``, for all that is known; gives the functions that this is news of."""
        before = self._reached.get(call, frozenset())
        now = frozenset((callee.node, callee.bound) for callee in callees)
        for node, bound in before - now:
            del self._sites[node][call, bound]
        for node, bound in now - before:
            self._sites[node][call, bound] = module
        self._reached[call] = now
        return {node for node, _ in before ^ now}

    def settle(self, call: ast.Call, module: Module) -> None:
        """Remember that ``call`` reaches what was noted and nothing else."""
        for kind in self._names.kinds_of(call, module):
            self._open[kind].pop(call, None)

    def sites(self, function: FunctionNode) -> list[tuple[ast.Call, Module, bool]]:
        """The calls that are noted to reach ``function``, file by file, and whether an instance fills its first parameter."""
        kinds = self._names.kinds_for(function)
        found = [
            (call, module, bound)
            for (call, bound), module in self._sites[function].items()
            if not kinds.isdisjoint(self._names.kinds_of(call, module))
        ]
        return sorted(found, key=lambda site: self._order[site[0]])

    def open_kinds(self, function: FunctionNode) -> list[str]:
        """The kinds of calls that may reach ``function``, of those that have open calls."""
        return [kind for kind in sorted(self._names.kinds_for(function)) if self._open[kind]]

    def open_calls(self, kind: str) -> list[Call]:
        """The calls of a kind that are not settled."""
        return list(self._open[kind].items())

    def may_reach(self, call: ast.Call, module: Module, function: FunctionNode) -> bool:
        """Whether ``call`` may reach ``function`` by its names alone, whatever the objects in it are."""
        kinds = self._names.kinds_for(function)
        return not kinds.isdisjoint(self._names.kinds_of(call, module))

    @property
    def leftovers(self) -> Leftovers:
        """The code of the project that nothing names: its calls are no candidates."""
        return self._names.leftovers

    @cached_property
    def _order(self) -> dict[ast.Call, int]:
        """The place of each call among all of the project, file by file."""
        calls = (call for module in self._project.modules for call in module.calls)
        return {call: place for place, call in enumerate(calls)}
