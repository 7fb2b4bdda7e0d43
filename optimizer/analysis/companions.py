"""How something made beside an object can follow it to where that object is used.

A GradScaler belongs beside the optimizer: made where the optimizer is made, and seen wherever the optimizer is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from .resolver import Resolver
from .scopes import Assigned, Binding, Iterated, Managed, Parameter
from .sharing import other_user
from .signatures import argument_for
from .statements import common_block
from .syntax import FunctionNode, Module
from .trees import walk
from .values import Function


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
    """The owners found so far, what must be passed on the way, and where the companion is used."""

    owners: list[tuple[Module, list[ast.stmt], str, object]] = field(default_factory=list)
    parameters: dict[FunctionNode, NewParameter] = field(default_factory=dict)
    arguments: dict[ast.Call, NewArgument] = field(default_factory=dict)

    def uses(self, uses: Iterable[tuple[ast.expr, Module]]) -> list[tuple[ast.AST, Module]]:
        return [*uses, *((new.call, new.module) for new in self.arguments.values())]


def find_companion(resolver: Resolver, uses: Iterable[tuple[ast.expr, Module]]) -> Companion | None:
    """How one companion reaches all ``uses`` of the objects it belongs to; None when it provably cannot."""
    trace = _Trace()
    uses = list(uses)
    for expression, module in uses:
        if not _follow(resolver, expression, module, trace):
            return None
    scopes = {(scope, prefix) for _, _, prefix, scope in trace.owners}
    if len(scopes) != 1:
        return None
    module, _, prefix, _ = trace.owners[0]
    made = [statement for _, owned, _, _ in trace.owners for statement in owned]
    block, held = common_block(module, made)
    places = sorted({held[0], *held}, key=block.index, reverse=True) if held else []
    used = trace.uses(uses)
    # Beside the last of the owners where that is early enough, else beside the first.
    statement = next((at for at in places if _comes_first(resolver, at, module, used)), None)
    if statement is None:
        return None
    return Companion(
        module,
        statement,
        prefix,
        tuple(trace.parameters.values()),
        tuple(trace.arguments.values()),
    )


def _follow(resolver: Resolver, expression: ast.expr, module: Module, trace: _Trace) -> bool:
    while isinstance(expression, ast.Subscript):
        expression = expression.value
    if isinstance(expression, ast.Attribute):
        return _follow_attribute(expression, module, trace)
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


def _follow_attribute(expression: ast.Attribute, module: Module, trace: _Trace) -> bool:
    """``self.optimizer``: the companion is made where the attribute is assigned."""
    method, cls = module.function(expression), module.enclosing_class(expression)
    if method is None or cls is None or not method.args.args:
        return False
    owner = method.args.args[0].arg
    if not (isinstance(expression.value, ast.Name) and expression.value.id == owner):
        return False
    assigned = module.self_assignments.get((cls, expression.attr), [])
    statements = [module.statement(value) for value, _ in assigned]
    functions = {module.function(statement) for statement in statements}
    if len(functions) != 1:
        return False
    if not common_block(module, statements)[1]:
        return False
    trace.owners.append((module, statements, f"{owner}.", cls))
    return True


def _follow_parameter(resolver: Resolver, binding: Binding, module: Module, trace: _Trace) -> bool:
    assert isinstance(binding.source, Parameter)
    function = binding.source.function
    if isinstance(function, ast.Lambda) or binding.source.kind != "plain":
        return False
    if function in trace.parameters:
        return True
    trace.parameters[function] = NewParameter(module, function, binding.name)
    sites = resolver.call_sites(function)
    if not sites or _handed_around(resolver, function, {site.call for site in sites}):
        return False
    if other_user(resolver.project, function, module) is not None:
        return False
    for site in sites:
        passed = argument_for(function, binding.name, site.call, site.bound)
        if passed is None or passed.given is None:
            return False
        if site.call not in trace.arguments:
            keyword = passed.given not in site.call.args
            trace.arguments[site.call] = NewArgument(site.module, site.call, passed.given, keyword)
            if not _follow(resolver, passed.given, site.module, trace):
                return False
    return True


def _handed_around(resolver: Resolver, function: FunctionNode, calls: set[ast.Call]) -> bool:
    """Whether ``function`` is used other than by ``calls``: decorated, passed on, overridden by name."""
    if function.decorator_list:
        return True
    called = {call.func for call in calls}
    for module in resolver.project.modules:
        for node in module.nodes:
            if not isinstance(node, (ast.Name, ast.Attribute)) or node in called:
                continue
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name != function.name or not isinstance(node.ctx, ast.Load):
                continue
            values = resolver.values(node, module)
            if any(isinstance(v, Function) and v.node is function for v in values):
                return True
    return False


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
