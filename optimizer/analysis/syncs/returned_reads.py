"""Numbers that a step's own function reads from the device and gives back: ``return loss.item()``.

Where that function is called in one place, a loop over steps, it can give back the tensor instead, and the loop treats it
as a tensor of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..calls.callbacks import has_known_callers
from ..editing.references import Reference, reference
from ..facts import Loop, LoopKind
from ..program.scopes import Parameter
from ..program.sharing import other_user
from ..program.syntax import LoopNode, first_name
from ..tensors.tensor_kinds import TensorKind, returned_by
from ..values.resolver import CallSite, Resolver
from ..values.unpacking import Path, element_at
from ..values.values import Function
from .device_reads import DeviceRead, runs_rarely, step_loop
from .step_uses import excerpt

_NUMBERS = frozenset({"float", "int"})
_STEPS = frozenset({LoopKind.TRAINING, LoopKind.EVALUATION})


def returned_reads(
    resolver: Resolver, reads: Iterable[DeviceRead], loops: dict[LoopNode, Loop]
) -> Iterator[tuple[Loop, DeviceRead, str | None]]:
    """The loops over steps that get such numbers, each with where the number arrives and what stands against it, in words."""
    for read in reads:
        function = read.module.function(read.node)
        path = _place_in_result(read)
        is_known = read.kind is not TensorKind.UNKNOWN
        if path is None or not is_known or not isinstance(function, ast.FunctionDef):
            continue
        for site in resolver.call_sites(function):
            loop = step_loop(site.module, site.call, loops)
            arrives = _arrival(site, path)
            if arrives is None or loop is None or loop.kind not in _STEPS:
                continue
            if runs_rarely(site.module, site.call, loop.node):
                continue
            why = _obstacle(resolver, read, path, site)
            if why is not None:
                why = f"it gets `{read.excerpt}` from `{function.name}`: {why}"
            yield loop, DeviceRead(site.module, arrives, arrives, read.kind, read), why


def annotation_edits(read: DeviceRead) -> Iterator[tuple[ast.expr, Reference]]:
    """What the function of ``read`` says it returns there, if that is a number, with what it is to say in its place."""
    path = _place_in_result(read)
    annotation = number_annotation(read, path) if path is not None else None
    if annotation:
        yield annotation, reference(read.module, "torch.Tensor")


def number_annotation(read: DeviceRead, path: Path) -> ast.expr | bool | None:
    """The ``float`` or ``int`` in what the function says it returns; None where it says nothing, False where it says more."""
    function = read.module.function(read.node)
    annotation = function.returns if isinstance(function, ast.FunctionDef) else None
    if annotation is None:
        return None
    if path:
        match annotation:
            case ast.Subscript(slice=ast.Tuple(elts=parts)) if path[0] in range(len(parts)):
                annotation = parts[int(path[0])]
            case _:
                return False
    return annotation if isinstance(annotation, ast.Name) and annotation.id in _NUMBERS else False


def _place_in_result(read: DeviceRead) -> Path | None:
    """Which part of a function's result the number is: ``()`` for all of it; None where it is not given back as it is."""
    module, node = read.module, read.node
    match module.parents[node]:
        case ast.Return():
            return ()
        case ast.Tuple(elts=elements) as display if isinstance(
            module.parents[display], ast.Return
        ) and not any(isinstance(element, ast.Starred) for element in elements):
            return (elements.index(node),)
        case _:
            return None


def _obstacle(resolver: Resolver, read: DeviceRead, path: Path, site: CallSite) -> str | None:
    """Why the function of ``read`` cannot give back a tensor to ``site``, in words; None where it can."""
    module, function = read.module, read.module.function(read.node)
    assert isinstance(function, ast.FunctionDef)
    callees = {callee.node for callee in resolver.callees(site.call, site.module)}
    user = other_user(resolver.project, function, module)
    if callees != {function}:
        return "other functions may be called in its place"
    if len(resolver.call_sites(function)) > 1 or not has_known_callers(resolver, function, module):
        return "the function is called in several places, or not known to be called in one"
    if user is not None:
        return f"`{user.name}` uses the function, too"
    if len(returned_by(Function(function, module))) > 1:
        return "the function returns in several places"
    if number_annotation(read, path) is False:
        return f"the function is annotated (`{excerpt(module, function.returns or function)}`)"
    if _may_live_on(read):
        return f"`{excerpt(module, read.tensor)}` may change later"
    return None


def _arrival(site: CallSite, path: Path) -> ast.expr | None:
    """The call, or the variable that gets the part ``path`` of what it gives; None where that goes elsewhere."""
    parent = site.module.parents[site.call]
    if not path:
        return None if isinstance(parent, ast.Expr) else site.call
    match parent:
        case ast.Assign(targets=[ast.Tuple(elts=targets)]):
            target = element_at(targets, path[0])
            return target if isinstance(target, ast.Name) else None
        case _:
            return None


def _may_live_on(read: DeviceRead) -> bool:
    """Whether the tensor itself, not what is computed from it, is reached by way of a parameter: it may change later."""
    if isinstance(read.tensor, ast.Call | ast.BinOp):
        return False
    root = first_name(read.tensor)
    found = read.module.scope(root).lookup(root.id) if root is not None else None
    return (
        root is None
        or found is None
        or found[0] is not read.module.scope(read.node)
        or any(isinstance(binding.source, Parameter) for binding in found[1])
    )
