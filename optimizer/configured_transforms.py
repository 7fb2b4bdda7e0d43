"""Names of transforms in a ``pyproject.toml``, told with their place where they are wrong."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from .config import load_settings, suggestion
from .errors import TorchoptError
from .pyproject import TABLE, configuration_table, place_of


def check_configured_transforms(folder: Path, known: Collection[str]) -> None:
    """Check the names in the configuration that holds for ``folder``.

    Raises :class:`TorchoptError` (path, line, column) for one that is none of the ``known`` transforms'.
    """
    settings, found = load_settings(folder), configuration_table(folder)
    if found is None:
        return
    path, text, _ = found
    for key, names in (("select", settings.select), ("ignore", settings.ignore)):
        for name in names or ():
            if name not in known:
                close = suggestion(name, known)
                message = f"{key}: no transform is called {name!r}{close}"
                raise TorchoptError(message, path, *place_of(text, *TABLE, key))
