"""How all the paths that a dataset's ``__getitem__`` may read are written where the dataset is made."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..calls.reach import lexical_nodes
from ..editing.splice import Piece, bounds, spliced
from ..program.syntax import Module
from ..program.trees import child_nodes, walk
from ..values.additions import Additions
from ..values.composition import composed_of
from ..values.resolver import Resolver
from ..values.values import Class, Display, External, Literal, Made, Value, innermost

_LISTS = frozenset(
    {
        "builtins.list",
        "builtins.sorted",
        "builtins.tuple",
        "glob.glob",
        "os.listdir",
        "natsort.natsorted",
    }
)
_PATHS = frozenset({"glob.glob", "os.listdir", "os.path.join", "os.path.abspath", "pathlib.Path"})
_PATH_METHODS = ("glob", "rglob", "iterdir", "joinpath", "with_suffix", "readlines", "splitlines")
_MAKE_PATHS = frozenset({"os.path.join", "pathlib.Path", "builtins.str", "os.fspath"})
_STR_METHODS = frozenset("replace format joinpath with_suffix with_name strip rstrip zfill".split())

_NAMES = ("name", "file_name", "file_name_")
"""For an element of the list, where `__getitem__` has no name for it."""


@dataclass(frozen=True)
class Untraced:
    """``why`` says what the path depends on that ``__init__`` does not know."""

    why: str


@dataclass(frozen=True)
class _Picked:
    """An element of a list of ``self``: the list as it is written, and the target it is unpacked into."""

    items: ast.Subscript
    target: ast.expr | None


def every_path(
    resolver: Resolver,
    path: ast.expr,
    cls: Class,
    getitem: ast.FunctionDef,
    init: ast.FunctionDef | None,
) -> str | Untraced:
    """The code of a list of all that ``path`` may be in ``getitem`` of ``cls``, valid at the end of ``init``."""
    if init is None or not (init.args.args and getitem.args.args):
        return Untraced("the dataset has no `__init__` in which the files could be read")
    return _Trace(resolver, cls, getitem, init).follow(path)


class _Unclear(Exception):
    """The message is that of :class:`Untraced`."""


class _Trace:
    def __init__(
        self, resolver: Resolver, cls: Class, getitem: ast.FunctionDef, init: ast.FunctionDef
    ) -> None:
        self._resolver, self._cls, self._init = resolver, cls, init
        self._module: Module = cls.module
        self._getitem = getitem
        self._self = getitem.args.args[0].arg
        self._picked: _Picked | None = None
        self._used: set[str] = set()
        self._called: list[str] = []

    def follow(self, path: ast.expr) -> str | Untraced:
        try:
            if self._init.args.args[0].arg != self._self:
                raise _Unclear("`self` goes by two names")
            return self._list(path, self._written(path))
        except _Unclear as unclear:
            return Untraced(str(unclear))

    def _list(self, path: ast.expr, code: str) -> str:
        picked = self._picked
        if picked is None:
            raise _Unclear(f"`{self._module.code(path)}` is not picked from a list of the dataset")
        items = self._module.code(picked.items.value)
        assert isinstance(picked.items.value, ast.Attribute)
        self._require_list(picked.items.value)
        if code == _ELEMENT:
            self._require_paths(picked.items.value)
            return items
        target = picked.target
        if target is None:
            names = {n.id for n in walk(ast.parse(code, mode="eval")) if isinstance(n, ast.Name)}
            name = next(n for n in (*self._called, *_NAMES) if n not in names)
            return f"[{code.replace(_ELEMENT, name)} for {name} in {items}]"
        if code in self._used:
            self._require_paths(picked.items.value)
        return f"[{code} for {self._target(target)} in {items}]"

    def _target(self, target: ast.expr) -> str:
        """The unpacking of an item, with ``_`` for the parts that the path does not need."""
        if isinstance(target, ast.Tuple):
            parts = [self._target(part) for part in target.elts]
            return ", ".join(parts) if len(parts) > 1 else f"{parts[0]},"
        if isinstance(target, ast.Name):
            return target.id if target.id in self._used else "_"
        raise _Unclear("its items are unpacked in a way that is not followed")

    def _written(self, node: ast.expr) -> str:
        """The code of ``node`` with locals of ``__getitem__`` written out and the picked element left to fill in."""
        if isinstance(node, ast.Subscript) and self._is_own_attribute(node.value):
            return self._element(node, None)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Attribute) and self._is_own_attribute(node):
            self._require_set(node)
            return self._module.code(node)
        self._require_pure(node)
        pieces = [
            Piece(*bounds(self._module, part), self._written(part)) for part in self._parts(node)
        ]
        return spliced(self._module, node, pieces)

    def _parts(self, node: ast.expr) -> Iterator[ast.expr]:
        """The names and picked elements inside ``node``, the outermost of each."""
        pending: list[ast.AST] = list(child_nodes(node))
        while pending:
            part = pending.pop()
            is_own = isinstance(part, ast.Attribute) and self._is_own_attribute(part)
            if isinstance(part, ast.Name | ast.Subscript) or is_own:
                assert isinstance(part, ast.expr)
                yield part
            else:
                pending += child_nodes(part)

    def _name(self, node: ast.Name) -> str:
        module = self._module
        scope = module.scope(self._getitem.body[0])
        bindings = scope.bindings.get(node.id)
        if bindings is None:
            if node.id in module.scope(self._init.body[0]).bindings:
                raise _Unclear(f"`{node.id}` means something else in `__init__`")
            return node.id
        statement = module.parents.get(bindings[0].node)
        if node.id in self._used:
            return node.id
        if len(bindings) == 1 and isinstance(statement, ast.Tuple):
            target, statement = statement, module.parents.get(statement)
            if isinstance(statement, ast.Assign) and statement.targets == [target]:
                value = statement.value
                if isinstance(value, ast.Subscript) and self._is_own_attribute(value.value):
                    self._used.add(node.id)
                    self._element(value, target)
                    return node.id
        elif (
            len(bindings) == 1 and isinstance(statement, ast.Assign) and len(statement.targets) == 1
        ):
            if isinstance(statement.value, ast.Subscript):
                self._called.append(node.id)
            return self._written(statement.value)
        raise _Unclear(f"where `{node.id}` comes from is not followed")

    def _element(self, node: ast.Subscript, target: ast.expr | None) -> str:
        if isinstance(node.slice, ast.Slice | ast.Tuple):
            raise _Unclear(f"`{self._module.code(node)}` is more than one element")
        picked = self._picked
        code = self._module.code(node)
        if picked is not None and (
            self._module.code(picked.items) != code or picked.target is not target
        ):
            raise _Unclear("the path is put together from several elements")
        self._picked = _Picked(node, target)
        return _ELEMENT

    def _is_own_attribute(self, node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == self._self
        )

    def _require_pure(self, node: ast.expr) -> None:
        """Only what puts paths together, from attributes that ``__init__`` always sets."""
        for part in walk(node):
            if isinstance(part, ast.Call):
                names = self._resolver.names(part.func, self._module)
                is_method = isinstance(part.func, ast.Attribute) and part.func.attr in _STR_METHODS
                if not is_method and not (names and names <= _MAKE_PATHS):
                    raise _Unclear(f"what `{self._module.code(part.func)}` does is not known")
            elif isinstance(part, ast.Attribute) and self._is_own_attribute(part):
                self._require_set(part)
            elif isinstance(part, ast.Lambda | ast.NamedExpr | ast.Await | ast.ListComp):
                raise _Unclear(f"`{self._module.code(node)}` is not followed")

    def _require_set(self, attribute: ast.Attribute) -> None:
        if attribute.attr not in assigned_attributes(self._init, self._self):
            raise _Unclear(f"`__init__` does not always set `{self._module.code(attribute)}`")

    def _require_list(self, items: ast.Attribute) -> None:
        self._require_set(items)
        for value in self._resolver.values(items, self._module):
            if not _is_list(value):
                code = self._module.code(items)
                raise _Unclear(f"`{code}` is not seen to be a list")

    def _require_paths(self, items: ast.Attribute) -> None:
        """Elements that are used as they are have to be paths: an open file would be read otherwise."""
        values = set(self._resolver.values(items, self._module))
        for added, module in Additions(self._resolver).to_attribute(items.attr):
            values |= self._resolver.values(added, module)
        if not any(_is_path(value) for value in composed_of(self._resolver, values)):
            raise _Unclear(f"that `{self._module.code(items)}` holds paths is not seen")


_ELEMENT = "__element__"
"""Stands for the picked element while its name is not chosen."""


def assigned_attributes(function: ast.FunctionDef, instance: str) -> frozenset[str]:
    """The attributes of ``self`` that ``function`` sets in any case."""
    return _assigned(function.body, instance)


def _assigned(body: list[ast.stmt], instance: str) -> frozenset[str]:
    found: set[str] = set()
    for statement in body:
        match statement:
            case ast.Assign(targets=targets):
                found |= {name for target in targets for name in _attributes(target, instance)}
            case ast.AnnAssign(target=target, value=ast.expr()):
                found |= set(_attributes(target, instance))
            case ast.With(body=inner):
                found |= _assigned(inner, instance)
            case ast.If(body=first, orelse=second) if second:
                sides = [_assigned(side, instance) for side in (first, second) if not _raises(side)]
                found |= {name for side in sides for name in side if all(name in s for s in sides)}
            case _:
                pass
    return frozenset(found)


def _raises(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Raise)


def _attributes(target: ast.expr, instance: str) -> Iterator[str]:
    for node in lexical_nodes([target]):
        match node:
            case ast.Attribute(ast.Name(id=owner), name, ast.Store()) if owner == instance:
                yield name
            case _:
                pass


def _is_list(value: Value) -> bool:
    match value:
        case Display(ast.List() | ast.ListComp() | ast.Tuple()):
            return True
        case Made(_, _, External(name)):
            return name in _LISTS or name.rpartition(".")[2] in {
                "readlines",
                "splitlines",
                "<split>",
            }
        case _:
            return False


def _is_path(value: Value) -> bool:
    value = innermost(value)
    match value:
        case Made(_, _, External(name)):
            return name in _PATHS or name.rpartition(".")[2].strip("<>") in _PATH_METHODS
        case Display(ast.JoinedStr() | ast.BinOp(op=ast.Div())):
            return True
        case Literal(str()):
            return True
        case _:
            return False
