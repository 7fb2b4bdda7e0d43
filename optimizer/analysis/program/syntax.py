"""One parsed file: its tree, its scopes, and where every node stands in the source."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as FilePath
from typing import TypeAlias, TypeVar, cast

from ...rewriting.edits import Span
from ...rewriting.lines import indentation, lines_inside_strings, tokens
from ...source import SourceFile
from ..values.unpacking import unpacked_targets
from .scopes import Imported, Path, Scope, ScopeTree
from .trees import child_nodes, is_name, position, walk

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
LoopNode: TypeAlias = ast.For | ast.AsyncFor | ast.While
_Node = TypeVar("_Node", bound=ast.AST)


@dataclass(frozen=True, eq=False)
class Module:
    """A first-party file as Python sees it.

    ``name`` is its dotted import name, ``"__main__"`` for the entry script.
    """

    path: FilePath
    name: str
    package: str
    source: SourceFile
    tree: ast.Module

    @cached_property
    def scopes(self) -> ScopeTree:
        return ScopeTree.of(self.tree, bool(self.nodes_of(ast.Global, ast.Nonlocal)))

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Every node's parent node."""
        return {child: parent for parent in self.nodes for child in child_nodes(parent)}

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the file, outer before inner."""
        return tuple(walk(self.tree))

    @cached_property
    def _places_by_kind(self) -> dict[type[ast.AST], list[int]]:
        """Where in ``nodes`` those of each class are."""
        found: dict[type[ast.AST], list[int]] = {}
        for place, node in enumerate(self.nodes):
            found.setdefault(node.__class__, []).append(place)
        return found

    def nodes_of(self, *kinds: type[_Node]) -> list[_Node]:
        """The nodes of the classes ``kinds``, outer before inner; looking at all ``nodes`` for them takes far longer."""
        places = [place for kind in kinds for place in self._places_by_kind.get(kind, ())]
        if len(kinds) > 1:
            places.sort()
        return cast("list[_Node]", [self.nodes[place] for place in places])

    @cached_property
    def calls(self) -> tuple[ast.Call, ...]:
        """Every call of the file, in source order."""
        calls = self.nodes_of(ast.Call)
        return tuple(sorted(calls, key=position))

    @cached_property
    def _calls_by_name(self) -> dict[str, list[ast.Call]]:
        found: dict[str, list[ast.Call]] = {}
        for call in self.calls:
            found.setdefault(last_identifier(call.func), []).append(call)
        return found

    def calls_named(self, name: str) -> list[ast.Call]:
        """The calls ``name(..)`` and ``x.name(..)`` of the file, whatever ``x`` is, in source order."""
        return self._calls_by_name.get(name, [])

    @cached_property
    def _names(self) -> dict[str, list[ast.Name]]:
        found: dict[str, list[ast.Name]] = {}
        for node in self.nodes_of(ast.Name):
            found.setdefault(node.id, []).append(node)
        return found

    def names_of(self, name: str) -> list[ast.Name]:
        """Every place where the variable ``name`` is spelled, read or written, in any scope."""
        return self._names.get(name, [])

    @cached_property
    def _attributes(self) -> dict[str, list[ast.Attribute]]:
        found: dict[str, list[ast.Attribute]] = {}
        for node in self.nodes_of(ast.Attribute):
            found.setdefault(node.attr, []).append(node)
        return found

    def attributes_of(self, name: str) -> list[ast.Attribute]:
        """Every place where an attribute ``name`` is spelled, read or written, of whatever object."""
        return self._attributes.get(name, [])

    @cached_property
    def lines(self) -> list[str]:
        """The lines as Python counts them (``\\r``, ``\\n`` and ``\\r\\n`` end a line, a form feed does not)."""
        text = self.source.text.replace("\r\n", "\n").replace("\r", "\n")
        return text.split("\n")

    def search(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """The first place in the code that ``pattern`` matches; what comments and docstrings say does nothing."""
        return pattern.search(self._bare_text) if pattern.search(self.source.text) else None

    @cached_property
    def _bare_text(self) -> str:
        rows = list(self.lines)
        for token in tokens("\n".join(rows)):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                rows[row - 1] = rows[row - 1][:column]
        for statement in self.nodes_of(ast.Expr):
            if is_docstring(statement):
                span = self.span(statement)
                behind = rows[span.end_line - 1][span.end_column :]
                rows[span.line - 1] = rows[span.line - 1][: span.column]
                for row in range(span.line, span.end_line):
                    rows[row] = ""
                rows[span.end_line - 1] += behind
        return "\n".join(rows)

    def span(self, node: ast.AST) -> Span:
        """Where ``node`` stands, without its parentheses and (for functions) its decorators."""
        if isinstance(node, ast.Module):
            return Span(1, 0, len(self.lines), len(self.lines[-1]))
        place = cast(ast.expr, node)
        end_line = place.end_lineno or place.lineno
        return Span(
            place.lineno,
            self._column(place.lineno, place.col_offset),
            end_line,
            self._column(end_line, place.end_col_offset or 0),
        )

    def place(self, at: ast.AST | int) -> str:
        """Where a node, or a line, is, for a message: all of its lines are told this way.

        They come to the user as ``line 7`` of the file that the message is about and ``line 7 of data.py`` of another one,
        numbered as they were before the first edit (:meth:`~..rewrite_state.RewriteState.skipped`).
        """
        return f"line {at if isinstance(at, int) else self.span(at).line} of {self.path}"

    def _column(self, line: int, utf8_offset: int) -> int:
        text = self.lines[line - 1]
        if text.isascii():
            return utf8_offset
        return len(text.encode()[:utf8_offset].decode(errors="replace"))

    def code(self, node: ast.AST) -> str:
        """The source text of ``node`` as written, line breaks as ``\\n``."""
        span = self.span(node)
        rows = self.lines[span.line - 1 : span.end_line]
        rows[-1] = rows[-1][: span.end_column]
        rows[0] = rows[0][span.column :]
        return "\n".join(rows)

    def unindented_code(self, node: ast.AST) -> str:
        """The source text of ``node``, its later lines as they read where the line that it begins in is not indented.

        Where they hang less far in, it is the first line of its statement; inside strings nothing changes.
        """
        code = self.code(node)
        inside = lines_inside_strings(tokens(f"({code}\n)"))
        first, *later = code.split("\n")
        moved = [row for n, row in enumerate(later, 2) if n not in inside and row.strip()]
        margin = indentation(self.lines[self.span(node).line - 1])
        if not all(row.startswith(margin) for row in moved):
            margin = indentation(self.lines[self.span(self.statement(node)).line - 1])
        rows = [
            row if number in inside else row.removeprefix(margin)
            for number, row in enumerate(later, 2)
        ]
        return "\n".join([first, *rows])

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around ``node``, innermost first."""
        parents = self.parents
        while (parent := parents.get(node)) is not None:
            yield parent
            node = parent

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement ``node`` belongs to (itself, if it is one)."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def function(self, node: ast.AST) -> FunctionNode | None:
        """The function whose body ``node`` is in, None at module or class level."""
        for ancestor in self.ancestors(node):
            if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return ancestor
        return None

    def enclosing_class(self, node: ast.AST) -> ast.ClassDef | None:
        """The innermost class around ``node``."""
        for ancestor in self.ancestors(node):
            if isinstance(ancestor, ast.ClassDef):
                return ancestor
        return None

    def loops(self, node: ast.AST) -> list[LoopNode]:
        """The loops whose *body* holds ``node`` within the same function, innermost first."""
        found: list[LoopNode] = []
        child = node
        for ancestor in self.ancestors(node):
            if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                break
            if isinstance(ancestor, (ast.For, ast.AsyncFor, ast.While)) and child in ancestor.body:
                found.append(ancestor)
            child = ancestor
        return found

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of sibling statements that ``statement`` belongs to."""
        return self._blocks.get(statement) or [statement]

    @cached_property
    def _blocks(self) -> dict[ast.AST, list[ast.stmt]]:
        """The statement lists by the statements in them."""
        found: dict[ast.AST, list[ast.stmt]] = {}
        for node in self.nodes:
            if not isinstance(node, ast.expr):
                for field in ("body", "orelse", "finalbody"):
                    block: list[ast.stmt] = node.__dict__.get(field) or []
                    found.update(dict.fromkeys(block, block))
        return found

    @cached_property
    def self_assignments(self) -> dict[tuple[ast.ClassDef, str], list[tuple[ast.expr, Path]]]:
        """What the methods of each class assign to ``self.<name>``, with the part of the value it gets."""
        found: dict[tuple[ast.ClassDef, str], list[tuple[ast.expr, Path]]] = {}
        for cls in self.nodes_of(ast.ClassDef):
            for method in cls.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and method.args.args:
                    for name, value, path in _assigned_attributes(method):
                        found.setdefault((cls, name), []).append((value, path))
        return found

    def scope(self, node: ast.AST) -> Scope:
        """The scope in which the names of ``node`` are looked up."""
        known = self._scopes_of_nodes
        if node not in known:
            known[node] = self.scopes.of_node(node, self.parents)
        return known[node]

    @cached_property
    def _scopes_of_nodes(self) -> dict[ast.AST, Scope]:
        return {}

    @cached_property
    def imported_once(self) -> dict[str, Imported]:
        """The names that no scope of the file binds but an import at its top level, and that but once.

        Wherever they are read they are what is imported. None in a file with a star import, which may bind any name.
        """
        by_node = self.scopes.by_node
        top = by_node[self.tree]
        if any(scope.star_imports for scope in by_node.values()):
            return {}
        inner = {name for scope in by_node.values() if scope is not top for name in scope.bindings}
        return {
            name: bindings[0].source
            for name, bindings in top.bindings.items()
            if len(bindings) == 1 and name not in inner and isinstance(bindings[0].source, Imported)
        }

    @cached_property
    def rebinds_by_name(self) -> bool:
        """Whether the file may give its globals other values behind our back: ``exec(..)``, ``globals()[..]``."""
        return any(
            isinstance(call.func, ast.Name)
            and (
                call.func.id == "exec" or (call.func.id == "globals" and not self._only_read(call))
            )
            for call in self.calls
        )

    def _only_read(self, globals_call: ast.Call) -> bool:
        parent = self.parents[globals_call]
        if isinstance(parent, ast.Subscript):
            return isinstance(parent.ctx, ast.Load)
        return isinstance(parent, ast.Attribute) and parent.attr in {
            "get",
            "items",
            "keys",
            "values",
        }

    @cached_property
    def main_guards(self) -> tuple[ast.If, ...]:
        """The ``if __name__ == "__main__":`` statements of the file."""
        return tuple(
            statement
            for statement in self.tree.body
            if isinstance(statement, ast.If) and _is_main_test(statement.test)
        )

    @cached_property
    def main_only(self) -> tuple[ast.If, ...]:
        """The statements of the file that only a start as a script enters: main guards, also with further conditions."""
        return tuple(
            statement
            for statement in self.tree.body
            if isinstance(statement, ast.If) and demands_main(statement.test)
        )

    def leaves_out(self, node: ast.AST) -> bool:
        """Whether the script never gets to ``node``: this file is only imported, and ``node`` is for its own start as a script."""
        if self.name == "__main__" or not self.main_only:
            return False
        child = node
        for ancestor in self.ancestors(node):
            if (
                isinstance(ancestor, ast.If)
                and ancestor in self.main_only
                and child in ancestor.body
            ):
                return True
            child = ancestor
        return False

    @property
    def main_guard(self) -> ast.If | None:
        """The first ``if __name__ == "__main__":`` statement, if the file has one."""
        return self.main_guards[0] if self.main_guards else None


def last_identifier(node: ast.expr) -> str:
    """``c`` of ``a.b.c`` and of ``c``; nothing where an expression has no such name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_decorated(function: FunctionNode, name: str) -> bool:
    """Whether a decorator of ``function`` is called ``name``."""
    return any(last_identifier(d) == name for d in function.decorator_list)


def first_name(node: ast.expr) -> ast.Name | None:
    """``a`` of ``a.b.c`` and of ``a``; None where an expression does not begin with a variable."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def is_docstring(statement: ast.stmt) -> bool:
    """Whether ``statement`` is a constant, and so does nothing."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _assigned_attributes(method: FunctionNode) -> Iterator[tuple[str, ast.expr, Path]]:
    self_name = method.args.args[0].arg
    for node in walk(method):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for target in targets:
                for name, path in _attributes_of(target, self_name):
                    yield name, node.value, path


def _attributes_of(target: ast.expr, owner: str) -> Iterator[tuple[str, Path]]:
    for part, path in unpacked_targets(target):
        if isinstance(part, ast.Attribute) and is_name(part.value, owner):
            yield part.attr, path


def demands_main(test: ast.expr) -> bool:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(demands_main(part) for part in test.values)
    return _is_main_test(test)


def _is_main_test(test: ast.expr) -> bool:
    if not (
        isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)
    ):
        return False
    sides = (test.left, test.comparators[0])
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides) and any(
        isinstance(side, ast.Constant) and side.value == "__main__" for side in sides
    )
