"""Whether making an item costs anything: what merely indexes memory is not worth a worker process, nor always what is only read."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..calls.reach import Reached
from ..values.resolver import Resolver
from ..values.values import Literal
from .datasets import Dataset, DatasetKind, makes_items

_FILLS = "zeros ones empty full arange zeros_like ones_like empty_like full_like".split()
"""Functions of torch and numpy that fill memory, which handing the result to another process takes as well."""
_DRAWS_INDEX = "torch.randint numpy.random.randint random.randint random.randrange".split()
"""Where a sample starts: ``start = torch.randint(0, len(text) - length, (1,))``."""
_CHEAP_FUNCTIONS = frozenset(
    {
        *(f"{library}.{name}" for library in ("torch", "numpy") for name in _FILLS),
        *_DRAWS_INDEX,
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
_READS = _CHEAP_FUNCTIONS | {"torch.load", "numpy.load", "numpy.fromfile", "builtins.open"}
_READING_MODULES = frozenset({"os.path", "pathlib"})
_READING_METHODS = frozenset(
    {*_CHEAP_METHODS, *"read readline open index format split strip replace joinpath".split()}
)
_LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SIZES = (ast.Tuple, ast.List, ast.Constant)
_SLOW_LOOKUPS = frozenset({"iloc", "loc", "iat", "at"})
"""Indexers of pandas, which make a new object for every row."""


@dataclass(frozen=True)
class _Cheap:
    """What costs next to nothing: functions by their names, or by their modules', and methods."""

    functions: frozenset[str]
    modules: frozenset[str]
    methods: frozenset[str]
    rows: bool = False
    """Whether a row of a pandas frame counts as such: it takes some 0.1 ms."""


_INDEXING = _Cheap(_CHEAP_FUNCTIONS, frozenset(), _CHEAP_METHODS)
_ROWS = _Cheap(_CHEAP_FUNCTIONS, frozenset(), _CHEAP_METHODS, rows=True)
_READING = _Cheap(_READS, _READING_MODULES, _READING_METHODS)


def only_indexes(resolver: Resolver, dataset: Dataset) -> bool:
    """Whether the items of ``dataset`` are only looked up in memory, filled with numbers and wrapped in tensors."""
    return _consists_of(_INDEXING, resolver, dataset)


def only_looks_up(resolver: Resolver, dataset: Dataset) -> bool:
    """Whether no more is done for the items of ``dataset`` than to look them up in memory, in frames of pandas, too."""
    return _consists_of(_ROWS, resolver, dataset)


def only_reads(resolver: Resolver, dataset: Dataset) -> bool:
    """Whether no more is done for the items of ``dataset`` than to look them up, or to read a file as it is."""
    return _consists_of(_READING, resolver, dataset)


def _consists_of(cheap: _Cheap, resolver: Resolver, dataset: Dataset) -> bool:
    if dataset.kind is DatasetKind.IN_MEMORY:
        return True
    if dataset.kind is not DatasetKind.OWN:
        return False
    return all(_is_cheap(cheap, resolver, reached) for reached in dataset.item_code)


def _is_cheap(cheap: _Cheap, resolver: Resolver, reached: Reached) -> bool:
    node = reached.node
    if isinstance(node, _LOOPS) or (isinstance(node, ast.With) and cheap is not _READING):
        return False
    if isinstance(node, ast.Attribute):
        return cheap.rows or node.attr not in _SLOW_LOOKUPS
    if isinstance(node, ast.Subscript):
        values = resolver.values(node.value, reached.module)
        return not any(makes_items(resolver, value) for value in values)
    if not isinstance(node, ast.Call):
        return True
    if isinstance(node.func, ast.Attribute) and node.func.attr in cheap.methods:
        names = resolver.names(node.func, reached.module)
        return all(_is_named(name, cheap) for name in names)
    callees = resolver.callees(node, reached.module)
    if callees:
        # Their own code is part of what is looked at.
        return True
    values = resolver.values(node.func, reached.module)
    never_called = all(isinstance(v, Literal) and v.value is None for v in values)
    names = resolver.names(node.func, reached.module)
    if names & set(_DRAWS_INDEX) and not _draws_one(node):
        return False
    return never_called or (
        len(names) == len(values) and all(_is_named(name, cheap) for name in names)
    )


def _draws_one(call: ast.Call) -> bool:
    """Whether ``torch.randint(0, 9, (1,))`` draws one number, or as few as it says: a whole image of them takes its time."""
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "size")]
    sizes = [size for size in given if isinstance(size, (ast.Tuple, ast.List))]
    is_told = all(isinstance(k.value, _SIZES) for k in call.keywords if k.arg == "size")
    return is_told and all(
        len(size.elts) <= 1 and all(isinstance(length, ast.Constant) for length in size.elts)
        for size in sizes
    )


def _is_named(name: str, cheap: _Cheap) -> bool:
    return name in cheap.functions or name.rpartition(".")[0] in cheap.modules
