"""Copies of the tensors that a script keeps of every batch, so that what is kept holds no file of a worker open.

``labels.append(y)`` becomes ``labels.append(y.clone())``: the same values in memory of the process's own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...options import Options
from ...rewriting.edits import FileEdit, ReplaceExpression
from ..facts import DataLoader, Fact
from ..program.statements import are_alternatives
from ..program.syntax import Module
from ..program.trees import walk
from ..script import TrainingScript
from .batch_objects import collates_plainly
from .batch_writes import find_batch_writes
from .batches import Place
from .kept_batches import kept_batches

_OF_TENSORS = frozenset("detach long float double half unsqueeze permute numpy".split())
"""Methods that tensors have, and neither arrays nor other objects of a batch."""
_ALSO_OF_TENSORS = frozenset({"cpu", "cuda", "to", "size"})
"""Methods that tensors have, and objects that a script's own collation makes."""
_JOINING = frozenset(
    f"torch.{name}" for name in "cat concat concatenate stack vstack hstack dstack".split()
)
_BRANCHES = (ast.If, ast.IfExp, ast.BoolOp, ast.Try, ast.While, ast.For, ast.Lambda)
_POSTFIX = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


def kept_copies(
    script: TrainingScript, loader: DataLoader, options: Options
) -> tuple[FileEdit, ...]:
    """The edits that keep copies of what the script keeps of the batches of ``loader``; none where nothing is kept."""
    return _copies(script, loader, kept_batches(script, loader, options)) or ()


def kept_for_good(script: TrainingScript, loader: DataLoader, options: Options) -> Fact | None:
    """What keeps batches of ``loader`` as they come, where :func:`kept_copies` has no copies in their place."""
    kept = kept_batches(script, loader, options)
    return kept[0] if _copies(script, loader, kept) is None else None


def _copies(
    script: TrainingScript, loader: DataLoader, kept: tuple[Fact, ...]
) -> tuple[FileEdit, ...] | None:
    """The edits that make copies at the places ``kept``; None where what is kept may be no tensor, or is written to."""
    if not kept:
        return ()
    if any(
        part is not None and part.loader is loader and part.place is Place.LOADED
        for write in find_batch_writes(script.resolver, (loader,))
        for part in write.parts
    ):
        return None  # what is kept may be meant to change with the batch
    edits: list[FileEdit] = []
    for place in kept:
        found = _kept_by(place.node)
        if found is None:
            return None
        holder, expression = found
        if not isinstance(expression, _POSTFIX) or not _is_tensor(
            script, loader, place.module, holder, expression
        ):
            return None
        copy = "copy" if "numpy" in _chain(expression) else "clone"
        code = f"{place.module.code(expression)}.{copy}()"
        span = place.module.span(expression)
        edits.append(FileEdit(place.path, ReplaceExpression(span, code)))
    return tuple(edits)


def _kept_by(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """What ``node`` puts something into, and that."""
    match node:
        case ast.Call(func=ast.Attribute(value=holder, attr="append"), args=[kept], keywords=[]):
            return holder, kept
        case ast.AugAssign(target=holder, value=ast.List(elts=[kept])):
            return holder, kept
        case _:
            return None


def _is_tensor(
    script: TrainingScript,
    loader: DataLoader,
    module: Module,
    holder: ast.expr,
    kept: ast.expr,
) -> bool:
    """Whether ``kept`` can only be a tensor, or an array that shares one's memory, by what the script does with it."""
    sure = _OF_TENSORS
    if collates_plainly(script, loader):
        sure |= _ALSO_OF_TENSORS
    called = {
        *_chain(kept),
        *(name for use in _uses(kept, module) for name in _called_on(use, module)),
    }
    return bool(called & sure) or _is_joined(script, holder, module)


def _is_joined(script: TrainingScript, holder: ast.expr, module: Module) -> bool:
    """Whether the elements of ``holder`` are put together as tensors: ``torch.cat(labels)``."""
    wanted, function = ast.unparse(holder), module.function(holder)
    return any(
        call.args
        and ast.unparse(call.args[0]) == wanted
        and module.function(call) is function
        and script.names(call.func, module) & _JOINING
        for call in module.calls
    )


def _uses(kept: ast.expr, module: Module) -> Iterator[ast.expr]:
    """Where else the variable ``kept`` is read in the innermost loop around it, whenever it is kept."""
    loops = module.loops(kept)
    if not isinstance(kept, ast.Name) or not loops:
        return
    around = set(module.ancestors(kept))
    here = module.statement(kept)
    for node in walk(loops[0]):
        if isinstance(node, ast.Name) and node.id == kept.id and isinstance(node.ctx, ast.Load):
            branches = (a for a in module.ancestors(node) if isinstance(a, _BRANCHES))
            apart = are_alternatives(module.statement(node), here, module)
            if not apart and all(branch in around for branch in branches):
                yield node


def _called_on(node: ast.expr, module: Module) -> Iterator[str]:
    """The methods called on ``node``."""
    parent = module.parents[node]
    if isinstance(parent, ast.Attribute) and isinstance(module.parents[parent], ast.Call):
        yield parent.attr


def _chain(node: ast.expr) -> Iterator[str]:
    """The methods that lead to ``node``: ``detach`` and ``cpu`` of ``y.detach().cpu()``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield node.func.attr
        node = node.func.value
