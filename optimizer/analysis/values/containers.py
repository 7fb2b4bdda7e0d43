"""Picks parts out of tuples, lists and dicts that are written out in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .unpacking import element_at
from .values import (
    SLICE,
    Class,
    Display,
    Element,
    External,
    Function,
    Made,
    Unknown,
    Value,
    union,
)

if TYPE_CHECKING:
    from ..program.syntax import Module
    from .resolver import Resolver

_Part = int | str
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp)
_SAME_ELEMENTS = frozenset(
    {
        "builtins.list",
        "builtins.tuple",
        "builtins.sorted",
        "random.sample",
        "random.choices",
        "numpy.random.choice",
        "numpy.random.permutation",
        "tqdm.tqdm",
        "tqdm.auto.tqdm",
        "tqdm.notebook.tqdm",
    }
)
"""What gives elements of its first argument, in an order of its own."""
_DICTS = frozenset({"builtins.dict", "collections.OrderedDict"})
_LAYERS_OF = frozenset(f"torch.nn.{kind}.children" for kind in ("Sequential", "ModuleList"))
_NAMED_LAYERS_OF = frozenset(
    f"torch.nn.{kind}.named_children" for kind in ("Sequential", "ModuleList")
)


def select(
    resolver: Resolver, values: frozenset[Value], path: tuple[_Part, ...]
) -> frozenset[Value]:
    """The part of each value that ``path`` leads to; parts that are not written out become :class:`Element`."""
    for depth, part in enumerate(path):
        found: set[Value] = set()
        for value in values:
            inner = _part(resolver, value, part)
            if inner is None:
                found |= _opaque(value, path[depth:])
            else:
                found |= select(resolver, inner, path[depth + 1 :])
        return frozenset(found)
    return values


def _opaque(value: Value, path: tuple[_Part, ...]) -> frozenset[Value]:
    if isinstance(value, Unknown):
        return frozenset([value])
    if isinstance(value, Element):
        return frozenset([Element(value.of, (*value.path, *path))])
    return frozenset([Element(value, path)])


def _part(resolver: Resolver, value: Value, part: _Part) -> frozenset[Value] | None:
    if isinstance(value, Made):
        return _part_of_dict_call(resolver, value, part)
    if not isinstance(value, Display):
        return None
    node = value.node
    if isinstance(node, (ast.Tuple, ast.List)):
        element = element_at(node.elts, part)
        if element is not None:
            return resolver.values(element, value.module)
        starred = any(isinstance(each, ast.Starred) for each in node.elts)
        if part in {"each", SLICE} and not starred:
            return _members(resolver, value) or None
    if isinstance(node, ast.Dict):
        return _dict_part(resolver, node, value, part)
    if isinstance(node, ast.DictComp):
        return resolver.values(node.value, value.module)
    if isinstance(node, _COMPREHENSIONS):
        return resolver.values(node.elt, value.module)
    return None


def _dict_part(
    resolver: Resolver, node: ast.Dict, value: Display, part: _Part
) -> frozenset[Value] | None:
    for key, item in zip(reversed(node.keys), reversed(node.values), strict=True):
        if key is None:
            inner = select(resolver, resolver.values(item, value.module), (part,))
            if not any(isinstance(v, Element | Unknown) for v in inner):
                return inner
        elif isinstance(key, ast.Constant) and key.value == part:
            return resolver.values(item, value.module)
    if part == "each" and node.values:
        return union(resolver.values(v, value.module) for v in node.values)
    return _put_in(resolver, value, part) if not node.keys else None


def uses_by_name(made: Display) -> list[ast.Name]:
    """The uses of the variable that the dict or list ``made`` is assigned to; none where it goes by no name."""
    module = made.module
    match module.parents[made.node]:
        case (
            ast.Assign(targets=[ast.Name() as holder]) | ast.AnnAssign(target=ast.Name() as holder)
        ):
            place = module.scope(holder).lookup(holder.id)
        case _:
            return []
    names = module.names_of(holder.id)
    return [name for name in names if module.scope(name).lookup(name.id) == place]


def _uses(resolver: Resolver, made: Display) -> Iterator[tuple[ast.expr, Module]]:
    """The uses of the variable that the dict ``made`` is assigned to, or of the attribute of ``self`` or of a class.

    An attribute of that name is taken to be the same, whosever it is.
    """
    statement = made.module.parents[made.node]
    in_class = isinstance(made.module.parents[statement], ast.ClassDef)
    match statement:
        case (
            ast.Assign(targets=[ast.Attribute(ast.Name("self"), name)])
            | ast.AnnAssign(target=ast.Attribute(ast.Name("self"), name))
        ):
            pass
        case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)) if (
            in_class
        ):
            pass
        case _:
            for use in uses_by_name(made):
                yield use, made.module
            return
    for module in resolver.project.modules:
        for attribute in module.attributes_of(name):
            yield attribute, module


def _put_in(resolver: Resolver, made: Display, part: _Part) -> frozenset[Value] | None:
    """What is put into the empty dict ``made`` under the key ``part``, or under keys that are computed.

    None where it is filled in another way, too, or may be by modules that are imported by a name that is computed.
    """
    found: list[tuple[ast.expr, Module]] = []
    for use, module in _uses(resolver, made):
        user = module.parents[use]
        stored = module.parents[user]
        if isinstance(user, ast.Attribute) and user.attr in {"update", "setdefault"}:
            return None
        if not isinstance(user, ast.Subscript) or not isinstance(user.ctx, ast.Store):
            continue
        if not isinstance(stored, ast.Assign):
            return None
        if part == "each" or not isinstance(user.slice, ast.Constant) or user.slice.value == part:
            found.append((stored.value, module))
    if any(_imports_by_name(resolver, module) for module in resolver.project.modules):
        return None
    return union(resolver.values(*put) for put in found) or None


def _members(resolver: Resolver, made: Display) -> frozenset[Value]:
    """The elements of the list, tuple or set ``made``: those it is written with, and those that are put into a list later."""
    elements = made.node.elts if isinstance(made.node, ast.List | ast.Tuple | ast.Set) else []
    found = union(resolver.values(element, made.module) for element in elements)
    for method, added, module in added_to_list(resolver, made):
        whole = method == "extend"
        found |= {Element(made, ("each",))} if whole else resolver.values(added, module)
    return found


def added_to_list(resolver: Resolver, made: Display) -> Iterator[tuple[str, ast.expr, Module]]:
    """What is added to the list ``made`` by the variable or attribute it is assigned to, and by which method; ``+=`` is "extend"."""
    for use, module in _uses(resolver, made) if isinstance(made.node, ast.List) else ():
        user = module.parents[use]
        match user, module.parents[user]:
            case ast.AugAssign(target=target, value=added), _ if target is use:
                yield "extend", added, module
            case (
                ast.Attribute(attr="append" | "extend" | "insert" as method),
                ast.Call(func=func, args=[*_, added]),
            ) if func is user:
                yield method, added, module
            case _:
                pass


def _imports_by_name(resolver: Resolver, module: Module) -> bool:
    """Whether ``module`` imports others by names that tell nothing of which they are."""
    followed = resolver.project.computed_imports
    calls = (*module.calls_named("import_module"), *module.calls_named("__import__"))
    return any(not followed.get(call) for call in calls)


def _part_of_dict_call(resolver: Resolver, value: Made, part: _Part) -> frozenset[Value] | None:
    if not (isinstance(value.maker, External) and value.maker.name in _DICTS):
        return None
    keywords = value.call.keywords
    if not (keywords or value.call.args):
        return _put_in(resolver, Display(value.call, value.module), part)
    if part == "each" and not value.call.args and all(k.arg is not None for k in keywords):
        return union(resolver.values(k.value, value.module) for k in keywords) or None
    for keyword in keywords:
        if keyword.arg == part:
            return resolver.values(keyword.value, value.module)
    return None


def got_from_dict(
    resolver: Resolver, of: Value, call: ast.Call, module: Module
) -> frozenset[Value] | None:
    """The functions and classes one of which ``kinds.get(name)`` gives, of the dict ``of``; None of other dicts.

    Their other entries are settings, which may be changed in between.
    """
    if not call.args or not isinstance(of, Display | Made):
        return None
    try:
        key = resolver.literal(call.args[0], module)
    except LookupError:
        key = "each"
    found = _part(resolver, of, key) if isinstance(key, str | int) else None
    if not found or not all(isinstance(value, Class | Function) for value in found):
        return None
    return found | union(resolver.values(default, module) for default in call.args[1:2])


def parts_of_elements(
    resolver: Resolver,
    iterables: frozenset[Value],
    path: tuple[_Part, ...],
    within: frozenset[Value] = frozenset(),
) -> frozenset[Value]:
    """What ``path`` leads to in each element, looked for behind ``zip``, ``enumerate``, ``reversed`` and ``layers.children()``.

    Behind ``list``, ``random.sample`` and their like, too, where all elements are written out. ``within`` are the iterables that this one
    is part of: in a loop, ``bar = tqdm(bar)`` leads back to itself.
    """
    found: set[Value] = set()
    for value in iterables - within:
        source, rest, only_told = value, path, False
        match value:
            case Made(call, _, External("builtins.zip")) if path and isinstance(path[0], int):
                source, rest = element_at(call.args, path[0]) or value, path[1:]
            case Made(call, _, External("builtins.enumerate")) if path[:1] == (1,) and call.args:
                source, rest = call.args[0], path[1:]
            case Made(call, _, External("builtins.reversed")) if call.args:
                source = call.args[0]
            case Made(ast.Call(func=ast.Attribute(layers)), _, External(name)) if (
                name in _LAYERS_OF
            ):
                source = layers
            case Made(ast.Call(func=ast.Attribute(layers)), _, External(name)) if (
                path[:1] == (1,) and name in _NAMED_LAYERS_OF
            ):
                source, rest = layers, path[1:]
            case Made(call, _, External(name)) if name in _SAME_ELEMENTS and call.args:
                source, only_told = call.args[0], True
            case _:
                pass
        parts: frozenset[Value] = frozenset()
        if isinstance(source, ast.expr) and isinstance(value, Made):
            inside = resolver.values(source, value.module)
            parts = parts_of_elements(resolver, inside, rest, within | {value})
        told = bool(parts) and not any(isinstance(part, Element | Unknown) for part in parts)
        if source is value or (only_told and not told):
            parts = select(resolver, _elements(resolver, frozenset([value])), path)
        found |= parts
    return frozenset(found)


def _elements(resolver: Resolver, iterables: frozenset[Value]) -> frozenset[Value]:
    found: set[Value] = set()
    for value in iterables:
        if isinstance(value, Display) and isinstance(value.node, ast.List | ast.Tuple | ast.Set):
            found |= _members(resolver, value)
        elif isinstance(value, Display) and isinstance(value.node, _COMPREHENSIONS):
            found |= resolver.values(value.node.elt, value.module)
        else:
            found.add(Element(value, ("each",)))
    return frozenset(found)
