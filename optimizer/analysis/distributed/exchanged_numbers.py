"""Numbers of a script that its processes exchange, which have to be a tensor for that: book-keeping, no computation.

A meter does so at the end of a pass (torchvision's ``SmoothedValue``, which many repositories have a copy of)::

    t = torch.tensor([self.count, self.total], dtype=torch.float64, device="cuda")
    dist.all_reduce(t)
    self.count, self.total = t.tolist()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.signatures import call_argument
from ..program.syntax import Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import Made

_MAKES = frozenset({"torch.tensor", "torch.as_tensor"})
_COPIES = frozenset({"detach", "clone"})
_READ_BY = frozenset({"tolist", "item"})


def is_of_exchanged_numbers(resolver: Resolver, dtype: ast.expr, module: Module) -> bool:
    """Whether ``dtype`` is the type of a new tensor that is reduced among processes, then read as numbers, and no more."""
    keyword = module.parents[dtype]
    made = module.parents[keyword]
    if not isinstance(made, ast.Call) or call_argument(made, "dtype") is not dtype:
        return False
    statement = module.parents[made]
    while not isinstance(statement, ast.stmt) and _is_copied(statement):
        statement = module.parents[statement]
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
        _is_exchanged(resolver, use, module) or _is_read(resolver, use, module) for use in uses
    )


def _is_copied(node: ast.AST) -> bool:
    """``t.detach().clone()``, of which ``node`` is a part, is the same numbers."""
    method = node.func if isinstance(node, ast.Call) else node
    return isinstance(method, ast.Attribute) and method.attr in _COPIES


def _is_exchanged(resolver: Resolver, use: ast.Name, module: Module) -> bool:
    call = module.parents[use]
    return (
        isinstance(call, ast.Call)
        and use in call.args
        and any(name.startswith("torch.distributed.") for name in resolver.names(call.func, module))
    )


def _is_read(resolver: Resolver, use: ast.Name, module: Module) -> bool:
    """``t.tolist()``, ``t[0].item()``, ``t.to(number)``, also of each number in ``t``."""
    outer = module.parents[use]
    if isinstance(outer, ast.Subscript) and outer.value is use:
        outer = module.parents[outer]
    if isinstance(outer, ast.Attribute):
        return outer.attr in _READ_BY or _gets_type_of_another(resolver, outer, module)
    numbers = list(_numbers_in(resolver, use, module))
    return bool(numbers) and all(_is_read(resolver, number, module) for number in numbers)


def _gets_type_of_another(resolver: Resolver, method: ast.Attribute, module: Module) -> bool:
    """``t.to(value)`` where ``torch.is_tensor(value)`` was asked."""
    call = module.parents[method]
    if not isinstance(call, ast.Call) or method.attr != "to" or len(call.args) != 1:
        return False
    other = ast.dump(call.args[0])
    return any(
        isinstance(test, ast.If | ast.IfExp)
        and isinstance(test.test, ast.Call)
        and "torch.is_tensor" in resolver.names(test.test.func, module)
        and [ast.dump(asked) for asked in test.test.args] == [other]
        for test in module.ancestors(call)
    )


def _numbers_in(resolver: Resolver, use: ast.Name, module: Module) -> Iterator[ast.Name]:
    """The uses of each of ``t`` in ``[.. for value, each in zip(values, t)]``."""
    pairs = module.parents[use]
    generator = module.parents.get(pairs)
    if (
        not isinstance(pairs, ast.Call)
        or "builtins.zip" not in resolver.names(pairs.func, module)
        or not isinstance(generator, ast.comprehension)
        or not isinstance(generator.target, ast.Tuple)
    ):
        return
    each = generator.target.elts[pairs.args.index(use)]
    if isinstance(each, ast.Name):
        inside = set(walk(module.parents[generator]))
        names = (name for name in module.names_of(each.id) if isinstance(name.ctx, ast.Load))
        yield from (name for name in names if name in inside)
