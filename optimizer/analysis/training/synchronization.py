"""Steps made of several batches: their gradients need to be exchanged only ahead of the optimizer's step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ...rewriting.edits import FileEdit, Wrap
from ..calls.reach import lexical_nodes
from ..distributed.divergence import Divergence
from ..distributed.process_names import Place, ProcessNames
from ..editing.free_names import free_name
from ..facts import CallFact
from ..program.trees import walk
from ..values.resolver import Resolver
from .steps import StepCode


def accumulation_edits(
    resolver: Resolver,
    step: StepCode,
    forward: CallFact,
    network: str,
    divergence: Divergence,
    names: ProcessNames,
) -> Iterator[FileEdit]:
    """The edit by which only the last backward pass of a step exchanges gradients, where a condition says which that is.

    ``network`` is how the wrapped network is called at ``forward``.
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync
    """
    module, backward = step.module, step.backwards[0]
    if forward.module is not module or len(step.updates) != 1:
        return
    condition = module.parents[module.statement(step.updates[0].node)]
    if not isinstance(condition, ast.If) or condition.orelse:
        return
    block = module.block(condition)
    if block is not getattr(step.node, "body", None):
        return
    around = [
        _in_block(block, [node, *module.ancestors(node)]) for node in (forward.node, backward.node)
    ]
    first, last = around
    if first is None or last is None:
        return
    begin, end = block.index(first), block.index(last)
    if not begin <= end < block.index(condition):
        return
    bound = {
        node.id
        for statement in block[begin : block.index(condition)]
        for node in lexical_nodes([statement])
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    test = condition.test
    if divergence.of(test, module) or not _is_arithmetic(resolver, step, test, bound):
        return
    name = free_name(module, ("exchanges", "exchanges_gradients"))
    if name is None:
        return
    code = module.code(test)
    if isinstance(test, ast.IfExp) or "\n" in code:
        code = f"({code})"
    row = f"{name} = {names.name(Place.WORLD_SIZE, module)} == 1 or {code}"
    header = f"{row}\nwith {names.imported(module, 'contextlib', 'nullcontext')}() if {name} else {network}.no_sync():"
    yield FileEdit(module.path, Wrap(module.span(first), module.span(last), header))


def _in_block(block: list[ast.stmt], nodes: list[ast.AST]) -> ast.stmt | None:
    return next((n for n in nodes if isinstance(n, ast.stmt) and n in block), None)


def _is_arithmetic(resolver: Resolver, step: StepCode, test: ast.expr, bound: set[str]) -> bool:
    """Whether ``test`` is the same ahead of the forward pass: arithmetic with what is not ``bound`` in between."""
    for node in walk(test):
        if isinstance(node, ast.Call) and resolver.names(node.func, step.module) != frozenset(
            {"builtins.len"}
        ):
            return False
        if isinstance(node, ast.Name) and node.id in bound:
            return False
        if isinstance(node, ast.NamedExpr | ast.Await | ast.Yield):
            return False
    return any(isinstance(node, ast.Mod) for node in walk(test))
