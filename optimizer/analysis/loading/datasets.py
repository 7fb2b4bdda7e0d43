"""What a DataLoader reads: the datasets behind it and the user's code that runs for each item and batch."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from ..calls.reach import Reached, lexical_nodes, reached_nodes
from ..calls.signatures import call_argument
from ..facts import Argument, DataLoader, Fact, excerpt
from ..program.classes import class_attribute
from ..program.syntax import Module, last_identifier
from ..values.additions import Additions
from ..values.composition import call_arguments, composed_of
from ..values.resolver import Resolver
from ..values.values import (
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
    innermost,
)
from .arrow_datasets import arrow_maker, transform_arguments

_TORCH_BASES = frozenset(
    {"torch.utils.data.Dataset", "typing.Generic", "builtins.object", "abc.ABC"}
)
ITERABLE_DATASET = "torch.utils.data.IterableDataset"
_WRAPPING = frozenset(
    {
        "torch.utils.data.Subset",
        "torch.utils.data.ConcatDataset",
        "torch.utils.data.ChainDataset",
        "torch.utils.data.StackDataset",
        "torch.utils.data.random_split",
    }
)
_SEQUENCES = frozenset(
    {"builtins.list", "builtins.tuple", "builtins.range", "builtins.zip", "builtins.sorted"}
)
_TENSOR_MAKERS = frozenset(
    f"torch.{name}"
    for name in (
        "tensor as_tensor from_numpy Tensor FloatTensor LongTensor zeros ones empty full rand randn randint normal arange "
        "linspace eye cat concat stack vstack hstack"
    ).split()
)
_ITEM_METHODS = ("__getitem__", "__getitems__", "__iter__")


class DatasetKind(Enum):
    """What kind of thing a dataset is.

    ``OWN``: a class of the project. ``LIBRARY``: a dataset of torchvision or torchaudio, which load and decode files and
    hold nothing that a worker process could not copy. ``IN_MEMORY``: tensors or a list, items are only indexed.
    ``FOREIGN``: made by a library we do not know. ``UNKNOWN``: not traceable.
    """

    OWN = "own"
    LIBRARY = "library"
    IN_MEMORY = "in memory"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"


@dataclass(frozen=True, eq=False)
class Dataset(Fact):
    """One dataset a loader may read; ``node`` is the call that makes it.

    ``name`` is how to call it in a message; ``cls`` its class for ``OWN``; ``item_code`` the project's own code that
    runs to make an item, transforms included.
    """

    kind: DatasetKind
    name: str
    cls: Class | None = None
    item_code: tuple[Reached, ...] = ()


def find_datasets(resolver: Resolver, loader: DataLoader) -> tuple[Dataset, ...]:
    """The datasets ``loader`` may read, seen through subsets, splits and concatenations."""
    argument = loader.arguments.get("dataset")
    found: dict[ast.AST, Dataset] = {}
    if argument is not None:
        for dataset in _datasets(resolver, argument.value, argument.module, set()):
            found.setdefault(dataset.node, dataset)
    if not found:  # `ConcatDataset(parts)` of a list that is filled out of sight, say
        return (Dataset(loader.module, loader.node, DatasetKind.UNKNOWN, "its dataset"),)
    return tuple(sorted(found.values(), key=lambda d: (str(d.path), d.span)))


def function_code(resolver: Resolver, argument: Argument | None) -> tuple[Reached, ...] | None:
    """The project's code behind a function-like argument of a loader (``collate_fn``), library functions left out.

    None when the argument cannot be traced.
    """
    if argument is None:
        return ()
    values = resolver.values(argument.value, argument.module)
    if any(isinstance(value, Unknown) for value in values):
        return None
    return _item_code(resolver, list(_callables(resolver, values)))


def _datasets(
    resolver: Resolver, expression: ast.expr, module: Module, seen: set[ast.expr]
) -> Iterator[Dataset]:
    if expression in seen:
        return
    seen.add(expression)
    values = resolver.values(expression, module)
    # `dataset = "CIFAR10"` turned into the dataset of that name in the branches before: what is left is no dataset.
    made = [value for value in values if not isinstance(value, Literal)]
    for value in made or values:
        arrow = arrow_maker(resolver, value)
        if arrow is not None:
            yield _arrow_dataset(resolver, arrow)
            continue
        if isinstance(value, Element):
            value = innermost(value)
            if not (isinstance(value, Made) and _maker_name(value) in _WRAPPING):
                yield _unknown(expression, module)
                continue
        yield from _datasets_of_value(resolver, value, expression, module, seen)


def _datasets_of_value(
    resolver: Resolver, value: Value, expression: ast.expr, module: Module, seen: set[ast.expr]
) -> Iterator[Dataset]:
    match value:
        case Made(call, owner, Class() as cls):
            yield _own_dataset(resolver, call, owner, cls)
        case Made(call, owner, External(name)) if name in _WRAPPING:
            wrapped = call_argument(call, "dataset", 0) or call_argument(call, "datasets", 0)
            arguments = call.args if name.endswith("StackDataset") else [wrapped or expression]
            for argument in arguments:
                for part, place in _elements(resolver, argument, owner):
                    yield from _datasets(resolver, part, place, seen)
        case Made(call, owner, External(name)):
            yield _library_dataset(resolver, call, owner, name)
        case Attribute(Made(call, owner), "dataset"):
            dataset = call_argument(call, "dataset", 0)
            if dataset is None:
                yield _unknown(expression, module)
            else:
                yield from _datasets(resolver, dataset, owner, seen)
        case Display(ast.BinOp(left=left, op=ast.Add(), right=right), owner):
            yield from _datasets(resolver, left, owner, seen)
            yield from _datasets(resolver, right, owner, seen)
        case Display(ast.List() | ast.Tuple() | ast.ListComp() | ast.Dict() as node, owner):
            yield Dataset(owner, node, DatasetKind.IN_MEMORY, "a list in memory")
        case _:
            yield _unknown(expression, module)


def _elements(
    resolver: Resolver,
    expression: ast.expr,
    module: Module,
    within: frozenset[ast.expr] = frozenset(),
) -> list[tuple[ast.expr, Module]]:
    """The parts of lists of datasets written out, and what is put into them later; else the expression itself.

    ``within`` are the lists that it is put into.
    """
    found: list[tuple[ast.expr, Module]] = []
    for value in resolver.values(expression, module):
        match value:
            case Display(node) if node in within:
                continue
            case Display(ast.List() | ast.Tuple() as node, owner):
                found += [(part, owner) for part in node.elts]
                found += _put_in(resolver, node, owner, within | {node})
            case Display(ast.ListComp() as node, owner):
                found += [(node.elt, owner), *_put_in(resolver, node, owner, within | {node})]
            case _:
                return [(expression, module)]
    return found


def _put_in(
    resolver: Resolver, made: ast.expr, module: Module, within: frozenset[ast.expr]
) -> Iterator[tuple[ast.expr, Module]]:
    """What is put into the list ``made``, by the names it is given where it is made."""
    statement = module.statement(made)
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is not made:
        return
    additions = Additions(resolver)
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        match target:
            case ast.Name(id=name):
                held = module.scope(target).lookup(name)
                stored = [s for b in (held[1] if held else ()) for s in additions.to_binding(b)]
            case ast.Attribute(attr=name):
                stored = additions.to_attribute(name)
            case _:
                stored = []
        for value, owner in stored:
            call = owner.parents.get(value)
            if isinstance(call, ast.Call) and last_identifier(call.func) == "extend":
                yield from _elements(resolver, value, owner, within)
            elif not isinstance(value, ast.Constant):  # `parts.insert(0, part)`
                yield value, owner


def _maker_name(value: Made) -> str:
    return value.maker.name if isinstance(value.maker, External) else value.maker.node.name


def _unknown(expression: ast.expr, module: Module) -> Dataset:
    code = excerpt(module, expression)
    return Dataset(module, expression, DatasetKind.UNKNOWN, f"`{code}`")


def _library_dataset(resolver: Resolver, call: ast.Call, module: Module, name: str) -> Dataset:
    if name == "torch.utils.data.TensorDataset":
        return Dataset(module, call, DatasetKind.IN_MEMORY, "a TensorDataset")
    if name in _SEQUENCES:
        return Dataset(module, call, DatasetKind.IN_MEMORY, "a sequence in memory")
    if name in _TENSOR_MAKERS:
        return Dataset(module, call, DatasetKind.IN_MEMORY, "a tensor")
    if not is_known_library(name):
        # What no import binds counts as a builtin, such as a name from a star import that is not there.
        # A class picked from a namespace has no name of its own: `datasets.__dict__[args.dataset]`.
        shown = module.code(call.func) if "<any>" in name else name.removeprefix("builtins.")
        return Dataset(module, call, DatasetKind.FOREIGN, f"`{shown}`")
    code = _item_code(resolver, list(_callables_of_call(resolver, call, module)))
    return Dataset(module, call, DatasetKind.LIBRARY, f"`{name}`", None, code)


def _arrow_dataset(resolver: Resolver, maker: Made) -> Dataset:
    code = _item_code(resolver, list(_callables(resolver, transform_arguments(resolver))))
    name = f"`{_maker_name(maker)}`"
    return Dataset(maker.module, maker.call, DatasetKind.LIBRARY, name, None, code)


def is_known_library(name: str) -> bool:
    """Whether a library name is a map-style dataset that is known to work in worker processes."""
    package, _, last = name.rpartition(".")
    if name == "torchvision.datasets.LSUN":
        return False  # It holds an open LMDB environment.
    return package in {"torchvision.datasets", "torchaudio.datasets"} and last[:1].isupper()


def _own_dataset(resolver: Resolver, call: ast.Call, module: Module, cls: Class) -> Dataset:
    name = f"`{cls.node.name}`"
    bases = resolver.base_names(cls)
    methods = [m for n in _ITEM_METHODS for m in class_attribute(resolver, cls, n)]
    known_bases = {base for base in bases if is_known_library(base)}
    roots: list[_Root] = [
        (_body(method), method.module) for method in methods if isinstance(method, Function)
    ]
    if not roots and not known_bases:
        return Dataset(module, call, DatasetKind.UNKNOWN, name, cls)
    foreign = bases - known_bases - _TORCH_BASES - {ITERABLE_DATASET}
    if foreign:
        return Dataset(module, call, DatasetKind.FOREIGN, f"{name}, a `{min(foreign)}`", cls)
    roots += _callables_of_call(resolver, call, module)
    if known_bases:
        roots += _callables_for_base(resolver, cls)
    return Dataset(
        module,
        call,
        DatasetKind.LIBRARY if known_bases and not methods else DatasetKind.OWN,
        name,
        cls,
        _item_code(resolver, roots),
    )


_Root = tuple[list[ast.AST], Module]


def _body(function: Function) -> list[ast.AST]:
    node = function.node
    return [node.body] if isinstance(node, ast.Lambda) else list(node.body)


def _callables_for_base(resolver: Resolver, cls: Class) -> Iterator[_Root]:
    """What ``__init__`` hands to the library class it extends: ``super().__init__(root, transform=...)``."""
    for node in lexical_nodes(cls.node.body):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for inner in lexical_nodes(node.body):
                is_init = isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute)
                if is_init and inner.func.attr == "__init__":  # type: ignore[union-attr]
                    yield from _callables_of_call(resolver, inner, cls.module)  # type: ignore[arg-type]


def _callables_of_call(resolver: Resolver, call: ast.Call, module: Module) -> Iterator[_Root]:
    for argument in call_arguments(call):
        yield from _callables(resolver, resolver.values(argument, module))


def _callables(resolver: Resolver, values: Iterable[Value]) -> Iterator[_Root]:
    """The bodies of the project's functions, lambdas and callable objects among ``values`` or inside them."""
    for value in composed_of(resolver, values):
        match value:
            case Function():
                yield _body(value), value.module
            case Made(_, _, Class() as cls):
                for name in ("__call__", "forward"):
                    for method in class_attribute(resolver, cls, name):
                        if isinstance(method, Function):
                            yield _body(method), method.module
            case _:
                pass


