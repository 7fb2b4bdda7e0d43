"""Which parts of objects differ between processes: ``args.seed = draw()`` leaves ``args.lr`` what it is in all of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from ..calls.reach import lexical_nodes
from ..calls.signatures import argument_for
from ..program.scopes import Assigned, Binding, Parameter
from ..program.syntax import FunctionNode, Module
from ..values.resolver import Resolver

Holder: TypeAlias = "Binding | tuple[ast.ClassDef, str]"
"""What keeps an object: a variable, or an attribute of the objects of a class."""
NO_PART = ""
"""In place of a part's name: whether an object diverges as a whole, whatever its parts do."""


class ObjectParts:
    """The parts that diverge of what variables and attributes keep."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._known: dict[Holder, set[str]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))

    def add(self, holder: Holder, part: str) -> bool:
        """Let ``part`` of what ``holder`` keeps diverge; whether it did not before."""
        parts = self._known.setdefault(holder, set())
        known = part in parts
        parts.add(part)
        return not known

    def has(self, holder: Holder, part: str | None) -> bool:
        """Whether ``part`` of what ``holder`` keeps diverges, for None any."""
        parts = self._known.get(holder)
        return bool(parts) and (part is None or part in parts)

    def follow(self, binding: Binding, module: Module) -> None:
        """Let ``binding`` have the parts of what it is another name of."""
        if self._known:
            for node, owner in self._handed_whole(binding, module):
                self._take(binding, node, owner)

    def keep(self, target: ast.expr, value: ast.expr, module: Module) -> None:
        """``value`` is kept in the attribute ``target``, and what diverges of it with it."""
        if self._known:
            for holder in self._holders(target, module):
                self._take(holder, value, module)

    def _handed_whole(self, binding: Binding, module: Module) -> Iterable[tuple[ast.expr, Module]]:
        match binding.source:
            case Assigned(value=ast.Call() as call, path=()):
                for callee in self._resolver.callees(call, module):
                    body = callee.node.body if isinstance(callee.node, FunctionNode) else ()
                    for node in lexical_nodes(body):
                        if isinstance(node, ast.Return) and node.value is not None:
                            yield node.value, callee.module
            case Assigned(value=value, path=()):
                yield value, module
            case Parameter(function=ast.FunctionDef() as function):
                for site in self._resolver.call_sites(function):
                    passed = argument_for(function, binding.name, site.call, site.bound)
                    if passed is not None and passed.given is not None:
                        yield passed.given, site.module
            case _:
                pass

    def _take(self, holder: Holder, node: ast.expr, module: Module) -> None:
        for other in self._holders(node, module):
            for part in tuple(self._known.get(other, ())):
                self.add(holder, part)

    def _holders(self, node: ast.expr, module: Module) -> Iterator[Holder]:
        if isinstance(node, ast.Name):
            found = module.scope(node).lookup(node.id)
            yield from found[1] if found is not None else ()
        elif isinstance(node, ast.Attribute):
            for cls in self._resolver.classes(node.value, module):
                yield cls.node, node.attr


def part_name(node: ast.Attribute | ast.Subscript) -> str | None:
    """What ``node`` takes of an object; None where that is not written."""
    match node:
        case ast.Attribute(attr=attr):
            return attr
        case ast.Subscript(slice=ast.Constant(value=str() as key)):
            return f"[{key}]"
        case _:
            return None
