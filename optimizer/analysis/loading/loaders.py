"""Finds the DataLoaders of a script with all their arguments, keyword dicts included."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..facts import Argument, DataLoader
from ..program.parameters import parameter_names
from ..program.scopes import Parameter
from ..program.syntax import Module
from ..program.trees import walk
from ..values.resolver import CallSite, Resolver
from ..values.values import Class, Display, External, Made, Value

DATALOADER = "torch.utils.data.DataLoader"
_BATCH_SAMPLER = "torch.utils.data.BatchSampler"
PARAMETERS: Sequence[str] = (
    "dataset batch_size shuffle sampler batch_sampler num_workers collate_fn pin_memory drop_last timeout "
    "worker_init_fn multiprocessing_context"
).split()
"""DataLoader's positional parameters, in order
(https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader)."""


def find_loaders(resolver: Resolver) -> tuple[DataLoader, ...]:
    """Every DataLoader call of the project, in source order per module."""
    found: dict[ast.Call, DataLoader] = {}
    modules = resolver.project.modules
    if not any("DataLoader" in module.source.text for module in modules):
        return ()  # it cannot be called without being named somewhere
    for module in modules:
        for call in module.calls:
            if is_loader_maker(resolver, resolver.values(call.func, module)):
                found[call] = _loader(resolver, call, module)
            elif classes := _made_by_super(resolver, call, module):
                found[call] = _loader(resolver, call, module, classes)
    return tuple(found.values())


def _made_by_super(resolver: Resolver, call: ast.Call, module: Module) -> frozenset[ast.ClassDef]:
    """The classes whose objects ``call`` makes DataLoaders: ``super().__init__(dataset, ..)``, where none iterates otherwise."""
    match call.func:
        case ast.Attribute(ast.Call(ast.Name("super")), "__init__"):
            around, function = module.enclosing_class(call), module.function(call)
        case _:
            return frozenset()
    if around is None or not isinstance(function, ast.FunctionDef) or function.name != "__init__":
        return frozenset()
    if not around.bases or resolver.names(around.bases[0], module) != frozenset({DATALOADER}):
        return frozenset()
    cls = Class(around, module)
    classes = frozenset(one.node for one in (cls, *resolver.subclasses(cls)))
    return frozenset() if any(_defines(one, {"__iter__"}) for one in classes) else classes


def _defines(cls: ast.ClassDef, methods: set[str]) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name in methods for node in cls.body)


def is_loader_maker(resolver: Resolver, callees: frozenset[Value]) -> bool:
    """Whether calling one of ``callees`` makes a DataLoader (torch's or a plain subclass of it)."""
    for callee in callees:
        if isinstance(callee, External) and callee.name == DATALOADER:
            return True
        if isinstance(callee, Class) and DATALOADER in resolver.base_names(callee):
            return not _defines(callee.node, {"__init__", "__iter__"})
    return False


def loaders_in(loaders: tuple[DataLoader, ...], values: frozenset[Value]) -> tuple[DataLoader, ...]:
    """The loaders among ``values``, in the order of ``loaders``."""
    made = [value for value in values if isinstance(value, Made)]
    return tuple(loader for loader in loaders if any(is_made(loader, value) for value in made))


def is_made(loader: DataLoader, value: Made) -> bool:
    """Whether ``value`` is an object that ``loader`` makes."""
    maker = value.maker
    of_class = isinstance(maker, Class) and maker.node in loader.classes
    return of_class or value.call is loader.node


def _loader(
    resolver: Resolver,
    call: ast.Call,
    module: Module,
    classes: frozenset[ast.ClassDef] = frozenset(),
) -> DataLoader:
    arguments: dict[str, Argument] = {}
    opaque: ast.expr | None = None
    displays: list[tuple[ast.Dict | ast.Call, Module]] = []
    for parameter, value in zip(PARAMETERS, call.args, strict=False):
        if isinstance(value, ast.Starred):
            opaque = value
            break
        arguments[parameter] = Argument(value, module)
    for keyword in call.keywords:
        if keyword.arg is not None:
            arguments[keyword.arg] = Argument(keyword.value, module)
            continue
        entries, found = keyword_dict(resolver, keyword.value, module)
        if entries is None:
            opaque = keyword.value
        else:
            displays += found
            for name, argument in entries.items():
                arguments.setdefault(name, argument)
    _tell_batches(resolver, arguments)
    return DataLoader(module, call, arguments, opaque, tuple(displays), classes)


def _tell_batches(resolver: Resolver, arguments: dict[str, Argument]) -> None:
    """``sampler=BatchSampler(..), batch_size=None`` says ``batch_sampler``, but for how items are asked for."""
    sampler, size = arguments.get("sampler"), arguments.get("batch_size")
    if sampler is None or size is None or not resolver.is_always(size.value, size.module, None):
        return
    if resolver.maker_names(sampler.value, sampler.module) == frozenset({_BATCH_SAMPLER}):
        arguments["batch_sampler"] = sampler
        del arguments["sampler"], arguments["batch_size"]


def keyword_dict(
    resolver: Resolver,
    expression: ast.expr,
    module: Module,
    within: frozenset[ast.expr] = frozenset(),
) -> tuple[dict[str, Argument] | None, list[tuple[ast.Dict | ast.Call, Module]]]:
    """The entries of a dict passed as ``**expression`` and the displays they are written in.

    The entries are None unless every dict that may arrive is written out with string keys. An entry that only some of
    the dicts have is included: it may be there. Later ``d.update(..)`` and ``d["k"] = v`` of the same name count. ``within`` are the
    expressions whose entries these are part of: a dict that is part of itself is not written out.
    """
    if expression in within:
        return None, []
    within |= {expression}
    passed = _passed_on(resolver, expression, module, within)
    if passed is not None:
        return passed, []
    entries: dict[str, Argument] = {}
    displays: list[tuple[ast.Dict | ast.Call, Module]] = []
    values = resolver.values(expression, module)
    for value in values:
        found = _dict_node(value)
        if found is None:
            return None, []
        node, owner = found
        own = _entries(resolver, node, owner, within)
        if own is None:
            return None, []
        displays.append((node, owner))
        entries.update(own)
    later = _later_entries(resolver, values, within)
    if not values or later is None:
        return None, []
    entries.update(later)
    return entries, displays


def _passed_on(
    resolver: Resolver, expression: ast.expr, module: Module, within: frozenset[ast.expr]
) -> dict[str, Argument] | None:
    """What callers give by keyword, where ``expression`` is the ``**kwargs`` of a function that only hands them on.

    None where callers give different things.
    """
    found = (
        module.scope(expression).lookup(expression.id) if isinstance(expression, ast.Name) else None
    )
    if found is None or len(found[1]) != 1:
        return None
    name, source = found[1][0].name, found[1][0].source
    if not isinstance(source, Parameter) or source.kind != "**":
        return None
    function = source.function
    uses = [use for use in module.names_of(name) if use in set(walk(function))]
    if isinstance(function, ast.Lambda) or not all(_is_handed_on(use, module) for use in uses):
        return None
    sites = resolver.call_sites(function)
    own = {*parameter_names(function)}
    each = [_extra_keywords(resolver, site, own, within) for site in sites]
    if not each or any(entries is None or _told(entries) != _told(each[0]) for entries in each):
        return None
    return each[0]


def _extra_keywords(
    resolver: Resolver, site: CallSite, own: set[str], within: frozenset[ast.expr]
) -> dict[str, Argument] | None:
    """What the call ``site`` gives by keyword but for the function's ``own`` parameters."""
    entries: dict[str, Argument] = {}
    for keyword in site.call.keywords:
        if keyword.arg is not None:
            entries[keyword.arg] = Argument(keyword.value, site.module)
            continue
        inner, _ = keyword_dict(resolver, keyword.value, site.module, within)
        if inner is None:
            return None
        entries.update(inner)
    return {key: given for key, given in entries.items() if key not in own}


def _told(entries: dict[str, Argument] | None) -> dict[str, str]:
    return {key: ast.dump(given.value) for key, given in (entries or {}).items()}


def _is_handed_on(use: ast.Name, module: Module) -> bool:
    keyword = module.parents[use]
    return isinstance(keyword, ast.keyword) and keyword.arg is None


def _dict_node(value: Value) -> tuple[ast.Dict | ast.Call, Module] | None:
    if isinstance(value, Display) and isinstance(value.node, ast.Dict):
        return value.node, value.module
    if (
        isinstance(value, Made)
        and isinstance(value.maker, External)
        and value.maker.name == "builtins.dict"
    ):
        return None if value.call.args else (value.call, value.module)
    return None


def _entries(
    resolver: Resolver, node: ast.Dict | ast.Call, module: Module, within: frozenset[ast.expr]
) -> dict[str, Argument] | None:
    entries: dict[str, Argument] = {}
    if isinstance(node, ast.Call):
        pairs = [(k.arg, k.value) for k in node.keywords]
    else:
        pairs = [
            (key.value if isinstance(key, ast.Constant) else None, value)
            for key, value in zip(node.keys, node.values, strict=True)
            if not (key is not None and not isinstance(key, ast.Constant))
        ]
        if len(pairs) != len(node.values):
            return None
    for key, value in pairs:
        if key is None:
            inner, _ = keyword_dict(resolver, value, module, within)
            if inner is None:
                return None
            entries.update(inner)
        else:
            entries[str(key)] = Argument(value, module, node)
    return entries


def _later_entries(
    resolver: Resolver, dicts: frozenset[Value], within: frozenset[ast.expr]
) -> dict[str, Argument] | None:
    """What is added to one of ``dicts`` after it is made, under whatever name; None when unclear."""
    found: dict[str, Argument] = {}
    for module in resolver.project.modules:
        for node in module.nodes_of(ast.Subscript, ast.Call):
            changed = _changed_dict(node)
            if changed is None or not resolver.values(changed, module) & dicts:
                continue
            added = _additions(resolver, node, module, dicts, within)
            if added is None:
                return None
            found.update(added)
    return found


def _changed_dict(node: ast.AST) -> ast.expr | None:
    """What ``node`` adds entries to, if it adds any: ``d`` of ``d[k] = v`` and of ``d.update(..)``."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.value if node.func.attr in {"update", "setdefault"} else None
    return None


def _additions(
    resolver: Resolver,
    node: ast.AST,
    module: Module,
    dicts: frozenset[Value],
    within: frozenset[ast.expr],
) -> dict[str, Argument] | None:
    if isinstance(node, ast.Subscript):
        return _set_item(node, module)
    assert isinstance(node, ast.Call)
    match node.args:
        case [ast.Constant(value=str() as key), value]:  # setdefault
            return {key: Argument(value, module)}
        case _:
            return _updates(resolver, node, module, dicts, within)


def _set_item(target: ast.Subscript, module: Module) -> dict[str, Argument] | None:
    statement = module.parents[target]
    key = target.slice
    if (
        isinstance(statement, ast.Assign)
        and isinstance(key, ast.Constant)
        and isinstance(key.value, str)
    ):
        return {key.value: Argument(statement.value, module)}
    return None


def _updates(
    resolver: Resolver,
    call: ast.Call,
    module: Module,
    dicts: frozenset[Value],
    within: frozenset[ast.expr],
) -> dict[str, Argument] | None:
    found: dict[str, Argument] = {}
    for argument in call.args:
        if resolver.values(argument, module) & dicts:
            continue
        inner, _ = keyword_dict(resolver, argument, module, within)
        if inner is None:
            return None
        found.update(inner)
    for keyword in call.keywords:
        if keyword.arg is None:
            return None
        found[keyword.arg] = Argument(keyword.value, module)
    return found