def _item_code(resolver: Resolver, roots: list[_Root]) -> tuple[Reached, ...]:
    """The code of ``roots`` and everything of the project it calls, also through indexing and library callables."""
    found: dict[ast.AST, Reached] = {}
    pending = list(roots)
    while pending:
        nodes, module = pending.pop()
        if not nodes or nodes[0] in found:
            continue
        for reached in reached_nodes(resolver, nodes, module, into_forward=True):
            node = reached.node
            if node in found:
                continue
            found[node] = reached
            if isinstance(node, ast.Call):
                made = [
                    v for v in resolver.values(node.func, reached.module) if isinstance(v, Made)
                ]
                pending += _callables(resolver, made)
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                for value in resolver.values(node.value, reached.module):
                    pending += _indexed(resolver, value)
    return tuple(found.values())


def _indexed(resolver: Resolver, value: Value) -> Iterator[_Root]:
    """The code that runs when a dataset that another one wraps is indexed."""
    if not isinstance(value, Made):
        return
    if isinstance(value.maker, Class):
        for method in class_attribute(resolver, value.maker, "__getitem__"):
            if isinstance(method, Function):
                yield _body(method), method.module
    elif is_known_library(value.maker.name) or value.maker.name in _WRAPPING:
        yield from _callables_of_call(resolver, value.call, value.module)
        for argument in value.call.args[:1]:
            for inner in resolver.values(argument, value.module):
                yield from _indexed(resolver, inner)


def makes_items(resolver: Resolver, value: Value) -> bool:
    """Whether indexing ``value`` runs a library dataset that loads and decodes, perhaps through a subset of it."""
    if not isinstance(value, Made) or not isinstance(value.maker, External):
        return False
    if value.maker.name in _WRAPPING:
        inner = [v for a in value.call.args[:1] for v in resolver.values(a, value.module)]
        return any(makes_items(resolver, v) for v in inner)
    return is_known_library(value.maker.name)


def extends_torch_only(resolver: Resolver, cls: Class) -> bool:
    """Whether ``cls`` is a dataset that has nothing but what the project's own classes give it."""
    return resolver.base_names(cls) <= _TORCH_BASES


def is_iterable(resolver: Resolver, dataset: Dataset) -> bool:
    """Whether a dataset is a stream (``IterableDataset``): each worker runs all of it unless it shards itself."""
    return dataset.cls is not None and ITERABLE_DATASET in resolver.base_names(dataset.cls)
