"""Finds code that runs networks for their results only, and proves that it can do so without gradients.

A region is proven when (1) nothing that runs in it needs autograd, (2) no tensor computed in it reaches a backward pass,
a place that shows its graph, or code that cannot be followed, and (3) it shares no autocast cache with training.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from ..autograd.graph_escapes import Escape
from ..autograd.graph_names import BACKWARD_METHODS
from ..calls.callbacks import is_handed_around
from ..calls.reach import lexical_nodes
from ..editing.references import reference
from ..facts import Fact, Loop, LoopKind
from ..networks.weightless import keeps_no_weights
from ..program.syntax import FunctionNode, Module
from ..training.guards import TrainingGuard, training_guards
from ..values.resolver import Resolver
from ..values.values import External, Made
from .evaluation_proof import EvaluationProof, Region

_ACTIVATIONS = frozenset("Identity LogSigmoid LogSoftmax ReLU Sigmoid Softmax Softmin Tanh".split())
_LONG_LOOP = 25
"""A loop of so many lines is not indented as a whole for one statement of it: about what a reviewer sees at a time."""


@dataclass(frozen=True, eq=False)
class Inference(Fact):
    """Code that runs networks and needs no gradients, as proven.

    ``node`` is a whole function, or the first of the sibling ``statements``. ``guard`` is the condition under which the
    code is part of training after all: gradients are needed exactly when it holds.
    """

    statements: tuple[ast.stmt, ...]
    guard: TrainingGuard | None = None

    @property
    def is_function(self) -> bool:
        return not self.statements


@dataclass(frozen=True, eq=False)
class Unproven(Fact):
    """Code that looks like evaluation, but may need gradients; ``escape`` says where."""

    escape: Escape


def find_inference(
    resolver: Resolver, loops: tuple[Loop, ...]
) -> tuple[tuple[Inference, ...], tuple[Unproven, ...]]:
    """The regions to run without gradients, and the evaluations for which that is not proven."""
    finder = _Finder(resolver, loops)
    finder.run()
    return tuple(finder.found), tuple(finder.unproven())


class _Finder:
    def __init__(self, resolver: Resolver, loops: tuple[Loop, ...]) -> None:
        self._resolver = resolver
        self._loops = loops
        self._proof = EvaluationProof(
            resolver,
            {
                loop.function
                for loop in loops
                if loop.kind is LoopKind.EVALUATION and loop.function is not None
            },
        )
        self._objections: dict[ast.AST, Escape] = {}
        self._handled: set[ast.AST] = set()
        self.found: list[Inference] = []

    def run(self) -> None:
        if not _is_worthwhile(self._resolver, self._loops):
            return
        for module in self._resolver.project.modules:
            owners: list[FunctionNode | ast.Module] = [module.tree]
            owners += module.nodes_of(ast.FunctionDef, ast.AsyncFunctionDef)
            for owner in owners:
                if isinstance(owner, ast.Module) or not self._proof.networks.is_part_of_network(
                    owner, module
                ):
                    self._plan(owner, module, self._network_calls(owner, module))
        self._plan_callers()

    def unproven(self) -> Iterator[Unproven]:
        """Evaluation loops and functions whose networks still run with gradients."""
        for loop in self._loops:
            if loop.kind is LoopKind.EVALUATION and loop.node in self._objections:
                calls = self._network_calls_in([loop.node], loop.module)
                if calls and not any(call in self._handled for call in calls):
                    yield Unproven(loop.module, loop.node, self._objections[loop.node])
        told = {loop.function for loop in self._loops if loop.kind is LoopKind.EVALUATION}
        for module in self._resolver.project.modules:
            for function in module.nodes_of(ast.FunctionDef):
                calls = self._network_calls(function, module)
                told_here = function in told or any(call in self._handled for call in calls)
                if calls and not told_here and self._evaluates(function, module):
                    yield Unproven(module, calls[0], self._objections[function])

    def _evaluates(self, function: ast.FunctionDef, module: Module) -> bool:
        """Whether ``function`` puts a network in eval mode, runs it in no backward pass, and could not be proven."""
        return (
            function in self._objections
            and not self._proof.networks.is_part_of_network(function, module)
            and any(self._proof.sets_eval(statement, module) for statement in function.body)
            and not _runs_backward(function)
        )

    # One function, or the statements of one module

    def _plan(
        self, owner: FunctionNode | ast.Module, module: Module, calls: list[ast.Call]
    ) -> None:
        calls = [call for call in calls if call not in self._handled]
        if not calls:
            return
        if not isinstance(owner, ast.Module):
            if self._is_dead(owner):
                return
            if self._can_decorate(owner, module):
                region = Region(module, tuple(owner.body))
                if self._prove(owner, region):
                    self._add(Inference(module, owner, ()), calls)
                    return
        self._plan_block(
            owner.body, module, set(calls), training_guards(self._resolver, owner, module)
        )

    def _plan_block(
        self,
        block: Sequence[ast.stmt],
        module: Module,
        calls: set[ast.Call],
        guards: Sequence[TrainingGuard],
    ) -> None:
        run: list[ast.stmt] = []
        run_guard: TrainingGuard | None = None
        for statement in block:
            own = calls & set(self._calls_within(statement))
            if not own:
                continue
            proven, guard = self._try_statement(statement, module, own, guards)
            if proven and guard is None and self._is_proven_inside(statement, module, own):
                self._close(run, run_guard, module, calls)
                run = []
                continue
            if (
                proven
                and run
                and guard is run_guard
                and self._joins(run, statement, block, module, guard)
            ):
                run = list(block[block.index(run[0]) : block.index(statement) + 1])
                continue
            self._close(run, run_guard, module, calls)
            run, run_guard = ([statement], guard) if proven else ([], None)
            if not proven:
                for inner in _blocks(statement):
                    self._plan_block(inner, module, calls, guards)
        self._close(run, run_guard, module, calls)

    def _is_proven_inside(self, statement: ast.stmt, module: Module, own: set[ast.Call]) -> bool:
        """Whether a long loop runs its networks in one statement, which is all that has to run without gradients."""
        length = (statement.end_lineno or 0) - statement.lineno
        if not isinstance(statement, ast.For | ast.While) or length < _LONG_LOOP:
            return False
        if len({module.statement(call) for call in own}) != 1:
            return False
        for block in _blocks(statement):
            self._plan_block(block, module, own, ())
        return own <= self._handled

    def _try_statement(
        self,
        statement: ast.stmt,
        module: Module,
        own: set[ast.Call],
        guards: Sequence[TrainingGuard],
    ) -> tuple[bool, TrainingGuard | None]:
        """Whether ``statement`` as a whole is proven, and under which condition it trains after all."""
        if isinstance(statement, ast.If | ast.With | ast.AsyncWith | ast.Try) and own <= {
            call for block in _blocks(statement) for s in block for call in self._calls_within(s)
        }:
            return False, None  # rather a part of its body
        region = self._region(module, (statement,))
        if self._prove(statement, region):
            return True, None
        if isinstance(statement, ast.For | ast.AsyncFor | ast.While | ast.If | ast.Try):
            return False, None
        around = {statement, *module.ancestors(statement)}
        for guard in guards:
            if around.isdisjoint(guard.statements) and not self._proof.objection(region, guard):
                return True, guard
        return False, None

    def _joins(
        self,
        run: list[ast.stmt],
        statement: ast.stmt,
        block: Sequence[ast.stmt],
        module: Module,
        guard: TrainingGuard | None,
    ) -> bool:
        """Whether ``statement`` continues the region in ``run``: all between them is part of the same computation."""
        between = block[block.index(run[-1]) + 1 : block.index(statement)]
        bound = _stored(run)
        needed = _loaded([statement])
        for other in between:
            if not isinstance(other, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr):
                return False
            if not (_loaded([other]) & bound or _stored([other]) & needed):
                return False
            bound |= _stored([other])
        joined = self._region(module, (*run, *between, statement))
        return self._proof.objection(joined, guard) is None

    def _close(
        self,
        run: list[ast.stmt],
        guard: TrainingGuard | None,
        module: Module,
        calls: set[ast.Call],
    ) -> None:
        if run:
            covered = [c for s in run for c in self._calls_within(s) if c in calls]
            self._add(Inference(module, run[0], tuple(run), guard), covered)

    def _add(self, inference: Inference, calls: Sequence[ast.Call]) -> None:
        self.found.append(inference)
        self._handled.update(calls)

    def _prove(self, key: ast.AST, region: Region) -> bool:
        objection = self._proof.objection(region)
        if objection is not None:
            self._objections[key] = objection
        return objection is None

    def _region(self, module: Module, statements: tuple[ast.stmt, ...]) -> Region:
        """``statements`` as a region; part of a training step if they stand in a training loop, loops and phases apart.

        So are they in a function that is a step: one that runs a backward pass further down, in no loop of its own.
        """
        loops = module.loops(statements[0])
        kinds = {loop.node: loop.kind for loop in self._loops}
        in_training = bool(loops) and (
            kinds.get(loops[0]) is LoopKind.TRAINING or _runs_backward(loops[0])
        )
        in_training = in_training or _is_followed_by_backward(statements[-1], module)
        is_loop = any(isinstance(s, ast.For | ast.AsyncFor | ast.While) for s in statements)
        in_training = in_training and not is_loop and not self._in_phase(statements[0], module)
        return Region(module, statements, in_training)

    def _in_phase(self, statement: ast.stmt, module: Module) -> bool:
        """Whether a network is set to eval mode in a block around ``statement``, inside the loop over steps.

        Or in the loop over steps or epochs itself, above ``statement`` and behind its backward passes.
        """
        child: ast.AST = statement
        for ancestor in module.ancestors(statement):
            block = module.block(child) if isinstance(child, ast.stmt) else []
            if isinstance(ancestor, ast.For | ast.While):
                above = takewhile(lambda s: s is not child, block)  # noqa: B023
                steps = [c for c in _backwards(ancestor) if module.loops(c)[0] is ancestor]
                return any(
                    self._proof.sets_eval(s, module)
                    and all(module.span(call) < module.span(s) for call in steps)
                    for s in above
                )
            if isinstance(ancestor, ast.FunctionDef):
                return False
            if any(self._proof.sets_eval(s, module) for s in block):
                return True
            child = ancestor
        return False

    # Which calls run a network with gradients

    def _network_calls(self, owner: ast.AST, module: Module) -> list[ast.Call]:
        return self._network_calls_in(getattr(owner, "body", []), module)

    def _network_calls_in(self, roots: Sequence[ast.AST], module: Module) -> list[ast.Call]:
        return [
            node
            for node in lexical_nodes(roots)
            if isinstance(node, ast.Call)
            and self._proof.runs_network(node, module)
            and not self._is_activation(node, module)
            and not self._proof.modes.decided(node, module)
            and not module.leaves_out(node)
        ]

    def _is_activation(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call`` is ``nn.Softmax(dim=1)(outputs)`` or the like, which records too little to save anything.

        So is one of a module without weights, such as one that smooths labels.
        """
        values = self._proof.networks.unwrapped(call.func, module)
        return all(
            isinstance(v, Made)
            and (
                v.maker.name.removeprefix("torch.nn.") in _ACTIVATIONS
                if isinstance(v.maker, External)
                else keeps_no_weights(self._resolver, v)
            )
            for v in values
        )

    def _calls_within(self, statement: ast.stmt) -> list[ast.Call]:
        return [node for node in lexical_nodes([statement]) if isinstance(node, ast.Call)]

    def _plan_callers(self) -> None:
        """Functions that serve both training and evaluation: look at each of their calls by itself."""
        seen: set[FunctionNode] = set()
        pending = self._with_open_calls()
        while pending:
            function = pending.pop(0)
            if function in seen:
                continue
            seen.add(function)
            by_owner: dict[tuple[ast.AST, Module], list[ast.Call]] = {}
            for site in self._resolver.call_sites(function):
                owner = site.module.function(site.call) or site.module.tree
                decided = self._proof.modes.decided(site.call, site.module)
                if not decided and not site.module.leaves_out(site.call):
                    by_owner.setdefault((owner, site.module), []).append(site.call)
            for (owner, owner_module), calls in by_owner.items():
                assert isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module)
                if not isinstance(owner, ast.Module) and (
                    self._proof.networks.is_part_of_network(owner, owner_module)
                ):
                    continue
                self._plan(owner, owner_module, calls)
                if isinstance(owner, ast.FunctionDef) and not set(calls) <= self._handled:
                    pending.append(owner)

    def _with_open_calls(self) -> list[FunctionNode]:
        return [
            node
            for module in self._resolver.project.modules
            for node in module.nodes_of(ast.FunctionDef)
            if not self._proof.networks.is_part_of_network(node, module)
            and not set(self._network_calls(node, module)) <= self._handled
        ]

    # Which functions may be decorated

    def _is_dead(self, function: FunctionNode) -> bool:
        """Whether nothing that runs calls ``function``, such as the self-test of a file of networks."""
        sites = self._resolver.call_sites(function)
        return all(site.module.leaves_out(site.call) for site in sites) and not (
            is_handed_around(self._resolver, function)
        )

    def _can_decorate(self, function: FunctionNode, module: Module) -> bool:
        if isinstance(function, ast.AsyncFunctionDef) or function.name.startswith("__"):
            return False
        if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in lexical_nodes(function.body)):
            return False
        inside = reference(module, "torch.no_grad", function.body[-1])
        if reference(module, "torch.no_grad").edits and not inside.edits:
            return False  # torch is imported where it is needed only
        compiled = ("torch.jit.", "torch.compile", "jax.", "numba.")
        for decorator in function.decorator_list:
            callee = decorator.func if isinstance(decorator, ast.Call) else decorator
            names = self._resolver.names(callee, module)
            if any(n.startswith(compiled) or n == "builtins.property" for n in names):
                return False
        return bool(self._resolver.call_sites(function))


