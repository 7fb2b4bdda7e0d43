"""Numbers that a step's own function reads from the device and gives back: ``return loss.item()``.

Where loops over steps are all that calls such a function, it can give back the tensor instead, and the loops treat that as
a tensor of their own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..calls.callbacks import has_known_callers
from ..editing.references import Reference, reference
from ..facts import Loop, excerpt
from ..program.scopes import Parameter
from ..program.sharing import other_user
from ..program.syntax import LoopNode, first_name
from ..tensors.returned_values import returned_by
from ..tensors.tensor_kinds import TensorKind
from ..values.host_numbers import is_number
from ..values.resolver import CallSite, Resolver
from ..values.unpacking import Path, element_at
from ..values.values import Function
from .deferral_checks import Refused, check_divisor
from .device_reads import STEPS, DeviceRead, runs_rarely, step_loop
from .loop_definitions import leaves

_NUMBERS = frozenset({"float", "int"})


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
        sites = [
            site
            for site in resolver.call_sites(function)
            if not isinstance(site.module.parents[site.call], ast.Expr)
        ]
        arrivals = [(site, _arrival(site, path, loops)) for site in sites]
        if all(arrival is None for _, arrival in arrivals):
            continue
        why = _obstacle(resolver, read, path, sites)
        elsewhere = next((site for site, arrival in arrivals if arrival is None), None)
        if why is None and elsewhere is not None:
            why = f"{elsewhere.module.place(elsewhere.call)} needs the number, too"
        told = why and f"it gets `{read.excerpt}` from `{function.name}`: {why}"
        kind = read.kind if read.result is read.node else TensorKind.FLOAT
        for site, arrival in arrivals:
            if arrival is not None:
                loop, node = arrival
                yield loop, DeviceRead(site.module, node, node, kind, read), told


def annotation_edits(read: DeviceRead) -> Iterator[tuple[ast.expr, Reference]]:
    """What the function of ``read`` says it returns there, if that is a number, with what it is to say in its place."""
    path = _place_in_result(read)
    annotation = _annotation(read, path) if path is not None else None
    if annotation is not None:
        yield annotation, reference(read.module, "torch.Tensor")


def _annotation(read: DeviceRead, path: Path) -> ast.expr | None:
    """What the function says it returns at ``path``; None where it says nothing, or does not write out the parts."""
    function = read.module.function(read.node)
    annotation = function.returns if isinstance(function, ast.FunctionDef) else None
    if not path:
        return annotation
    match annotation:
        case ast.Subscript(slice=ast.Tuple(elts=parts)) if path[0] in range(len(parts)):
            return parts[int(path[0])]
        case _:
            return None


def _says_number(annotation: ast.expr | None) -> bool:
    return isinstance(annotation, ast.Name) and annotation.id in _NUMBERS


def _place_in_result(read: DeviceRead) -> Path | None:
    """Which part of a function's result is computed from the number: ``()`` for all of it; None where it is not given back."""
    module, node = read.module, read.result
    match module.parents[node]:
        case ast.Return():
            return ()
        case ast.Tuple(elts=elements) as display if isinstance(
            module.parents[display], ast.Return
        ) and not any(isinstance(element, ast.Starred) for element in elements):
            return (elements.index(node),)
        case _:
            return None


def _obstacle(
    resolver: Resolver, read: DeviceRead, path: Path, sites: Iterable[CallSite]
) -> str | None:
    """Why the function of ``read`` cannot give back a tensor to its ``sites``, in words; None where it can."""
    module, function = read.module, read.module.function(read.node)
    assert isinstance(function, ast.FunctionDef)
    user = other_user(resolver.project, function, module)
    called = {c.node for site in sites for c in resolver.callees(site.call, site.module)}
    if called != {function}:
        return "other functions may be called in its place"
    if not has_known_callers(resolver, function, module):
        return "the function may be called elsewhere, too"
    if user is not None:
        return f"`{user.name}` uses the function, too"
    if len(returned_by(Function(function, module))) > 1:
        return "the function returns in several places"
    if function.returns is not None and not _says_number(_annotation(read, path)):
        return f"the function is annotated (`{excerpt(module, function.returns)}`)"
    if read.result is not read.node:
        return _why_no_sum(resolver, read)
    if _may_live_on(read):
        return f"`{excerpt(module, read.tensor)}` may change later"
    return None


def _why_no_sum(resolver: Resolver, read: DeviceRead) -> str | None:
    """Why what is computed with the number cannot be computed with the tensor, in words; None where it can."""
    result, module = read.result, read.module
    for leaf in leaves(result):
        if leaf is not read.node and not is_number(resolver, leaf, module):
            return f"`{excerpt(module, leaf)}` may be no number"
    if read.kind is not TensorKind.FLOAT and not read.divides:
        return f"`{excerpt(module, result)}` may be an integer"
    try:
        check_divisor(module, read.node, result)
    except Refused as refused:
        return refused.why
    return None


def _arrival(
    site: CallSite, path: Path, loops: dict[LoopNode, Loop]
) -> tuple[Loop, ast.expr] | None:
    """The loop over steps that calls, and there the call, or the variable that gets the part ``path`` of what it gives."""
    loop = step_loop(site.module, site.call, loops)
    if loop is None or loop.kind not in STEPS or runs_rarely(site.module, site.call, loop.node):
        return None
    if not path:
        return loop, site.call
    match site.module.parents[site.call]:
        case ast.Assign(targets=[ast.Tuple(elts=targets)]):
            target = element_at(targets, path[0])
            return (loop, target) if isinstance(target, ast.Name) else None
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
