"""Which other files use what a script's own files define: what is written there changes them, too.

A script is understood with the modules it imports. Scripts beside them may import the same modules, with other data and
other networks; they are not read, only asked what they use.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path

from ...discovery import python_files
from .project import Project
from .syntax import Module, demands_main, last_identifier
from .trees import walk

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

_MARKS_OF_SCRIPTS = frozenset({"DataLoader", "load_state_dict", "parse_args", "backward"})
"""What the self-test of a file of networks does not do."""
_CALLED_BY_NETWORKS = frozenset(
    """forward extra_repr train state_dict load_state_dict get_extra_state set_extra_state register_parameter register_buffer
    register_module add_module parameters named_parameters buffers named_buffers children named_children modules named_modules""".split()
)
"""The methods of a network that others of its methods call."""
_MOST_FILES = 2000
"""Of a project, so many files of other folders are asked."""
_IMPORT = re.compile(r"^[ \t]*(?:from|import)\b(?:[^\n(]*\([^)]*\)|[^\n]*)", re.MULTILINE)


def other_importer(project: Project, module: Module) -> Path | None:
    """A file beside those of the project that imports ``module``."""
    return next(other_importers(project, module), None)


def other_user(project: Project, definition: Definition, module: Module) -> Path | None:
    """The first of :func:`other_users`."""
    return next(other_users(project, definition, module), None)


def other_users(project: Project, definition: Definition, module: Module) -> Iterator[Path]:
    """The files beside those of the project that use ``definition`` of ``module``, with ``module`` itself where it is a script of its own.

    So do those that use what leads to it: a network, of one of its blocks.
    """
    if _uses_when_started(definition, module):
        yield module.path
    seen: set[Path] = set()
    for leading, owner in _leading_to(project, definition, module):
        for path in other_importers(project, owner):
            if path not in seen and _uses(path, leading, owner):
                seen.add(path)
                yield path


def _leading_to(
    project: Project, definition: Definition, module: Module
) -> Iterator[tuple[Definition, Module]]:
    """``definition``, and the functions and classes of imported files that come to it, by the spelling of its name."""
    found: dict[Definition, Module] = {definition: module}
    if isinstance(module.parents[definition], ast.ClassDef):
        yield from found.items()
        return
    others = [m for m in project.modules if m is not project.entry]
    pending = [(definition, module)]
    while pending:
        used, home = pending.pop()
        for owner in others:
            if owner is not home and not _takes_from(owner, home):
                continue
            for top in _tops(owner):
                if top not in found and used.name in _names_in(top, owner):
                    found[top] = owner
                    pending.append((top, owner))
    yield from found.items()


def _tops(module: Module) -> list[Definition]:
    return [top for top in module.tree.body if isinstance(top, Definition)]


def _takes_from(module: Module, home: Module) -> bool:
    return _import_name(home) in _words_of_imports(module.source.text)


@lru_cache(maxsize=4096)
def _words_of_imports(text: str) -> frozenset[str]:
    """The words in the import statements of a file."""
    return frozenset(
        word for statement in _IMPORT.findall(text) for word in re.findall(r"\w+", statement)
    )


@lru_cache(maxsize=4096)
def _names_in(definition: Definition, module: Module) -> frozenset[str]:
    """The names that ``definition`` reads, of what is imported the attributes, too."""
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in module.nodes_of(ast.Import, ast.ImportFrom)
        for alias in node.names
    }
    found: set[str] = set()
    for node in walk(definition):
        match node:
            case ast.Name(id=name):
                found.add(name)
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in imported:
                found.add(name)
            case _:
                pass
    return frozenset(found)


def may_take(project: Project, name: str, module: Module) -> bool:
    """Whether a file beside those of the project may take ``name`` from ``module``, which need not define it: by import, or as an attribute."""
    home = re.escape(_import_name(module))
    taken = re.compile(rf"\b{home}\b[^\n]*\bimport\b.*?(?:\b{name}\b|\*)", re.DOTALL)
    attribute = re.compile(rf"\b{home}\.{name}\b")
    return any(
        attribute.search(path.read_text(encoding="utf-8", errors="replace")) is not None
        or any(taken.search(statement) for statement in _imports(path))
        for path in other_importers(project, module)
    )


def user_of_definition(project: Project, module: Module, line: int) -> str | None:
    """Which other file uses the definition of ``module`` that covers ``line``, in words; None where there is neither."""
    definition = outermost(module, line)
    if not isinstance(definition, Definition):
        return None
    user = other_user(project, definition, module)
    if user is not None and user == module.path:
        return started_in_words(user, definition.name)
    return None if user is None else in_words(user, definition.name)


def in_words(path: Path, used: str) -> str:
    """That the file at ``path`` uses ``used``, too."""
    return f"`{path.name}` uses `{used}`, too"


def started_in_words(path: Path, used: str) -> str:
    """That the imported file at ``path`` uses ``used`` of its own when it is started itself."""
    return f"`{path.name}` is a script, too, and uses `{used}`"


def outermost(module: Module, line: int) -> ast.stmt | None:
    """The statement of the module's own block that covers ``line`` (counted from 1), None between two."""
    for statement in module.tree.body:
        decorators = statement.decorator_list if isinstance(statement, Definition) else []
        first = min([statement.lineno, *(d.lineno for d in decorators)])
        if first <= line <= (statement.end_lineno or first):
            return statement
    return None


