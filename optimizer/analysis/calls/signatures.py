"""Which argument of a call a parameter gets."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..program.parameters import positional_parameters
from ..program.syntax import FunctionNode


@dataclass(frozen=True)
class Passed:
    """What a parameter gets in one call: the argument given, else the parameter's default, else neither."""

    given: ast.expr | None
    default: ast.expr | None = None


def argument_for(function: FunctionNode, name: str, call: ast.Call, bound: bool) -> Passed | None:
    """What parameter ``name`` of ``function`` gets from ``call``; None when ``*`` or ``**`` hides it.

    ``bound`` says that the first parameter is filled by the instance the method is called on.
    """
    for keyword in call.keywords:
        if keyword.arg == name:
            return Passed(keyword.value)
    positional = [parameter.arg for parameter in positional_parameters(function)]
    if name in positional:
        index = positional.index(name) - (1 if bound else 0)
        before = call.args[: max(index, 0) + 1]
        if any(isinstance(arg, ast.Starred) for arg in before):
            return None
        if 0 <= index < len(call.args):
            return Passed(call.args[index])
    if any(keyword.arg is None for keyword in call.keywords):
        return None
    return Passed(None, default_of(function, name))


def gathered_for(function: FunctionNode, name: str, call: ast.Call, bound: bool) -> list[ast.expr]:
    """What of the positional arguments of ``call`` goes into ``*name`` of ``function``; nothing when that is no such parameter."""
    rest = function.args.vararg
    if rest is None or rest.arg != name:
        return []
    named = len(positional_parameters(function)) - (1 if bound else 0)
    return call.args[max(named, 0) :]


def parameter_of(
    function: FunctionNode | ast.Lambda, given: ast.expr, call: ast.Call, bound: bool
) -> str | None:
    """The parameter of ``function`` that gets the argument ``given`` of ``call``; None when ``*`` or ``**`` hides it."""
    for keyword in call.keywords:
        if keyword.value is given:
            return keyword.arg
    positional = [parameter.arg for parameter in positional_parameters(function)]
    for index, value in enumerate(call.args, start=1 if bound else 0):
        if isinstance(value, ast.Starred):
            return None
        if value is given:
            return positional[index] if index < len(positional) else None
    return None


def first_parameter(function: FunctionNode) -> str | None:
    """The name of the first positional parameter of ``function``: ``self``, in a method."""
    positional = positional_parameters(function)
    return positional[0].arg if positional else None


def default_of(function: FunctionNode, name: str) -> ast.expr | None:
    """The default of parameter ``name``, None when it has none."""
    arguments = function.args
    positional = positional_parameters(function)
    with_default = positional[len(positional) - len(arguments.defaults) :]
    for arg, default in zip(with_default, arguments.defaults, strict=True):
        if arg.arg == name:
            return default
    for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if arg.arg == name:
            return default
    return None


def call_argument(call: ast.Call, keyword: str, position: int | None = None) -> ast.expr | None:
    """The argument of ``call`` given by ``keyword`` or at ``position`` (counted without ``self``)."""
    for given in call.keywords:
        if given.arg == keyword:
            return given.value
    if position is not None and position < len(call.args):
        before = call.args[: position + 1]
        if not any(isinstance(arg, ast.Starred) for arg in before):
            return call.args[position]
    return None


def takes_closure(step: ast.Call) -> bool:
    """Whether the optimizer step ``step`` is given something to call: ``closure=None`` is nothing."""
    given = [*step.args, *(keyword.value for keyword in step.keywords)]
    return any(not (isinstance(value, ast.Constant) and value.value is None) for value in given)
