"""Functions and classes of first-party modules that are chosen by name when the script runs.

``models.__dict__[args.arch](..)`` and ``getattr(models, args.arch)(..)`` call any of those that ``models`` has, or of those that
the option allows: ``choices`` are written out, or picked from the module's names by how these begin.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Set
from typing import TYPE_CHECKING

from ..program.classes import first_party_bases
from ..program.project import Project
from ..program.scopes import Defined, Imported
from ..program.syntax import Module
from ..program.trees import is_name
from ..values.values import (
    Class,
    Display,
    External,
    FirstPartyModule,
    Function,
    Literal,
    Made,
    Option,
    Unknown,
    Value,
    union,
)
from .signatures import call_argument

if TYPE_CHECKING:
    from ..values.resolver import Resolver

_BASE = re.compile(r"^_?(Base|Abstract)(?![a-z])|Base$")
"""The names that people give to classes of which nothing is made."""


def is_callable(chosen: ast.expr, owner: Module, module: Module) -> bool:
    """Whether ``chosen``, of the module ``owner``, is a function or class: it is called, or ``owner`` has nothing else."""
    return _has_callables_alone(owner) or is_called(chosen, module)


def _has_callables_alone(owner: Module) -> bool:
    """Whether all public names of ``owner`` are those of functions and classes; nobody asks for its imports by their names."""
    scope = owner.scopes.by_node[owner.tree]
    sources = [
        binding.source
        for name, bindings in scope.bindings.items()
        if not name.startswith("_")
        for binding in bindings
    ]
    return (
        not scope.star_imports
        and any(isinstance(source, Defined) for source in sources)
        and all(isinstance(source, Defined | Imported) for source in sources)
    )


def is_called(chosen: ast.expr, module: Module) -> bool:
    """Whether ``chosen`` is a function or class: it is called on the spot, or wherever its variable is read."""
    parent = module.parents[chosen]
    if isinstance(parent, ast.Call):
        return parent.func is chosen
    match parent:
        case ast.Assign(targets=[ast.Name(name)]):
            function = module.function(parent)
            reads = [
                read
                for read in module.names_of(name)
                if module.function(read) is function and isinstance(read.ctx, ast.Load)
            ]
            return bool(reads) and all(is_called(read, module) for read in reads)
        case _:
            return False


def chosen_members(
    resolver: Resolver, owner: Module, key: ast.expr, module: Module
) -> frozenset[Value]:
    """What may be called that ``key`` (of ``module``) names in the module ``owner``."""
    names = set(_names(resolver.project, owner, set()))
    told = told_names(resolver, key, module, names)
    return _members(resolver, owner, names if told is None else told & names)


def _members(resolver: Resolver, owner: Module, allowed: Iterable[str]) -> frozenset[Value]:
    """The functions, classes and networks of torchvision that ``owner`` has by one of the names ``allowed``."""
    if _is_written_to(resolver.project, owner):
        return frozenset([Unknown(f"members of {owner.name}")])
    members = union(resolver.module_attribute(owner, name) for name in sorted(allowed))
    found = frozenset(
        member
        for member in members
        if isinstance(member, Class | Function)
        or (isinstance(member, External) and member.name.startswith("torchvision.models."))
    )
    found -= _imported_bases(resolver, owner, found)
    return found or frozenset([Unknown(f"members of {owner.name}")])


def gone_through(
    resolver: Resolver, iterable: ast.expr, path: tuple[int | str, ...], module: Module
) -> frozenset[Value]:
    """What a loop over ``models.__dict__.items()`` looks at, for one of a name; nothing of other loops.

    Where it asks whether it has a subclass, that is one of those.
    """
    match iterable, path:
        case ast.Call(ast.Attribute(ast.Attribute(of, "__dict__"), "items"), []), (1,):
            owners = resolver.values(of, module)
        case _:
            return frozenset()
    modules = [owner.module for owner in owners if isinstance(owner, FirstPartyModule)]
    if len(modules) < len(owners):
        return frozenset()
    found = union(
        _members(resolver, owner, set(_names(resolver.project, owner, set()))) for owner in modules
    )
    bases = _asked_bases(resolver, module.parents[iterable], module)
    kept = (
        one
        for one in found
        if isinstance(one, Class) and not bases.isdisjoint(first_party_bases(resolver, one))
    )
    return frozenset(kept) or found


def _asked_bases(resolver: Resolver, loop: ast.AST, module: Module) -> frozenset[Value]:
    """The classes of which ``loop`` asks whether what it looks at derives from them."""
    match loop:
        case ast.For(ast.Tuple([_, ast.Name(name)])):
            pass
        case _:
            return frozenset()
    asked = (
        call.args[1]
        for call in module.calls_named("issubclass")
        if loop in module.ancestors(call) and len(call.args) == 2 and is_name(call.args[0], name)
    )
    return union(resolver.values(base, module) for base in asked)


def _imported_bases(
    resolver: Resolver, owner: Module, members: frozenset[Value]
) -> frozenset[Value]:
    """Those of ``members`` that ``owner`` imports for others to derive from, as their names say: ``class Net(BaseModel)``."""
    return frozenset(
        base
        for member in members
        if isinstance(member, Class)
        for base in first_party_bases(resolver, member)
        if base.module is not owner and _BASE.search(base.node.name)
    )


def _is_written_to(project: Project, owner: Module) -> bool:
    """Whether members may be put into a module that are not written out there: ``models.__dict__[name] = ..``."""
    return owner.rebinds_by_name or any(
        isinstance(node.value, ast.Attribute)
        and node.value.attr == "__dict__"
        and isinstance(node.ctx, ast.Store)
        for module in project.modules
        for node in module.nodes_of(ast.Subscript)
    )


def _names(project: Project, module: Module, seen: set[Module]) -> Iterator[str]:
    """The public names of ``module``, those of its star imports among them."""
    if module in seen:
        return
    seen.add(module)
    scope = module.scopes.by_node[module.tree]
    for name in scope.bindings:
        if not name.startswith("_"):
            yield name
    for star in scope.star_imports:
        source = project.find(module, star)
        if source is not None:
            exported = _exported(source)
            names = _names(project, source, seen)
            yield from names if exported is None else exported


def _exported(module: Module) -> list[str] | None:
    """The names in ``__all__``; None where the file has no such list, or fills it otherwise."""
    assigned = [module.parents[name] for name in module.names_of("__all__")]
    match assigned:
        case [ast.Assign(value=ast.List(elts) | ast.Tuple(elts))]:
            return [ast.literal_eval(element) for element in elts if _is_text(element)]
        case _:
            return None


def told_names(
    resolver: Resolver, key: ast.expr, module: Module, names: Set[str] = frozenset()
) -> set[str] | None:
    """The names that ``key`` may be, where they are told: in it, or by the ``choices`` of an option; None elsewhere.

    ``names`` are those that there are, where that is known: choices may be picked from them.
    """
    told: set[str] = set()
    for value in resolver.values(key, module):
        match value:
            case Literal(str(name)):
                told.add(name)
            case Option(_, call, declared) if choices := call_argument(call, "choices"):
                chosen = _choices(resolver, choices, declared, names)
                if chosen is None:
                    return None
                told |= chosen
            case _:
                return None
    return told


def _choices(
    resolver: Resolver, choices: ast.expr, module: Module, names: Set[str]
) -> set[str] | None:
    told: set[str] = set()
    for value in resolver.values(choices, module):
        match value:
            case Made(
                ast.Call(args=[inner]), made_in, External("builtins.sorted" | "builtins.list")
            ):
                found = _choices(resolver, inner, made_in, names)
            case Display(
                ast.ListComp(ast.Name(elt), [generator])
                | ast.GeneratorExp(ast.Name(elt), [generator])
            ) if names and getattr(generator.target, "id", None) == elt:
                conditions = generator.ifs
                found = {n for n in names if all(_holds(c, n) is not False for c in conditions)}
            case _:
                found = _texts(value)
        if found is None:
            return None
        told |= found
    return told


def _holds(condition: ast.expr, name: str) -> bool | None:
    """Whether ``condition`` is true of ``name``, None where that is not known: ``name.islower() and callable(..)``."""
    match condition:
        case ast.UnaryOp(ast.Not(), operand):
            known = _holds(operand, name)
            return None if known is None else not known
        case ast.BoolOp(operator, values):
            decisive = isinstance(operator, ast.Or)
            answers = [_holds(value, name) for value in values]
            if decisive in answers:
                return decisive
            return None if None in answers else not decisive
        case ast.Call(ast.Attribute(ast.Name(), "islower"), []):
            return name.islower()
        case ast.Call(ast.Attribute(ast.Name(), "startswith"), [ast.Constant(str(start))]):
            return name.startswith(start)
        case ast.Call(ast.Attribute(ast.Name(), "endswith"), [ast.Constant(str(end))]):
            return name.endswith(end)
        case _:
            return None


def _texts(value: Value) -> set[str] | None:
    """The texts that a list, tuple or set of nothing else is written with."""
    match value:
        case Display(ast.List(elts) | ast.Tuple(elts) | ast.Set(elts)) if all(map(_is_text, elts)):
            return {str(ast.literal_eval(element)) for element in elts}
        case _:
            return None


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
