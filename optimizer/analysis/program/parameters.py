"""The parameters of a function, as its signature declares them."""

from __future__ import annotations

import ast

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def positional_parameters(function: _Function) -> list[ast.arg]:
    """Those that a call may give by their position, in that order; of a method ``self`` is the first."""
    return [*function.args.posonlyargs, *function.args.args]


def named_parameters(function: _Function) -> list[ast.arg]:
    """All but ``*args`` and ``**kwargs``."""
    return [*positional_parameters(function), *function.args.kwonlyargs]


def parameter_names(function: _Function) -> list[str]:
    """What the :func:`named_parameters` are called."""
    return [parameter.arg for parameter in named_parameters(function)]


def parameter_named(function: _Function, name: str | None) -> ast.arg | None:
    """The parameter called ``name``; None when there is none, or it is ``*args`` or ``**kwargs``."""
    return next((each for each in named_parameters(function) if each.arg == name), None)