def _is_worthwhile(resolver: Resolver, loops: tuple[Loop, ...]) -> bool:
    """Whether the script trains, evaluates or loads a network: a demonstration of a layer gains nothing."""
    if any(loop.kind is not LoopKind.OTHER for loop in loops):
        return True
    return any(
        isinstance(call.func, ast.Attribute)
        and call.func.attr in {"load_state_dict", "eval", "step"}
        for module in resolver.project.modules
        for call in module.calls
    )


def _is_followed_by_backward(statement: ast.stmt, module: Module) -> bool:
    """Whether the function that ``statement`` is in runs a backward pass below it, in no loop."""
    function = module.function(statement)
    return function is not None and any(
        module.span(statement) < module.span(call) and not module.loops(call)
        for call in _backwards(*function.body)
    )


def _runs_backward(loop: ast.AST) -> bool:
    return any(True for _ in _backwards(loop))


def _backwards(*roots: ast.AST) -> Iterator[ast.Call]:
    for node in lexical_nodes(roots):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in BACKWARD_METHODS
        ):
            yield node


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    blocks = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
    handlers = [handler.body for handler in getattr(statement, "handlers", [])]
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return []
    return [block for block in [*blocks, *handlers] if block]


def _stored(statements: Sequence[ast.AST]) -> set[str]:
    return {
        n.id
        for n in lexical_nodes(statements)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _loaded(statements: Sequence[ast.AST]) -> set[str]:
    return {
        n.id
        for n in lexical_nodes(statements)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }
