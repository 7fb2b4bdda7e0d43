"""Proves that a region of code may run without gradients."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ..autograd.grad_modes import GradModes
from ..autograd.gradient_flow import GradientFlow, Knowledge
from ..autograd.gradients import Gradients
from ..autograd.graph_escapes import Escape, Source
from ..autograd.graph_hazards import GraphHazards
from ..autograd.graph_names import mutates, package, passes_graph_on
from ..calls.call_effects import CallEffects
from ..calls.callbacks import is_handed_around, is_property
from ..calls.reach import lexical_nodes
from ..networks.networks import Networks
from ..program.attribute_reads import AttributeReads
from ..program.name_uses import NameUses
from ..program.parameters import parameter_names
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..training.guards import TrainingGuard
from ..values.additions import Additions
from ..values.resolver import Resolver
from ..values.values import External, Function, Made

_AUTOCAST = frozenset({"torch.amp.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast"})


@dataclass(frozen=True, eq=False)
class Region:
    """Sibling statements; ``in_training`` when they are a part of a training step."""

    module: Module
    statements: tuple[ast.stmt, ...]
    in_training: bool = False


class EvaluationProof:
    """Answers for one project. ``evaluating`` are the functions that go over a loader to evaluate."""

    def __init__(self, resolver: Resolver, evaluating: Collection[FunctionNode]) -> None:
        self._resolver = resolver
        self._evaluating = evaluating
        self.networks = Networks(resolver)
        self.modes = GradModes(resolver)
        self._gradients = Gradients(resolver, self.networks)
        self._hazards = GraphHazards(resolver, self.networks)
        self._knowledge = Knowledge(
            resolver,
            self.networks,
            self._gradients,
            AttributeReads(resolver, self.networks, self.modes),
            Additions(resolver),
            CallEffects(resolver, self._gradients, self.networks),
            NameUses(),
        )
        self._runs: dict[ast.Call, bool] = {}
        self._computed_by: dict[ast.AST, tuple[Source, ...]] = {}

    def objection(self, region: Region, guard: TrainingGuard | None = None) -> Escape | None:
        """The first thing that speaks against running ``region`` without gradients (unless ``guard`` holds)."""
        module, statements = region.module, region.statements
        for node in lexical_nodes(statements):
            if isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await)):
                return Escape(module, node, "hands control to its caller")
        flow = self._flow(region, guard)
        # What is said in the region itself, and what it computes itself, decides most often and is the least to read.
        return (
            self._hazards.find_directly(statements, module)
            or flow.escape(self._computed(statements, module, called=False))
            or self._hazards.find(statements, module)
            or self._around(region)
            or flow.escape(
                source
                for function in self._hazards.functions_run(statements, module)
                for source in self._computed_in(function)
            )
        )

    def runs_network(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call`` is a network's forward, or a method of a network that runs it with gradients."""
        if call not in self._runs:
            self._runs[call] = self._find_runs(call, module)
        return self._runs[call]

    def _find_runs(self, call: ast.Call, module: Module) -> bool:
        func = call.func
        if isinstance(func, ast.Attribute) and self.networks.is_network(func.value, module):
            functions = [v for v in self._resolver.values(func, module) if isinstance(v, Function)]
            if functions:
                return any(self._runs_layers(function) for function in functions)
        return self.networks.runs(call, module)

    def _runs_layers(self, function: Function) -> bool:
        body = function.node.body if isinstance(function.node.body, list) else []
        return any(
            isinstance(node, ast.Call)
            and self.networks.runs(node, function.module)
            and not self.modes.decided(node, function.module)
            for node in lexical_nodes(body)
        )

    # Where tensors go

    def _flow(self, region: Region, guard: TrainingGuard | None) -> GradientFlow:
        guarded: set[ast.AST] = set()
        for statement in guard.statements if guard is not None else ():
            guarded.update(walk(statement))
        return GradientFlow(
            self._knowledge,
            lambda node: node in guarded,
            self._may_return,
            region.in_training and guard is None,
            frozenset(lexical_nodes(region.statements)),
            region.module.function(region.statements[0]),
        )

    def _computed_in(self, function: Function) -> tuple[Source, ...]:
        node = function.node
        if node not in self._computed_by:
            body = node.body if isinstance(node.body, list) else []
            found = [*self._computed(body, function.module, called=True)]
            if function in self.networks.forward_hooks:
                found += _given_to(function)
            self._computed_by[node] = tuple(found)
        return self._computed_by[node]

    def _computed(
        self, roots: Sequence[ast.stmt], module: Module, *, called: bool
    ) -> Iterator[Source]:
        """The expressions that compute something which may have a graph."""
        for node in lexical_nodes(roots):
            for changed, added in _changed_in_place(node):
                if not (
                    self._gradients.free(changed, module) and self._gradients.free(added, module)
                ):
                    yield Source(changed, module, False, called, in_place=True)
            if isinstance(node, ast.Call):
                for filled, (kept, owner) in self._knowledge.additions.by_callbacks(node, module):
                    if not self._gradients.free(kept, owner):
                        yield Source(filled, module, False, called, in_place=True)
            if not isinstance(node, (ast.Call, ast.BinOp, ast.UnaryOp, ast.Subscript)):
                continue
            is_store = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
            if not is_store and not self._gradients.free(node, module):
                yield Source(node, module, self._is_tensor(node, module), called)

    def _is_tensor(self, node: ast.expr, module: Module) -> bool:
        if not isinstance(node, ast.Call):
            return False
        values = self._resolver.values(node.func, module)
        return self.runs_network(node, module) or any(
            (isinstance(v, External) and package(v.name) == "torch" and passes_graph_on(v.name))
            or (
                isinstance(v, Made)
                and isinstance(v.maker, External)
                and v.maker.name.startswith("torch.nn.")
            )
            for v in values
        )

    def _may_return(self, function: FunctionNode, module: Module) -> bool:
        """Whether all callers of ``function`` are known, as far as training is concerned."""
        if is_property(function):
            return True
        if self.networks.is_part_of_network(function, module) or function.name.startswith("__"):
            return False  # called by torch or by Python itself
        if not self._resolver.call_sites(function) or is_handed_around(self._resolver, function):
            return False
        # Other scripts may share a module's helper functions, but hardly train on what an evaluation returns.
        return module is self._resolver.project.entry or self._evaluates(function, module)

    def _evaluates(self, function: FunctionNode, module: Module) -> bool:
        """Whether ``function`` says itself that it evaluates: it goes over a loader, or sets a network to eval mode."""
        return function in self._evaluating or any(
            self.sets_eval(statement, module) for statement in function.body
        )

    def sets_eval(self, root: ast.AST, module: Module) -> bool:
        """Whether code in ``root`` sets a network to eval mode."""
        return any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "eval"
            and self.networks.is_network(node.func.value, module)
            for node in lexical_nodes([root])
        )

    # Context managers around the region

    def _around(self, region: Region) -> Escape | None:
        """What context managers around the region, here or around the calls of its function, speak against it."""
        inside = set(lexical_nodes(region.statements))
        for call, statement, module in self._contexts(region.statements[0], region.module, set()):
            names = self._resolver.names(call.func, module)
            if any(".profiler." in name or name.endswith("detect_anomaly") for name in names):
                return Escape(module, call, "is being profiled")
            if not names & _AUTOCAST:
                continue
            # One autocast block casts each weight once: cast without gradients, it would stay without for training.
            for other in lexical_nodes(statement.body):
                if (
                    isinstance(other, ast.Call)
                    and other not in inside
                    and self.runs_network(other, module)
                    and not self.modes.decided(other, module)
                ):
                    return Escape(module, other, "shares an autocast block with the forward pass")
        return None

    def _contexts(
        self, node: ast.AST, module: Module, seen: set[FunctionNode]
    ) -> Iterator[tuple[ast.Call, ast.With, Module]]:
        for ancestor in module.ancestors(node):
            if isinstance(ancestor, ast.With):
                for item in ancestor.items:
                    if isinstance(item.context_expr, ast.Call):
                        yield item.context_expr, ancestor, module
            if isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef):
                if ancestor not in seen:
                    seen.add(ancestor)
                    for site in self._resolver.call_sites(ancestor):
                        yield from self._contexts(site.call, site.module, seen)
                return


def _given_to(hook: Function) -> Iterator[Source]:
    """The uses of what a layer gives its ``hook``: what goes into it, and what it has computed."""
    names = {*parameter_names(hook.node)}
    body = hook.node.body if isinstance(hook.node.body, list) else [hook.node.body]
    for node in lexical_nodes(body):
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load):
            yield Source(node, hook.module, True, called=True)


def _changed_in_place(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The tensor that ``x += y`` or ``x.mul_(y)`` changes, and what it is changed by."""
    if isinstance(node, ast.AugAssign):
        yield node.target, node.value
    func = node.func if isinstance(node, ast.Call) else None
    if isinstance(func, ast.Attribute) and mutates(func.attr) and func.attr.endswith("_"):
        assert isinstance(node, ast.Call)
        yield func.value, node
