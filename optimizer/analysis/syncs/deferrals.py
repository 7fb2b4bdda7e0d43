"""Numbers that a loop reads from the device in every step although it only adds them up or keeps them for later.

A variable can be deferred when all that the loop assigns to it is computed from such reads by plain arithmetic, and the
loop looks at it only every so many steps. Then it can hold a tensor on the device, and become a number where it is
looked at.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property

from ..facts import Loop, excerpt
from ..obstacles import Obstacle
from ..program.reaching import bindings_seen_in
from ..program.scopes import Assigned, Binding, Deleted, Scope
from ..program.trees import walk
from ..tensors.tensor_kinds import TensorKind
from ..values.host_numbers import is_number
from ..values.resolver import Resolver
from .deferral_checks import (
    Refused,
    check_alias,
    check_arrays,
    check_divisor,
    check_kind,
    check_width,
)
from .deferred import Deferred, widened_uses
from .device_reads import DeviceRead, runs_rarely
from .loop_definitions import (
    Definition,
    HandedOver,
    arithmetic_root,
    definitions_in,
    handed_over,
    is_start,
    is_whole,
    leaf_name,
    leaves,
    operators,
)
from .step_uses import asks_if_none, why_needed

_COMPUTING_PACKAGES = frozenset({"numpy", "statistics", "math", "torch"})
_COMPUTING_BUILTINS = frozenset(f"builtins.{name}" for name in ("sum", "max", "min", "print"))
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class LoopDeferral:
    """What can be deferred in one loop over steps, and what cannot."""

    def __init__(self, resolver: Resolver, loop: Loop, reads: Iterable[DeviceRead]) -> None:
        self._resolver, self.loop, self.module = resolver, loop, loop.module
        self._reads = {r.node: r for r in reads}
        self._scope = self.module.scope(loop.node.body[0])
        self.obstacles: list[Obstacle] = []
        self.handed_over: list[HandedOver] = []
        self.deferred: tuple[Deferred, ...] = ()
        names = self._candidates()
        while names:
            refused = self._settle(names)
            if refused is None:
                break
            names -= {refused}

    @cached_property
    def _definitions(self) -> tuple[Definition, ...]:
        loop = self.loop.node
        unpacked = [
            Definition(node.id, self.module.statement(node), node)
            for node in self._reads
            if isinstance(node, ast.Name)
        ]
        written = [
            definition
            for statement in walk(loop)
            if isinstance(statement, ast.stmt)
            for definition in definitions_in(statement)
        ]
        return tuple(
            definition
            for definition in (*written, *unpacked)
            if not runs_rarely(self.module, definition.statement, loop)
        )

    def _candidates(self) -> set[str]:
        """The variables that take what is read from the device; every other read is an obstacle, unless it is rare."""
        names: set[str] = set()
        for read in self._reads.values():
            if runs_rarely(self.module, read.node, self.loop.node):
                continue
            root = arithmetic_root(self.module, read.node)
            taking = [d.name for d in self._definitions if d.value is root]
            names.update(taking)
            if not taking and not self._is_handed_over(root):
                why = why_needed(self._resolver, root, self.module)
                self.obstacles.append(Obstacle(self.module, read.node, f"{read.told} {why}"))
        size = -1
        while size != len(names):
            size = len(names)
            names |= {
                d.name
                for d in self._definitions
                if any(leaf_name(x) in names for x in leaves(d.value))
            }
        return names

    def _is_handed_over(self, value: ast.expr) -> bool:
        """Whether ``value`` goes to an object that has a name, which is then asked what it does with it."""
        handed = handed_over(self.module, value)
        if handed is not None and all(other.value is not value for other in self.handed_over):
            self.handed_over.append(handed)
        return handed is not None

    def _settle(self, names: set[str]) -> str | None:
        """Defers all of ``names``, or says which of them cannot be."""
        found: dict[str, Deferred] = {}
        for name in sorted(names):
            mine = [d for d in self._definitions if d.name == name]
            if not any(self._depends(d, names) for d in mine):
                return name  # a plain number after all
            try:
                found[name] = self._deferred(name, mine, names)
            except Refused as refused:
                self.obstacles.append(Obstacle(self.module, refused.node, refused.why))
                return name
        for name, variable in found.items():
            try:
                self._check_mixing(variable, found)
            except Refused as refused:
                self.obstacles.append(Obstacle(self.module, refused.node, refused.why))
                return name
        settled = [
            replace(variable, widened=tuple(widened_uses(variable, found)))
            for variable in found.values()
        ]
        self.deferred = tuple(sorted(settled, key=lambda v: self.module.span(v.node)))
        return None

    def _depends(self, definition: Definition, names: set[str]) -> bool:
        return any(x in self._reads or leaf_name(x) in names for x in leaves(definition.value))

    def _deferred(self, name: str, mine: list[Definition], names: set[str]) -> Deferred:
        first = mine[0].statement
        found = self._scope.lookup(name)
        if found is None or found[0] is not self._scope:
            raise Refused(first, f"`{name}` is a variable of the code around the function")
        is_list = any(d.appends for d in mine)
        if is_list and not all(d.appends for d in mine):
            raise Refused(first, f"the loop also replaces the list `{name}`")
        for definition in mine:
            if not (definition.adds or definition.appends or self._depends(definition, names)):
                code = excerpt(self.module, definition.statement)
                raise Refused(definition.statement, f"`{name}` is also set by `{code}`")
        rare = tuple(self._rare_uses(name, names, is_list))  # first: what needs it says most
        reads = [read for d in mine for read in self._checked(d, names)]
        kinds = {self._is_integer(d, names, {name}) for d in mine if not d.adds}
        if len(kinds) > 1:
            raise Refused(first, f"`{name}` is a count in one place and a fraction in another")
        starts = self._starts(name, found[1], mine, is_list)
        whole = all(is_whole(start) for start in starts)
        is_integer = whole and all(self._is_integer(d, names, {name}) for d in mine)
        variable = Deferred(
            self.module,
            first,
            self.loop,
            name,
            self._scope,
            tuple(mine),
            tuple(reads),
            rare,
            is_integer,
            is_list,
            is_list and not all(self._depends(d, names) for d in mine),
        )
        check_arrays(variable)
        return variable

    def _checked(self, definition: Definition, names: set[str]) -> Iterator[DeviceRead]:
        """The reads in a definition, which must consist of them, deferred variables and numbers."""
        if isinstance(definition.statement, ast.AugAssign) and not isinstance(
            definition.statement.op, ast.Add | ast.Sub
        ):
            raise Refused(definition.statement, "only sums are kept on the device")
        for leaf in leaves(definition.value):
            read = self._reads.get(leaf)  # type: ignore[call-overload]
            if read is not None:
                check_kind(read)
                if not definition.appends:
                    check_width(read)
                check_divisor(self.module, leaf, definition.value)
                yield read
            elif leaf_name(leaf) in names:
                check_divisor(self.module, leaf, definition.value)
            elif not is_number(self._resolver, leaf, self.module):
                raise Refused(leaf, f"`{excerpt(self.module, leaf)}` may be no number")
        kept = self._reads.get(definition.value)  # type: ignore[call-overload]
        if kept is not None and not definition.adds:
            check_alias(kept)

    def _starts(
        self, name: str, bindings: list[Binding], mine: list[Definition], is_list: bool
    ) -> list[Assigned]:
        """What the variable may be before the loop adds to it, and what the loop sets it back to."""
        statements = {d.statement for d in mine}
        seen = bindings_seen_in(self.module, self._scope, bindings, self.loop.node)
        found: list[Assigned] = []
        for binding in bindings:
            statement = self.module.statement(binding.node)
            inside = self.loop.node in self.module.ancestors(binding.node)
            if statement in statements or not (inside or binding in seen):
                continue
            source = binding.source
            if isinstance(source, Deleted):
                raise Refused(statement, f"`{name}` is deleted")
            shared = is_list and len(getattr(statement, "targets", [])) > 1
            if (
                shared
                or not isinstance(source, Assigned)
                or not is_start(source, name, is_list=is_list)
            ):
                code = excerpt(self.module, statement)
                why = f"`{name}` is also set by `{code}`"
                if is_list and not inside and not shared:
                    why = f"`{name}` is not known to start as an empty list (`{code}`)"
                raise Refused(mine[0].statement, why)
            found.append(source)
        if is_list and not found:
            raise Refused(mine[0].statement, f"it is not known which list `{name}` is")
        return found

    def _rare_uses(self, name: str, names: set[str], is_list: bool) -> Iterator[ast.Name]:
        owner = self._scope.bindings[name]
        for use in self.module.names_of(name):
            found = self.module.scope(use).lookup(name)
            if found is None or found[1] is not owner:
                continue
            if code_scope(self.module.scope(use)) is not self._scope:
                raise Refused(use, f"`{name}` is read by another function")
            if isinstance(use.ctx, ast.Del):
                raise Refused(use, f"`{name}` is deleted")
            if self.loop.node not in self.module.ancestors(use) or isinstance(use.ctx, ast.Store):
                continue
            if asks_if_none(self.module, use):
                continue
            if self._is_part_of_definition(use, names) or self._is_list_method(use, is_list):
                continue
            if is_list and self._is_summed_up(use):
                if not self._starts_anew(use):
                    raise Refused(use, f"`{name}` is read while it still grows")
                yield use
                continue
            if is_list or not runs_rarely(self.module, use, self.loop.node):
                self._check_handed_over(use, is_list=is_list)
                continue
            if self.module.scope(use) is not self._scope:
                raise Refused(use, f"`{name}` is read inside of a comprehension")
            yield use

    def _check_handed_over(self, use: ast.Name, *, is_list: bool) -> None:
        """What a step does with a variable besides computing others from it is to give it to an object that has a name."""
        root = arithmetic_root(self.module, use)
        if is_list or not self._is_handed_over(root):
            why = why_needed(self._resolver, root, self.module)
            raise Refused(use, f"`{use.id}` {why}")

    def _is_part_of_definition(self, use: ast.Name, names: set[str]) -> bool:
        root = arithmetic_root(self.module, use)
        return any(d.value is root and d.name in names for d in self._definitions)

    def _is_list_method(self, use: ast.Name, is_list: bool) -> bool:
        parent = self.module.parents[use]
        if isinstance(parent, ast.Call):
            return is_list and getattr(parent.func, "id", "") == "len"
        return is_list and isinstance(parent, ast.Attribute) and parent.attr == "append"

    def _is_summed_up(self, use: ast.Name) -> bool:
        """Whether every so many steps the list ``use`` is given to a function of a library, which keeps no list."""
        call = self.module.parents[use]
        return (
            runs_rarely(self.module, use, self.loop.node)
            and isinstance(call, ast.Call)
            and use in call.args
            and _only_reads(self._resolver.names(call.func, self.module))
        )

    def _starts_anew(self, use: ast.Name) -> bool:
        """Whether the list is empty again after ``use``, so that each of its numbers is read once."""
        statement = self.module.statement(use)
        block = self.module.block(statement)
        return any(
            isinstance(later, ast.Assign)
            and isinstance(later.targets[0], ast.Name)
            and later.targets[0].id == use.id
            for later in block[block.index(statement) + 1 :]
        )

    def _is_integer(self, definition: Definition, names: set[str], within: set[str]) -> bool:
        """Whether a definition computes with integers only; ``within`` are the variables being asked about."""
        if any(isinstance(n, ast.Div) for n in operators(definition.value)):
            return False
        for leaf in leaves(definition.value):
            read = self._reads.get(leaf)  # type: ignore[call-overload]
            name = leaf_name(leaf)
            if read is not None:
                if read.kind is not TensorKind.INTEGER or read.converter == "float":
                    return False
            elif name in names:
                others = [d for d in self._definitions if d.name == name and name not in within]
                if not all(self._is_integer(d, names, within | {name}) for d in others):
                    return False
            elif not is_number(self._resolver, leaf, self.module, whole=True):
                return False
        return True

    def _check_mixing(self, variable: Deferred, others: dict[str, Deferred]) -> None:
        """What is computed from other deferred variables is no second name of a changing tensor."""
        for definition in variable.definitions:
            for leaf in leaves(definition.value):
                other = others.get(leaf_name(leaf) or "")
                if other is None:
                    continue
                if other.is_list:
                    raise Refused(leaf, f"`{other.name}` is a list")
                if other is not variable and other.accumulates and not definition.adds:
                    raise Refused(leaf, f"`{other.name}` changes while it is kept")
        if len(variable.definitions) > 1 and "inference_mode" in self.module.source.text:
            raise Refused(variable.node, f"`{variable.name}` may be made under `inference_mode`")
        plain = [d for d in variable.definitions if not d.adds and not d.appends]
        if any(d.adds for d in variable.definitions) and any(
            x in self._reads or leaf_name(x) in others for d in plain for x in leaves(d.value)
        ):
            raise Refused(plain[0].statement, f"`{variable.name}` is both replaced and added to")


def code_scope(scope: Scope) -> Scope:
    """The scope of the code that a comprehension is part of."""
    while isinstance(scope.node, _COMPREHENSIONS) and scope.parent is not None:
        scope = scope.parent
    return scope


def _only_reads(functions: frozenset[str]) -> bool:
    """Whether a call of ``functions`` is over with the list that it is given."""
    return bool(functions) and all(
        name.partition(".")[0] in _COMPUTING_PACKAGES or name in _COMPUTING_BUILTINS
        for name in functions
    )
