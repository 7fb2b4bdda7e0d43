"""The entry script and every first-party module reachable from it."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ...errors import TorchoptError
from ...source import Sources, parse
from .computed_imports import computed_imports, known_package
from .scopes import Imported, StarImport
from .search_paths import (
    added_search_paths,
    first_search_paths,
    is_project_code,
    project_folders,
)
from .syntax import Module

_MOST_CHOICES = 40
"""Of more modules in a folder one may be chosen without being followed: hardly a change is right for all of them, and reading
91 models of a library of them took minutes where the rest took 10 s. Folders of single scripts had up to 12."""


@dataclass(frozen=True, eq=False)
class Project:
    """The modules of one training script, the entry first, in the order they were reached.

    ``unreadable`` holds first-party modules that do not parse, with the reason; they are left alone. ``computed_imports``
    names the modules that a call of ``import_module`` may import.
    """

    modules: tuple[Module, ...]
    by_name: Mapping[str, Module]
    unreadable: tuple[TorchoptError, ...]
    computed_imports: Mapping[ast.Call, tuple[str, ...]] = field(
        default_factory=dict[ast.Call, tuple[str, ...]]
    )

    @property
    def entry(self) -> Module:
        return self.modules[0]

    @cached_property
    def loaded_first(self) -> frozenset[Module]:
        """The imported modules whose top levels have run before the entry's own first loop, ``with`` or main guard."""
        starts = (ast.For, ast.While, ast.With)
        firsts = [
            statement.lineno
            for statement in self.entry.tree.body
            if isinstance(statement, starts) or statement in self.entry.main_only
        ]
        found = {self.entry}
        pending = [self.entry]
        while pending:
            importer = pending.pop()
            for node in importer.nodes_of(ast.Import, ast.ImportFrom):
                if importer.function(node) is not None or importer.leaves_out(node):
                    continue
                if importer is self.entry and node.lineno > min(firsts, default=node.lineno):
                    continue
                named = {self.by_name.get(name) for name in _names_of(node, importer)}
                new = [module for module in named if module is not None and module not in found]
                found.update(new)
                pending += new
        return frozenset(found - {self.entry})

    def find(self, importer: Module, source: Imported | StarImport) -> Module | None:
        """The first-party module an import statement of ``importer`` names, None for libraries."""
        name = absolute_name(importer, source.module, source.level)
        return self.by_name.get(name)

    def find_submodule(self, importer: Module, source: Imported) -> Module | None:
        """The first-party module ``from package import module`` names, when it names one."""
        name = absolute_name(importer, source.module, source.level)
        return self.by_name.get(f"{name}.{source.attribute}" if name else str(source.attribute))


def absolute_name(importer: Module, module: str, level: int) -> str:
    """The absolute dotted name of ``from <dots>module import ...`` seen in ``importer``."""
    if level == 0:
        return module
    parts = importer.package.split(".") if importer.package else []
    base = parts[: len(parts) - (level - 1)] if level > 1 else parts
    return ".".join([*base, *([module] if module else [])])


def load_project(entry: Path, sources: Sources, known: Iterable[Module] = ()) -> Project:
    """Read ``entry`` and the first-party modules it imports, directly or not.

    Those of the modules ``known`` whose source is still the same are taken over, with what they remember of themselves.

    First-party modules are looked for where Python would: see :mod:`.search_paths`. Raises :class:`TorchoptError` when the
    entry itself cannot be read.
    """
    parsed = {(module.path, module.name): module for module in known}
    entry_module = _module(entry, "__main__", "", sources, parsed)
    search = _Search(entry, sources)
    modules, by_name = [entry_module], dict[str, Module]()
    by_path = {entry: entry_module}
    unreadable: list[TorchoptError] = []
    pending = [entry_module]
    while pending:
        importer = pending.pop(0)
        for name, found in search.imported_by(importer):
            if found == entry:
                continue
            if found in by_path:  # which goes by two names
                by_name[name] = by_path[found]
                continue
            package = name if found.name == "__init__.py" else name.rpartition(".")[0]
            try:
                module = _module(found, name, package, sources, parsed)
            except TorchoptError as error:
                unreadable.append(error)
                continue
            by_name[name] = by_path[found] = module
            modules.append(module)
            pending.append(module)
    return Project(tuple(modules), by_name, tuple(unreadable), search.computed)


