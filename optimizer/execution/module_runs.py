"""Scripts that only run as a module of their package: what ``python -m`` would be given for them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ModuleRun:
    """``python -m name`` with ``root`` on the search path."""

    name: str
    root: Path


def module_run(entry: Path, code: bytes, cwd: Path) -> ModuleRun | None:
    """How the script ``entry``, whose text is ``code``, runs as a module; None where it runs as a file.

    A script with relative imports cannot be started by its path. Its package is what ``__init__.py`` makes one, else
    what lies between ``cwd`` and the script.
    """
    deepest = _deepest_relative_import(code)
    if not deepest:
        return None
    root = entry.parent
    while (root / "__init__.py").exists():
        root = root.parent
    if len(entry.relative_to(root).parts) <= deepest and entry.is_relative_to(cwd):
        root = cwd
    parts = entry.relative_to(root).with_suffix("").parts
    return ModuleRun(".".join(parts), root) if len(parts) > deepest else None


def _deepest_relative_import(code: bytes) -> int:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return 0  # Python will say so itself
    return max((n.level for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)), default=0)
