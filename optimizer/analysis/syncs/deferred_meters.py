"""Meters that a loop gives numbers it reads from the device, although it looks at their figures only every so many steps.

Such a meter can be given the tensors instead, when all it does with them is plain arithmetic; its figures are then
tensors, too, and become numbers where they are looked at.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ..calls.signatures import parameter_of
from ..facts import Fact, Loop, excerpt
from ..program.scopes import Assigned, Binding, Scope
from ..program.syntax import Module
from ..program.trees import walk
from ..tensors.tensor_kinds import TensorKind
from ..values.additions import Additions
from ..values.host_numbers import is_number
from ..values.resolver import Resolver
from ..values.values import Class
from .conversions import Conversions, is_writable
from .deferral_checks import Refused, check_alias, check_divisor, check_kind
from .deferrals import code_scope
from .deferred import Deferred
from .device_reads import DeviceRead, runs_rarely
from .loop_definitions import HandedOver, assigned_value, leaf_name, leaves, operators
from .meter_classes import MeterClass, MeterUpdate, NoMeter
from .step_uses import why_needed


@dataclass(frozen=True, eq=False)
class DeferredMeter(Fact):
    """A meter that ``loop`` can give the tensors of ``reads`` by the call ``node``.

    ``figures`` are the places that look at what it holds of them; ``divides`` when it computes quotients. ``widened`` are
    counts that the call divides, and that are to be made float64 there.
    """

    loop: Loop
    name: str
    reads: tuple[DeviceRead, ...]
    figures: tuple[ast.Attribute, ...]
    divides: bool
    widened: tuple[ast.Name, ...]


class MeterDeferral:
    """Answers for one loop."""

    def __init__(
        self,
        resolver: Resolver,
        loop: Loop,
        reads: Mapping[ast.expr, DeviceRead],
        deferred: Iterable[Deferred],
    ) -> None:
        self._resolver, self._loop, self._reads = resolver, loop, reads
        self._deferred = {variable.name: variable for variable in deferred}
        self._module = loop.module
        self._scope = self._module.scope(loop.node.body[0])
        self._conversions = Conversions(resolver)

    def of(self, calls: Iterable[HandedOver]) -> DeferredMeter | None:
        """The meter that ``calls``, which use the same name, update; None when it is no object of the script's own.

        Raises Refused where it has to be given numbers.
        """
        first, *others = calls
        name, call = first.name, first.call
        cls = self._class(name)
        if cls is None:
            return None
        self._check_untimed()
        if others:
            raise Refused(others[0].call, f"`{name}` is given numbers in several ways")
        try:
            meter = MeterClass(self._resolver, cls)
            update = self._update(meter, first)
        except NoMeter as more:
            raise Refused(
                call, f"`{excerpt(self._module, first.value)}` goes into `{name}`, {more}"
            ) from None
        self._check_call(first)
        divides = any(isinstance(operator, ast.Div) for operator in operators(first.value))
        variables = self._variables(first, divides=divides)
        reads = tuple(self._checked_reads(first))
        for read in reads:
            if read.is_array:
                raise Refused(read.node, f"`{name}` is given an array (`{read.excerpt}`)")
            if read.kind is TensorKind.INTEGER and not divides:
                raise Refused(read.node, f"`{name}` is given an integer (`{read.excerpt}`)")
            check_alias(read)
        figures = self._looked_at(first, meter, update)
        self._conversions.check_private(name, self._scope, call, self._module)
        self._conversions.check_seen(name, self._loop.node, self._module)
        divides |= update.divides or any(v.divides for v in variables.values())
        counts = tuple(node for node, variable in variables.items() if variable.is_integer)
        return DeferredMeter(self._module, call, self._loop, name, reads, figures, divides, counts)

    def _check_untimed(self) -> None:
        """A clock that is read around the loop measures its work only as long as it waits."""
        function = self._module.function(self._loop.node)
        clock = self._conversions.clock([function or self._module.tree], self._module)
        if clock is not None:
            raise Refused(clock, f"it is timed (`{excerpt(self._module, clock)}`)")

    def _class(self, name: str) -> Class | None:
        """The script's own class that ``name`` holds a new object of, wherever it is set."""
        found = self._scope.lookup(name)
        classes: set[object] = set()
        for binding in found[1] if found is not None else ():
            source = binding.source
            value = assigned_value(source) if isinstance(source, Assigned) else None
            if not isinstance(value, ast.Call):
                return None
            classes |= self._resolver.values(value.func, self._module)
        cls = next(iter(classes), None)
        if len(classes) != 1 or not isinstance(cls, Class):
            return None
        return cls

    def _update(self, meter: MeterClass, call: HandedOver) -> MeterUpdate:
        method = meter.methods.get(call.method)
        additions = Additions(self._resolver)
        if method is None or any(map(additions.assigned_to_attribute, meter.methods)):
            raise NoMeter(f"whose `{call.method}` may be none of its class")
        parameter = parameter_of(method, call.value, call.call, bound=True)
        if parameter is None:
            raise NoMeter("by an argument that is not written out")
        return meter.update(call.method, parameter)

    def _check_call(self, call: HandedOver) -> None:
        """The call runs in every step, and what else it hands over are numbers."""
        module = self._module
        for ancestor in module.ancestors(module.statement(call.call)):
            if ancestor is self._loop.node:
                break
            if not isinstance(ancestor, ast.With):
                raise Refused(call.call, f"`{call.name}` is not updated in every step")
        for argument in (*call.call.args, *(k.value for k in call.call.keywords)):
            if argument is call.value:
                continue
            is_read = any(node in self._reads for node in walk(argument))
            if is_read or not is_number(self._resolver, argument, module):
                raise Refused(argument, f"`{excerpt(module, argument)}` may be no number")

    def _checked_reads(self, call: HandedOver) -> Iterator[DeviceRead]:
        """The reads that the value is computed from, together with nothing but numbers."""
        module = self._module
        for leaf in leaves(call.value):
            read = self._reads.get(leaf)  # type: ignore[call-overload]
            if read is not None:
                check_kind(read)
                check_divisor(module, leaf, call.value)
                yield read
            elif leaf_name(leaf) not in self._deferred and not is_number(
                self._resolver, leaf, module
            ):
                raise Refused(leaf, f"`{excerpt(module, leaf)}` may be no number")

    def _variables(self, call: HandedOver, *, divides: bool) -> dict[ast.Name, Deferred]:
        """The variables on the device that the value is computed from."""
        found: dict[ast.Name, Deferred] = {}
        for leaf in leaves(call.value):
            variable = self._deferred.get(leaf_name(leaf) or "")
            if variable is None:
                continue
            assert isinstance(leaf, ast.Name)
            if variable.accumulates:
                raise Refused(leaf, f"`{leaf.id}` changes while `{call.name}` keeps it")
            if variable.is_integer and not divides:
                raise Refused(leaf, f"`{call.name}` is given an integer (`{leaf.id}`)")
            check_divisor(self._module, leaf, call.value)
            found[leaf] = variable
        return found

    def _looked_at(
        self, call: HandedOver, meter: MeterClass, update: MeterUpdate
    ) -> tuple[ast.Attribute, ...]:
        """Where the figures are looked at, which is all that happens to the meter besides its update."""
        name, module = call.name, self._module
        found = self._scope.lookup(name)
        if found is None or found[0] is not self._scope:
            raise Refused(call.call, f"`{name}` is a variable of the code around the function")
        for binding in found[1]:
            self._check_binding(binding)
        figures: list[ast.Attribute] = []
        resets: list[ast.Name] = []
        for use in module.names_of(name):
            scope = module.scope(use)
            known = scope.lookup(name)
            if known is None or known[1] is not found[1]:
                continue
            if code_scope(scope) is not self._scope:
                raise Refused(use, f"`{name}` is read by another function")
            if isinstance(use.ctx, ast.Store) or use is getattr(call.call.func, "value", None):
                continue
            attribute = module.parents[use]
            if not isinstance(attribute, ast.Attribute) or attribute.attr in meter.methods:
                self._check_reset(use, call, meter, update)
                resets.append(use)
            elif not isinstance(attribute.ctx, ast.Load) or attribute.attr.startswith("__"):
                raise self._other_use(use)
            elif attribute.attr in update.figures:
                self._check_look(attribute, name, scope, call)
                if not _is_converted(attribute, module):
                    figures.append(attribute)
        for reset in resets:
            self._check_between(reset, figures)
        return tuple(figures)

    def _check_binding(self, binding: Binding) -> None:
        statement = self._module.statement(binding.node)
        single = isinstance(statement, ast.AnnAssign) or (
            isinstance(statement, ast.Assign) and len(statement.targets) == 1
        )
        if not single or not self._is_before_loop(statement):
            why = f"`{binding.name}` is also set by `{excerpt(self._module, statement)}`"
            raise Refused(statement, why)

    def _check_reset(
        self, use: ast.Name, given: HandedOver, meter: MeterClass, update: MeterUpdate
    ) -> None:
        """``use`` sets the meter back: before the loop, or every so many steps after it was updated."""
        module, loop = self._module, self._loop.node
        attribute = module.parents[use]
        call = module.parents[attribute]
        resets = (
            isinstance(attribute, ast.Attribute)
            and isinstance(call, ast.Call)
            and call.func is attribute
            and not (call.args or call.keywords)
            and isinstance(module.parents[call], ast.Expr)
            and meter.sets_back(attribute.attr, update)
        )
        is_rare = loop in module.ancestors(use) and runs_rarely(module, use, loop)
        is_after = module.span(given.call) < module.span(use)
        if not resets or not (
            self._is_before_loop(module.statement(use)) or (is_rare and is_after)
        ):
            raise self._other_use(use)

    def _check_between(self, reset: ast.Name, figures: Iterable[ast.Attribute]) -> None:
        """Where the loop sets the meter back, its figures are looked at only between its update and there.

        Elsewhere they may be what a new meter begins with, the integer 0.
        """
        module, loop = self._module, self._loop.node
        if loop not in module.ancestors(reset):
            return
        for figure in figures:
            inside = loop in module.ancestors(figure)
            if not inside or module.span(reset) < module.span(figure):
                raise Refused(figure, f"`{module.code(figure)}` may just have been set back")

    def _check_look(self, figure: ast.Attribute, name: str, scope: Scope, call: HandedOver) -> None:
        module, loop = self._module, self._loop.node
        if loop in module.ancestors(figure) and not runs_rarely(module, figure, loop):
            why = why_needed(self._resolver, figure, module)
            raise Refused(figure, f"`{module.code(figure)}` {why}")
        if set(module.loops(figure)) - {loop, *module.loops(loop)}:
            raise Refused(figure, f"`{module.code(figure)}` is read in another loop")
        if module.span(figure) < module.span(call.call):
            raise Refused(figure, f"`{name}` is looked at before it is given anything")
        if scope is not self._scope:
            raise Refused(figure, f"`{name}` is read inside of a comprehension")
        if not is_writable(module, figure):
            raise Refused(figure, f"`{name}` is read inside of a string")

    def _is_before_loop(self, statement: ast.stmt) -> bool:
        module, loop = self._module, self._loop.node
        inside = loop in module.ancestors(statement)
        return not inside and module.span(statement) < module.span(loop)

    def _other_use(self, use: ast.Name) -> Refused:
        statement = excerpt(self._module, self._module.statement(use))
        return Refused(use, f"`{use.id}` is a meter that is also used by `{statement}`")


def _is_converted(figure: ast.Attribute, module: Module) -> bool:
    """Whether the script makes a number of ``figure`` itself, which it may of a number, too."""
    call = module.parents[figure]
    return isinstance(call, ast.Call) and getattr(call.func, "id", "") == "float"
