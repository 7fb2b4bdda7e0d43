"""Which files the project's datasets read for each item, and how to name all of them when a dataset is made."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..calls.reach import lexical_nodes
from ..calls.signatures import call_argument
from ..facts import Fact
from ..program.classes import first_party_bases
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import Class, External, Made
from .datasets import Dataset, DatasetKind
from .file_paths import Untraced, every_path

_READERS = {
    "PIL.Image.open": "fp",
    "numpy.load": "file",
    "torch.load": "f",
    "builtins.open": "file",
}
"""Functions that read a file given by path, or an open one; with the name of that parameter, their first."""
_PATHS_ONLY = frozenset({"cv2.imread", "torchvision.io.read_image", "torchaudio.load"})
_FILE_OBJECTS = frozenset({"builtins.open", "io.BytesIO", "gzip.open"})
_OF_FILES = frozenset({"name", "filename", "fileno", "fp"})
"""Attributes of an open file, or of an image, that bytes in memory do not have."""
_WRITES = frozenset(
    {
        "cv2.imwrite",
        "numpy.save",
        "numpy.savez",
        "torch.save",
        "os.remove",
        "os.unlink",
        "os.rename",
    }
)
_WRITING_METHODS = frozenset({"save", "write_bytes", "write_text", "unlink"})


@dataclass(frozen=True, eq=False)
class FileRead(Fact):
    """A call that reads the file ``named`` for an item.

    ``every`` is an expression for the list of all such files, valid at the end of ``__init__``; ``obstacle`` says why there
    is none. ``argument`` is what an open file can stand in for: the path, or the whole call where that opens the file.
    """

    node: ast.Call
    argument: ast.expr
    named: ast.expr
    every: str | None
    obstacle: str | None


@dataclass(frozen=True, eq=False)
class FileReader(Fact):
    """A dataset class of the project that reads files; ``obstacle`` says why what it reads is not known when it is made.

    ``init`` is its ``__init__``, when there is no obstacle.
    """

    node: ast.ClassDef
    reads: tuple[FileRead, ...]
    init: FunctionNode | None
    obstacle: str | None


def find_file_readers(resolver: Resolver, datasets: Sequence[Dataset]) -> tuple[FileReader, ...]:
    """The classes among ``datasets`` whose items come from files, each once."""
    classes = {d.cls.node: d for d in datasets if d.kind is DatasetKind.OWN and d.cls is not None}
    return tuple(
        reader
        for dataset in classes.values()
        if dataset.cls and (reader := _reader(resolver, dataset, dataset.cls)) is not None
    )


def _reader(resolver: Resolver, dataset: Dataset, cls: Class) -> FileReader | None:
    methods = {m.name: m for m in cls.node.body if isinstance(m, ast.FunctionDef)}
    init, getitem = methods.get("__init__"), methods.get("__getitem__")
    if getitem is None:
        return None
    reads = tuple(_reads(resolver, dataset, cls, getitem, init))
    obstacle = _class_obstacle(resolver, cls, init)
    return FileReader(cls.module, cls.node, reads, init, obstacle) if reads else None


def _reads(
    resolver: Resolver,
    dataset: Dataset,
    cls: Class,
    getitem: ast.FunctionDef,
    init: ast.FunctionDef | None,
) -> Iterator[FileRead]:
    for reached in dataset.item_code:
        call, module = reached.node, reached.module
        if not isinstance(call, ast.Call):
            continue
        names = resolver.names(call.func, module)
        if names & _PATHS_ONLY:
            takes = f"`{module.code(call.func)}` takes a path and no bytes"
            yield FileRead(module, call, call, call, None, takes)
        for name in names & _READERS.keys():
            path = call_argument(call, _READERS[name], 0)
            if path is None or _is_open_file(resolver, path, module):
                continue
            if module.function(call) is not getitem:
                if module.enclosing_class(call) in {None, cls.node}:
                    inside = "the file is opened in a function that `__getitem__` calls, not in `__getitem__` itself"
                    yield FileRead(module, call, path, path, None, inside)
                continue
            obstacle = _call_obstacle(call, name) or _asked_for_file(resolver, dataset, call)
            traced = every_path(resolver, path, cls, getitem, init)
            if isinstance(traced, Untraced):
                yield FileRead(module, call, path, path, None, obstacle or traced.why)
            else:
                argument = call if name == "builtins.open" else path
                yield FileRead(module, call, argument, path, traced, obstacle)


def _is_open_file(resolver: Resolver, path: ast.expr, module: Module) -> bool:
    return any(
        isinstance(value, Made)
        and isinstance(value.maker, External)
        and value.maker.name in _FILE_OBJECTS
        for value in resolver.values(path, module)
    )


def _call_obstacle(call: ast.Call, name: str) -> str | None:
    if name == "builtins.open":
        mode = call_argument(call, "mode", 1)
        is_binary = isinstance(mode, ast.Constant) and mode.value == "rb"
        return (
            None
            if is_binary and len(call.args) + len(call.keywords) == 2
            else "it is opened as text"
        )
    mapped = call_argument(call, "mmap_mode") or call_argument(call, "mmap")
    return "it is mapped into memory, not read" if mapped is not None else None


def _asked_for_file(resolver: Resolver, dataset: Dataset, call: ast.Call) -> str | None:
    """Why bytes in memory cannot stand in for the file that ``call`` opens: they have no name and no descriptor."""
    for reached in dataset.item_code:
        node, module = reached.node, reached.module
        if not isinstance(node, ast.Attribute) or node.attr not in _OF_FILES:
            continue
        values = resolver.values(node.value, module)
        if any(isinstance(value, Made) and value.call is call for value in values):
            return f"`{module.code(node)}` asks for the file itself"
    return None


def _class_obstacle(resolver: Resolver, cls: Class, init: ast.FunctionDef | None) -> str | None:
    name = cls.node.name
    if init is None or not init.args.args:
        return f"`{name}` has no `__init__` of its own"
    if any(isinstance(node, ast.Return) for node in lexical_nodes(init.body)):
        return f"`__init__` of `{name}` may return before its end"
    if "__slots__" in cls.module.code(cls.node):
        return f"`{name}` has `__slots__`"
    for module in resolver.project.modules:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and cls in first_party_bases(
                resolver, Class(node, module)
            ):
                return f"`{node.name}` derives from `{name}`"
    for node in lexical_nodes(cls.node.body):
        if isinstance(node, ast.FunctionDef):
            for inner in walk(node):
                if isinstance(inner, ast.Call) and _writes(resolver, inner, cls.module):
                    return f"`{name}` writes files too (`{cls.module.code(inner.func)}`)"
    return None


def _writes(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr in _WRITING_METHODS:
        return True
    names = resolver.names(call.func, module)
    if "builtins.open" in names:
        mode = call_argument(call, "mode", 1)
        return mode is not None and not (
            isinstance(mode, ast.Constant) and str(mode.value) in {"r", "rb", "rt"}
        )
    return bool(names & _WRITES)
