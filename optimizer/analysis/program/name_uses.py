"""Where a variable is read while it has the value of one binding."""

from __future__ import annotations

import ast

from .reaching import reaching_bindings, runs_later
from .scopes import Binding
from .syntax import Module


class NameUses:
    """Answers for one project; answers are remembered."""

    def __init__(self) -> None:
        self._found: dict[Binding, tuple[ast.Name, ...]] = {}

    def of(self, binding: Binding, module: Module) -> tuple[ast.Name, ...]:
        """Where the name that ``binding`` binds may be read, or added to, while it has that value."""
        if binding not in self._found:
            self._found[binding] = tuple(
                use for use in module.names_of(binding.name) if _may_see(use, binding, module)
            )
        return self._found[binding]


def _may_see(use: ast.Name, binding: Binding, module: Module) -> bool:
    scope = module.scope(use)
    found = scope.lookup(binding.name)
    if found is None or binding not in found[1]:
        return False
    owner, bindings = found
    if runs_later(scope, owner):
        return True  # a function inside may be called before the variable gets its last value
    return binding in reaching_bindings(module, owner, bindings, scope, use)
