"""Where a script changes a dataset after a loader was made for it: workers hold copies and may miss the change.

What was handed to the dataset counts as a part of it: a list of files, a replay buffer. So do the subset that the loader
reads it through, the object that puts batches together, and the objects that global variables hold for either.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .classes import class_attribute
from .composition import composed_of
from .datasets import Dataset, function_code
from .facts import DataLoader, Fact
from .item_state import changes_receiver, stored_changes
from .reach import Reached, never_runs, reached_nodes
from .resolver import Resolver
from .syntax import FunctionNode, Module
from .trees import walk
from .values import Attribute, Class, Display, Element, Function, Made, Value

_COPIED = ("dataset", "collate_fn")
"""The arguments of a loader that its workers have copies of."""
_READ_BY_SUBSETS = {"dataset", "datasets", "indices"}


def changes_of_dataset(resolver: Resolver, loader: DataLoader, dataset: Dataset) -> Iterator[Fact]:
    """What changes ``dataset`` or what it was given, outside its own code; set-up above the loader left out."""
    collate = function_code(resolver, loader.arguments.get("collate_fn")) or ()
    code = (*dataset.item_code, *collate)
    composition = _composition(resolver, loader, dataset, code)
    parts, classes = set(_made_by(composition)), _classes(composition)
    if "collate_fn" in loader.arguments:
        parts.add(loader.arguments["collate_fn"].value)
    attributes = {reached.node.attr for reached in code if isinstance(reached.node, ast.Attribute)}
    read = attributes | _READ_BY_SUBSETS
    for module in resolver.project.modules:
        for node in module.nodes_of(ast.Attribute, ast.Subscript, ast.Call, ast.AugAssign):
            changed = _changed(node)
            if changed is None or _is_set_up(resolver, node, module, loader):
                continue
            owner = _owner(resolver, changed, module, loader, dataset, parts)
            if (
                owner is None
                or _is_made_beside(owner, node, module, loader)
                or _is_constructing(resolver, owner, node, module, loader)
            ):
                continue
            if (
                isinstance(node, ast.Attribute)
                and owner is not dataset.node
                and node.attr not in read
            ):
                continue
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if _stores(resolver, node, module, classes):
                    yield Fact(module, node.func)
            else:
                yield Fact(module, node)


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


def _made_by(values: tuple[Value, ...]) -> Iterator[ast.AST]:
    """The calls and displays that make ``values``."""
    for value in values:
        while isinstance(value, Element):
            value = value.of
        if isinstance(value, Made):
            yield value.call
        elif isinstance(value, Display):
            yield value.node


def _classes(values: tuple[Value, ...]) -> list[Class]:
    return [v.maker for v in values if isinstance(v, Made) and isinstance(v.maker, Class)]


def _changed(node: ast.AST) -> ast.expr | None:
    """The object that ``node`` changes, or whose method it calls."""
    match node:
        case ast.Attribute(value=value, ctx=ast.Store() | ast.Del()):
            return value
        case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
            return value
        case ast.Call(func=ast.Attribute(value=value)):
            return value
        case ast.Call(func=ast.Name(id="setattr"), args=[value, *_]):
            return value
        case ast.AugAssign(target=ast.Name() as target):
            return target
        case _:
            return None


def _owner(
    resolver: Resolver,
    changed: ast.expr,
    module: Module,
    loader: DataLoader,
    dataset: Dataset,
    parts: set[ast.AST],
) -> ast.AST | None:
    """The dataset or the part of it that ``changed`` is, or is inside of."""
    while True:
        for value in resolver.values(changed, module):
            made = _made_at(value, loader, dataset)
            if made in parts:
                return made
        if not isinstance(changed, (ast.Attribute, ast.Subscript)):
            return None
        changed = changed.value


def _made_at(value: Value, loader: DataLoader, dataset: Dataset) -> ast.AST | None:
    match value:
        case Made(call):
            return call
        case Display(node):
            return node
        case Attribute(Made(call), "dataset"):
            return dataset.node if call is loader.node else None
        case Attribute(Made(call), "collate_fn") if call is loader.node:
            return (
                loader.arguments["collate_fn"].value if "collate_fn" in loader.arguments else None
            )
        case Element(inner):
            return _made_at(inner, loader, dataset)
        case _:
            return None


def _stores(resolver: Resolver, call: ast.Call, module: Module, classes: list[Class]) -> bool:
    """Whether a method call changes the object: by the method's own code, else by its name.

    By way of the loader (``loader.dataset.draw()``) the object is known as one of ``classes`` alone.
    """
    assert isinstance(call.func, ast.Attribute)
    name = call.func.attr
    callees = resolver.callees(call, module)
    alike = [v for cls in classes for v in class_attribute(resolver, cls, name)]
    for callee in callees or [v for v in alike if isinstance(v, Function)]:
        body = callee.node.body if isinstance(callee.node.body, list) else [callee.node.body]
        code = tuple(reached_nodes(resolver, body, callee.module))
        if next(stored_changes(resolver, code), None) is not None:
            return True
    return not callees and changes_receiver(name)


def _is_set_up(resolver: Resolver, node: ast.AST, module: Module, loader: DataLoader) -> bool:
    """Whether ``node`` runs before the loader is made and not again, as far as the order of the lines tells.

    The loader may be made in a function that is called below, by way of others, too: ``settings.parse(text)`` in ``main``,
    above ``train_loader = make_loader(settings)``.
    """
    if never_runs(resolver, node, module):
        return True
    function = module.function(node)
    if function is None and module in resolver.project.loaded_first:
        return True
    places = _places_in(resolver, function, module, loader)
    return bool(places) and all(
        isinstance(node, ast.expr | ast.AugAssign)
        and module.span(node) < module.span(place)
        and not any(loop in module.ancestors(place) for loop in module.loops(node))
        for place in places
    )


def _places_in(
    resolver: Resolver, function: FunctionNode | None, module: Module, loader: DataLoader
) -> list[ast.AST]:
    """Where ``function``, or the top level of ``module``, makes the loader; nothing where something else makes it, too."""
    found: list[ast.AST] = []
    seen: set[FunctionNode] = set()
    pending: list[tuple[ast.AST, Module]] = [(loader.node, loader.module)]
    while pending:
        place, owner = pending.pop()
        around = owner.function(place)
        if owner is module and around is function:
            found.append(place)
        elif around is None:
            return []
        elif around not in seen:
            seen.add(around)
            pending += [
                (site.call, site.module)
                for site in resolver.call_sites(around)
                if not never_runs(resolver, site.call, site.module)
            ]
    return found


def _is_made_beside(owner: ast.AST, node: ast.AST, module: Module, loader: DataLoader) -> bool:
    """Whether ``node`` fills a container in the function that makes it, which is over before the loader is made."""
    function = module.function(node)
    return function is not None and function is not loader.function and owner in walk(function)


def _is_constructing(
    resolver: Resolver, owner: ast.AST, node: ast.AST, module: Module, loader: DataLoader
) -> bool:
    """Whether ``node`` is in a constructor that is done with ``owner`` above the loader: ``Images(splits=["train", "val"])``."""
    function = module.function(node)
    if function is None or function.name != "__init__":
        return False
    home = loader.module
    beside = set(walk(loader.function or home.tree))
    sites = [
        site
        for site in resolver.call_sites(function)
        if not never_runs(resolver, site.call, site.module)
    ]
    return (
        bool(sites)
        and owner in beside
        and all(
            site.call in beside
            and (
                home.span(site.call) < home.span(loader.node)
                or loader.node in home.ancestors(site.call)
            )
            and all(
                loop in home.ancestors(owner)
                for loop in home.loops(site.call)
                if loop in home.ancestors(loader.node)
            )
            for site in sites
        )
    )
