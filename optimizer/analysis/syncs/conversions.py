"""Where a variable that held tensors in a loop becomes a Python number again."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from ..facts import excerpt
from ..program.module_names import reads_elsewhere
from ..program.reaching import bindings_seen_in, reaching_bindings
from ..program.scopes import Assigned, Binding, Scope
from ..program.syntax import LoopNode, Module
from ..program.trees import walk
from ..values.named_values import name_values
from ..values.resolver import Resolver
from ..values.values import External
from .deferral_checks import Refused
from .deferred import Deferred
from .loop_definitions import is_start, is_whole
from .step_uses import asks_if_none

_CLOCKS = frozenset(
    f"time.{clock}{unit}"
    for clock in ("time", "perf_counter", "monotonic", "process_time")
    for unit in ("", "_ns")
) | {"timeit.default_timer", "datetime.datetime.now"}
_MOST_IN_PLACE = 2
"""More uses than these are converted by a statement of its own."""
_LONGEST_LINE = 88
_SEES_VARIABLES = frozenset({"locals", "vars", "eval", "exec", "globals"})
_ALREADY_CONVERTED = {True: frozenset({"int", "float"}), False: frozenset({"float"})}
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class Where(Enum):
    """In place of the variable's name, or in a statement of its own before or after another."""

    IN_PLACE = "in place"
    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, eq=False)
class Conversion:
    """The variable becomes a number ``where`` relative to ``node``: a use of its name, or a statement."""

    where: Where
    node: ast.AST


