"""Datasets that only index tensors, so that a list of indices gives the batch that single items would be stacked to."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from ..calls.signatures import call_argument
from ..facts import DataLoader
from ..program.classes import class_attribute
from ..program.syntax import Module, is_docstring
from ..tensors.row_sizes import row_numbers
from ..values.resolver import Resolver
from ..values.values import (
    SLICE,
    Attribute,
    Class,
    Display,
    Element,
    External,
    Function,
    Literal,
    Made,
    Unknown,
    Value,
)
from .datasets import extends_torch_only

_TENSOR_DATASET = "torch.utils.data.TensorDataset"
_RANDOM_SPLIT = "torch.utils.data.random_split"
_SUBSET = "torch.utils.data.Subset"
_NEW = frozenset(
    "tensor Tensor FloatTensor DoubleTensor LongTensor IntTensor zeros ones full empty eye rand randn randint randperm "
    "arange linspace normal bernoulli".split()
)
"""Functions of torch that make a tensor of their own, whose memory is in the order of its dimensions."""
_SHARED = frozenset({"from_numpy", "as_tensor"})
"""Those that take over the memory of an array, in whatever order it is."""
_ELEMENTWISE = frozenset(
    "sin cos tan tanh exp log sqrt abs sign square sigmoid relu clamp round floor ceil pow".split()
)
_KEEP = _ELEMENTWISE | frozenset(
    "float double half bfloat16 long int short bool type to clone contiguous detach cpu cuda view reshape flatten "
    "unsqueeze squeeze view_as type_as argmax argmin sum mean uniform_ normal_ random_".split()
)
"""Methods that keep the order in memory."""
_REORDER = frozenset("t permute transpose movedim swapaxes expand repeat".split())
_CASTS = frozenset("float double half long int bool clone".split())
_DEEPEST = 8


class Layout(IntEnum):
    """What is known of an expression: nothing, a tensor, or a tensor that lies in memory in the order of its dimensions.

    Only of the last do stacking items and indexing make batches of the same strides.
    """

    UNKNOWN = 0
    TENSOR = 1
    CONTIGUOUS = 2


@dataclass(frozen=True)
class IndexedTensors:
    """What a loader's dataset looks items up in.

    ``layout`` is what is known of all of it. ``row`` is how many numbers the largest part of an item has; 0 where the script
    does not tell.
    """

    name: str
    layout: Layout
    row: int


def indexed_tensors(resolver: Resolver, loader: DataLoader) -> IndexedTensors | None:
    """The tensors that the items of ``loader`` are rows of; None where an item may be anything else."""
    dataset = loader.arguments.get("dataset")
    if dataset is None:
        return None
    values = resolver.values(dataset.value, dataset.module)
    found = [_of_value(resolver, value) for value in values]
    known = [one for one in found if one is not None]
    if not found or len(known) < len(found):
        return None
    names = " or ".join(sorted({one.name for one in known}))
    return IndexedTensors(names, min(one.layout for one in known), max(one.row for one in known))


def _of_value(resolver: Resolver, value: Value) -> IndexedTensors | None:
    while isinstance(value, Element):
        value = value.of
        if not (isinstance(value, Element) or _is_made_by(value, _RANDOM_SPLIT)):
            return None
    match value:
        case Made(call, module, External(name)) if name == _TENSOR_DATASET:
            tensors = [(argument, module) for argument in call.args]
            return _found(resolver, "a TensorDataset", tensors)
        case Made(call, module, External(name)) if name in {_RANDOM_SPLIT, _SUBSET}:
            whole = call_argument(call, "dataset", 0)
            indices = call_argument(call, "indices", 1)
            plain = name == _RANDOM_SPLIT or _are_numbers(resolver, indices, module)
            if whole is None or not plain:
                return None
            values = resolver.values(whole, module)
            return _of_value(resolver, next(iter(values))) if len(values) == 1 else None
        case Made(call, module, Class() as cls):
            return _of_class(resolver, cls)
        case _:
            return None


def _is_made_by(value: Value, name: str) -> bool:
    return (
        isinstance(value, Made) and isinstance(value.maker, External) and value.maker.name == name
    )


def _are_numbers(resolver: Resolver, indices: ast.expr | None, module: Module) -> bool:
    """Whether ``indices`` are whole numbers of Python: others do not index as a list does."""
    if indices is None:
        return False
    values = resolver.values(indices, module)
    return bool(values) and all(_is_made_by(value, "builtins.range") for value in values)


def _of_class(resolver: Resolver, cls: Class) -> IndexedTensors | None:
    if not extends_torch_only(resolver, cls):
        return None
    defined = {name: class_attribute(resolver, cls, name) for name in ("__getitem__", "__len__")}
    others = ("__getitems__", "__iter__", "__getattr__", "__getattribute__")
    if any(class_attribute(resolver, cls, name) for name in others) or not defined["__len__"]:
        return None
    tensors: list[tuple[ast.expr, Module]] = []
    for method in defined["__getitem__"]:
        attributes = _looked_up(method.node) if isinstance(method, Function) else []
        if not attributes or any(_is_set_from_outside(resolver, cls, a.attr) for a in attributes):
            return None
        assert isinstance(method, Function)
        tensors += [(attribute, method.module) for attribute in attributes]
    found = _found(resolver, f"`{cls.node.name}`", tensors)
    return found if tensors and found.layout is not Layout.UNKNOWN else None


def _found(resolver: Resolver, name: str, tensors: list[tuple[ast.expr, Module]]) -> IndexedTensors:
    layouts = [layout(resolver, *tensor) for tensor in tensors]
    rows = [row_numbers(resolver, *tensor) for tensor in tensors]
    return IndexedTensors(name, min(layouts, default=Layout.CONTIGUOUS), max(rows, default=0))


def _looked_up(method: ast.AST) -> list[ast.Attribute]:
    """The attributes of ``self`` of which ``__getitem__`` returns the row it is asked for; none where it does more."""
    match method:
        case ast.FunctionDef(
            args=ast.arguments(
                args=[instance, index], vararg=None, kwonlyargs=[], kwarg=None, posonlyargs=[]
            ),
            decorator_list=[],
        ):
            return _Rows(instance.arg, index.arg).returned(method.body) or []
        case _:
            return []


class _Rows:
    """Which expressions of a ``__getitem__`` hold row ``index`` of attributes of ``instance``, and nothing else."""

    def __init__(self, instance: str, index: str) -> None:
        self._asked = (instance, index)
        self._known: dict[str, list[ast.Attribute] | None] = {instance: None, index: None}

    def returned(self, body: list[ast.stmt]) -> list[ast.Attribute] | None:
        """The attributes behind what ``body`` returns, if it is straight code."""
        for statement in body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if (
                    name not in self._known
                ):
                    self._known[name] = self._of(value)
                case ast.Return(value=ast.expr() as value):
                    return self._of(value)
                case _ if is_docstring(statement):
                    continue
                case _:
                    return None
        return None

    def _of(self, node: ast.expr) -> list[ast.Attribute] | None:
        match node:
            case ast.Name(id=name):
                return self._known.get(name)
            case ast.Subscript(
                value=ast.Attribute(value=ast.Name(id=owner)) as attribute, slice=ast.Name(id=key)
            ) if (owner, key) == self._asked:
                return [attribute]
            case ast.Call(
                func=ast.Attribute(value=ast.Subscript() | ast.Name() as row, attr=method),
                args=[],
                keywords=[],
            ) if method in _CASTS:
                return self._of(row)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return self._of_all(parts)
            case ast.Dict(keys=keys, values=parts):
                known = all(isinstance(key, ast.Constant) for key in keys)
                return self._of_all(parts) if known else None
            case _:
                return None

    def _of_all(self, parts: list[ast.expr]) -> list[ast.Attribute] | None:
        found = [self._of(part) for part in parts]
        known = [one for one in found if one is not None]
        return [one for some in known for one in some] if len(known) == len(found) else None


def _is_set_from_outside(resolver: Resolver, cls: Class, name: str) -> bool:
    """Whether other code than the class's own gives an instance another attribute ``name``."""
    return any(
        node.attr == name
        and not isinstance(node.ctx, ast.Load)
        and any(_may_be(value, cls) for value in resolver.values(node.value, module))
        for module in resolver.project.modules
        for node in module.nodes_of(ast.Attribute)
    )


