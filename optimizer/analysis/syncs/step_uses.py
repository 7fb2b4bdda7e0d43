"""What a step does with a number it has read from the device, in words."""

from __future__ import annotations

import ast

from ..facts import excerpt
from ..program.syntax import Module, last_identifier
from ..program.trees import is_none
from ..values.resolver import Resolver

SHOWS = frozenset(
    "set_postfix set_postfix_str set_description set_description_str progress_bar".split()
)
"""Methods of progress bars that show what they are given."""
_LOGS = frozenset(
    "add_scalar add_scalars log log_metric log_metrics log_dict info debug warning write writerow plot".split()
)
_FILLED = frozenset("zeros ones empty full zeros_like ones_like tensor array".split())
_HOLDERS = {"torch": "a tensor", "numpy": "an array of NumPy's"}
"""What the functions of these packages make, in which numbers are stored."""


def asks_if_none(module: Module, node: ast.expr) -> bool:
    """Whether ``node`` is only asked whether it is None, for which its value is not needed: ``loss is not None``."""
    match module.parents[node]:
        case ast.Compare(left, [ast.Is() | ast.IsNot()], [other]):
            return is_none(other if node is left else left)
        case _:
            return False


def why_needed(resolver: Resolver, node: ast.expr, module: Module) -> str:
    """What becomes of ``node`` in every step, as the end of a sentence about it."""
    child: ast.AST = node
    for ancestor in module.ancestors(node):
        match ancestor:
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if test is child:
                return f"decides what happens next (`{excerpt(module, test)}`)"
            case ast.Assert() | ast.Compare() | ast.BoolOp():
                return f"is compared in every step (`{excerpt(module, ancestor)}`)"
            case ast.Call() if child is not ancestor.func:
                found = _taken(ancestor, module)
                if found is not None:
                    return found
            case ast.Return() | ast.Yield():
                return "is returned from the loop"
            case ast.Subscript() if ancestor.slice is child:
                return f"picks an element (`{excerpt(module, ancestor)}`)"
            case ast.AugAssign(target=target) if not isinstance(target, ast.Name):
                return f"goes into `{excerpt(module, target)}`, {_stored(resolver, target, module)}"
            case ast.Assign(targets=[target, *_]) if not isinstance(target, ast.Name):
                return f"goes into `{excerpt(module, target)}`, {_stored(resolver, target, module)}"
            case ast.stmt():
                return f"is used in every step (`{excerpt(module, ancestor)}`)"
            case _:
                pass
        child = ancestor
    return "is used in every step"


def _stored(resolver: Resolver, target: ast.expr, module: Module) -> str:
    """What ``target`` is, which is given the number, as far as it says why the number is needed."""
    while isinstance(target, ast.Subscript):
        target = target.value
        makers = resolver.maker_names(target, module)
        packages = {name.rpartition(".")[0] for name in makers}
        is_filled = all(name.rpartition(".")[2] in _FILLED for name in makers)
        if is_filled and len(packages) == 1 and packages <= _HOLDERS.keys():
            return f"an element of {_HOLDERS[packages.pop()]}"
    return "which may be read anywhere"


def _taken(call: ast.Call, module: Module) -> str | None:
    function = call.func
    name = last_identifier(function)
    code = excerpt(module, function)
    if name == "print":
        return "is printed in every step"
    if name in SHOWS:
        return f"is shown in every step (`{code}`)"
    if name in _LOGS:
        return f"is logged in every step (`{code}`)"
    if name == "step":
        return f"is what `{code}` goes by"
    if name in {"append", "extend", "add", "update", "insert"} and isinstance(
        function, ast.Attribute
    ):
        return f"goes into `{excerpt(module, function.value)}`, which may be read anywhere"
    return None
