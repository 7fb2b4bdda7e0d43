"""The entry script and every first-party module reachable from it."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import TorchoptError
from ..source import Sources, parse
from .scopes import Imported, StarImport
from .syntax import Module


@dataclass(frozen=True, eq=False)
class Project:
    """The modules of one training script, the entry first, in the order they were reached.

    ``unreadable`` holds first-party modules that do not parse, with the reason; they are left alone.
    """

    modules: tuple[Module, ...]
    by_name: Mapping[str, Module]
    unreadable: tuple[TorchoptError, ...]

    @property
    def entry(self) -> Module:
        return self.modules[0]

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

    First-party modules are looked for where Python would: the entry's folder, then the entries of ``PYTHONPATH``
    inside the working directory. Raises :class:`TorchoptError` when the entry itself cannot be read.
    """
    roots = _search_roots(entry)
    parsed = {(module.path, module.name): module for module in known}
    entry_module = _module(entry, "__main__", "", sources, parsed)
    modules, by_name = [entry_module], dict[str, Module]()
    unreadable: list[TorchoptError] = []
    pending = [entry_module]
    seen: set[str] = set()
    while pending:
        importer = pending.pop(0)
        for name in _imported_names(importer):
            if name in seen:
                continue
            seen.add(name)
            found = _locate(name, roots, sources)
            if found is None or found == entry:
                continue
            package = name if found.name == "__init__.py" else name.rpartition(".")[0]
            try:
                module = _module(found, name, package, sources, parsed)
            except TorchoptError as error:
                unreadable.append(error)
                continue
            by_name[name] = module
            modules.append(module)
            pending.append(module)
    return Project(tuple(modules), by_name, tuple(unreadable))


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


def _search_roots(entry: Path) -> list[Path]:
    roots = [entry.parent]
    here = Path.cwd()
    for item in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if item:
            root = Path(os.path.normpath(here / item))
            if root.is_relative_to(here) and root not in roots:
                roots.append(root)
    return roots


def _imported_names(module: Module) -> Iterator[str]:
    """Every dotted name ``module`` imports that may be a module, packages before what is in them."""
    for node in module.nodes_of(ast.Import, ast.ImportFrom):
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


def _locate(name: str, roots: list[Path], sources: Sources) -> Path | None:
    for root in roots:
        base = root.joinpath(*name.split("."))
        for candidate in (base / "__init__.py", base.with_suffix(".py")):
            if sources.exists(candidate):
                return candidate
    return None