def method_called_by_name(statement: ast.stmt | None, line: int) -> str | None:
    """The method of the class ``statement`` that covers ``line``, where it runs only if code reads its name.

    So do those of plain classes and networks, but for what Python and :class:`torch.nn.Module` call by themselves.
    """
    if not isinstance(statement, ast.ClassDef) or statement.decorator_list or statement.keywords:
        return None
    if not {last_identifier(base) for base in statement.bases} <= {"Module", "object"}:
        return None
    for method in statement.body:
        if isinstance(method, ast.FunctionDef) and line in range(
            method.lineno, (method.end_lineno or method.lineno) + 1
        ):
            called = method.name.startswith("_") or method.name in _CALLED_BY_NETWORKS
            return None if called or method.decorator_list else method.name
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


def names_reached(entry: ast.Module, modules: Iterable[ast.Module]) -> frozenset[str]:
    """The names that a start of ``entry`` with its imported ``modules`` may come to, by their spelling alone, and the strings there.

    Functions and classes of a module's own block are gone into where their name is read; where decorators may keep them elsewhere, always.
    """
    tops: dict[str, list[ast.AST]] = {}
    pending: list[ast.AST] = list(walk(entry))
    for statement in (statement for module in modules for statement in module.body):
        if isinstance(statement, Definition) and not statement.decorator_list:
            tops.setdefault(statement.name, []).append(statement)
        else:
            pending += walk(statement)
    for node in list(pending) + [n for found in tops.values() for top in found for n in walk(top)]:
        if isinstance(node, ast.alias) and node.asname is not None:
            tops.setdefault(node.asname, []).append(
                ast.Name(node.name.rpartition(".")[2], ast.Load())
            )
    reached: set[str] = set()
    texts: set[str] = set()
    while pending:
        node = pending.pop()
        name = last_identifier(node) if isinstance(node, ast.Name | ast.Attribute) else ""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)  # getattr(module, "name")
        elif name and name not in reached:
            reached.add(name)
            pending += [n for top in tops.get(name, []) for n in walk(top)]
    return frozenset(reached | texts)


def other_importers(project: Project, module: Module) -> Iterator[Path]:
    """The files beside those of the project that import ``module``."""
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
    """The import statements of the file at ``path``, which is asked for every definition that is changed."""
    state = path.stat()
    return _imports_then(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=2 * _MOST_FILES)
def _imports_then(path: Path, _changed: int, _size: int) -> list[str]:
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
