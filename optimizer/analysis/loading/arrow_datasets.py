"""Datasets of Hugging Face's ``datasets`` library: Arrow tables on disk, which every process can map into memory."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..values.composition import call_arguments
from ..values.resolver import Resolver
from ..values.values import Attribute, Display, Element, External, Literal, Made, Value

_MAKERS = frozenset(
    {
        "datasets.load_dataset",
        "datasets.load_from_disk",
        "datasets.concatenate_datasets",
        "datasets.interleave_datasets",
    }
)
_MAKER_METHODS = ("datasets.Dataset.from_", "datasets.DatasetDict.")
_DERIVING_METHODS = frozenset(
    "map filter select shuffle sort shard with_format with_transform train_test_split remove_columns select_columns "
    "rename_column rename_columns add_column cast cast_column flatten class_encode_column".split()
)
_TRANSFORM_METHODS = frozenset({"with_transform", "set_transform"})


def arrow_maker(resolver: Resolver, value: Value) -> Made | None:
    """The call that loads the Arrow dataset ``value`` is, or is derived from; None for everything else.

    A streamed dataset is none.
    """
    match value:
        case Made(call, _, External(name)):
            loader = _maker_name(name)
            if loader is None or _is_streamed(resolver, value):
                return None
            if name == loader:
                return value
            if isinstance(call.func, ast.Attribute):
                return _first(resolver, call.func.value, value)
            return None
        case Element(inner, _) | Attribute(inner, _):
            return arrow_maker(resolver, inner)
        case Display(ast.Call(func=ast.Attribute(value=receiver, attr=method))):
            return _first(resolver, receiver, value) if method in _DERIVING_METHODS else None
        case _:
            return None


def _first(resolver: Resolver, receiver: ast.expr, value: Made | Display) -> Made | None:
    makers = [arrow_maker(resolver, v) for v in resolver.values(receiver, value.module)]
    return makers[0] if makers and None not in makers else None


def _maker_name(name: str) -> str | None:
    """The loading function at the start of a chain such as ``datasets.load_dataset.map.with_format``."""
    for maker in _MAKERS:
        if name == maker:
            return name
        if name.startswith(f"{maker}."):
            methods = name.removeprefix(f"{maker}.").split(".")
            return maker if set(methods) <= _DERIVING_METHODS else None
    if name.startswith(_MAKER_METHODS):
        return name if name.count(".") == 2 else None
    return None


def _is_streamed(resolver: Resolver, made: Made) -> bool:
    for keyword in made.call.keywords:
        if keyword.arg == "streaming":
            values = resolver.values(keyword.value, made.module)
            return not all(isinstance(v, Literal) and v.value is False for v in values)
    return False


def transform_arguments(resolver: Resolver) -> Iterator[Value]:
    """What the project hands to ``set_transform`` and ``with_transform``, to run for every item."""
    for module in resolver.project.modules:
        for call in module.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr in _TRANSFORM_METHODS:
                for argument in call_arguments(call):
                    yield from resolver.values(argument, module)
