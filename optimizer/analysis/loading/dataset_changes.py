"""Where a script changes a dataset after a loader was made for it: workers hold copies and may miss the change.

What was handed to the dataset counts as a part of it: a list of files, a replay buffer. So do the subset that the loader
reads it through, the object that puts batches together, the objects that global variables hold for either, and the classes
and modules whose attributes are read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

from ..calls.reach import Reached, reached_nodes
from ..calls.signatures import first_parameter
from ..facts import DataLoader, Fact
from ..program.classes import class_attribute, first_party_bases
from ..program.run_order import runs_before
from ..program.syntax import Module
from ..program.trees import is_text
from ..values.access_paths import holders, holds_its_elements
from ..values.changed_objects import changed_by_call, changed_objects, is_setter
from ..values.composition import composed_of
from ..values.host_numbers import is_number
from ..values.resolver import Resolver
from ..values.values import (
    Attribute,
    Class,
    Display,
    Element,
    External,
    FirstPartyModule,
    Function,
    Made,
    Value,
    innermost,
)
from .dataset_making import is_making
from .datasets import Dataset, function_code
from .item_state import stored_changes
from .loaders import is_made
from .worker_reads import ReadNames, may_read

_COPIED = ("dataset", "collate_fn")
"""The arguments of a loader that its workers have copies of."""
_NEVER_IN_PLACE = frozenset(f"builtins.{name}" for name in "bool float int len round str".split())
"""What they give is not changed in place."""


@dataclass(frozen=True, eq=False)
class DatasetChange(Fact):
    """``part`` says what is changed: the dataset itself, or what it reads. A method that is ``handed_on`` may do it at any time."""

    part: str
    handed_on: bool


@dataclass(frozen=True, eq=False)
class _Held:
    """An expression that something is held by, what it may be, and where that is made.

    What is reached ``through_loader`` (``loader.dataset``) is made where the loader says.
    """

    holder: Fact
    values: frozenset[Value]
    made: frozenset[ast.AST | None]
    through_loader: bool


_HELD: WeakKeyDictionary[Resolver, dict[ast.expr, tuple[_Held, ...]]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class _Copies:
    """What workers have copies of: the nodes that make or define it, with their values, and the code that reads it."""

    resolver: Resolver
    loader: DataLoader
    dataset: Dataset
    parts: dict[ast.AST, Value | None]
    classes: list[Class]
    methods: frozenset[str]
    code: tuple[Reached, ...]
    names: ReadNames

    @cached_property
    def code_nodes(self) -> frozenset[ast.AST]:
        return frozenset(reached.node for reached in self.code)


def changes_of_dataset(
    resolver: Resolver, loader: DataLoader, dataset: Dataset
) -> Iterator[DatasetChange]:
    """What changes ``dataset`` or what it was given, outside its own code; set-up above the loader left out."""
    copies = _copies(resolver, loader, dataset)
    for module in resolver.project.modules:
        for node in module.nodes_of(ast.Attribute, ast.Subscript, ast.Call, ast.AugAssign):
            for changed, method in _changed(copies, node, module):
                found = _owner(copies, changed, node, module)
                if found is None:
                    continue
                owner, written = found
                handed_on = method is node
                if (
                    (not handed_on and runs_before(resolver, node, module, loader))
                    or is_making(resolver, owner, node, module, loader)
                    or _is_item_code(copies, node, module)
                    or not _is_read(copies, owner, written)
                    or (method is not None and not _stores(copies, method, module, owner))
                ):
                    continue
                part = "the dataset" if owner is dataset.node else "what the dataset reads"
                is_method = isinstance(node, ast.Call) and changed is _receiver(node)
                yield DatasetChange(module, node.func if is_method else node, part, handed_on)  # type: ignore[attr-defined]
                break


def _copies(resolver: Resolver, loader: DataLoader, dataset: Dataset) -> _Copies:
    collate = function_code(resolver, loader.arguments.get("collate_fn")) or ()
    code = (*dataset.item_code, *collate)
    composition = _composition(resolver, loader, dataset, code)
    parts: dict[ast.AST, Value | None] = dict(_made_by(resolver, composition))
    names = ReadNames.of(code)
    for owner, _ in names.variables:
        parts[owner.tree] = FirstPartyModule(owner)
    if "collate_fn" in loader.arguments:
        parts.setdefault(loader.arguments["collate_fn"].value, None)
    classes = [v.maker for v in composition if isinstance(v, Made) and isinstance(v.maker, Class)]
    defined = [c for cls in classes for c in (cls, *first_party_bases(resolver, cls))]
    methods = {m.name for cls in defined for m in cls.node.body if isinstance(m, ast.FunctionDef)}
    return _Copies(resolver, loader, dataset, parts, classes, frozenset(methods), code, names)


def _composition(
    resolver: Resolver, loader: DataLoader, dataset: Dataset, code: tuple[Reached, ...]
) -> tuple[Value, ...]:
    """The dataset, what it was given, and what else the workers that run ``code`` have a copy of."""
    if not isinstance(dataset.node, ast.expr):
        return ()
    values = set(resolver.values(dataset.node, dataset.module))
    for name in _COPIED:
        if name in loader.arguments:
            argument = loader.arguments[name]
            values |= resolver.values(argument.value, argument.module)
    return (*composed_of(resolver, frozenset(values)), *_held_by_globals(resolver, code))


def _held_by_globals(resolver: Resolver, code: tuple[Reached, ...]) -> Iterator[Value]:
    """What the global variables that ``code`` reads may be."""
    for reached in code:
        node, module = reached.node, reached.module
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found = module.scope(node).lookup(node.id)
            if found is not None and isinstance(found[0].node, ast.Module):
                yield from resolver.values(node, module)


def _made_by(resolver: Resolver, values: tuple[Value, ...]) -> Iterator[tuple[ast.AST, Value]]:
    """The calls and displays that make ``values``, their classes, and the functions and modules among them."""
    for value in map(innermost, values):
        match value:
            case Made(call, _, maker):
                yield call, value
                if isinstance(maker, Class):
                    yield from ((c.node, c) for c in (maker, *first_party_bases(resolver, maker)))
            case Display(node) | Function(node):
                yield node, value
            case Class(node):
                yield from ((c.node, c) for c in (value, *first_party_bases(resolver, value)))
            case FirstPartyModule(module):
                yield module.tree, value
            case _:
                pass


def _changed(
    copies: _Copies, node: ast.AST, module: Module
) -> Iterator[tuple[ast.expr, ast.Attribute | None]]:
    """The objects that ``node`` may change, with the method of theirs that may do it, where one is called or handed on."""
    match node:
        case ast.Attribute(value=value, ctx=ast.Store() | ast.Del()):
            if not _is_own(value, module):
                yield value, None
        case ast.Attribute(value=value, attr=name) if name in copies.methods:
            parent = module.parents[node]
            if not (isinstance(parent, ast.Call) and parent.func is node):
                yield value, node
        case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
            yield value, None
        case ast.Call():
            for changed in changed_by_call(copies.resolver, node, module):
                yield changed, None
            match node.func:
                case ast.Attribute(value=value, attr=name) as method if (
                    is_setter(name) or name in copies.methods
                ):
                    yield value, method
                case _:
                    pass
        case ast.AugAssign(target=ast.Name()):
            yield from ((each, None) for each in changed_objects(copies.resolver, node, module))
        case _:
            pass


def _is_own(value: ast.expr, module: Module) -> bool:
    """Whether ``value`` is the ``self`` or ``cls`` of the method around it, whose calls are looked at instead."""
    function = module.function(value)
    if function is None or not isinstance(module.parents[function], ast.ClassDef):
        return False
    return isinstance(value, ast.Name) and value.id == first_parameter(function)


def _receiver(call: ast.Call) -> ast.expr | None:
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _owner(
    copies: _Copies, changed: ast.expr, node: ast.AST, module: Module
) -> tuple[ast.AST, str | None] | None:
    """The dataset or the part of it that ``changed`` is, or is inside of, and which attribute or key of it that is."""
    resolver = copies.resolver
    if isinstance(node, ast.AugAssign) and _is_rebound(resolver, changed, module):
        return None
    for held in _all_held(resolver, changed, module):
        if not held.through_loader and held.made.isdisjoint(copies.parts):
            continue
        holder = held.holder
        for value in held.values:
            made = _made_at(copies, value)
            if made in copies.parts and not isinstance(made, ast.Tuple):
                user = node if holder.node is changed else holder.module.parents[holder.node]
                return made, _named(user)
    return None


def _all_held(resolver: Resolver, changed: ast.expr, module: Module) -> tuple[_Held, ...]:
    """What holds ``changed``, found once for all datasets."""
    known = _HELD.setdefault(resolver, {})
    if changed not in known:
        known[changed] = tuple(_held(resolver, changed, module))
    return known[changed]


def _held(resolver: Resolver, changed: ast.expr, module: Module) -> Iterator[_Held]:
    for holder in holders(resolver, changed, module):
        assert isinstance(holder.node, ast.expr)
        values = resolver.values(holder.node, holder.module)
        made = {_made_somewhere(resolver, value) for value in values}
        through_loader = any(isinstance(innermost(value), Attribute) for value in values)
        yield _Held(holder, values, frozenset(made - {None}), through_loader)


def _is_rebound(resolver: Resolver, name: ast.expr, module: Module) -> bool:
    """Whether ``name += 1`` gives the name a new number, text or tuple, and changes nothing that others have."""
    for value in resolver.values(name, module):
        match value:
            case Display(node, owner) if not (
                isinstance(node, ast.Tuple) or is_text(node) or is_number(resolver, node, owner)
            ):
                return False
            case Made(_, _, External(maker)) if maker in _NEVER_IN_PLACE:
                pass
            case Made():
                return False
            case _:
                pass
    return True


def _is_read(copies: _Copies, owner: ast.AST, written: str | None) -> bool:
    """Whether a worker reads of ``owner`` what is ``written``: not where a schedule sets ``config["lr"]``."""
    value = copies.parts[owner]
    if written is None or value is None or owner is copies.dataset.node:
        return True
    return may_read(copies.resolver, copies.code, copies.names, value, written)


def _named(node: ast.AST) -> str | None:
    """The one attribute or key that ``node`` sets or reads, where it says which."""
    match node:
        case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str() as name)):
            return name
        case ast.Call(
            func=ast.Name(id="setattr" | "delattr"), args=[_, ast.Constant(value=str() as name), *_]
        ):
            return name
        case ast.Call(
            func=ast.Attribute(attr="update"), args=[], keywords=[ast.keyword(arg=str() as name)]
        ):
            return name
        case _:
            return None


def _made_at(copies: _Copies, value: Value) -> ast.AST | None:
    """Where ``value`` is made, or the object that it is an element of."""
    loader = copies.loader
    match value:
        case Attribute(Made() as made, "dataset"):
            return copies.dataset.node if is_made(loader, made) else None
        case Attribute(Made() as made, "collate_fn") if is_made(loader, made):
            return (
                loader.arguments["collate_fn"].value if "collate_fn" in loader.arguments else None
            )
        case Element(inner) if holds_its_elements(copies.resolver, inner):
            return _made_at(copies, inner)
        case _:
            return _made_somewhere(copies.resolver, value)


def _made_somewhere(resolver: Resolver, value: Value) -> ast.AST | None:
    """Where ``value`` is made, but for what is reached through a loader."""
    match value:
        case Made(call):
            return call
        case Display(node) | Class(node) | Function(node):
            return node
        case FirstPartyModule(module):
            return module.tree
        case Element(inner) if holds_its_elements(resolver, inner):
            return _made_somewhere(resolver, inner)
        case _:
            return None


def _stores(copies: _Copies, method: ast.Attribute, module: Module, owner: ast.AST) -> bool:
    """Whether a method changes its object: by the method's own code, else by its name.

    By way of the loader (``loader.dataset.draw()``) the object is known by its class alone. What a module's function changes is seen there.
    """
    if isinstance(owner, ast.Module):
        return False
    resolver = copies.resolver
    own = [v for v in resolver.values(method, module) if isinstance(v, Function)]
    alike = [v for cls in copies.classes for v in class_attribute(resolver, cls, method.attr)]
    for function in own or [v for v in alike if isinstance(v, Function)]:
        body = function.node.body if isinstance(function.node.body, list) else [function.node.body]
        code = tuple(reached_nodes(resolver, body, function.module))
        if next(stored_changes(resolver, code), None) is not None:
            return True
    return not own and is_setter(method.attr)


def _is_item_code(copies: _Copies, node: ast.AST, module: Module) -> bool:
    """Whether only the making of items runs ``node``, for this dataset and maybe others: workers see what they change themselves."""
    if node not in copies.code_nodes:
        return False
    seen: set[ast.AST] = set()
    pending = [(node, module)]
    while pending:
        current, owner = pending.pop()
        function = owner.function(current)
        if function is None:
            return False
        if function not in seen:
            seen.add(function)
            sites = copies.resolver.call_sites(function)
            if not sites and current not in copies.code_nodes and function.name != "__getitem__":
                return False
            pending += [(site.call, site.module) for site in sites]
    return True
