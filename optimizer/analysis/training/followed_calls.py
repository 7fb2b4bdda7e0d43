"""Functions that a loss is followed into: what a call gives them, and which of their branches it has them take."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ..program.dead_code import DeadCode
from ..program.module_names import name_reads
from ..program.scopes import Assigned, Binding
from ..program.syntax import FunctionNode, Module
from ..program.trees import position
from ..values.resolver import Resolver
from .reductions import Reduced


class Branches(DeadCode):
    """Which code never runs: of ``function``, in a call that is ``given`` its parameters (True) or leaves them None (False)."""

    def __init__(
        self,
        resolver: Resolver,
        function: FunctionNode | None = None,
        given: Mapping[str, bool] | None = None,
    ) -> None:
        super().__init__(resolver)
        self._function, self._given = function, given or {}

    def truth(self, test: ast.expr, module: Module) -> bool | None:
        match test:
            case ast.Compare(
                left=ast.Name() as name,
                ops=[ast.Is() | ast.IsNot() as operator],
                comparators=[ast.Constant(value=None)],
            ) if (is_given := self._is_given(name, module)) is not None:
                return is_given is isinstance(operator, ast.IsNot)
            case ast.BoolOp(op=operator, values=values):
                truths = {self.truth(value, module) for value in values}
                settles = isinstance(operator, ast.Or)
                if settles in truths:
                    return settles
                return None if None in truths else not settles
            case _:
                return super().truth(test, module)

    def taken(self, choice: ast.IfExp, module: Module) -> list[ast.expr]:
        """What ``choice`` may be: one of its branches, or either."""
        truth = self.truth(choice.test, module)
        branches = choice.body, choice.orelse
        return [*branches] if truth is None else [branches[0] if truth else branches[1]]

    def live(self, bindings: Iterable[Binding], use: ast.Name, module: Module) -> list[Binding]:
        """Those of ``bindings`` that ``use`` may see, once the branches are known that run, and those that do not."""
        live = [binding for binding in bindings if not self.contains(binding.node, module)]
        certain = [
            position(binding.node)
            for binding in live
            if module.statement(binding.node) not in module.ancestors(use)
            and position(binding.node) < position(use)
            and self._always_runs(binding.node, module)
        ]
        latest = max(certain, default=(0, 0))
        return [binding for binding in live if position(binding.node) >= latest]

    def _always_runs(self, node: ast.AST, module: Module) -> bool:
        child = node
        for ancestor in module.ancestors(node):
            match ancestor:
                case ast.FunctionDef():
                    return ancestor is self._function
                case ast.If(test=test, body=body):
                    if self.truth(test, module) is not (child in body):
                        return False
                case ast.stmt() if not isinstance(ancestor, ast.For | ast.While | ast.Try):
                    pass
                case ast.expr():
                    pass
                case _:
                    return False
            child = ancestor
        return False

    def _is_given(self, name: ast.Name, module: Module) -> bool | None:
        found = module.scope(name).lookup(name.id)
        if found is None or found[0].node is not self._function or len(found[1]) != 1:
            return None
        return self._given.get(name.id)


@dataclass(frozen=True)
class Frame:
    """A function that is followed, and what its parameters are; the training step itself where there is none."""

    code: Branches
    function: FunctionNode | None = None
    arguments: Mapping[str, Reduced] = field(default_factory=dict[str, Reduced])
    given: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """Parameters that are given something, and those that are left None."""
    depth: int = 0

    @cached_property
    def key(self) -> object:
        """What two frames have in common in which every expression is the same."""
        told = frozenset(self.arguments.items()), frozenset(self.given.items())
        return self.function, *told, self.depth


def written_out(call: ast.Call, module: Module) -> ast.Call:
    """``call`` with the entries of dicts written into it: those of ``inputs = {"labels": y}`` for ``model(**inputs)``."""
    keywords: list[ast.keyword] = []
    for keyword in call.keywords:
        entries = _entries(keyword.value, module) if keyword.arg is None else None
        keywords += [keyword] if entries is None else entries
    return ast.Call(call.func, call.args, keywords)


def _entries(mapping: ast.expr, module: Module) -> list[ast.keyword] | None:
    """What the dict ``mapping`` hands to a call; None where that is not written, or may be changed."""
    display = mapping
    if isinstance(mapping, ast.Name):
        found = module.scope(mapping).lookup(mapping.id)
        sources = [binding.source for binding in found[1]] if found is not None else []
        match sources:
            case [Assigned(value=ast.Dict() as display, path=())]:
                reads = list(name_reads(mapping, module))
            case _:
                return None
        if not all(isinstance(module.parents[read], ast.keyword) for read in reads):
            return None
    if not isinstance(display, ast.Dict):
        return None
    entries: list[ast.keyword] = []
    for key, value in zip(display.keys, display.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return None
        entries.append(ast.keyword(key.value, value))
    return entries
