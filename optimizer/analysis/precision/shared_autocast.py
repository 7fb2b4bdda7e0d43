"""The autocast that a script writes around its training steps, as evaluations of the same networks can share it.

``with torch.autocast("cuda", dtype=amp_dtype, enabled=args.amp):`` has the type and the switch that the script's options choose: an
evaluation takes the same ones where it sees what they are called, and stays as it is elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ..calls.reach import reached_nodes
from ..calls.signatures import call_argument, first_parameter
from ..facts import Fact
from ..program.scopes import Binding, Imported
from ..program.syntax import Module
from ..program.trees import walk
from ..training.loss_regions import Region
from ..values.resolver import Resolver
from .half_steps import HalfCode, data_parallel, script_obstacle
from .kept_float32 import is_autocast_off
from .precision import autocast_contexts, half_precision_use, runs_in_double

_NOT_SHARED = (
    "no one autocast that it sees the parts of is around all training steps of its network"
)


@dataclass(frozen=True)
class SharedContext:
    """An autocast context, as ``code`` spells it in the evaluation."""

    code: str


class SharedAutocast:
    """The autocast contexts of the training steps ``steps`` of a script that imports ``packages``."""

    def __init__(
        self, resolver: Resolver, steps: Sequence[HalfCode], packages: frozenset[str]
    ) -> None:
        self._resolver = resolver
        self._steps = steps
        self._packages = packages

    def around(self, evaluation: HalfCode) -> SharedContext | Fact | str:
        """The context for ``evaluation``, or what keeps it in float32."""
        found = self._context(evaluation)
        if found is None:
            return _NOT_SHARED
        context, module = found
        refusal = self._refusal(evaluation)
        if refusal is not None:
            return refusal
        if evaluation.float16_obstacles and self._may_be_float16(context, module):
            return evaluation.float16_obstacles[0]
        is_broken = context.end_lineno != context.lineno
        return SharedContext(ast.unparse(context) if is_broken else module.code(context))

    def _refusal(self, evaluation: HalfCode) -> Fact | None:
        """What beside its autocast the script says about precision, or does."""
        code = evaluation.code
        nodes = list(reached_nodes(self._resolver, code.body, code.module, into_forward=True))
        return (
            runs_in_double(self._resolver)
            or script_obstacle(self._resolver, self._packages)
            or half_precision_use(self._resolver, nodes, evaluation.networks)
        )

    def _context(self, evaluation: HalfCode) -> tuple[ast.expr, Module] | None:
        """The context that all training steps of the networks of ``evaluation`` run in, where that sees all it is made of."""
        networks = {network.node for network in evaluation.networks}
        steps = [s for s in self._steps if not networks.isdisjoint(n.node for n in s.networks)]
        found = [self._around_forwards(step) for step in steps]
        contexts = [place for places in found for place in places]
        if not all(found) or len({ast.dump(context) for context, _ in contexts}) != 1:
            return None
        context, module = contexts[0]
        is_seen = all(
            region.module is module and self._is_seen(context, module, region)
            for region in evaluation.code.regions
        )
        return (context, module) if is_seen else None

    def _may_be_float16(self, context: ast.expr, module: Module) -> bool:
        dtype = call_argument(context, "dtype", 1) if isinstance(context, ast.Call) else None
        if dtype is None or data_parallel(self._resolver) is not None:
            return True
        return self._resolver.names(dtype, module) != frozenset({"torch.bfloat16"})

    def _around_forwards(self, step: HalfCode) -> list[tuple[ast.expr, Module]]:
        """The autocast ``with`` next around each forward pass of ``step``; nothing where one has none, or it is off."""
        forwards = step.forwards & {call.node for call in step.code.loop.forwards}
        found: list[tuple[ast.expr, Module]] = []
        covered: set[ast.AST] = set()
        for node, context, module in autocast_contexts(self._resolver, step.code):
            inside = {part for part in walk(node) if part in forwards}
            if not isinstance(node, ast.With) or not inside:
                continue
            if isinstance(context, ast.Call) and is_autocast_off(self._resolver, context, module):
                return []
            found.append((context, module))
            covered |= inside
        return found if forwards <= covered else []

    def _is_seen(self, context: ast.expr, module: Module, region: Region) -> bool:
        """Whether every name in ``context`` means the same at ``region``, and is set before that runs."""
        return all(
            self._means_the_same(name, module, region)
            for name in walk(context)
            if isinstance(name, ast.Name)
        )

    def _means_the_same(self, name: ast.Name, module: Module, region: Region) -> bool:
        there = module.scope(name).lookup(name.id)
        here = module.scope(region.first).lookup(name.id)
        if there is None or here is None:
            return there is here
        if there[0] is not here[0]:
            return _is_same_self(name, module, region)
        scope, bindings = here
        if all(isinstance(binding.source, Imported) for binding in bindings):
            return True
        return len(bindings) == 1 and self._is_set(
            bindings[0], module, region, is_global=scope is scope.root
        )

    def _is_set(self, binding: Binding, module: Module, region: Region, *, is_global: bool) -> bool:
        """Whether the one value of a name is there when ``region`` runs."""
        user, statement = module.function(region.first), module.statement(binding.node)
        if user is module.function(binding.node):
            around = {*module.ancestors(region.first), region.first}
            is_above = statement.lineno < region.first.lineno
            return is_above and not around.isdisjoint(module.block(statement))
        sites = self._resolver.call_sites(user) if user is not None else ()
        is_above = all(
            site.module is not module
            or module.function(site.call) is not None
            or site.call.lineno > statement.lineno
            for site in sites
        )
        return bool(sites) and is_global and is_above


def _is_same_self(name: ast.Name, module: Module, region: Region) -> bool:
    """Whether ``name`` is the object of two methods of one class, and what is read of it is set when that is made."""
    attribute = module.parents[name]
    methods = [module.function(name), module.function(region.first)]
    cls = module.enclosing_class(name)
    if cls is None or cls is not module.enclosing_class(region.first):
        return False
    if not isinstance(attribute, ast.Attribute):
        return False
    if any(method is None or first_parameter(method) != name.id for method in methods):
        return False
    written = [a for a in module.attributes_of(attribute.attr) if isinstance(a.ctx, ast.Store)]
    makers = {getattr(module.function(a), "name", "") for a in written}
    return makers == {"__init__"}
