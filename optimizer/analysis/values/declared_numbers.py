"""What is a Python number, or declared to be one: ``tau=0.005`` in a signature, ``tau: float`` in a dataclass of options."""

from __future__ import annotations

import ast

from ..calls.signatures import argument_for, default_of
from ..program.classes import kept_as
from ..program.parameters import parameter_named
from ..program.reaching import bindings_of
from ..program.scopes import Assigned, Parameter
from ..program.syntax import FunctionNode, Module
from .host_numbers import is_number
from .option_settings import option_field
from .resolver import Resolver
from .values import Attribute

_NUMBERS = frozenset({"builtins.float", "builtins.int"})
_CHOOSING = frozenset({"builtins.min", "builtins.max", "builtins.abs", "builtins.round"})
"""Functions that return a number where they are given nothing else."""
_DEEPEST = 6


def is_declared_number(resolver: Resolver, node: ast.expr, module: Module, depth: int = 0) -> bool:
    """Whether ``node`` is an int or float wherever the script keeps to its own defaults and annotations."""
    if depth > _DEEPEST:
        return False

    def again(part: ast.expr, at: Module = module) -> bool:
        return is_declared_number(resolver, part, at, depth + 1)

    if is_number(resolver, node, module):
        return True
    match node:
        case ast.BinOp(left, _, right):
            return again(left) and again(right)
        case ast.UnaryOp(ast.USub() | ast.UAdd(), operand):
            return again(operand)
        case ast.Call(func, args, []):
            names = resolver.names(func, module)
            if names and names <= _CHOOSING:
                return all(again(argument) for argument in args)
            return bool(names) and all(name.startswith("math.") for name in names)
        case ast.Name():
            return _is_number_variable(resolver, node, module, depth)
        case ast.Attribute(ast.Name("self"), attr):
            kept = kept_as(resolver, module.enclosing_class(node), module, attr)
            return bool(kept) and all(not path and again(value, at) for value, path, at in kept)
        case ast.Attribute(_, attr):
            values = resolver.values(node, module)
            return bool(values) and all(
                isinstance(value, Attribute) and _is_number_field(resolver, value)
                for value in values
            )
        case _:
            return False


def _is_number_variable(resolver: Resolver, name: ast.Name, module: Module, depth: int) -> bool:
    bindings = bindings_of(module, name)
    for binding in bindings:
        match binding.source:
            case Assigned(value, path):
                if path or not is_declared_number(resolver, value, module, depth + 1):
                    return False
            case Parameter(ast.FunctionDef() | ast.AsyncFunctionDef() as function, "plain"):
                if not _is_number_parameter(resolver, function, binding.name, module, depth):
                    return False
            case _:
                return False
    return bool(bindings)


def _is_number_parameter(
    resolver: Resolver, function: FunctionNode, name: str, module: Module, depth: int
) -> bool:
    """Whether the signature says so, or every call of ``function`` gives it a number."""
    parameter = parameter_named(function, name)
    annotation = parameter.annotation if parameter is not None else None
    if annotation is not None:
        return _is_number_type(resolver, annotation, module)
    default = default_of(function, name)
    if default is not None:
        return is_number(resolver, default, module)
    sites = resolver.call_sites(function)
    for site in sites:
        passed = argument_for(function, name, site.call, site.bound)
        if passed is None or passed.given is None:
            return False
        if not is_declared_number(resolver, passed.given, site.module, depth + 1):
            return False
    return bool(sites)


def _is_number_type(resolver: Resolver, annotation: ast.expr, module: Module) -> bool:
    names = resolver.names(annotation, module)
    return bool(names) and names <= _NUMBERS


def _is_number_field(resolver: Resolver, value: Attribute) -> bool:
    """Whether ``value`` is a number in the dataclass of options that a library has filled: ``tyro.cli(Args).tau``."""
    field = option_field(resolver, value)
    return field is not None and _is_number_type(resolver, field[0].annotation, field[1])