class Conversions:
    """Answers for one project."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    def of(self, variable: Deferred) -> tuple[Conversion, ...]:
        """All places where ``variable`` has to be converted. Raises Refused where there is no such place."""
        self.check_private(variable.name, variable.scope, variable.node, variable.module)
        later = list(self._later_uses(variable))
        self._check_reachable(variable, later)
        self.check_seen(variable.name, variable.loop.node, variable.module)
        for use in [*later, *variable.rare_uses]:
            self._check_number(variable, use)
        return (*self._rare(variable), *self._after(variable, later))

    def check_private(self, name: str, scope: Scope, node: ast.AST, module: Module) -> None:
        """Only ``module`` reads the variable ``name``, and Python's own ``int`` and ``float`` convert it there."""
        if isinstance(scope.node, ast.Module) and module.name != "__main__":
            raise Refused(node, f"`{name}` is a variable of an imported file")
        if next(reads_elsewhere(self._resolver, module, name), None) is not None:
            raise Refused(node, f"`{name}` is read by another file")
        for converter in ("int", "float"):
            builtin = frozenset({External(f"builtins.{converter}")})
            if name_values(self._resolver, converter, node, module) != builtin:
                raise Refused(node, f"`{converter}` is something else here")

    def check_seen(self, name: str, loop: LoopNode, module: Module) -> None:
        """Nothing around ``loop`` reads variables without naming them."""
        for node in walk(module.function(loop) or module.tree):
            if isinstance(node, ast.Call) and _sees_variables(node):
                raise Refused(node, f"`{excerpt(module, node)}` may read `{name}`")

    def clock(self, roots: Iterable[ast.AST], module: Module) -> ast.Call | None:
        """A call in ``roots`` that reads the time."""
        for root in roots:
            for node in walk(root):
                if isinstance(node, ast.Call) and self._is_clock(node, module):
                    return node
        return None

    def _is_clock(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call`` reads the clock for something: ``end = time.time()`` is often left over where nothing reads ``end``."""
        if not self._resolver.names(call.func, module) & _CLOCKS:
            return False
        match module.parents[call]:
            case ast.Assign(targets=[ast.Name(id=name)]):
                return any(isinstance(use.ctx, ast.Load) for use in module.names_of(name))
            case parent:
                return not isinstance(parent, ast.Expr)

    def _rare(self, variable: Deferred) -> Iterator[Conversion]:
        """Conversions in the branches of the loop that look at the variable."""
        branches: dict[ast.If, list[ast.Name]] = {}
        for use in variable.rare_uses:
            branch = next(a for a in variable.module.ancestors(use) if isinstance(a, ast.If))
            branches.setdefault(branch, []).append(use)
        for branch, uses in branches.items():
            timed = self.clock(branch.body, variable.module) is not None
            has_room = all(_has_room(variable.module, use) for use in uses)
            many = len(uses) > _MOST_IN_PLACE or _in_one_statement(variable.module, uses)
            together = timed or many or not has_room
            in_place = all(is_writable(variable.module, use) for use in uses)
            keeps = variable.accumulates or variable.is_list
            if (together or not in_place) and keeps and uses_only_body(branch, uses):
                yield Conversion(Where.BEFORE, branch.body[0])
            elif in_place:
                yield from self._in_place(variable, uses)
            else:
                raise Refused(uses[0], f"`{variable.name}` is read inside of a string")

    def _in_place(self, variable: Deferred, uses: list[ast.Name]) -> Iterator[Conversion]:
        for use in uses:
            parent = variable.module.parents[use]
            converters = _ALREADY_CONVERTED[variable.is_integer]
            is_converted = isinstance(parent, ast.Call) and (
                isinstance(parent.func, ast.Name) and parent.func.id in converters
            )
            if not is_converted:
                yield Conversion(Where.IN_PLACE, use)

    def _later_uses(self, variable: Deferred) -> Iterator[ast.Name]:
        """Where the variable may be read or added to with the value the loop gave it."""
        module, loop = variable.module, variable.loop.node
        bindings = variable.scope.bindings[variable.name]
        # A list is there before the loop adds to it, and may be known by then.
        own = self._lists(variable) if variable.is_list else set[Binding]()
        own |= {b for b in bindings if loop in module.ancestors(b.node)}
        for use in module.names_of(variable.name):
            found = module.scope(use).lookup(variable.name)
            if found is None or found[0] is not variable.scope or loop in module.ancestors(use):
                continue
            if isinstance(use.ctx, ast.Store) and not isinstance(
                module.parents[use], ast.AugAssign
            ):
                continue
            scope = module.scope(use)
            seen = reaching_bindings(module, variable.scope, bindings, scope, use)
            if not own.isdisjoint(seen) and not asks_if_none(module, use):
                yield use

    def _lists(self, variable: Deferred) -> set[Binding]:
        """Where the lists are made that the loop may add to."""
        bindings = variable.scope.bindings[variable.name]
        return bindings_seen_in(variable.module, variable.scope, bindings, variable.loop.node)

    def _check_number(self, variable: Deferred, use: ast.Name) -> None:
        """Whatever ``use`` may see besides what the loop computes is a number of the same type."""
        if variable.is_list:
            return
        module, name = variable.module, variable.name
        bindings = variable.scope.bindings[name]
        for binding in reaching_bindings(module, variable.scope, bindings, module.scope(use), use):
            source, statement = binding.source, module.statement(binding.node)
            if any(definition.statement is statement for definition in variable.definitions):
                continue
            resets = variable.loop.node in module.ancestors(statement)
            is_shown = (
                isinstance(source, Assigned) and is_whole(source) and not _hides_type(module, use)
            )
            if resets and is_shown and not variable.is_integer:
                raise Refused(use, f"`{name}` may be the integer of `{excerpt(module, statement)}`")
            if not (
                isinstance(source, Assigned)
                and is_start(source, name, is_list=False)
                and (is_whole(source) or not variable.is_integer)
            ):
                raise Refused(use, f"`{name}` is also set by `{excerpt(module, statement)}`")

    def _check_reachable(self, variable: Deferred, later: list[ast.Name]) -> None:
        """Every later use comes after the loop has ended in the ordinary way."""
        module, loop = variable.module, variable.loop.node
        for use in later:
            around = list(module.ancestors(use))
            for ancestor in module.ancestors(loop):
                if isinstance(ancestor, ast.Try) and ancestor in around:
                    parts: list[ast.AST] = [*ancestor.handlers, *ancestor.finalbody]
                    if any(part in around for part in parts):
                        raise Refused(use, f"`{variable.name}` is read after an exception")

    def _after(self, variable: Deferred, later: list[ast.Name]) -> Iterator[Conversion]:
        module = variable.module
        if not later:
            return
        place = self._end(variable, later)
        timed = self.clock([module.function(place) or module.tree], module) is not None
        added_to = [use for use in later if not isinstance(use.ctx, ast.Load)]
        in_place = (
            not variable.is_list
            and not added_to
            and all(
                is_writable(module, use)
                and module.scope(use) is variable.scope
                and not _repeats(module, use, place)
                for use in later
            )
        )
        few = len(later) <= _MOST_IN_PLACE and not _in_one_statement(module, later)
        short = few and all(_has_room(module, use) for use in later)
        if in_place and not timed and short:
            yield from self._in_place(variable, later)
        elif self._is_set_before(variable, place) and self._always_ends(place, later, module):
            if variable.is_list:
                self._check_list(variable, later, place)
            yield Conversion(Where.AFTER, place)
        elif in_place and not timed:
            yield from self._in_place(variable, later)
        else:
            use = later[0]
            raise Refused(use, f"`{variable.name}` may not be set where the loop ends")

    def _always_ends(self, place: LoopNode, later: list[ast.Name], module: Module) -> bool:
        """Whether no later use is reached although an exception ended ``place``."""
        inner: ast.AST = place
        for ancestor in module.ancestors(place):
            if isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef):
                break
            suppresses = isinstance(ancestor, ast.With) and any(
                "contextlib.suppress" in self._resolver.maker_names(i.context_expr, module)
                for i in ancestor.items
            )
            catches = isinstance(ancestor, ast.Try) and ancestor.handlers and inner in ancestor.body
            if suppresses or catches:
                inside = set(walk(ancestor))
                if any(use not in inside for use in later):
                    return False
            inner = ancestor
        return True

    def _end(self, variable: Deferred, later: list[ast.Name]) -> LoopNode:
        """The outermost loop around the loop in which nothing else looks at the variable."""
        module, place = variable.module, variable.loop.node
        for loop in module.loops(place):
            if any(loop in module.ancestors(use) for use in later):
                break
            if not self._is_set_before(variable, loop):
                break
            if variable.is_list and any(
                loop in module.ancestors(binding.node) and binding not in self._lists(variable)
                for binding in variable.scope.bindings[variable.name]
            ):
                break  # it may end with another list
            place = loop
        return place

    def _is_set_before(self, variable: Deferred, place: LoopNode) -> bool:
        """Whether the variable certainly has a value after ``place``."""
        module = variable.module
        around = [place, *module.ancestors(place)]
        for binding in variable.scope.bindings[variable.name]:
            statement = module.statement(binding.node)
            block = module.block(statement)
            if (
                isinstance(statement, ast.Assign | ast.AnnAssign)
                and any(ancestor in block for ancestor in around)
                and module.span(statement) < module.span(place)
            ):
                return True
        return False

    def _check_list(self, variable: Deferred, later: list[ast.Name], place: LoopNode) -> None:
        """The list is new in each pass that fills it, and nothing else knows it before it is converted."""
        module = variable.module
        for use in later:
            if not module.span(place) < module.span(use):
                raise Refused(use, f"`{variable.name}` is known elsewhere before the loop ends")
        for binding in self._lists(variable):
            if place not in module.ancestors(binding.node) and module.loops(
                module.statement(binding.node)
            ) != module.loops(place):
                raise Refused(later[0], f"`{variable.name}` is read while it still grows")


def _sees_variables(call: ast.Call) -> bool:
    """Whether ``call`` can read variables that it does not name; ``vars(args)`` reads what ``args`` holds."""
    function = getattr(call.func, "id", "")
    if function == "vars" and call.args:
        return not isinstance(call.args[0], ast.Name | ast.Attribute)
    return function in _SEES_VARIABLES


def is_writable(module: Module, use: ast.Name | ast.Attribute) -> bool:
    """Whether a longer expression can stand in place of ``use``: not where a format string shows the code."""
    if not any(isinstance(a, ast.JoinedStr) for a in module.ancestors(use)):
        return True
    if module.code(use) != ast.unparse(use):
        return False
    span = module.span(use)
    behind = module.lines[span.end_line - 1][span.end_column :].lstrip()
    return not (behind.startswith("=") and not behind.startswith("=="))


def _hides_type(module: Module, use: ast.Name) -> bool:
    """Whether 0 and 0.0 come out the same: in a division, or where a format says how many digits are shown."""
    parent = module.parents[use]
    if isinstance(parent, ast.FormattedValue):
        return parent.format_spec is not None
    return isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div)


def _in_one_statement(module: Module, uses: Sequence[ast.Name]) -> bool:
    """Whether two of ``uses`` are in the same statement, which would convert the variable twice."""
    return len({module.statement(use) for use in uses}) < len(uses)


def _has_room(module: Module, use: ast.Name) -> bool:
    """Whether the line of ``use`` stays readable with a conversion in it."""
    return len(module.lines[use.lineno - 1]) <= _LONGEST_LINE - len("float()")


def uses_only_body(branch: ast.If, uses: list[ast.Name]) -> bool:
    """Whether all of ``uses`` run below the first statement's beginning of the branch's body."""
    body = {node for statement in branch.body for node in walk(statement)}
    return all(use in body for use in uses)


def _repeats(module: Module, use: ast.Name, place: LoopNode) -> bool:
    """Whether ``use`` is in a loop of its own, or in one of which ``place`` is no part."""
    around_place = set(module.ancestors(place))
    loops = [a for a in module.ancestors(use) if isinstance(a, (*_LOOPS, ast.Lambda))]
    return any(loop not in around_place for loop in loops)
