"""Replacing attributes of torch, and putting them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Patches:
    """Attributes replaced for the time of a run."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace the attribute ``name`` by ``make(original)``."""
        original = getattr(owner, name)
        own = name in vars(owner)
        setattr(owner, name, make(original))
        restore = (
            (lambda: setattr(owner, name, original)) if own else (lambda: delattr(owner, name))
        )
        self._undo.append(restore)

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set the attribute ``name``, which ``owner`` need not have, to ``value``."""
        if hasattr(owner, name):
            self.wrap(owner, name, lambda _: value)
        else:
            setattr(owner, name, value)
            self.on_undo(lambda: delattr(owner, name))

    def on_undo(self, action: Callable[[], object]) -> None:
        """Call ``action`` when the patches are undone."""
        self._undo.append(action)

    def undo(self) -> None:
        """Put everything back, the last first."""
        while self._undo:
            self._undo.pop()()
