"""Which other files use what a script's own files define: what is written there changes them, too.

A script is understood with the modules it imports. Scripts beside them may import the same modules, with other data and
other networks; they are not read, only asked what they use.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from ...discovery import python_files
from .project import Project
from .syntax import Module, demands_main, last_identifier
from .trees import walk

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

_MARKS_OF_SCRIPTS = frozenset({"DataLoader", "load_state_dict", "parse_args", "backward"})
"""What the self-test of a file of networks does not do."""
_MOST_FILES = 2000
"""Of a project, so many files of other folders are asked."""
_IMPORT = re.compile(r"^[ \t]*(?:from|import)\b(?:[^\n(]*\([^)]*\)|[^\n]*)", re.MULTILINE)


def other_importer(project: Project, module: Module) -> Path | None:
    """A file beside those of the project that imports ``module``."""
    return next(_importers(project, module), None)


def other_user(project: Project, definition: Definition, module: Module) -> Path | None:
    """A file beside those of the project that uses ``definition`` of ``module``, or ``module`` itself as a script of its own."""
    if _uses_when_started(definition, module):
        return module.path
    return next((p for p in _importers(project, module) if _uses(p, definition, module)), None)


def may_take(project: Project, name: str, module: Module) -> bool:
    """Whether a file beside those of the project may take ``name`` from ``module``, which need not define it: by import, or as an attribute."""
    home = re.escape(_import_name(module))
    taken = re.compile(rf"\b{home}\b[^\n]*\bimport\b.*?(?:\b{name}\b|\*)", re.DOTALL)
    attribute = re.compile(rf"\b{home}\.{name}\b")
    return any(
        attribute.search(path.read_text(encoding="utf-8", errors="replace")) is not None
        or any(taken.search(statement) for statement in _imports(path))
        for path in _importers(project, module)
    )


def user_of_definition(project: Project, module: Module, line: int) -> str | None:
    """Which other file uses the definition of ``module`` that covers ``line``, in words; None where there is neither."""
    definition = outermost(module, line)
    if not isinstance(definition, Definition):
        return None
    user = other_user(project, definition, module)
    if user is not None and user == module.path:
        return f"`{user.name}` is a script, too, and uses `{definition.name}`"
    return in_words(user, definition.name)


def in_words(path: Path | None, used: str) -> str | None:
    """That the file at ``path`` uses ``used``, too; None where there is no such file."""
    return None if path is None else f"`{path.name}` uses `{used}`, too"


def outermost(module: Module, line: int) -> ast.stmt | None:
    """The statement of the module's own block that covers ``line`` (counted from 1), None between two."""
    for statement in module.tree.body:
        decorators = statement.decorator_list if isinstance(statement, Definition) else []
        first = min([statement.lineno, *(d.lineno for d in decorators)])
        if first <= line <= (statement.end_lineno or first):
            return statement
    return None


def _uses_when_started(definition: Definition, module: Module) -> bool:
    """Whether the imported file ``module`` is a script, too, that trains or evaluates, and uses ``definition`` then."""
    if module.name == "__main__":
        return False
    used = names_used_when_started(module.tree)
    return definition.name in used and not used.isdisjoint(_MARKS_OF_SCRIPTS)


def names_used_when_started(tree: ast.Module) -> frozenset[str]:
    """The names in what only a start of the file as a script runs, and in the functions and classes of the file that it uses."""
    guards = [s for s in tree.body if isinstance(s, ast.If) and demands_main(s.test)]
    tops = {top.name: top for top in tree.body if isinstance(top, Definition)}
    used: set[str] = set()
    pending: list[ast.AST] = [n for guard in guards for s in guard.body for n in walk(s)]
    while pending:
        node = pending.pop()
        name = last_identifier(node) if isinstance(node, ast.Name | ast.Attribute) else ""
        if name and name not in used:
            used.add(name)
            pending += walk(tops[name]) if name in tops else ()
    return frozenset(used)


def _importers(project: Project, module: Module) -> Iterator[Path]:
    known = {other.path for other in project.modules}
    folders = {path.parent for path in known}
    name = re.compile(rf"\b{re.escape(_import_name(module))}\b")
    for folder in sorted(folders):
        for path in sorted(folder.glob("*.py")):
            if path not in known and any(name.search(i) for i in _imports(path)):
                yield path
    if all(folder.is_relative_to(project.entry.path.parent) for folder in folders):
        return
    # A package that is not the script's own: those of other folders import it by its whole name.
    packages = [re.compile(rf"\b{re.escape(part)}\b") for part in module.name.split(".")[:-1]]
    for path in islice(python_files(Path(os.path.commonpath(folders))), _MOST_FILES):
        if path.parent not in folders and any(
            name.search(i) and all(package.search(i) for package in packages)
            for i in _imports(path)
        ):
            yield path


def _import_name(module: Module) -> str:
    path = module.path
    return path.parent.name if path.name == "__init__.py" else path.stem


def _imports(path: Path) -> list[str]:
    return _IMPORT.findall(path.read_text(encoding="utf-8", errors="replace"))


def _uses(path: Path, definition: Definition, module: Module) -> bool:
    text = path.read_text(encoding="utf-8", errors="replace")
    home = _import_name(module)
    if definition.name not in text and "*" not in text:
        return False
    try:
        nodes = list(walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return True
    modules = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if alias.name.rpartition(".")[2] == home
    }
    taken = {
        alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2] == home
        for alias in node.names
    }
    if taken & {definition.name, "*"}:
        return True
    is_method = isinstance(module.parents[definition], ast.ClassDef)
    if is_method and not (taken or modules):
        return False
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == definition.name
        and (is_method or ast.unparse(node.value) in modules)
        for node in nodes
    )
