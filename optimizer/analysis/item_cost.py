"""Whether making an item costs anything: what merely indexes memory is not worth a worker process."""

from __future__ import annotations

import ast

from .datasets import Dataset, DatasetKind, makes_items
from .reach import Reached
from .resolver import Resolver
from .values import Literal

_FILLS = "zeros ones empty full arange zeros_like ones_like empty_like full_like".split()
"""Functions of torch and numpy that fill memory, which handing the result to another process takes as well."""
_CHEAP_FUNCTIONS = frozenset(
    {
        *(f"{library}.{name}" for library in ("torch", "numpy") for name in _FILLS),
        "torch.tensor",
        "torch.as_tensor",
        "torch.from_numpy",
        "torch.is_tensor",
        "torch.Tensor",
        "torch.FloatTensor",
        "torch.LongTensor",
        "torch.IntTensor",
        "numpy.array",
        "numpy.asarray",
        "numpy.float32",
        "numpy.int64",
        *(
            f"builtins.{name}"
            for name in "int float bool str len tuple dict isinstance min max super".split()
        ),
    }
)
_CHEAP_METHODS = frozenset(
    "float long int bool double half to type astype item tolist numpy copy clone detach contiguous view reshape "
    "permute transpose squeeze unsqueeze size dim get keys items".split()
)
_LOOPS = (
    ast.For,
    ast.While,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.With,
)
_SLOW_LOOKUPS = frozenset({"iloc", "loc", "iat", "at"})
"""Indexers of pandas, which make a new object for every row."""


def only_indexes(resolver: Resolver, dataset: Dataset) -> bool:
    """Whether the items of ``dataset`` are only looked up in memory, filled with constants and wrapped in tensors."""
    if dataset.kind is DatasetKind.IN_MEMORY:
        return True
    if dataset.kind is not DatasetKind.OWN:
        return False
    return all(_is_cheap(resolver, reached) for reached in dataset.item_code)


def _is_cheap(resolver: Resolver, reached: Reached) -> bool:
    node = reached.node
    if isinstance(node, _LOOPS):
        return False
    if isinstance(node, ast.Attribute):
        return node.attr not in _SLOW_LOOKUPS
    if isinstance(node, ast.Subscript):
        values = resolver.values(node.value, reached.module)
        return not any(makes_items(resolver, value) for value in values)
    if not isinstance(node, ast.Call):
        return True
    if isinstance(node.func, ast.Attribute) and node.func.attr in _CHEAP_METHODS:
        return not resolver.names(node.func, reached.module)
    callees = resolver.callees(node, reached.module)
    if callees:
        # Their own code is part of what is looked at.
        return True
    values = resolver.values(node.func, reached.module)
    never_called = all(isinstance(v, Literal) and v.value is None for v in values)
    names = resolver.names(node.func, reached.module)
    return never_called or (len(names) == len(values) and names <= _CHEAP_FUNCTIONS)
