"""When a device expression is CUDA, and how the device is called at a given place."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..calls.signatures import argument_for, call_argument
from ..editing.own_attributes import is_kept_before
from ..loading.iterations import top_level_starts
from ..program.classes import kept_as, kept_names
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned, Binding, Parameter, Scope
from ..program.syntax import FunctionNode, Module
from ..values.resolver import Resolver
from ..values.values import Option

IS_AVAILABLE = "torch.cuda.is_available()"
_MOST_STEPS = 8


@dataclass(frozen=True)
class DeviceChoice:
    """A device that is ``cuda`` (``"cuda"``, ``"cuda:1"``) when ``condition`` holds and the CPU otherwise.

    ``condition`` is a normal form of the test, equal for tests that are the same; None when it is CUDA always.
    """

    cuda: str
    condition: str | None


def device_choice(
    resolver: Resolver, expression: ast.expr, module: Module, steps: int = _MOST_STEPS
) -> DeviceChoice | None:
    """What ``expression`` chooses between, None when it is no such device."""
    if steps == 0:
        return None
    match expression:
        case ast.Constant(value=str() as text):
            return DeviceChoice(text, None) if text.startswith("cuda") else None
        case ast.IfExp():
            return _conditional(resolver, expression, module, steps)
        case ast.Call():
            if resolver.names(expression.func, module) != frozenset({"torch.device"}):
                return None
            if len(expression.args) != 1 or expression.keywords:
                return None
            return device_choice(resolver, expression.args[0], module, steps - 1)
        case ast.Name() | ast.Attribute():
            return _same(
                device_choice(resolver, value, owner, steps - 1)
                for value, owner in _assigned(resolver, expression, module)
            )
        case _:
            return None


def _same(choices: Iterable[DeviceChoice | None]) -> DeviceChoice | None:
    """The choice that all of ``choices`` are, which are looked at up to the first that is another."""
    found = None
    for choice in choices:
        if choice is None or choice != (found or choice):
            return None
        found = choice
    return found


def _conditional(
    resolver: Resolver, expression: ast.IfExp, module: Module, steps: int
) -> DeviceChoice | None:
    test = condition(resolver, expression.test, module)
    on, off = expression.body, expression.orelse
    if _is_cpu(resolver, on, module):
        on, off, test = off, on, _negated(test)
    choice = device_choice(resolver, on, module, steps - 1)
    if choice is None or choice.condition is not None or not _is_cpu(resolver, off, module):
        return None
    return DeviceChoice(choice.cuda, test)


def _is_cpu(resolver: Resolver, expression: ast.expr, module: Module) -> bool:
    if isinstance(expression, ast.Call):
        if resolver.names(expression.func, module) != frozenset({"torch.device"}):
            return False
        argument = call_argument(expression, "type", 0)
        return argument is not None and _is_cpu(resolver, argument, module)
    return isinstance(expression, ast.Constant) and expression.value == "cpu"


def condition(resolver: Resolver, test: ast.expr, module: Module, steps: int = _MOST_STEPS) -> str:
    """A normal form of a test: names with one assignment are replaced by what they stand for."""
    match test:
        case ast.Call() if not (test.args or test.keywords):
            names = resolver.names(test.func, module)
            if len(names) == 1:
                return f"{next(iter(names))}()"
        case ast.UnaryOp(op=ast.Not()):
            return _negated(condition(resolver, test.operand, module, steps))
        case ast.BoolOp():
            word = " and " if isinstance(test.op, ast.And) else " or "
            return word.join(condition(resolver, part, module, steps) for part in test.values)
        case ast.IfExp(body=ast.Constant(value=True), orelse=ast.Constant(value=False)):
            return condition(resolver, test.test, module, steps)
        case ast.Name() | ast.Attribute():
            values = resolver.values(test, module)
            if len(values) == 1 and isinstance(option := next(iter(values)), Option):
                return f"option {option.destination}"
            assigned = list(_assigned(resolver, test, module))
            if len(assigned) == 1 and steps:
                return condition(resolver, *assigned[0], steps - 1)
        case _:
            pass
    return f"{module.name}: {ast.unparse(test)}"


def _negated(test: str) -> str:
    return test.removeprefix("not ") if test.startswith("not ") else f"not {test}"


def _assigned(
    resolver: Resolver, expression: ast.Name | ast.Attribute, module: Module
) -> Iterator[tuple[ast.expr, Module]]:
    """The expressions a name or attribute gets its value from; itself when that is not known."""
    if isinstance(expression, ast.Attribute):
        if isinstance(expression.value, ast.Name) and expression.value.id == "self":
            cls = module.enclosing_class(expression)
            stored = kept_as(resolver, cls, module, expression.attr)
            yield from ((value, where) for value, path, where in stored if not path)
        return
    scope = module.scope(expression)
    found = scope.lookup(expression.id)
    if found is None:
        return
    owner, bindings = found
    for binding in reaching_bindings(module, owner, bindings, scope, expression):
        source = binding.source
        if isinstance(source, Assigned) and not source.path:
            yield source.value, module
        elif isinstance(source, Parameter) and not isinstance(source.function, ast.Lambda):
            yield from _arguments(resolver, source.function, binding.name, module)
        else:
            yield expression, module


def _arguments(
    resolver: Resolver, function: FunctionNode, name: str, module: Module
) -> Iterator[tuple[ast.expr, Module]]:
    for site in resolver.call_sites(function):
        passed = argument_for(function, name, site.call, site.bound)
        if passed is not None and passed.given is not None:
            yield passed.given, site.module
        elif passed is not None and passed.default is not None:
            yield passed.default, module


def visible_devices(
    resolver: Resolver, at: ast.AST, module: Module
) -> Iterator[tuple[str, DeviceChoice]]:
    """The names under which ``at`` can refer to a device, nearest scope first."""
    yield from _own_attributes(resolver, at, module)
    here = scope = module.scope(at)
    while scope is not None:
        for name, bindings in scope.bindings.items():
            lookup = here.lookup(name)
            if len(bindings) != 1 or lookup is None or lookup[0] is not scope:
                continue
            if _has_value_at(resolver, bindings[0], scope, at, module):
                choice = _choice_of_binding(resolver, bindings[0], module)
                if choice is not None:
                    yield name, choice
        scope = scope.parent


def _own_attributes(
    resolver: Resolver, at: ast.AST, module: Module
) -> Iterator[tuple[str, DeviceChoice]]:
    """``self.device`` where ``at`` stands in a method, and ``__init__`` has assigned it once."""
    function = module.function(at)
    cls = module.parents.get(function) if function is not None else None
    if function is None or not isinstance(cls, ast.ClassDef):
        return
    owner = function.args.args[0].arg if function.args.args else ""
    for name in kept_names(resolver, cls, module):
        (value, path, where), *others = kept_as(resolver, cls, module, name)
        method = where.function(value)
        is_once = not others and not path and method is not None and method.name == "__init__"
        if is_once and is_kept_before(resolver, name, at, module):
            choice = device_choice(resolver, value, where)
            if choice is not None:
                yield f"{owner}.{name}", choice


def _has_value_at(
    resolver: Resolver, binding: Binding, scope: Scope, at: ast.AST, module: Module
) -> bool:
    """Whether the one assignment of a variable has run wherever ``at`` runs."""
    if isinstance(binding.source, Parameter):
        return True
    statement = module.statement(binding.node)
    block = module.block(statement)
    if scope is module.scope(at):
        around = [at, *module.ancestors(at)]
        return module.span(statement) < module.span(at) and any(s in block for s in around)
    if not isinstance(scope.node, ast.Module):
        return False
    top_blocks = [module.tree.body, *(guard.body for guard in module.main_guards)]
    starts = list(top_level_starts(resolver, at, module))
    return (
        any(block is top for top in top_blocks)
        and bool(starts)
        and all(m is module and module.span(n) > module.span(statement) for n, m in starts)
    )


def _choice_of_binding(resolver: Resolver, binding: Binding, module: Module) -> DeviceChoice | None:
    source = binding.source
    if isinstance(source, Assigned) and not source.path:
        return device_choice(resolver, source.value, module)
    if isinstance(source, Parameter) and not isinstance(source.function, ast.Lambda):
        return _same(
            device_choice(resolver, value, owner)
            for value, owner in _arguments(resolver, source.function, binding.name, module)
        )
    return None
