"""Where attributes are read, by name, in every file of a project."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from ..autograd.grad_modes import GradModes
from ..calls.reach import lexical_nodes
from ..networks.networks import Networks
from ..values.resolver import Resolver
from ..values.values import Class, External, Instance, Made
from .syntax import Module

_ANY = "*"
_SETTINGS = frozenset({"argparse.ArgumentParser.parse_args", "argparse.Namespace"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class AttributeReads:
    """Answers by name alone: every object may be meant. What was surely assigned anew just before is left out."""

    def __init__(self, resolver: Resolver, networks: Networks, modes: GradModes) -> None:
        self._resolver = resolver
        self._networks = networks
        self._modes = modes

    def of(self, attribute: str, region: frozenset[ast.AST]) -> Iterator[tuple[ast.expr, Module]]:
        """The reads of ``x.attribute`` that may see what code in ``region`` (or code it runs) has assigned."""
        for read, module in self._loads.get(attribute, ()):
            if read in region or not self._assigned_before(read, module, region):
                yield read, module
        yield from self._dynamic_loads.get(attribute, ())
        for read, module in self._dynamic_loads.get(_ANY, ()):
            if not self._is_without(read, module, attribute):
                yield read, module

    @cached_property
    def _loads(self) -> dict[str, list[tuple[ast.Attribute, Module]]]:
        found: dict[str, list[tuple[ast.Attribute, Module]]] = {}
        for module in self._resolver.project.modules:
            for node in module.nodes_of(ast.Attribute):
                if isinstance(node.ctx, ast.Load):
                    found.setdefault(node.attr, []).append((node, module))
        return found

    @cached_property
    def _dynamic_loads(self) -> dict[str, list[tuple[ast.expr, Module]]]:
        """Reads by ``getattr(x, "name")``, and under ``*`` those whose name is not written out."""
        found: dict[str, list[tuple[ast.expr, Module]]] = {}
        for module in self._resolver.project.modules:
            for node in module.nodes_of(ast.Attribute, ast.Call):
                if isinstance(node, ast.Attribute) and node.attr == "__dict__":
                    found.setdefault(_ANY, []).append((node, module))
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    if node.func.id == "vars" and node.args:
                        found.setdefault(_ANY, []).append((node, module))
                    elif node.func.id == "getattr" and len(node.args) > 1:
                        found.setdefault(literal_name(node) or _ANY, []).append((node, module))
        return found

    def _is_without(self, read: ast.expr, module: Module, attribute: str) -> bool:
        """Whether ``read`` is of all settings, as ``vars(args)`` is, and ``attribute`` is one of other objects only."""
        owner = read.value if isinstance(read, ast.Attribute) else None
        if isinstance(read, ast.Call) and getattr(read.func, "id", "") == "vars":
            owner = read.args[0]
        if owner is None:
            return False
        values = self._resolver.values(owner, module)
        is_settings = bool(values) and all(
            isinstance(value, Made)
            and isinstance(value.maker, External)
            and value.maker.name in _SETTINGS
            for value in values
        )
        return is_settings and attribute in self._own_attributes

    @cached_property
    def _own_attributes(self) -> frozenset[str]:
        """The names of attributes that are assigned to ``self`` only."""
        own: set[str] = set()
        others: set[str] = set()
        for module in self._resolver.project.modules:
            for node in module.nodes_of(ast.Attribute):
                if not isinstance(node.ctx, ast.Load):
                    values = self._resolver.values(node.value, module)
                    is_self = bool(values) and all(isinstance(v, Instance) for v in values)
                    (own if is_self else others).add(node.attr)
        return frozenset(own - others)

    def _assigned_before(
        self, read: ast.Attribute, module: Module, region: frozenset[ast.AST]
    ) -> bool:
        """Whether a statement that always runs before ``read``, in the same function, assigns the attribute."""
        owner = ast.dump(read.value)
        child: ast.AST = module.statement(read)
        while not isinstance(child, (*_DEFINITIONS, ast.Module)):
            block = module.block(child) if isinstance(child, ast.stmt) else []
            for statement in block:
                if statement is child:
                    break
                if statement not in region and self._assigns(statement, read.attr, owner, module):
                    return True
            child = module.parents[child]
        return False

    def _assigns(self, statement: ast.stmt, attribute: str, owner: str, module: Module) -> bool:
        if _stores(statement, attribute, owner):
            return True
        if isinstance(statement, (ast.If, ast.For, ast.While, ast.Try)):
            return False
        return any(
            self._sets(call, attribute, module)
            for call in lexical_nodes([statement])
            if isinstance(call, ast.Call) and not self._modes.decided(call, module)
        )

    def _sets(self, call: ast.Call, attribute: str, module: Module) -> bool:
        """Whether ``call`` is a forward pass that always assigns the attribute."""
        called = self._networks.unwrapped(call.func, module)
        return bool(called) and all(
            isinstance(value, Made)
            and isinstance(value.maker, Class)
            and any(
                _stores(assigning, attribute, None)
                for forward in self._networks.forwards_of(value.maker)
                if isinstance(forward.node, ast.FunctionDef)
                for assigning in forward.node.body
            )
            for value in called
        )


def literal_name(call: ast.Call) -> str | None:
    """The attribute name that ``getattr`` or ``setattr`` is given, when it is written out."""
    name = call.args[1] if len(call.args) > 1 else None
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None


def _stores(statement: ast.AST, attribute: str, owner: str | None) -> bool:
    """Whether ``statement`` assigns ``attribute`` of the object spelled like ``owner`` (of any when None)."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    for target in targets:
        for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            is_attribute = isinstance(part, ast.Attribute) and part.attr == attribute
            if is_attribute and (owner is None or ast.dump(part.value) == owner):  # type: ignore[attr-defined]
                return True
    return False
