"""Sums and lists that hold on to the autograd graph of every step: ``total += loss``, ``total = total + loss``.

Where the loss is backpropagated in the same pass, its graph is spent: what the sum holds on to can never be used.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..calls.signatures import call_argument
from ..facts import Fact, Loop, LoopKind
from ..program.reaching import only_value, same_variable
from ..program.syntax import LoopNode, Module
from ..syncs.device_reads import backpropagated_by, backpropagated_from, step_loop
from ..syncs.loop_definitions import (
    Definition,
    arithmetic_root,
    definitions_in,
    leaf_name,
    leaves,
)
from ..tensors.tensor_kinds import TensorKind, TensorKinds
from ..values.host_numbers import is_number
from ..values.resolver import Resolver


@dataclass(frozen=True, eq=False)
class GraphLeak(Fact):
    """A statement that adds ``losses``, with their graphs, to ``total``.

    ``shown`` is a place that prints ``total`` as a tensor, where the graph can be seen.
    """

    node: ast.stmt
    total: str
    losses: tuple[ast.Name, ...]
    shown: ast.Call | None


def find_graph_leaks(
    resolver: Resolver, loops: tuple[Loop, ...], kinds: TensorKinds
) -> tuple[GraphLeak, ...]:
    """All of them, in source order per module."""
    by_node = {loop.node: loop for loop in loops}
    return tuple(
        leak
        for module in resolver.project.modules
        for node in module.nodes_of(ast.Assign, ast.AugAssign, ast.Expr)
        for definition in definitions_in(node)
        for leak in _leak(resolver, kinds, definition, module, by_node)
    )


def _leak(
    resolver: Resolver,
    kinds: TensorKinds,
    definition: Definition,
    module: Module,
    loops: dict[LoopNode, Loop],
) -> Iterator[GraphLeak]:
    statement = definition.statement
    loop = step_loop(module, statement, loops)
    if loop is None or loop.kind is not LoopKind.TRAINING:
        return
    if isinstance(statement, ast.AugAssign) and not isinstance(statement.op, ast.Add):
        return
    parts = [*leaves(definition.value)]
    if isinstance(statement, ast.Assign):
        kept = [leaf for leaf in parts if leaf_name(leaf) == definition.name]
        if len(kept) != 1:
            return
        parts.remove(kept[0])
    losses = [
        leaf
        for leaf in parts
        if isinstance(leaf, ast.Name) and _is_spent(resolver, kinds, leaf, statement, module)
    ]
    others = [leaf for leaf in parts if leaf not in losses]
    if not losses or not all(is_number(resolver, leaf, module) for leaf in others):
        return
    if any(leaf_name(leaf) == definition.name for leaf in losses):
        return
    if _meets_autograd(definition.name, module):
        return
    if definition.appends and not _only_summarised(resolver, definition.name, module):
        return
    shown = _shown(definition.name, module)
    yield GraphLeak(module, statement, definition.name, tuple(losses), shown)


def _is_spent(
    resolver: Resolver, kinds: TensorKinds, loss: ast.Name, statement: ast.stmt, module: Module
) -> bool:
    """Whether every pass that runs ``statement`` backpropagates ``loss`` and frees its graph.

    A method of the script's own, as of layers that derive their gradients by hand, may be given a plain number.
    """
    around = [statement, *module.ancestors(statement)]
    calls = [*backpropagated_by(loss, module)]
    if kinds.of(loss, module) in {TensorKind.FLOAT, TensorKind.TENSOR}:
        calls += _backpropagated_with(loss, module)  # a part may also be a number: `loss / len(x)`
    for call in calls:
        if call.args and resolver.callees(call, module):
            continue
        kept = [call_argument(call, "retain_graph"), call_argument(call, "create_graph")]
        block = module.block(module.statement(call))
        if not any(kept) and len(call.args) <= 1 and any(node in block for node in around):
            return True
    return False


def _backpropagated_with(part: ast.Name, module: Module) -> Iterator[ast.Call]:
    """The calls that compute gradients of a sum that ``part`` goes into: ``loss = part + 0.5 * other``.

    They go through the graph of each part, and free it.
    """
    for use in module.names_of(part.id):
        root = arithmetic_root(module, use)
        statement = module.parents[root]
        if root is use or not same_variable(use, part, module):
            continue
        for call in module.calls_named("backward"):
            for loss in backpropagated_from(call):
                is_sum = isinstance(loss, ast.Name) and only_value(module, loss) is root
                if loss is root or (is_sum and isinstance(statement, ast.Assign)):
                    yield call


def _meets_autograd(total: str, module: Module) -> bool:
    """Whether something asks the variable ``total``, or what it is passed to, for gradients."""
    for use in module.names_of(total):
        for ancestor in module.ancestors(use):
            if isinstance(ancestor, ast.stmt):
                break
            asked = ancestor.func if isinstance(ancestor, ast.Call) else ancestor
            name = getattr(asked, "attr", "")
            if name in {"backward", "requires_grad", "grad_fn", "grad", "retain_grad"}:
                return True
    return False


def _only_summarised(resolver: Resolver, name: str, module: Module) -> bool:
    """Whether the list ``name`` is given to nothing but functions of libraries, which cannot ask for its graphs."""
    for use in module.names_of(name):
        parent = module.parents[use]
        if isinstance(use.ctx, ast.Store) or getattr(parent, "attr", "") in {"append", "clear"}:
            continue
        if not (isinstance(parent, ast.Call) and use in parent.args):
            return False
        if not resolver.names(parent.func, module):
            return False
    return True


def _shown(total: str, module: Module) -> ast.Call | None:
    for use in module.names_of(total):
        parent = module.parents[use]
        if isinstance(parent, ast.Call) and getattr(parent.func, "id", "") in {"print", "str"}:
            return parent
    return None
