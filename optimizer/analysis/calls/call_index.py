"""The calls of a project: which reach a function for certain, and which may, for all that is known yet."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain

from ..program.project import Project
from ..program.syntax import FunctionNode, Module
from ..values.values import Function
from .call_names import ALL, CallNames

Call = tuple[ast.Call, Module]


class CallIndex:
    """The calls of ``project``, settled and open.

    In large projects a function has thousands of candidates, and is asked about over and over. A call is none any more
    once it is :meth:`settled <settle>` what it reaches.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self._names = CallNames(project)
        self._settled: defaultdict[ast.AST, list[tuple[ast.Call, Module, bool]]] = defaultdict(list)
        self._open: defaultdict[str, dict[ast.Call, Module]] = defaultdict(dict)
        self._listed: dict[str, tuple[Call, ...]] = {}
        for module in project.modules:
            for call in module.calls:
                for kind in self._names.kinds_of(call, module):
                    self._open[kind][call] = module

    def settle(self, call: ast.Call, module: Module, callees: Iterable[Function]) -> None:
        """Remember that ``call`` reaches ``callees`` and nothing else."""
        if self.is_settled(call):
            return
        for callee in callees:
            self._settled[callee.node].append((call, module, callee.bound))
        for kind in self._names.kinds_of(call, module):
            del self._open[kind][call]

    def is_settled(self, call: ast.Call) -> bool:
        """Whether it is known what ``call`` reaches."""
        return call not in self._open[ALL]

    def settled(self, function: FunctionNode) -> list[tuple[ast.Call, Module, bool]]:
        """The settled calls that reach ``function``, and whether an instance fills its first parameter."""
        kinds = self._names.kinds_for(function)
        return [
            (call, module, bound)
            for call, module, bound in self._settled.get(function, ())
            if not kinds.isdisjoint(self._names.kinds_of(call, module))
        ]

    def candidates(self, function: FunctionNode) -> Iterator[Call]:
        """Every open call that may reach ``function``, and some that were settled of late."""
        return chain.from_iterable(map(self._calls_of, sorted(self._names.kinds_for(function))))

    def may_reach(self, call: ast.Call, module: Module, function: FunctionNode) -> bool:
        """Whether ``call`` may reach ``function`` by its names alone, whatever the objects in it are."""
        kinds = self._names.kinds_for(function)
        return not kinds.isdisjoint(self._names.kinds_of(call, module))

    def _calls_of(self, kind: str) -> tuple[Call, ...]:
        """The open calls of a kind, listed anew once a tenth of the list is settled."""
        calls = self._open[kind]
        listed = self._listed.get(kind, ())
        if not listed or len(calls) < 0.9 * len(listed):
            listed = self._listed[kind] = tuple(calls.items())
        return listed

    @cached_property
    def order(self) -> dict[ast.Call, int]:
        """The place of each call among all of the project, file by file."""
        calls = (call for module in self._project.modules for call in module.calls)
        return {call: place for place, call in enumerate(calls)}
