"""The ``Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor`` idiom: the alias and all its uses."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from enum import Enum

from ..facts import Fact
from ..program.module_names import reads_elsewhere
from ..program.scopes import Assigned, Binding
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import External
from .host_data import HostData
from .legacy_tensors import is_cuda_type, legacy_dtype, takes_sizes


class UseKind(Enum):
    """What a use of the alias does: ``Tensor(..)``, or ``x.type(Tensor)``."""

    CONSTRUCTOR = "constructor"
    CAST = "cast"


@dataclass(frozen=True, eq=False)
class AliasUse(Fact):
    """A call that constructs with the alias, or casts to it."""

    node: ast.Call
    kind: UseKind


@dataclass(frozen=True, eq=False)
class TensorAlias(Fact):
    """``node`` is an assignment of a CUDA or CPU tensor type to ``name``; ``bindings`` are all of them.

    ``dtype`` is theirs. ``refusal`` says which use keeps the alias alive.
    """

    node: ast.Assign
    name: str
    assignments: tuple[ast.Assign, ...]
    dtype: str
    uses: tuple[AliasUse, ...]
    refusal: str | None


def find_tensor_aliases(resolver: Resolver) -> tuple[TensorAlias, ...]:
    """Every such alias of the project, in source order per module."""
    finder = _Finder(resolver)
    found = [
        alias
        for module in resolver.project.modules
        if "torch.cuda" in module.source.text or ".cuda." in module.source.text
        for scope in module.scopes.by_node.values()
        for bindings in scope.bindings.values()
        if (alias := finder.alias(bindings, module)) is not None
    ]
    return tuple(sorted(found, key=lambda alias: (str(alias.path), alias.span)))


class _Finder:
    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._host = HostData(resolver)

    def alias(self, bindings: list[Binding], module: Module) -> TensorAlias | None:
        names: set[str] = set()
        assignments: list[ast.Assign] = []
        for binding in bindings:
            source = binding.source
            statement = module.parents.get(binding.node)
            if (
                not isinstance(source, Assigned)
                or source.path
                or not isinstance(statement, ast.Assign)
            ):
                return None
            if len(statement.targets) != 1:
                return None
            values = self._resolver.values(source.value, module)
            if not all(isinstance(value, External) for value in values):
                return None
            names |= {value.name for value in values if isinstance(value, External)}
            assignments.append(statement)
        dtype = legacy_dtype(frozenset(names))
        if dtype is None or not any(is_cuda_type(name) for name in names):
            return None
        uses, refusal = self._uses(bindings, module)
        name = bindings[0].name
        return TensorAlias(
            module, assignments[0], name, tuple(assignments), dtype, tuple(uses), refusal
        )

    def _uses(self, bindings: list[Binding], module: Module) -> tuple[list[AliasUse], str | None]:
        name = bindings[0].name
        uses: list[AliasUse] = []
        if module.scopes.by_node[module.tree].bindings.get(name) is bindings:
            for read, owner in reads_elsewhere(self._resolver, module, name):
                return [], f"`{name}` is also used at {owner.place(read)}"
        for node in module.names_of(name):
            found = module.scope(node).lookup(name)
            if found is None or bindings[0] not in found[1] or not isinstance(node.ctx, ast.Load):
                continue
            use, refusal = self._use(node, module)
            if use is None:
                return [], f"`{name}` is {refusal} at {module.place(node)}, which keeps it in use"
            uses.append(use)
        return uses, None

    def _use(self, node: ast.Name, module: Module) -> tuple[AliasUse | None, str]:
        call = module.parents[node]
        if not isinstance(call, ast.Call):
            return None, "used as a value"
        if call.func is node:
            if takes_sizes(self._host, call, module) is None:
                return None, "given something that may be a size or data"
            return AliasUse(module, call, UseKind.CONSTRUCTOR), ""
        func = call.func
        is_cast = isinstance(func, ast.Attribute) and func.attr == "type"
        if is_cast and call.args == [node] and not call.keywords:
            return AliasUse(module, call, UseKind.CAST), ""
        return None, "passed on"
