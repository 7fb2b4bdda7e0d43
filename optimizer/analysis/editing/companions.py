"""How something made beside an object can follow it to where that object is used.

A GradScaler belongs beside the optimizer: made where the optimizer is made, and seen wherever the optimizer is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from ..calls.signatures import argument_for, first_parameter
from ..program.classes import family, kept_as
from ..program.parameters import positional_parameters
from ..program.scopes import Assigned, Binding, Iterated, Managed, Parameter, Scope
from ..program.sharing import in_words, other_user, started_in_words
from ..program.statements import common_block, outermost_test
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..values.resolver import CallSite, Resolver
from ..values.values import Function
from .own_attributes import own_name


class SharedFunctionError(Exception):
    """Raised where a function that would have to take the companion is used by another script, too, which says the message."""


@dataclass(frozen=True, eq=False)
class NewParameter:
    """``function`` must take the companion, behind its parameter ``after``."""

    module: Module
    function: FunctionNode
    after: str


@dataclass(frozen=True, eq=False)
class NewArgument:
    """``call`` must hand the companion on, behind the argument ``after``; ``keyword`` when that one is named."""

    module: Module
    call: ast.Call
    after: ast.expr
    keyword: bool


@dataclass(frozen=True, eq=False)
class Companion:
    """Where a companion is made and how it is passed on.

    It is made below ``statement``; it is an attribute of ``prefix`` (``self.``) when that is not empty, otherwise a
    plain name in the scope of ``statement``.
    """

    module: Module
    statement: ast.stmt
    prefix: str
    parameters: tuple[NewParameter, ...]
    arguments: tuple[NewArgument, ...]


@dataclass(eq=False)
class _Trace:
    """The owners found so far, what must be passed on the way, and where the companion is used.

    ``alone`` are the calls that hand on the companion without an owner: ``run_epoch(val_loader, optimizer=None)``.
    """

    owners: list[tuple[Module, list[ast.stmt], str, object]] = field(default_factory=list)
    parameters: dict[FunctionNode, NewParameter] = field(default_factory=dict)
    arguments: dict[ast.Call, NewArgument] = field(default_factory=dict)
    alone: list[tuple[ast.Call, Module]] = field(default_factory=list)

    def uses(self, uses: Iterable[tuple[ast.expr, Module]]) -> list[tuple[ast.AST, Module]]:
        return [*uses, *((new.call, new.module) for new in self.arguments.values())]


def find_companion(resolver: Resolver, uses: Iterable[tuple[ast.expr, Module]]) -> Companion | None:
    """How one companion reaches all ``uses`` of the objects it belongs to; None when it provably cannot.

    Raises :class:`SharedFunctionError` where only another script is in the way.
    """
    trace = _Trace()
    uses = list(uses)
    for expression, module in uses:
        if not _follow(resolver, expression, module, trace):
            return None
    scopes = {(scope, prefix) for _, _, prefix, scope in trace.owners}
    if len(scopes) != 1:
        return None
    module, _, prefix, scope = trace.owners[0]
    if trace.alone and (
        prefix or not all(_is_seen(scope, call, where) for call, where in trace.alone)
    ):
        return None
    made = [statement for _, owned, _, _ in trace.owners for statement in owned]
    block, held = common_block(module, made)
    places = sorted({held[0], *held}, key=block.index, reverse=True) if held else []
    used = trace.uses(uses)
    # Beside the last of the owners where that is early enough, else beside the first.
    whole = [at for place in places for at in dict.fromkeys([outermost_test(module, place), place])]
    statement = next((at for at in whole if _comes_first(resolver, at, module, used)), None)
    if statement is None:
        return None
    return Companion(
        module,
        statement,
        prefix,
        tuple(trace.parameters.values()),
        tuple(trace.arguments.values()),
    )


def sees_attribute(
    resolver: Resolver, companion: Companion, at: ast.AST, at_module: Module
) -> bool:
    """Whether a method that ``at`` stands in sees a companion that is an attribute of ``self``."""
    if f"{own_name(at, at_module)}." != companion.prefix:
        return False
    maker = companion.module.enclosing_class(companion.statement)
    relatives = family(resolver, at_module.enclosing_class(at), at_module)
    return any(relative.node is maker for relative in relatives)


def _follow(resolver: Resolver, expression: ast.expr, module: Module, trace: _Trace) -> bool:
    while isinstance(expression, ast.Subscript):
        expression = expression.value
    if isinstance(expression, ast.Attribute):
        return _follow_attribute(resolver, expression, module, trace)
    if not isinstance(expression, ast.Name):
        return False
    found = module.scope(expression).lookup(expression.id)
    if found is None:
        return False
    scope, bindings = found
    parameters = [b for b in bindings if isinstance(b.source, Parameter)]
    if parameters:
        return len(bindings) == 1 and _follow_parameter(resolver, bindings[0], module, trace)
    if not all(isinstance(b.source, Assigned | Iterated | Managed) for b in bindings):
        return False
    if isinstance(source := bindings[0].source, Iterated):
        iterable = source.iterable
        while isinstance(iterable, ast.Call | ast.Attribute):
            iterable = iterable.func if isinstance(iterable, ast.Call) else iterable.value
        return _follow(resolver, iterable, module, trace)
    statements = [module.statement(b.node) for b in bindings]
    if not common_block(module, statements)[1] or scope.is_class:
        return False
    trace.owners.append((module, statements, "", scope))
    return True


def _follow_attribute(
    resolver: Resolver, expression: ast.Attribute, module: Module, trace: _Trace
) -> bool:
    """``self.optimizer``: the companion is made where the attribute is assigned, in this class or a relative."""
    owner, cls = own_name(expression, module), module.enclosing_class(expression)
    if owner is None or getattr(expression.value, "id", None) != owner:
        return False
    assigned = kept_as(resolver, cls, module, expression.attr)
    makers = {(where.function(value), where) for value, _, where in assigned}
    if len(makers) != 1:
        return False
    maker, where = next(iter(makers))
    statements = [where.statement(value) for value, _, _ in assigned]
    if maker is None or first_parameter(maker) != owner:
        return False
    if not common_block(where, statements)[1]:
        return False
    trace.owners.append((where, statements, f"{owner}.", where.enclosing_class(maker)))
    return True


def _follow_parameter(resolver: Resolver, binding: Binding, module: Module, trace: _Trace) -> bool:
    assert isinstance(binding.source, Parameter)
    function = binding.source.function
    if isinstance(function, ast.Lambda) or binding.source.kind != "plain":
        return False
    if function in trace.parameters:
        _put_behind(resolver, binding.name, function, trace)
        _add_owners(resolver, binding.name, function, trace, set())
        return True
    sites = resolver.call_sites(function)
    if not sites or _handed_around(resolver, function, module, {site.call for site in sites}):
        return False
    user = other_user(resolver.project, function, module)
    if user is not None:
        words = started_in_words if user == module.path else in_words
        raise SharedFunctionError(words(user, function.name))
    behind = _place_of_parameter(binding.name, function, sites)
    if behind is None:
        return False
    trace.parameters[function] = NewParameter(module, function, behind)
    for site in sites:
        passed = argument_for(function, binding.name, site.call, site.bound)
        beside = argument_for(function, behind, site.call, site.bound)
        if passed is None or beside is None or beside.given is None:
            return False
        if site.call in trace.arguments:
            continue
        keyword = beside.given not in site.call.args
        trace.arguments[site.call] = NewArgument(site.module, site.call, beside.given, keyword)
        if _is_none(passed.given or passed.default):
            trace.alone.append((site.call, site.module))
        elif passed.given is None or not _follow(resolver, passed.given, site.module, trace):
            return False
    return True


def _place_of_parameter(name: str, function: FunctionNode, sites: Iterable[CallSite]) -> str | None:
    """The parameter behind which the companion of ``name`` goes: where calls leave that out, the last that none does."""
    passed = [argument_for(function, name, site.call, site.bound) for site in sites]
    if all(each is not None and each.given is not None for each in passed):
        return name
    positional = positional_parameters(function)
    required = positional[: len(positional) - len(function.args.defaults)]
    return required[-1].arg if required else None


def _is_none(given: ast.expr | None) -> bool:
    return isinstance(given, ast.Constant) and given.value is None


def _is_seen(scope: object, call: ast.Call, module: Module) -> bool:
    """Whether what is bound in ``scope`` is seen where ``call`` stands."""
    around: Scope | None = module.scope(call)
    while around is not None and around is not scope:
        around = around.parent
    return around is not None


def _add_owners(
    resolver: Resolver, name: str, function: FunctionNode, trace: _Trace, seen: set[FunctionNode]
) -> None:
    """Let the companion be made behind what the parameter ``name`` is given, too, where that is made beside the owners."""
    if function in seen:
        return
    for site in resolver.call_sites(function):
        passed = argument_for(function, name, site.call, site.bound)
        given, where = passed.given if passed is not None else None, site.module
        found = where.scope(given).lookup(given.id) if isinstance(given, ast.Name) else None
        if found is None:
            continue
        scope, bindings = found
        caller = where.function(site.call)
        if caller in trace.parameters and any(isinstance(b.source, Parameter) for b in bindings):
            _add_owners(resolver, bindings[0].name, caller, trace, seen | {function})
        elif all(isinstance(b.source, Assigned) for b in bindings):
            statements = [where.statement(b.node) for b in bindings]
            beside = [made for _, made, *rest in trace.owners if rest == ["", scope]]
            if beside and common_block(where, [*statements, *chain(*beside)])[1]:
                trace.owners.append((where, statements, "", scope))


def _put_behind(resolver: Resolver, name: str, function: FunctionNode, trace: _Trace) -> None:
    """Let the companion stand behind the last of the parameters that it belongs to: ``opt_g, opt_d, scaler``."""
    new = trace.parameters[function]
    names = [parameter.arg for parameter in function.args.args]
    required = names[: len(names) - len(function.args.defaults)]
    if not {new.after, name} <= set(required):
        return
    if required.index(name) <= required.index(new.after):
        return
    moved: dict[ast.Call, NewArgument] = {}
    for site in resolver.call_sites(function):
        passed, before = (
            argument_for(function, name, site.call, site.bound),
            trace.arguments[site.call],
        )
        if passed is None or type(passed.given) is not type(before.after):
            return
        assert passed.given is not None
        keyword = passed.given not in site.call.args
        moved[site.call] = NewArgument(site.module, site.call, passed.given, keyword)
    trace.parameters[function] = NewParameter(new.module, function, name)
    trace.arguments.update(moved)
    for argument in moved.values():
        caller = argument.module.function(argument.call)
        if caller in trace.parameters and isinstance(argument.after, ast.Name):
            _put_behind(resolver, argument.after.id, caller, trace)


def _handed_around(
    resolver: Resolver, function: FunctionNode, module: Module, calls: set[ast.Call]
) -> bool:
    """Whether ``function`` is used other than by ``calls``: decorated, passed on, overridden by name."""
    if function.decorator_list or _is_overridden(resolver, function, module):
        return True
    called = {call.func for call in calls}
    for other in resolver.project.modules:
        for node in other.nodes:
            if not isinstance(node, (ast.Name, ast.Attribute)) or node in called:
                continue
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name != function.name or not isinstance(node.ctx, ast.Load):
                continue
            values = resolver.values(node, other)
            if any(isinstance(v, Function) and v.node is function for v in values):
                return True
    return False


def _is_overridden(resolver: Resolver, function: FunctionNode, module: Module) -> bool:
    """Whether another class has a method in the place of the method ``function``, which would be called the same way."""
    cls = module.parents.get(function)
    if not isinstance(cls, ast.ClassDef):
        return False
    return any(
        getattr(statement, "name", None) == function.name
        for relative in family(resolver, cls, module)
        for statement in relative.node.body
        if statement is not function
    )


def _comes_first(
    resolver: Resolver, place: ast.stmt, module: Module, uses: Iterable[tuple[ast.AST, Module]]
) -> bool:
    """Whether ``place`` has run whenever one of ``uses`` does, as far as calls are seen."""
    owner = module.function(place)
    seen: set[FunctionNode] = set()
    pending = list(uses)
    while pending:
        node, current = pending.pop()
        function = current.function(node)
        if current is module and function is owner:
            if node in set(walk(place)) or current.span(node) < module.span(place):
                return False
        elif function is not None and function not in seen:
            seen.add(function)
            pending += [(site.call, site.module) for site in resolver.call_sites(function)]
    return True
