"""What stands before a layer in the ``nn.Sequential`` it becomes a part of, also through lists that are built first."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.callbacks import is_handed_around
from ..program.scopes import Scope
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..values.resolver import Resolver

Layers = list[tuple[ast.expr, Module]]
_FIRST = "it comes first in its sequence"
_LOST = "where it runs cannot be told"
SEQUENTIAL = frozenset({"torch.nn.Sequential"})


class Untold(Exception):
    """What stands before a layer cannot be told; the message says why."""


class LayerSequences:
    """Answers for one project."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    def before(self, layer: ast.expr, module: Module) -> Layers:
        """The layers that may run directly before ``layer``; raises :class:`Untold`."""
        parent = module.parents[layer]
        if isinstance(parent, ast.Call) and layer in parent.args:
            if self._is_sequential(parent, module):
                return self._previous(parent.args, layer, module)
            name = _receiver(parent, "append")
            if name is not None:
                self._follow_name(name, module, set())
                return self._last_before(name.id, module.statement(parent), module)
        if isinstance(parent, ast.List) and layer in parent.elts:
            self._follow(parent, module, set())
            if parent.elts[0] is layer:
                return self._before_list(parent, module)
            return self._previous(parent.elts, layer, module)
        raise Untold(_LOST)

    def _is_sequential(self, call: ast.Call, module: Module) -> bool:
        return self._resolver.names(call.func, module) == SEQUENTIAL

    def _previous(self, siblings: list[ast.expr], layer: ast.expr, module: Module) -> Layers:
        index = siblings.index(layer)
        if index == 0:
            raise Untold(_FIRST)
        return self._last_of(siblings[index - 1], module)

    def _before_list(self, display: ast.List, module: Module) -> Layers:
        """``layers += [nn.ReLU(), ..]``: the last of the elements that ``layers`` had."""
        parent = module.parents[display]
        if isinstance(parent, ast.AugAssign) and isinstance(parent.target, ast.Name):
            return self._last_before(parent.target.id, parent, module)
        name = _receiver(parent, "extend") if isinstance(parent, ast.Call) else None
        if name is not None:
            return self._last_before(name.id, module.statement(parent), module)
        raise Untold(_FIRST)

    # The last element of a list

    def _last_of(self, element: ast.expr, module: Module) -> Layers:
        """The layer that ``element`` of a sequence is, or the last of those it unpacks to."""
        if not isinstance(element, ast.Starred):
            return [(element, module)]
        return self._last_in(element.value, module)

    def _last_in(self, items: ast.expr, module: Module) -> Layers:
        if isinstance(items, ast.List | ast.Tuple) and items.elts:
            return self._last_of(items.elts[-1], module)
        if isinstance(items, ast.Name):
            return self._last_before(items.id, module.statement(items), module)
        if isinstance(items, ast.Call):
            found: Layers = []
            for function in self._resolver.callees(items, module):
                returned = [r for r in walk(function.node) if isinstance(r, ast.Return)]
                if not returned or isinstance(function.node, ast.Lambda):
                    raise Untold(_LOST)
                for statement in returned:
                    if (
                        statement.value is None
                        or function.module.function(statement) is not function.node
                    ):
                        raise Untold(_LOST)
                    found += self._last_in(statement.value, function.module)
            if found:
                return found
        raise Untold(_LOST)

    def _last_before(self, name: str, statement: ast.stmt, module: Module) -> Layers:
        """The elements that may be the last of the list ``name`` when ``statement`` runs."""
        block = module.block(statement)
        found, certain = self._last_in_block(name, block[: block.index(statement)], module)
        if certain:
            return found
        parent = module.parents[statement]
        if isinstance(parent, ast.For | ast.While):
            inside, sure = self._last_in_block(name, block, module)
            found += inside
            if sure and not found:
                raise Untold(_LOST)
        if isinstance(parent, ast.stmt) and not isinstance(
            parent, ast.FunctionDef | ast.ClassDef | ast.Try
        ):
            return found + self._last_before(name, parent, module)
        raise Untold(_FIRST)

    def _last_in_block(
        self, name: str, block: list[ast.stmt], module: Module
    ) -> tuple[Layers, bool]:
        """What ``block`` may leave as the last element, and whether it certainly leaves one."""
        found: Layers = []
        for statement in reversed(block):
            last, certain = self._left_by(name, statement, module)
            found += last
            if certain:
                return found, True
        return found, False

    def _left_by(self, name: str, statement: ast.stmt, module: Module) -> tuple[Layers, bool]:
        if not any(isinstance(n, ast.Name) and n.id == name for n in walk(statement)):
            return [], False
        match statement:
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(id), "append"), [item])) if id == name:
                return [(item, module)], True
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(id), "extend"), [items])) if id == name:
                return self._last_in(items, module), True
            case ast.AugAssign(ast.Name(id), ast.Add(), items) if id == name:
                return self._last_in(items, module), True
            case ast.Assign([ast.Name(id)], items) if id == name:
                return self._last_in(items, module), True
            case ast.If(_, body, orelse):
                then, sure = self._last_in_block(name, body, module)
                other, also = self._last_in_block(name, orelse, module)
                return then + other, sure and also
            case ast.For(_, _, body, []) | ast.While(_, body, []):
                return self._last_in_block(name, body, module)[0], False
            case _:
                raise Untold(_LOST)

    # Where a list goes

    def _follow(self, items: ast.expr, module: Module, seen: set[ast.AST]) -> None:
        """Raises unless the list ``items`` only ever becomes the layers of ``nn.Sequential``."""
        if items in seen:
            return
        seen.add(items)
        parent = module.parents[items]
        match parent:
            case ast.Starred():
                self._follow_starred(parent, module, seen)
            case ast.Return():
                self._follow_returned(module.function(parent), module, seen)
            case ast.AugAssign(ast.Name() as target, ast.Add()) | ast.Assign(
                [ast.Name() as target]
            ):
                self._follow_name(target, module, seen)
            case ast.BinOp(op=ast.Add()):
                self._follow(parent, module, seen)
            case ast.Call() if (name := _receiver(parent, "extend")) is not None:
                self._follow_name(name, module, seen)
            case _:
                raise Untold(_LOST)

    def _follow_starred(self, starred: ast.Starred, module: Module, seen: set[ast.AST]) -> None:
        holder = module.parents[starred]
        if isinstance(holder, ast.List | ast.Tuple):
            self._follow(holder, module, seen)
        elif not (isinstance(holder, ast.Call) and self._is_sequential(holder, module)):
            raise Untold(_LOST)

    def _follow_returned(
        self, function: FunctionNode | None, module: Module, seen: set[ast.AST]
    ) -> None:
        sites = self._resolver.call_sites(function) if function is not None else ()
        if function is None or not sites or is_handed_around(self._resolver, function):
            raise Untold(_LOST)
        for site in sites:
            self._follow(site.call, site.module, seen)

    def _follow_name(self, name: ast.Name, module: Module, seen: set[ast.AST]) -> None:
        owner = _owner(name, module)
        for use in module.names_of(name.id):
            if use in seen or _owner(use, module) is not owner:
                continue
            seen.add(use)
            parent = module.parents[use]
            if not isinstance(use.ctx, ast.Load) and isinstance(parent, ast.Assign | ast.AugAssign):
                continue
            if isinstance(parent, ast.Attribute) and parent.attr in {"append", "extend"}:
                continue
            seen.discard(use)
            self._follow(use, module, seen)


def _receiver(call: ast.Call, method: str) -> ast.Name | None:
    match call.func:
        case ast.Attribute(ast.Name() as name, attr) if attr == method and len(call.args) == 1:
            return name
        case _:
            return None


def _owner(name: ast.Name, module: Module) -> Scope | None:
    found = module.scope(name).lookup(name.id)
    return found[0] if found is not None else None


def loop_targets(target: ast.expr) -> Iterator[ast.Name]:
    """The names a loop binds."""
    return (node for node in walk(target) if isinstance(node, ast.Name))
