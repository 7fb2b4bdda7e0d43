"""Numbers of a script that its processes exchange, which have to be a tensor for that: book-keeping, no computation.

A meter does so at the end of a pass (torchvision's ``SmoothedValue``, which many repositories have a copy of)::

    t = torch.tensor([self.count, self.total], dtype=torch.float64, device="cuda")
    dist.all_reduce(t)
    self.count, self.total = t.tolist()
"""

from __future__ import annotations

import ast

from .resolver import Resolver
from .signatures import call_argument
from .syntax import Module
from .values import Made

_MAKES = frozenset({"torch.tensor", "torch.as_tensor"})
_READ_BY = frozenset({"tolist", "item"})


def is_of_exchanged_numbers(resolver: Resolver, dtype: ast.expr, module: Module) -> bool:
    """Whether ``dtype`` is the type of a new tensor that is reduced among processes, then read as numbers, and no more."""
    keyword = module.parents[dtype]
    made = module.parents[keyword]
    if not isinstance(made, ast.Call) or call_argument(made, "dtype") is not dtype:
        return False
    statement = module.parents[made]
    if not resolver.names(made.func, module) & _MAKES or not isinstance(statement, ast.Assign):
        return False
    (target, *more) = statement.targets
    function = module.function(statement)
    if more or function is None or not isinstance(target, ast.Name):
        return False
    uses = [
        name
        for name in module.names_of(target.id)
        if module.function(name) is function
        and isinstance(name.ctx, ast.Load)
        and any(
            isinstance(value, Made) and value.call is made
            for value in resolver.values(name, module)
        )
    ]
    return any(_is_exchanged(resolver, use, module) for use in uses) and all(
        _is_exchanged(resolver, use, module) or _is_read(use, module) for use in uses
    )


def _is_exchanged(resolver: Resolver, use: ast.Name, module: Module) -> bool:
    call = module.parents[use]
    return (
        isinstance(call, ast.Call)
        and use in call.args
        and any(name.startswith("torch.distributed.") for name in resolver.names(call.func, module))
    )


def _is_read(use: ast.Name, module: Module) -> bool:
    """``t.tolist()``, ``t[0].item()``."""
    outer = module.parents[use]
    if isinstance(outer, ast.Subscript) and outer.value is use:
        outer = module.parents[outer]
    return isinstance(outer, ast.Attribute) and outer.attr in _READ_BY
