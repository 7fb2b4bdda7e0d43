"""What a script does with the number that is the size of its batches, besides making batches of it.

Where the batches of a loader become smaller the number stays what it is: how many samples a step is made of. What is
worked out of it (how many steps there are, a learning rate) stays right; a tensor of that size does not.
"""

from __future__ import annotations

import ast

from ..program.module_names import reads_of
from ..program.syntax import Module
from ..values.resolver import Resolver

_WORKED_OUT = frozenset(
    f"builtins.{name}" for name in ("int", "float", "round", "max", "min", "range", "abs")
) | frozenset(f"{library}.{name}" for library in ("math", "numpy") for name in ("ceil", "floor"))
_SCHEDULES = "torch.optim."


class SizeUses:
    """Answers for the uses of the size of a batch in one project."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    def only_works_out(self, use: ast.expr, module: Module) -> bool:
        """Whether ``use`` is compared, is what something is divided by, or has its part in a learning rate alone."""
        return self._is_harmless(use, module, frozenset())

    def _is_harmless(self, use: ast.expr, module: Module, seen: frozenset[str]) -> bool:
        """``seen`` are the variables that ``use`` is read from by way of others."""
        number, divides = self._worked_out(use, module)
        match module.parents[number]:
            case ast.Compare():
                return True
            case ast.Call() | ast.keyword():
                return self._is_rate(number, module)
            case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value="lr"))]):
                return True  # of a group of parameters
            case (
                ast.Assign(targets=[ast.Name() | ast.Attribute() as target])
                | ast.AugAssign(target=ast.Name() | ast.Attribute() as target)
            ):
                return divides or self._becomes_rate(target, module, seen)
            case _:
                return divides

    def _worked_out(self, use: ast.expr, module: Module) -> tuple[ast.expr, bool]:
        """The number that is worked out of ``use``, and whether that is by a division by it."""
        divides = False
        while True:
            parent = module.parents[use]
            match parent:
                case ast.BinOp(op=ast.Div() | ast.FloorDiv() | ast.Mod(), right=right):
                    divides |= right is use
                case ast.BinOp():
                    pass
                case ast.Call(args=[*given]) if (
                    use in given
                    and self._resolver.names(parent.func, module)
                    and self._resolver.names(parent.func, module) <= _WORKED_OUT
                ):
                    pass
                case ast.ListComp(elt=element) if element is use:
                    pass
                case _:
                    return use, divides
            use = parent

    def _is_rate(self, number: ast.expr, module: Module) -> bool:
        """Whether ``number`` is what an optimizer or a schedule is made with."""
        call = module.parents[number]
        call = module.parents[call] if isinstance(call, ast.keyword) else call
        if not isinstance(call, ast.Call) or call.func is number:
            return False
        names = self._resolver.names(call.func, module)
        return bool(names) and all(name.startswith(_SCHEDULES) for name in names)

    def _becomes_rate(
        self, target: ast.Name | ast.Attribute, module: Module, seen: frozenset[str]
    ) -> bool:
        """Whether what is read of ``target`` is harmless, too."""
        name = ast.unparse(target)
        if name in seen:
            return True
        reads = list(reads_of(self._resolver, target, module))
        return bool(reads) and all(self._is_harmless(*read, seen | {name}) for read in reads)