def _may_be(value: Value, cls: Class) -> bool:
    if isinstance(value, Made):
        return value.maker == cls
    return isinstance(value, Unknown | Attribute | Element | Display)


def layout(resolver: Resolver, node: ast.expr, module: Module, depth: int = 0) -> Layout:
    """What is known of ``node``, whose values may be several."""
    if isinstance(node, ast.Starred) or depth > _DEEPEST:
        return Layout.UNKNOWN
    values = resolver.values(node, module)
    return min((_layout(resolver, value, depth + 1) for value in values), default=Layout.UNKNOWN)


def _layout(resolver: Resolver, value: Value, depth: int) -> Layout:
    match value:
        case Made(call, module, External(name)) if name.startswith("torch."):
            _, maker, *methods = name.split(".")
            if maker in _NEW or maker in _SHARED:
                made = Layout.CONTIGUOUS if maker in _NEW else Layout.TENSOR
            elif maker in _ELEMENTWISE and call.args and not methods:
                made = layout(resolver, call.args[0], module, depth)
            else:
                return Layout.UNKNOWN
            return min([made, *map(_kept, methods)])
        case Element(whole, path) if set(path) == {SLICE}:
            return _layout(resolver, whole, depth)
        case Display(ast.BinOp(left=left, right=right), module):
            return _together(resolver, (left, right), module, depth)
        case Display(ast.Compare(left=left, comparators=[right]), module):
            return _together(resolver, (left, right), module, depth)
        case Display(ast.UnaryOp(operand=operand), module):
            return layout(resolver, operand, module, depth)
        case Display(ast.Call(func=ast.Attribute(value=receiver, attr=method)), module):
            return min(layout(resolver, receiver, module, depth), _kept(method))
        case _:
            return Layout.UNKNOWN


def _kept(method: str) -> Layout:
    if method in _KEEP:
        return Layout.CONTIGUOUS
    return Layout.TENSOR if method in _REORDER else Layout.UNKNOWN


def _together(
    resolver: Resolver, operands: Iterable[ast.expr], module: Module, depth: int
) -> Layout:
    """Of tensors and numbers: a tensor, if there is one."""
    tensors = [
        layout(resolver, operand, module, depth)
        for operand in operands
        if not _is_number(resolver, operand, module)
    ]
    return min(tensors, default=Layout.UNKNOWN)


def _is_number(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    values = resolver.values(node, module)
    return bool(values) and all(
        isinstance(v, Literal) and isinstance(v.value, int | float) for v in values
    )
