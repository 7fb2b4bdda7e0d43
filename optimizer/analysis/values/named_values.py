"""What names may be, by what binds them: assignments, loops, imports, definitions, parameters and ``from x import *``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..calls.chosen_members import gone_through
from ..calls.signatures import argument_for, default_of, first_parameter
from ..calls.unpacked_keywords import handed_on
from ..distributed.spawned import spawned_argument
from ..program.classes import decorated_parameter
from ..program.reaching import reaching_bindings, replaced_if_none
from ..program.scopes import (
    Assigned,
    Binding,
    Defined,
    Imported,
    Iterated,
    Managed,
    Parameter,
    StarImport,
    Untraceable,
)
from ..program.syntax import FunctionNode, Module, is_decorated
from ..torch_names import star_exports
from .containers import parts_of_elements, select
from .values import (
    Class,
    Display,
    External,
    FirstPartyModule,
    Function,
    Instance,
    Literal,
    Unknown,
    Value,
    external,
)

if TYPE_CHECKING:
    from .resolver import CallSite, Resolver

Values = frozenset[Value]
_NONE: Values = frozenset()


def name_values(resolver: Resolver, name: str, at: ast.AST, module: Module) -> Values:
    """What ``name`` may be where ``at`` stands."""
    scope = module.scope(at)
    found = scope.lookup(name)
    if found is None:
        return _from_stars(resolver, name, module)
    owner, bindings = found
    stars = owner.root.star_imports if owner.parent is None else []
    reaching = reaching_bindings(module, owner, bindings, scope, at)
    replaced = replaced_if_none(module, reaching, at)
    values = frozenset(
        value
        for binding in reaching
        for value in _binding_values(resolver, binding, module)
        if not (binding in replaced and isinstance(value, Literal) and value.value is None)
    )
    later_star = [s for s in stars if all(_before(b.node, s.node) for b in reaching)]
    shadowing = _star_values(resolver, name, later_star, module)
    if owner.parent is None and module.rebinds_by_name and _is_setting(values):
        values |= {Unknown(f"{name} may be set by exec or globals()")}
    return shadowing or values


def _from_stars(resolver: Resolver, name: str, module: Module) -> Values:
    scope = module.scopes.by_node[module.tree]
    found = _star_values(resolver, name, scope.star_imports, module)
    return found or frozenset([External(f"builtins.{name}")])


def _star_values(resolver: Resolver, name: str, stars: list[StarImport], module: Module) -> Values:
    for star in reversed(stars):
        first_party = resolver.project.find(module, star)
        if first_party is not None:
            found = resolver.module_attribute(first_party, name)
            if found and not any(
                isinstance(v, External) and v.name.startswith("builtins.") for v in found
            ):
                return found
        elif star_exports(star.module, name):
            return external(f"{star.module}.{name}")
    return _NONE


def attribute_once_imported(resolver: Resolver, module: Module, name: str) -> Values:
    """What the attribute ``name`` of a first-party module may be once the module is imported."""
    scope = module.scopes.by_node[module.tree]
    bindings = scope.bindings.get(name)
    if bindings is None:
        return _star_values(resolver, name, scope.star_imports, module)
    reaching = reaching_bindings(module, scope, bindings, None, module.tree)
    return frozenset(v for b in reaching for v in _binding_values(resolver, b, module))


def _binding_values(resolver: Resolver, binding: Binding, module: Module) -> Values:
    match binding.source:
        case Assigned(value, path):
            return select(resolver, resolver.values(value, module), path)
        case Iterated(iterable, path):
            if members := gone_through(resolver, iterable, path, module):
                return members
            return parts_of_elements(resolver, resolver.values(iterable, module), path)
        case Managed(context, path):
            return select(resolver, resolver.values(context, module), path)
        case Imported() as source:
            return imported_values(resolver, source, module)
        case Parameter(function, kind):
            return _parameter_values(resolver, function, kind, binding.name, module)
        case Defined(ast.ClassDef() as node):
            return frozenset([Class(node, module)])
        case Defined(ast.FunctionDef() | ast.AsyncFunctionDef() as node):
            return frozenset([Function(node, module)])
        case Untraceable(why):
            return frozenset([Unknown(why)])
        case _:
            return frozenset([Unknown("binding")])


def imported_values(resolver: Resolver, source: Imported, module: Module) -> Values:
    """What ``module`` gets by the import ``source``."""
    first_party = resolver.project.find(module, source)
    if source.attribute is None:
        if first_party is not None:
            return frozenset([FirstPartyModule(first_party)])
        return external(source.module)
    submodule = resolver.project.find_submodule(module, source)
    if submodule is not None:
        other = FirstPartyModule(submodule)
    elif first_party is not None or source.level:
        other = Unknown(f"{source.attribute} of a first-party module")
    else:
        return external(f"{source.module}.{source.attribute}")
    found = resolver.module_attribute(first_party, source.attribute) if first_party else _NONE
    return resolver.or_else(found, stands_for_none=other)


def _parameter_values(
    resolver: Resolver, function: FunctionNode | ast.Lambda, kind: str, name: str, module: Module
) -> Values:
    if isinstance(function, ast.Lambda):
        return frozenset([Unknown("lambda parameter")])
    owner = module.parents.get(function)
    is_method = isinstance(owner, ast.ClassDef) and not is_decorated(function, "staticmethod")
    if is_method and first_parameter(function) == name:
        assert isinstance(owner, ast.ClassDef)
        cls = Class(owner, module)
        if is_decorated(function, "classmethod"):
            return frozenset([cls, *resolver.subclasses(cls)])
        return frozenset([Instance(cls)])
    if kind != "plain":
        return frozenset([Unknown(f"{kind}{name}")])
    sites = resolver.call_sites(function)
    is_decorated_by_it = decorated_parameter(function, is_method) == name
    values = set[Value](resolver.decorated(function) if is_decorated_by_it else ())
    for site in sites:
        argument = argument_for(function, name, site.call, site.bound)
        if argument is None:
            values |= _handed_on(resolver, function, name, site, module)
        elif argument.given is not None:
            values |= resolver.values(argument.given, site.module)
        elif argument.default is not None:
            values |= resolver.values(argument.default, module)
    found = frozenset(values) or spawned_argument(resolver, function, name)
    nothing = Unknown(f"parameter {name} of {function.name}")
    return resolver.or_else(found, stands_for_none=nothing)


def _handed_on(
    resolver: Resolver, function: FunctionNode, name: str, site: CallSite, module: Module
) -> Values:
    """What ``name`` gets where ``*`` or ``**`` hides it: what the function around ``site`` is given by that name."""
    found = handed_on(resolver, name, site)
    if found is None:
        return frozenset([Unknown(f"parameter {name} passed through * or **")])
    given, is_left_out = found
    values = {value for argument, at in given for value in resolver.values(argument, at)}
    default = default_of(function, name)
    if is_left_out and default is not None:
        values |= resolver.values(default, module)
    return frozenset(values)


def _is_setting(values: Values) -> bool:
    return any(isinstance(value, Literal | Display) for value in values)


def _before(first: ast.AST, second: ast.AST) -> bool:
    return getattr(first, "lineno", 0) < getattr(second, "lineno", 0)
