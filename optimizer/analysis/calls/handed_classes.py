"""Functions that make what their callers choose: ``def init_obj(self, name, module, *args): return getattr(module, ..)(*args)``."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..program.reaching import bindings_of, only_value
from ..program.scopes import Parameter
from ..program.syntax import Module
from ..values.values import Function


@dataclass(frozen=True)
class Handed:
    """A call in a function of what its parameter is, or of what ``lookup``, a ``getattr`` of two arguments, finds in it."""

    call: ast.Call
    parameter: str
    lookup: ast.Call | None


def handed_call(callee: Function, value: ast.expr) -> Handed | None:
    """The call that gives ``value``, which ``callee`` returns, where it calls what the caller hands over."""
    made = _last(value, callee.module)
    if not isinstance(made, ast.Call):
        return None
    called = _last(made.func, callee.module)
    match called:
        case ast.Call(ast.Name("getattr"), [ast.Name() as owner, _], []):
            parameter, lookup = _parameter(owner, callee), called
        case ast.Name():
            parameter, lookup = _parameter(called, callee), None
        case _:
            return None
    return Handed(made, parameter, lookup) if parameter is not None else None


def _last(value: ast.expr, module: Module) -> ast.expr:
    """What the variable ``value`` was assigned, where that is one thing; ``value`` itself otherwise."""
    assigned = only_value(module, value) if isinstance(value, ast.Name) else None
    return assigned if assigned is not None else value


def _parameter(name: ast.Name, callee: Function) -> str | None:
    """The parameter of ``callee`` that ``name`` is, with what it was given."""
    match [binding.source for binding in bindings_of(callee.module, name)]:
        case [Parameter(function, "plain")] if function is callee.node:
            return name.id
        case _:
            return None
