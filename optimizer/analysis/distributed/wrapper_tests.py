"""Where a script asks whether its network is in ``nn.DataParallel``, which it no longer is in several processes.

What is asked decides whether ``model.module`` is saved, or what ``model`` itself says: the keys of checkpoints.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from ...rewriting.edits import FileEdit
from ..calls.reach import never_runs
from ..editing.replacing import replacement
from ..program.syntax import Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import Made
from .data_parallel import DATA_PARALLEL, DataParallelUse
from .process_names import Place, ProcessNames

_DISTRIBUTED = "torch.nn.parallel.DistributedDataParallel"
_NAME = "DataParallel"
_Test: TypeAlias = "ast.If | ast.IfExp"


def wrapper_test_edits(
    resolver: Resolver, uses: Iterable[DataParallelUse], names: ProcessNames
) -> Iterator[FileEdit]:
    """The edits by which tests for the wrapper also hold where ``DistributedDataParallel`` takes its place."""
    for module in resolver.project.modules:
        if _NAME not in module.source.text:
            continue
        for node in module.nodes_of(ast.Call, ast.Compare):
            if not never_runs(resolver, node, module):
                yield from _class_test(resolver, node, module, names)
    for use in uses:
        if use.condition is not None:
            yield from _same_conditions(resolver, use, use.condition, names)


def _class_test(
    resolver: Resolver, node: ast.AST, module: Module, names: ProcessNames
) -> Iterator[FileEdit]:
    """``isinstance(model, nn.DataParallel)`` and ``type(model) is nn.DataParallel``, also by the name of the class."""
    match node:
        case ast.Call(func=function, args=[_, classes], keywords=[]) if resolver.names(
            function, module
        ) == frozenset({"builtins.isinstance"}):
            if _is_data_parallel(resolver, classes, module):
                yield replacement(module, classes, f"({_both(classes, module, names)})")
            elif _lacks_distributed(resolver, classes, module):
                yield replacement(module, classes, _longer(classes, module, names))
        case ast.Compare(left=left, ops=[op], comparators=[ast.Constant(value=value) as right]) if (
            value == _NAME and (word := _membership(op)) is not None
        ):
            quote = module.code(right)
            both = f"({quote}, {quote.replace(_NAME, f'Distributed{_NAME}')})"
            yield replacement(module, node, f"{module.code(left)} {word} {both}")
        case ast.Compare(left=left, ops=[op], comparators=[right]) if (
            _is_data_parallel(resolver, right, module) and (word := _membership(op)) is not None
        ):
            both = _both(right, module, names)
            yield replacement(module, node, f"{module.code(left)} {word} ({both})")
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[right]) if _lacks_distributed(
            resolver, right, module
        ):
            yield replacement(module, right, _longer(right, module, names))
        case _:
            pass


def _membership(op: ast.cmpop) -> str | None:
    match op:
        case ast.Is() | ast.Eq():
            return "in"
        case ast.IsNot() | ast.NotEq():
            return "not in"
        case _:
            return None


def _is_data_parallel(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    return resolver.names(node, module) == frozenset({DATA_PARALLEL})


def _lacks_distributed(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is a display of classes with ``DataParallel`` and without the other."""
    if not isinstance(node, ast.Tuple | ast.List) or not node.elts:
        return False
    names = frozenset[str]().union(*(resolver.names(each, module) for each in node.elts))
    return DATA_PARALLEL in names and _DISTRIBUTED not in names


def _both(cls: ast.expr, module: Module, names: ProcessNames) -> str:
    return f"{module.code(cls)}, {_distributed(module, names)}"


def _longer(display: ast.expr, module: Module, names: ProcessNames) -> str:
    """The tuple or list ``display`` with one more class."""
    code = module.code(display)
    return f"{code[:-1].rstrip().rstrip(',')}, {_distributed(module, names)}{code[-1]}"


def _distributed(module: Module, names: ProcessNames) -> str:
    return names.imported(module, "torch.nn.parallel", "DistributedDataParallel")


# Conditions under which it is wrapped


def _same_conditions(
    resolver: Resolver, use: DataParallelUse, wrapped_under: ast.expr, names: ProcessNames
) -> Iterator[FileEdit]:
    """The tests by which ``model.module`` is chosen or ``model`` itself; in several processes it is always wrapped."""
    seen: set[ast.AST] = set()
    for module in resolver.project.modules:
        for node in module.attributes_of("module"):
            if not _is_wrapped(resolver, node.value, module, use):
                continue
            found = _choice(node, module, wrapped_under)
            if found is None or found[0] in seen:
                continue
            test, holds = found
            seen.add(test)
            world = names.name(Place.WORLD_SIZE, module)
            condition = module.code(test.test)
            if holds:
                condition = f"({condition})" if isinstance(test.test, ast.IfExp) else condition
                code = f"{world} > 1 or {condition}"
            else:
                loose = isinstance(test.test, ast.IfExp) or (
                    isinstance(test.test, ast.BoolOp) and isinstance(test.test.op, ast.Or)
                )
                code = f"{world} == 1 and {f'({condition})' if loose else condition}"
            yield replacement(module, test.test, code)


def _is_wrapped(resolver: Resolver, node: ast.expr, module: Module, use: DataParallelUse) -> bool:
    return any(isinstance(v, Made) and v.call is use.node for v in resolver.values(node, module))


def _choice(
    node: ast.Attribute, module: Module, wrapped_under: ast.expr
) -> tuple[_Test, bool] | None:
    """The test that ``node`` hangs on as the wrapper did, or that takes the same network as it is where it does not hold."""
    wanted, itself = ast.dump(wrapped_under), ast.dump(node.value)
    child: ast.AST = node
    for around in module.ancestors(node):
        if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return None
        if isinstance(around, ast.If | ast.IfExp) and child is not around.test:
            holds = child in _branch(around.body)
            others = _branch(around.orelse if holds else around.body)
            takes_other = any(
                isinstance(part, ast.expr)
                and ast.dump(part) == itself
                and not _is_unwrapped(part, module)
                for other in others
                for part in walk(other)
            )
            if takes_other or ast.dump(around.test) == wanted:
                return (around, holds) if not _asks_object(around.test) else None
        child = around
    return None


def _branch(branch: list[ast.stmt] | ast.expr) -> list[ast.stmt] | list[ast.expr]:
    return branch if isinstance(branch, list) else [branch]


def _is_unwrapped(node: ast.AST, module: Module) -> bool:
    parent = module.parents[node]
    return isinstance(parent, ast.Attribute) and parent.attr == "module"


def _asks_object(test: ast.expr) -> bool:
    """Whether ``test`` looks at the network itself: ``hasattr(model, "module")``, ``isinstance(..)``, ``type(model) is ..``."""
    return any(
        (isinstance(node, ast.Name) and node.id in {"hasattr", "isinstance", "type"})
        or (isinstance(node, ast.Attribute) and node.attr == "__class__")
        for node in walk(test)
    )
