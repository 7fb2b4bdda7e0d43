"""The autocast that a script writes around its training steps, as evaluations of the same networks can share it.

``with torch.autocast("cuda", dtype=amp_dtype, enabled=args.amp):`` has the type and the switch that the script's options choose: an
evaluation takes the same ones where it sees what they are called, and stays as it is elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from ...rewriting.edits import FileEdit
from ..calls.reach import reached_nodes
from ..calls.signatures import call_argument, first_parameter
from ..editing.references import Reference, quoted, reference
from ..facts import Fact
from ..program.scopes import Binding, Imported
from ..program.syntax import Module
from ..program.trees import walk
from ..training.loss_regions import Region
from ..values.resolver import Resolver
from ..values.values import External
from .half_steps import HalfCode, data_parallel, script_obstacle
from .kept_float32 import is_autocast_off
from .precision import autocast_contexts, half_precision_use, runs_in_double

_SHORTER = {"torch.amp.autocast": "torch.autocast"}
_NOT_SHARED = "no one autocast is around all training steps of its network"
_UNKNOWN = "`{}`, of which the autocast of the training step is made, is not sure to be known there"


@dataclass(frozen=True)
class SharedContext:
    """An autocast context, as ``code`` spells it in the evaluation; ``edits`` import what that takes."""

    code: str
    edits: tuple[FileEdit, ...] = ()


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
        if isinstance(found, str):
            return found
        context, module, shared = found
        refusal = self._refusal(evaluation)
        if refusal is not None:
            return refusal
        if evaluation.float16_obstacles and self._may_be_float16(context, module):
            return evaluation.float16_obstacles[0]
        return shared

    def _refusal(self, evaluation: HalfCode) -> Fact | None:
        """What beside its autocast the script says about precision, or does."""
        code = evaluation.code
        nodes = list(reached_nodes(self._resolver, code.body, code.module, into_forward=True))
        return (
            runs_in_double(self._resolver)
            or script_obstacle(self._resolver, self._packages)
            or half_precision_use(self._resolver, nodes, evaluation.networks)
        )

    def _context(self, evaluation: HalfCode) -> tuple[ast.expr, Module, SharedContext] | str:
        """The context that all training steps of the networks of ``evaluation`` run in, and the same there.

        Where that does not see all it is made of, or there is no one such context, why in words.
        """
        networks = {network.node for network in evaluation.networks}
        steps = [s for s in self._steps if not networks.isdisjoint(n.node for n in s.networks)]
        found = [self._around_forwards(step) for step in steps]
        contexts = [place for places in found for place in places]
        if not all(found) or len({ast.dump(context) for context, _ in contexts}) != 1:
            return _NOT_SHARED
        context, module = contexts[0]
        regions = evaluation.code.regions
        places = {region.module for region in regions}
        if module not in places and len(places) == 1:
            found_there = self._spelled_in(places.pop(), context, module)
            if isinstance(found_there, SharedContext):
                return context, module, found_there
            return _UNKNOWN.format(module.code(found_there))
        unseen = (self._unseen(context, module, region) for region in regions)
        name = next((name for name in unseen if name is not None), None)
        if name is not None:
            return _UNKNOWN.format(name.id)
        is_broken = context.end_lineno != context.lineno
        code = ast.unparse(context) if is_broken else module.code(context)
        return context, module, SharedContext(code)

    def _spelled_in(
        self, other: Module, context: ast.expr, module: Module
    ) -> SharedContext | ast.expr:
        """``context`` of ``module`` as the file ``other`` spells it, or what of it only ``module`` knows."""
        if not isinstance(context, ast.Call):
            return context
        spelled: dict[ast.expr, Reference] = {}
        for part in (context.func, *context.args, *(k.value for k in context.keywords)):
            values = self._resolver.values(part, module)
            if isinstance(part, ast.Constant):
                text = part.value
                code = quoted(other, text) if isinstance(text, str) else ast.unparse(part)
                spelled[part] = Reference(code, ())
                continue
            names = {v.name for v in values if isinstance(v, External)}
            if len(names) != 1 or len(names) != len(values) or not min(names).startswith("torch."):
                return part
            name = names.pop()
            spelled[part] = reference(other, _SHORTER.get(name, name))
        arguments = [spelled[argument].code for argument in context.args]
        arguments += [f"{k.arg}={spelled[k.value].code}" for k in context.keywords]
        edits = dict.fromkeys(edit for one in spelled.values() for edit in one.edits)
        code = f"{spelled[context.func].code}({', '.join(arguments)})"
        return SharedContext(code, tuple(edits))

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

    def _unseen(self, context: ast.expr, module: Module, region: Region) -> ast.Name | None:
        """The first name in ``context`` that may mean another thing at ``region``, or is not set before that runs."""
        names = (name for name in walk(context) if isinstance(name, ast.Name))
        return next(
            (
                name
                for name in names
                if region.module is not module or not self._means_the_same(name, module, region)
            ),
            None,
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