class _Search:
    """Finds the files of imported names, in the order in which the names are met; each name once."""

    def __init__(self, entry: Path, sources: Sources) -> None:
        self._sources = sources
        self._folders = first_search_paths(entry)
        self._project = project_folders(entry)
        self._packages: dict[Path, bool] = {}
        self._found: set[str] = set()
        self._missing: dict[str, None] = {}
        self.computed: dict[ast.Call, tuple[str, ...]] = {}
        """The modules that calls of ``import_module`` may import."""

    def imported_by(self, module: Module) -> Iterator[tuple[str, Path]]:
        """The names that ``module`` imports for the first time, or makes known where to find, with their files."""
        own = added_search_paths(module)
        added = [path for path in own if path not in self._folders]
        self._folders += added
        for call, pattern in computed_imports(module):
            self.computed[call] = tuple(self._matching(pattern, own))
        computed = (
            part for found in self.computed.values() for n in found for part in _with_parents(n)
        )
        names = [n for n in [*_imported_names(module), *computed] if n not in self._found]
        if added:
            names = [*self._missing, *names]
        for name in dict.fromkeys(names):
            if name in self._missing and not added:
                continue
            path = self._locate(name)
            if path is None:
                self._missing[name] = None
            else:
                self._missing.pop(name, None)
                self._found.add(name)
                yield name, path

    def _matching(self, name: re.Pattern[str], added: Iterable[Path]) -> list[str]:
        """The modules whose names ``name`` matches; where no package is known, those of the folders ``added`` for them."""
        package = known_package(name)
        folders = [*self._folders, *self._project] if package else added
        inner = package.split(".") if package else []
        found = (
            ".".join([*inner, stem])
            for folder in folders
            for stem in self._sources.modules_in(folder.joinpath(*inner))
        )
        matching = sorted({full for full in found if name.fullmatch(full)})
        return matching if len(matching) <= _MOST_CHOICES else []

    def _locate(self, name: str) -> Path | None:
        package = name.partition(".")[0]
        # Most imports are libraries', which are looked for in vain.
        folders = itertools.chain(
            (f for f in self._folders if self._sources.has_module(f, package)),
            (f for f in self._project if self._is_own(f / package)),
        )
        found = (_file_of(name, folder, self._sources) for folder in folders)
        return next((path for path in found if path is not None), None)

    def _is_own(self, package: Path) -> bool:
        if package not in self._packages:
            self._packages[package] = is_project_code(package)
        return self._packages[package]


def _module(
    path: Path,
    name: str,
    package: str,
    sources: Sources,
    parsed: Mapping[tuple[Path, str], Module],
) -> Module:
    source = sources.read(path)
    known = parsed.get((path, name))
    if known is not None and known.source is source:
        return known
    return Module(path, name, package, source, parse(source))


def _imported_names(module: Module) -> Iterator[str]:
    """Every dotted name ``module`` imports that may be a module, packages before what is in them.

    What an imported file imports below its main guard belongs to another script.
    """
    for node in module.nodes_of(ast.Import, ast.ImportFrom):
        if not module.leaves_out(node):
            yield from _names_of(node, module)


def _names_of(node: ast.Import | ast.ImportFrom, module: Module) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from _with_parents(alias.name)
    else:
        base = absolute_name(module, node.module or "", node.level)
        yield from _with_parents(base)
        for alias in node.names:
            if alias.name != "*":
                yield f"{base}.{alias.name}" if base else alias.name


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        if name:
            yield ".".join(parts[:count])


def _file_of(name: str, folder: Path, sources: Sources) -> Path | None:
    base = folder.joinpath(*name.split("."))
    for candidate in (base / "__init__.py", base.with_suffix(".py")):
        if sources.exists(candidate):
            return candidate
    return None
