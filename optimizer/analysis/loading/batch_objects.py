"""Batches that are no tensors but objects with a method ``to`` of their own, which may not take what a tensor's takes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.signatures import argument_for
from ..facts import DataLoader
from ..networks.models import is_module_class
from ..program.classes import class_attribute
from ..program.scopes import Assigned, Iterated, Parameter
from ..program.syntax import Module
from ..program.trees import walk
from ..script import TrainingScript
from ..training.loops import iterated_loaders
from ..values.values import Class, External, Function, Made, Value
from .batches import BatchCopy
from .indexed_batches import is_given
from .loaders import DATALOADER

_CONTAINERS = (ast.Tuple, ast.List, ast.Dict, ast.ListComp, ast.DictComp, ast.GeneratorExp)
_TENSORS = ("torch.", "numpy.")


def refuses_argument(script: TrainingScript, copy: BatchCopy, keyword: str) -> str | None:
    """Why what ``copy`` moves may not be a tensor, and its method not take ``keyword``; None when it does.

    PyTorch's own collation gives tensors in plain containers; only a ``collate_fn``, or a loader without collation, gives more.
    """
    loaders = [loader for loader in copy.loaders if not collates_plainly(script, loader)]
    loaders = [loader for loader in loaders if _gives_object(script, loader, inside=True)]
    if not loaders:
        return None
    for cls, method in _own_methods(script, copy.method):
        if not _takes(method, keyword):
            return f"the batch may be a `{cls.name}`, whose `{method.name}` takes no `{keyword}`"
    whole = _is_whole(script, copy.source, copy.module, frozenset())
    if whole and any(_gives_object(script, loader, inside=False) for loader in loaders):
        code = copy.module.code(copy.source)
        return f"whether `{code}.{copy.method}` takes `{keyword}` is not known: a `collate_fn` makes the batch"
    return None


def collates_plainly(script: TrainingScript, loader: DataLoader) -> bool:
    """Whether PyTorch's own collation makes the batches of ``loader``: tensors, and texts, in plain containers."""
    size = loader.arguments.get("batch_size")
    return (
        loader.opaque is None
        and not is_given(script.resolver, loader.arguments.get("collate_fn"))
        and not (size is not None and script.resolver.is_always(size.value, size.module, None))
        and script.names(loader.node.func, loader.module) == frozenset({DATALOADER})
    )


def _own_methods(
    script: TrainingScript, name: str
) -> Iterator[tuple[ast.ClassDef, ast.FunctionDef]]:
    """The methods ``name`` of the project's classes, networks apart."""
    for module in script.modules:
        for cls in module.nodes_of(ast.ClassDef):
            for method in cls.body:
                if (
                    isinstance(method, ast.FunctionDef)
                    and method.name == name
                    and not is_module_class(script.resolver, Class(cls, module))
                ):
                    yield cls, method


def _takes(method: ast.FunctionDef, keyword: str) -> bool:
    arguments = method.args
    named = {argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)}
    return keyword in named or arguments.kwarg is not None


def _gives_object(script: TrainingScript, loader: DataLoader, *, inside: bool) -> bool:
    """Whether a batch as a whole may be something else than a tensor or a plain container: transformers' ``BatchEncoding``.

    With ``inside``, also whether a container may hold such an object.
    """
    argument = loader.arguments.get("collate_fn")
    if argument is None or not is_given(script.resolver, argument):
        return inside
    return any(
        not _gives_tensors(script, value, inside)
        for value in script.values(argument.value, argument.module)
    )


def _gives_tensors(script: TrainingScript, function: Value, inside: bool) -> bool:
    match function:
        case Made(call, module, External("functools.partial")) if call.args:
            values = script.values(call.args[0], module)
            return bool(values) and all(_gives_tensors(script, one, inside) for one in values)
        case External(name) | Made(maker=External(name)):
            return name.startswith(_TENSORS)
        case Function(node=ast.Lambda(body=body)):
            return _is_tensor(script, body, function.module, inside)
        case Made(maker=Class() as cls):
            called = class_attribute(script.resolver, cls, "__call__")
            return bool(called) and all(_gives_tensors(script, one, inside) for one in called)
        case Function(node=node):
            given = [n.value for n in walk(node) if isinstance(n, ast.Return) and n.value]
            return all(_is_tensor(script, value, function.module, inside) for value in given)
        case _:
            return False


def _is_tensor(script: TrainingScript, node: ast.expr, module: Module, inside: bool) -> bool:
    if isinstance(node, _CONTAINERS):
        parts = node.elts if isinstance(node, ast.Tuple | ast.List) else None
        return not inside or (
            parts is not None and all(_is_tensor(script, part, module, inside) for part in parts)
        )
    names = script.resolver.maker_names(node, module)
    return bool(names) and all(name.startswith(_TENSORS) for name in names)


def _is_whole(
    script: TrainingScript, source: ast.expr, module: Module, within: frozenset[ast.AST]
) -> bool:
    """Whether ``source`` may be a batch as a whole, not an element of it; ``within`` are the functions that it was given to."""
    if not isinstance(source, ast.Name):
        return isinstance(source, ast.Call)
    found = module.scope(source).lookup(source.id)
    for binding in found[1] if found is not None else ():
        match binding.source:
            case Iterated(iterable, path):
                resolver, loaders = script.resolver, script.loaders
                over, batch_path = iterated_loaders(resolver, loaders, iterable, module)
                whole = bool(over) and path == batch_path
            case Assigned(ast.Call(func=ast.Attribute(attr=method)), ()):
                # Another method's result is as whole as what it is called on.
                whole = method in {"next", "__next__"}
            case Assigned(value, path):
                whole = not path and not isinstance(value, ast.Subscript | ast.Attribute)
            case Parameter(ast.FunctionDef() as function, "plain") if function not in within:
                whole = _is_given_whole(script, function, binding.name, within | {function})
            case _:
                whole = True
        if whole:
            return True
    return False


def _is_given_whole(
    script: TrainingScript, function: ast.FunctionDef, name: str, within: frozenset[ast.AST]
) -> bool:
    for site in script.resolver.call_sites(function):
        passed = argument_for(function, name, site.call, site.bound)
        if passed is None or (
            passed.given is not None and _is_whole(script, passed.given, site.module, within)
        ):
            return True
    return False
