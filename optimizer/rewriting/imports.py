"""Adds and removes imports where a careful reader would look for them."""

from __future__ import annotations

import ast
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from ..syntax_tree import child_nodes, walk
from .comma_list import CommaList
from .edits import AddImport, Edit, RemoveImportedName, RemoveStatement
from .formatting import fit
from .lines import line_end
from .rewrites import EditError, Rank, Rewrite
from .source_tree import SourceTree, end_line
from .style import Style

ImportNode: TypeAlias = ast.Import | ast.ImportFrom
_FUTURE, _STANDARD, _THIRD_PARTY, _LOCAL = range(4)


def add_import(text: str, edit: AddImport, style: Style) -> str:
    """``text`` with the import of ``edit``, unless it is there."""
    source = SourceTree.parse(text)
    imports = [node for node in source.tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    bound = edit.alias or edit.name or edit.module.partition(".")[0]
    needed = min(_uses_at_import(source.tree, bound), default=sys.maxsize)
    if any(_imports(node, edit) for node in imports if end_line(node) < needed):
        return text
    if _is_imported_by_all_users(source.tree, edit, bound):
        return text
    uses = (n.lineno for n in walk(source.tree) if isinstance(n, ast.Name) and n.id == bound)
    first_use = min(uses, default=sys.maxsize)  # below it an import comes too late
    imports = [node for node in imports if end_line(node) < first_use]
    for node in reversed(imports):
        if isinstance(node, ast.ImportFrom) and _can_join(node, edit):
            return _joined(source, node, edit, style)
    line, blank_before, blank_after = _place(source, imports, edit)
    new = style.newline * blank_before + _statement(edit) + style.newline * (1 + blank_after)
    if line > 0 and not line_end(source.lines[line - 1]):
        new = style.newline + new.removesuffix(style.newline)
    at = source.starts[line]
    return text[:at] + new + text[at:]


def _uses_at_import(node: ast.AST, name: str) -> Iterator[int]:
    """The lines that use ``name`` when the file is imported, not when a function of it is called."""
    left = [node]
    while left:
        for child in child_nodes(left.pop()):
            if isinstance(child, ast.Name) and child.id == name:
                yield child.lineno
            elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                left.append(child)


def _is_imported_by_all_users(tree: ast.Module, edit: AddImport, name: str) -> bool:
    """Whether the functions that use ``name`` import it themselves, and nothing else uses it."""
    uses = [node for node in walk(tree) if isinstance(node, ast.Name) and node.id == name]
    covered: set[ast.AST] = set()
    for function in walk(tree) if uses else ():
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            imports = [n for n in function.body if isinstance(n, ast.Import | ast.ImportFrom)]
            line = min((end_line(n) for n in imports if _imports(n, edit)), default=sys.maxsize)
            below = (statement for statement in function.body if statement.lineno > line)
            covered.update(node for statement in below for node in walk(statement))
    return bool(uses) and covered.issuperset(uses)


def _imports(node: ImportNode, edit: AddImport) -> bool:
    """Whether ``node`` already is the import that ``edit`` asks for."""
    names = [(alias.name, alias.asname) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return _is_from(node, edit.module) and (edit.name, edit.alias) in names
    if edit.name is not None:
        return False
    # `import a.b` binds `a`.
    binds = [(name if asname else name.partition(".")[0], asname) for name, asname in names]
    return (edit.module, edit.alias) in names + binds


def _is_from(node: ast.ImportFrom, module: str) -> bool:
    return node.level == 0 and node.module == module


def _can_join(node: ast.ImportFrom, edit: AddImport) -> bool:
    is_star = any(alias.name == "*" for alias in node.names)
    return edit.name is not None and _is_from(node, edit.module) and not is_star


def _statement(edit: AddImport) -> str:
    renamed = f" as {edit.alias}" if edit.alias else ""
    if edit.name is None:
        return f"import {edit.module}{renamed}"
    return f"from {edit.module} import {edit.name}{renamed}"


# Names of a from-import


def _joined(source: SourceTree, node: ast.ImportFrom, edit: AddImport, style: Style) -> str:
    """The text with the name of ``edit`` among those that ``node`` imports."""
    name = edit.name or ""
    item = f"{name} as {edit.alias}" if edit.alias else name
    start, end = source.range(node)
    line_stop = source.starts[source.logical_lines[node.lineno][1]]
    line_stop -= len(line_end(source.text[start:line_stop]))
    head, names, tail = _names(source.text[start:end])
    names = names.insert(_index(node, name), item, style.newline, style.indent)
    new = head + _unbracketed(names, tail) + source.text[end:line_stop]
    fitted = fit(new, source.prefix(node), style, 0)
    return source.text[:start] + fitted + source.text[line_stop:]


def _names(text: str) -> tuple[str, CommaList, bool]:
    """The text of a from-import up to its names, the names, and whether they are in brackets."""
    match = re.search(r"\bimport\b\s*", text)
    assert match is not None
    head, names = text[: match.end()], text[match.end() :]
    bracketed = names.startswith("(")
    return head, CommaList.parse(names if bracketed else f"({names})"), bracketed


def _unbracketed(names: CommaList, bracketed: bool) -> str:
    return names.text if bracketed else names.text[1:-1]


def _index(node: ast.ImportFrom, name: str) -> int:
    """Where ``name`` goes among the names of ``node``: into their order if they have one, else last."""
    names = [alias.name for alias in node.names]
    for order in (_order_by_type, str.lower):
        if names == sorted(names, key=order):
            return bisect_right(names, order(name), key=order)
    return len(names)


def _order_by_type(name: str) -> tuple[int, str]:
    """isort's and ruff's order: constants, classes, then the rest."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return kind, name


# Where a new import goes


def _place(
    source: SourceTree, imports: Sequence[ImportNode], edit: AddImport
) -> tuple[int, int, int]:
    """The line a new import goes below, and how many blank lines it needs before and after it."""
    runs = _runs(source, imports)
    package = edit.module.partition(".")[0]
    run = runs[0] if runs else []
    if len(run) == 1 and _section_of(run[0]) != _section(package):
        run = max(runs, key=len)  # what imports a single thing for what follows is no list to begin
    for nodes in (run, imports):
        same = [node for node in nodes if package in _packages(node)]
        if same:
            return _among(source, same, edit), 0, 0
    section = _section(package)
    run_sections = [(_section_of(node), node) for node in run]
    if same := [node for other, node in run_sections if other == section]:
        return _among(source, same, edit), 0, 0
    if earlier := [node for other, node in run_sections if other < section]:
        line = _last_line(source, earlier[-1])
        return line, 1, int(earlier[-1] is not run[-1] and source.blank_lines_below(line) == 0)
    if run:
        return source.logical_lines[run[0].lineno][0] - 1, 0, 1
    return _below_docstring(source)


def _runs(source: SourceTree, imports: Sequence[ImportNode]) -> list[list[ImportNode]]:
    """The imports of the file, those with nothing between them together."""
    runs: list[list[ImportNode]] = []
    is_open = False
    for statement in source.tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom) and statement in imports:
            runs = runs if is_open else [*runs, []]
            runs[-1].append(statement)
            is_open = True
        else:
            is_open = False
    return runs


def _among(source: SourceTree, nodes: Sequence[ImportNode], edit: AddImport) -> int:
    key = (edit.name is not None, edit.module.lower())
    below = [node for node in nodes if (isinstance(node, ast.ImportFrom), _module(node)) <= key]
    if below:
        return _last_line(source, below[-1])
    return source.logical_lines[nodes[0].lineno][0] - 1


def _below_docstring(source: SourceTree) -> tuple[int, int, int]:
    body = source.tree.body
    has_docstring = ast.get_docstring(source.tree, clean=False) is not None
    following = body[1:] if has_docstring else body
    if not following:
        return len(source.lines), int(bool(source.lines)), 0
    needed = 2 if isinstance(following[0], ast.FunctionDef | ast.ClassDef) else 1
    if has_docstring:
        line = _last_line(source, body[0])
        return line, 1, max(0, needed - source.blank_lines_below(line))
    line = source.leading_line(following[0])
    if line == 1:  # comments at the very top belong to the file
        line = source.first_line(following[0])
    return line - 1, 0, needed


def _last_line(source: SourceTree, statement: ast.stmt) -> int:
    return source.logical_lines[end_line(statement)][1]


def _module(node: ImportNode) -> str:
    return ((node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name).lower()


def _packages(node: ImportNode) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [] if node.level else [(node.module or "").partition(".")[0]]
    return [alias.name.partition(".")[0] for alias in node.names]


def _section_of(node: ImportNode) -> int:
    packages = _packages(node)
    return _section(packages[0]) if packages else _LOCAL


def _section(package: str) -> int:
    if package == "__future__":
        return _FUTURE
    return _STANDARD if package in sys.stdlib_module_names else _THIRD_PARTY


# Removal


def whole_removals(source: SourceTree, edits: Iterable[Edit]) -> list[Edit]:
    """``edits``, and the removal of every import statement that they leave without a name."""
    edits = list(edits)
    removed: list[Edit] = [
        RemoveStatement(source.span(*source.range(node)))
        for node, names in _removed_names(source, edits)
        if names == {alias.name for alias in node.names}
    ]
    return [*edits, *(edit for edit in removed if edit not in edits)]


def partial_removals(source: SourceTree, edits: Sequence[Edit]) -> Iterator[Rewrite]:
    """What removes names from import statements that keep some."""
    for node, removed in _removed_names(source, edits):
        if removed != {alias.name for alias in node.names}:
            yield Rewrite(*source.range(node), _dropping(removed), None, Rank.EXPRESSION)


def _dropping(removed: set[str]) -> Callable[[str], str]:
    def function(text: str) -> str:
        head, names, bracketed = _names(text)
        for index in reversed(range(len(names.items))):
            if re.split(r"\s", names.items[index])[0] in removed:
                names = names.remove(index)
        return head + _unbracketed(names, bracketed)

    return function


def _removed_names(
    source: SourceTree, edits: Sequence[Edit]
) -> Iterator[tuple[ast.ImportFrom, set[str]]]:
    wanted = [edit for edit in edits if isinstance(edit, RemoveImportedName)]
    if not wanted:
        return
    nodes = [node for node in walk(source.tree) if isinstance(node, ast.ImportFrom)]
    for edit in wanted:
        if not any(
            _is_from(n, edit.module) and edit.name in [a.name for a in n.names] for n in nodes
        ):
            raise EditError(edit, "no such import")
    for node in nodes:
        names = {edit.name for edit in wanted if _is_from(node, edit.module)}
        names &= {alias.name for alias in node.names}
        if names:
            yield node, names
