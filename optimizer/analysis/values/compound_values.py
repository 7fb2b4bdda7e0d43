"""What attributes, calls and subscripts may give, by what their parts may be."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..calls.chosen_members import chosen_members, is_callable, told_names
from ..calls.handed_classes import handed_call
from ..calls.signatures import Passed, argument_for
from ..calls.unpacked_keywords import unpacked_keyword
from ..program.classes import class_attribute, self_attribute, super_attribute, unbound
from ..program.syntax import FunctionNode, Module
from ..program.trees import child_nodes
from .containers import got_from_dict, select
from .options import namespace_values
from .values import (
    SLICE,
    Attribute,
    Class,
    Display,
    External,
    FirstPartyModule,
    Function,
    Instance,
    Literal,
    Made,
    Unknown,
    Value,
    external,
    union,
)

if TYPE_CHECKING:
    from .resolver import Resolver

Values = frozenset[Value]
_NONE: Values = frozenset()
_PARSERS = ("argparse.", "configargparse.")
"""ConfigArgParse is argparse whose options may stand in a file or in the environment as well."""
_SAME_OBJECT_METHODS = frozenset(
    "to cuda cpu train eval float half double bfloat16 requires_grad_ share_memory apply type contiguous detach "
    "clone long int bool xpu".split()
)
"""Methods of modules and tensors whose result, for tracing, is the object they were called on."""
_CHOSEN_FROM = frozenset({"torch.optim", "torch.optim.lr_scheduler", "torchvision.models"})
"""Libraries whose members are alike, so that any one of them, chosen by its name when the script runs, is known enough."""
_ANY = "<any>"
_LAYERS = ("torch.nn.", "torchvision.models.")


def attribute_values(resolver: Resolver, node: ast.Attribute, module: Module) -> Values:
    """What the attribute ``node`` may be."""
    found: set[Value] = set()
    bases = resolver.values(node.value, module)
    for base in [one for one in bases if _may_have(resolver, one, node.attr)] or bases:
        found |= _attribute_of(resolver, base, node.attr)
    return frozenset(found)


def _may_have(resolver: Resolver, base: Value, name: str) -> bool:
    """Whether ``base`` may have an attribute ``name``.

    What is None for want of a package has none (`except ImportError: torch = None`), nor has every module of those that
    one is chosen from.
    """
    match base:
        case FirstPartyModule(module):
            scope = module.scopes.by_node[module.tree]
            is_bound = name in scope.bindings or bool(scope.star_imports)
            return is_bound or f"{module.name}.{name}" in resolver.project.by_name
        case _:
            return not _is_none(base)


def _is_none(value: Value) -> bool:
    return isinstance(value, Literal) and value.value is None


def _attribute_of(resolver: Resolver, base: Value, name: str) -> Values:
    match base:
        case External():
            return external(f"{base.name}.{name}")
        case FirstPartyModule(module):
            child = resolver.project.by_name.get(f"{module.name}.{name}")
            other = FirstPartyModule(child) if child else Unknown(f"{module.name}.{name}")
            return resolver.or_else(resolver.module_attribute(module, name), stands_for_none=other)
        case Class():
            found = frozenset(unbound(v) for v in class_attribute(resolver, base, name))
        case Instance(cls):
            found = self_attribute(resolver, cls, name)
        case Made(call, module, External("builtins.super")):
            around = module.enclosing_class(call)
            found = super_attribute(resolver, Class(around, module), name) if around else _NONE
        case Made(_, _, maker) if name == "forward" and _is_layer(resolver, maker):
            return frozenset([base])  # what the call of the network runs
        case Made(_, _, Class() as cls):
            found = class_attribute(resolver, cls, name)
        case Made(_, _, External(maker)) if maker.startswith(_PARSERS):
            return namespace_values(resolver, base, name)
        case Unknown():
            return frozenset([base])
        case _:
            return frozenset([Attribute(base, name)])
    return resolver.or_else(found, stands_for_none=Attribute(base, name))


def _is_layer(resolver: Resolver, maker: External | Class) -> bool:
    """Whether ``maker`` makes modules of ``torch.nn``."""
    names = resolver.base_names(maker) if isinstance(maker, Class) else {maker.name}
    return any(name.startswith(_LAYERS) for name in names)


def call_values(resolver: Resolver, node: ast.Call, module: Module) -> Values:
    """What the call ``node`` may give."""
    if isinstance(node.func, ast.Attribute) and node.func.attr in _SAME_OBJECT_METHODS:
        base = resolver.values(node.func.value, module)
        # Of a class it is the class's own: `AllReduce.apply(loss)` computes.
        objects = frozenset(
            v for v in base if not isinstance(v, (External, FirstPartyModule, Class))
        )
        if objects:
            return objects
    callees = resolver.values(node.func, module)
    return union(_result(resolver, callee, node, module) for callee in _callable(callees))


def _callable(values: Values) -> Iterable[Value]:
    """Those of ``values`` that a call may call: what is None for want of a package gives nothing (`except ImportError: Adam = None`)."""
    return [one for one in values if not isinstance(one, Literal)] or values


def _named_attribute(resolver: Resolver, node: ast.Call, module: Module) -> Values:
    """What ``getattr(base, name)`` may give: a name that is only known in the run gives any member of a library."""
    if len(node.args) != 2 or node.keywords:
        return frozenset([Made(node, module, External("builtins.getattr"))])
    owners = resolver.values(node.args[0], module)
    return union(_looked_up(resolver, owner, node, module) for owner in owners)


def _looked_up(resolver: Resolver, owner: Value, node: ast.Call, module: Module) -> Values:
    """What ``node``, a ``getattr(owner, name)``, may give."""
    match owner:
        case FirstPartyModule(chosen_from) if is_callable(node, chosen_from, module):
            return chosen_members(resolver, chosen_from, node.args[1], module)
        case External(name) if name in _CHOSEN_FROM or name.startswith("torch."):
            told = told_names(resolver, node.args[1], module)
            members = told or ({_ANY} if name in _CHOSEN_FROM else set[str]())
            found = union(_attribute_of(resolver, owner, member) for member in sorted(members))
            return found or frozenset([Made(node, module, External("builtins.getattr"))])
        case _:
            return frozenset([Made(node, module, External("builtins.getattr"))])


def _named_in_file(resolver: Resolver, keys: list[ast.expr], module: Module) -> Values:
    """The functions and classes of the file ``module`` that its one key may name; nothing where it may be something else."""
    names = told_names(resolver, keys[0], module) if len(keys) == 1 else None
    found = [resolver.module_attribute(module, name) for name in sorted(names or ())]
    known = all(of_one and all(isinstance(v, Class | Function) for v in of_one) for of_one in found)
    return union(found) if known else _NONE


def _chosen_from(
    resolver: Resolver, owners: Values, key: ast.expr, chosen: ast.expr, module: Module
) -> Values:
    """What ``chosen`` may be that is looked up by ``key`` in first-party modules, nothing where it is not called."""
    modules = [owner.module for owner in owners if isinstance(owner, FirstPartyModule)]
    if not modules or len(modules) < len(owners):
        return _NONE
    if not all(is_callable(chosen, owner, module) for owner in modules):
        return _NONE
    return union(chosen_members(resolver, owner, key, module) for owner in modules)


def _result(resolver: Resolver, callee: Value, node: ast.Call, module: Module) -> Values:
    match callee:
        case External("builtins.getattr"):
            return _named_attribute(resolver, node, module)
        case External("builtins.eval") if named := _named_in_file(resolver, node.args, module):
            return named
        case External("importlib.import_module") if resolver.project.computed_imports.get(node):
            names = resolver.project.computed_imports[node]
            found = (resolver.project.by_name.get(name) for name in names)
            return frozenset(FirstPartyModule(one) for one in found if one is not None)
        case External() | Class():
            return frozenset([Made(node, module, callee)])
        case Function(ast.FunctionDef() | ast.AsyncFunctionDef() as function):
            values = [_returned(resolver, callee, r, node, module) for r in _returns(function)]
            return union(values) if values else frozenset([Unknown("returns nothing")])
        case Function(ast.Lambda() as function, owner):
            return resolver.values(function.body, owner)
        case Attribute(of, "get") if got := got_from_dict(resolver, of, node, module):
            return got
        case Attribute(of, name) if isinstance(of, Made) and isinstance(of.maker, External):
            return frozenset([Made(node, module, External(f"{of.maker.name}.{name}"))])
        case Attribute(of, name) if isinstance(of, (Made, Instance)):
            return frozenset([Made(node, module, External(f"<{name}>"))])
        case Unknown():
            return frozenset([callee])
        case _:
            return frozenset([Display(node, module)])


def _returned(
    resolver: Resolver, callee: Function, value: ast.expr, site: ast.Call, module: Module
) -> Values:
    """What ``return value`` of ``callee`` gives to the call ``site``, in ``module``."""
    handed = handed_call(callee, value)
    owners = _handed(resolver, callee, handed.parameter, site, module) if handed else None
    if handed is None or owners is None:
        return resolver.values(value, callee.module)
    lookup = handed.lookup
    chosen = (
        union(_looked_up(resolver, owner, lookup, callee.module) for owner in owners)
        if lookup is not None
        else owners
    )
    return union(
        # A function as for any caller of it: one that is handed itself would have no end.
        union(resolver.values(r, one.module) for r in _returns(one.node))
        if isinstance(one, Function) and not isinstance(one.node, ast.Lambda)
        else _result(resolver, one, handed.call, callee.module)
        for one in _callable(chosen)
    )


def _handed(
    resolver: Resolver, callee: Function, parameter: str, site: ast.Call, module: Module
) -> Values | None:
    """What the call ``site``, in ``module``, hands to ``parameter``; None where that is hidden, or nothing."""
    assert not isinstance(callee.node, ast.Lambda)
    match argument_for(callee.node, parameter, site, callee.bound):
        case Passed(ast.expr() as given):
            return resolver.values(given, module)
        case Passed(None, ast.expr() as default):
            return resolver.values(default, callee.module)
        case _:
            return None


def subscript_values(resolver: Resolver, node: ast.Subscript, module: Module) -> Values:
    """What the subscript ``node`` may be."""
    try:
        key = resolver.literal(node.slice, module)
    except LookupError:
        key = None
    if isinstance(node.value, ast.Attribute) and node.value.attr == "__dict__":
        owners = resolver.values(node.value.value, module)
        if chosen := _chosen_from(resolver, owners, node.slice, node, module):
            return chosen
    match node.value:
        case ast.Call(ast.Name("globals"), []) if named := _named_in_file(
            resolver, [node.slice], module
        ):
            return named
        case _:
            pass
    if isinstance(key, str) and (given := unpacked_keyword(resolver, node.value, key, module)):
        return given
    base = resolver.values(node.value, module)
    if any(isinstance(v, External) and v.name.endswith(".__dict__") for v in base):
        # `models.__dict__[args.arch]`: some member of the module.
        return frozenset(
            External(f"{v.name.removesuffix('.__dict__')}.{_ANY}")
            for v in base
            if isinstance(v, External)
        )
    if isinstance(node.slice, ast.Slice) and node.slice.step is None:
        return select(resolver, base, (SLICE,))
    if not isinstance(key, int | str):
        return select(resolver, base, ("each",))
    return select(resolver, base, (key,))


def _returns(function: FunctionNode) -> list[ast.expr]:
    """What ``function`` itself returns, but for bare ``return``."""
    found: list[ast.expr] = []
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Return):
            found += [node.value] if node.value is not None else []
        elif not isinstance(
            node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
        ):
            pending.extend(child_nodes(node))
    return found
