"""The parts of a training step: which statements compute a loss, where it is backpropagated, what updates follow."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from ..calls.reach import Reached, lexical_nodes, reached_nodes
from ..calls.signatures import argument_for
from ..facts import Fact, Loop, LoopKind
from ..program.scopes import Parameter
from ..program.syntax import FunctionNode, LoopNode, Module
from ..program.trees import position, walk
from ..values.dataflow import Flow, own_nodes
from ..values.resolver import CallSite, Resolver
from .loops import backward_calls, is_forward, optimizer_steps
from .loss_regions import Region, forward_statements, loss_regions

_SUM = frozenset({"builtins.sum"})
_GRADIENT_WORDS = frozenset({"grad", "grads", "gradient", "gradients"})
_CLEARING_WORDS = frozenset(
    {"zero", "clear", "reset", "no", "set", "enable", "requires", "accumulate"}
)
_CLIPPING = frozenset({"clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "get_total_norm"})


@dataclass(frozen=True, eq=False)
class Backward(Fact):
    """A call that backpropagates ``loss``.

    ``computes`` is set when the loss expression itself runs a network or a loss function:
    ``criterion(model(x), y).backward()``.
    """

    node: ast.Call
    statement: ast.stmt
    loss: ast.expr
    computes: bool


@dataclass(frozen=True, eq=False)
class Update(Fact):
    """A call that steps an optimizer: ``optimizer`` is what ``step`` is called on."""

    node: ast.Call
    statement: ast.stmt
    optimizer: ast.expr


@dataclass(frozen=True, eq=False)
class Caller(Fact):
    """Code that computes losses and hands them to a function that backpropagates them: a loop, or a function."""

    node: LoopNode | FunctionNode


@dataclass(frozen=True, eq=False)
class StepCode(Fact):
    """The part of one function (or of the module) that backpropagates, as one pass of the training loop runs it.

    ``node`` is the training loop around it, or the function when the loop is elsewhere. Where that is handed its loss,
    ``callers`` compute it. ``regions`` are in source order. ``gradient_readers`` are the statements after a backward that
    look at gradients before they are applied.
    """

    node: LoopNode | FunctionNode
    loop: Loop
    regions: tuple[Region, ...]
    backwards: tuple[Backward, ...]
    updates: tuple[Update, ...]
    gradient_readers: tuple[ast.stmt, ...]
    callers: tuple[Caller, ...] = ()

    @property
    def body(self) -> list[ast.stmt]:
        return self.node.body

    @cached_property
    def behind_losses(self) -> frozenset[ast.stmt]:
        """The statements of the step that have a part in what is backpropagated, ahead of the backward passes themselves."""
        flow = Flow(self.module, tuple(self.body))
        found = (flow.statements_behind(each.loss, each.statement) for each in self.backwards)
        return frozenset(chain.from_iterable(found))

    def nodes(self, resolver: Resolver, *, into_forward: bool = False) -> Iterator[Reached]:
        """Every node that runs in the step, where its loss is computed elsewhere those there included."""
        found = reached_nodes(resolver, self.body, self.module, into_forward=into_forward)
        if not self.callers:
            yield from found
            return
        seen: set[ast.AST] = set()
        for caller in self.callers:
            body, module = caller.node.body, caller.module
            around = reached_nodes(resolver, body, module, into_forward=into_forward)
            found = chain(found, around)
        for reached in found:
            if reached.node not in seen:
                seen.add(reached.node)
                yield reached


@dataclass(frozen=True, eq=False)
class EvaluationCode(Fact):
    """The body of an evaluation loop: ``regions`` run a network, and compute losses from what it returns."""

    node: LoopNode
    loop: Loop
    regions: tuple[Region, ...]

    @property
    def body(self) -> list[ast.stmt]:
        return self.node.body


def find_step_code(resolver: Resolver, loops: tuple[Loop, ...]) -> tuple[StepCode, ...]:
    """The step code of every training loop, each function once."""
    by_node = {loop.node: loop for loop in loops}
    found: dict[ast.AST, StepCode] = {}
    for loop in loops:
        if loop.kind is not LoopKind.TRAINING:
            continue
        for call in loop.backwards:
            owner = _owner(call.module, call.node, by_node)
            if owner is not None and owner not in found:
                around = loop if isinstance(owner, FunctionNode) else by_node[owner]
                step = _step_code(resolver, call.module, owner, around)
                found[owner] = _with_callers(resolver, step, by_node)
    return tuple(step for step in found.values() if step.backwards)


def _owner(
    module: Module, node: ast.AST, loops: dict[LoopNode, Loop]
) -> LoopNode | FunctionNode | None:
    """The outermost loop around ``node`` whose passes are steps or parts of steps, else its function."""
    around = [
        loop
        for loop in module.loops(node)
        if loops[loop].kind is LoopKind.TRAINING or _steps_in_every_pass(loops[loop])
    ]
    return around[-1] if around else module.function(node)


def _steps_in_every_pass(loop: Loop) -> bool:
    """Whether an optimizer steps in the body of ``loop`` itself, not only in a loop inside."""
    return any(
        call.module is loop.module and call.module.loops(call.node)[:1] == [loop.node]
        for call in loop.optimizer_steps
    )


def _step_code(
    resolver: Resolver, module: Module, owner: LoopNode | FunctionNode, loop: Loop
) -> StepCode:
    flow = Flow(module, tuple(owner.body))
    own = [Reached(node, module, True) for node in lexical_nodes(owner.body)]
    updates = tuple(
        Update(module, call.node, module.statement(call.node), call.node.func.value)
        for call in optimizer_steps(resolver, own)
        if isinstance(call.node.func, ast.Attribute)
    )
    backwards = tuple(_backwards(resolver, flow, own))
    regions = loss_regions(resolver, flow, [(b.loss, b.statement) for b in backwards])
    readers = tuple(_gradient_readers(resolver, flow, backwards))
    return StepCode(module, owner, loop, regions, backwards, updates, readers)


def _with_callers(resolver: Resolver, step: StepCode, loops: dict[LoopNode, Loop]) -> StepCode:
    """``step`` with the code that computes its losses, where its own does not: ``optimize(loss, optimizer)``."""
    if step.regions or any(backward.computes for backward in step.backwards):
        return step
    flow = Flow(step.module, tuple(step.body))
    losses = [(backward.loss, backward.statement) for backward in step.backwards]
    pending = list(_handed(resolver, flow, losses))
    handed: dict[LoopNode | FunctionNode, tuple[Flow, list[tuple[ast.expr, ast.stmt]]]] = {}
    seen: set[ast.expr] = set()
    while pending:
        loss, site = pending.pop()
        owner = _owner(site.module, site.call, loops)
        if loss in seen or owner is None or owner is step.node:
            continue
        seen.add(loss)
        flow, losses = handed.setdefault(owner, (Flow(site.module, tuple(owner.body)), []))
        at = site.module.statement(site.call)
        if not _computes(resolver, flow, loss, at):
            losses.append((loss, at))
            pending += _handed(resolver, flow, [(loss, at)])
    regions: list[Region] = []
    callers: list[Caller] = []
    for owner, (flow, losses) in handed.items():
        found = loss_regions(resolver, flow, losses)
        if found:
            regions += found
            callers.append(Caller(flow.module, owner))
    return replace(step, regions=tuple(regions), callers=tuple(callers))


def _handed(
    resolver: Resolver, flow: Flow, losses: Iterable[tuple[ast.expr, ast.stmt]]
) -> Iterator[tuple[ast.expr, CallSite]]:
    """What calls of the function around hand it for the parameters behind ``losses``."""
    module = flow.module
    names = {
        name
        for loss, at in losses
        for part in (loss, *flow.differentiable_behind(loss, at))
        for name in own_nodes(part)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)
    }
    for name in sorted(names, key=position):
        found = module.scope(name).lookup(name.id)
        for source in (binding.source for binding in (found[1] if found else ())):
            if isinstance(source, Parameter) and isinstance(source.function, FunctionNode):
                for site in resolver.call_sites(source.function):
                    passed = argument_for(source.function, name.id, site.call, site.bound)
                    if passed is not None and passed.given is not None:
                        yield passed.given, site


def _backwards(resolver: Resolver, flow: Flow, nodes: Iterable[Reached]) -> Iterator[Backward]:
    for call in backward_calls(nodes):
        module, node = flow.module, call.node
        if resolver.callees(node, module):
            continue  # a first-party method of that name: what it does is seen where it does it
        loss = _loss(resolver, node, module)
        if loss is not None:
            statement = module.statement(node)
            computes = _computes(resolver, flow, loss, statement)
            yield Backward(module, node, statement, loss, computes)


def _loss(resolver: Resolver, call: ast.Call, module: Module) -> ast.expr | None:
    assert isinstance(call.func, ast.Attribute)
    if "torch.autograd" in resolver.names(call.func.value, module):
        return call.args[0] if call.args else None
    return call.func.value


def _computes(resolver: Resolver, flow: Flow, loss: ast.expr, statement: ast.stmt) -> bool:
    """Whether the loss expression calls something with what a network returned (methods of tensors and ``sum`` do not count)."""
    calls = [n for n in walk(loss) if isinstance(n, ast.Call)]
    return any(
        is_forward(resolver, call, flow.module)
        or (
            call.args
            and resolver.names(call.func, flow.module) != _SUM
            and not _is_tensor_method(resolver, call, flow.module)
            and forward_statements(resolver, flow, call, statement)
        )
        for call in calls
    )


def _is_tensor_method(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    return (
        isinstance(call.func, ast.Attribute)
        and not resolver.callees(call, module)
        and not resolver.names(call.func, module)
        and not any(hasattr(v, "maker") for v in resolver.values(call.func, module))
    )


def _gradient_readers(
    resolver: Resolver, flow: Flow, backwards: Iterable[Backward]
) -> Iterator[ast.stmt]:
    first = min((b.statement.lineno for b in backwards), default=0)
    for statement in flow.statements:
        if statement.lineno < first:
            continue
        reached = reached_nodes(resolver, own_nodes(statement), flow.module)
        if any(reads_gradient(resolver, r) for r in reached):
            yield statement


def reads_gradient(resolver: Resolver, reached: Reached) -> bool:
    """Whether ``reached`` clips gradients, or reads or writes one."""
    node, module = reached.node, reached.module
    if isinstance(node, ast.Call):
        names = resolver.names(node.func, module)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        clips = method in _CLIPPING or any(n.rpartition(".")[2] in _CLIPPING for n in names)
        return clips or _is_read_by_call(resolver, node, names or {method}, module)
    if not (isinstance(node, ast.Attribute) and node.attr == "grad"):
        return False
    if isinstance(node.value, ast.Name) and node.value.id in {"autograd", "torch"}:
        return False
    parent = module.parents.get(node)
    if not isinstance(node.ctx, ast.Load):
        clears = isinstance(parent, ast.Assign) and (
            isinstance(parent.value, ast.Constant) and parent.value.value is None
        )
        return isinstance(node.ctx, ast.Store) and not clears
    while isinstance(parent, ast.Attribute):
        if parent.attr in {"zero_", "detach_", "requires_grad_"}:
            return False
        parent = module.parents.get(parent)
    is_test = isinstance(parent, ast.Compare) and any(
        isinstance(c, ast.Constant) and c.value is None for c in parent.comparators
    )
    return not is_test


def _is_read_by_call(
    resolver: Resolver, call: ast.Call, names: Iterable[str], module: Module
) -> bool:
    """Whether ``call``, of what is called one of ``names``, may look at gradients in code that cannot be read."""
    if "builtins.getattr" in names:
        return any(isinstance(arg, ast.Constant) and arg.value == "grad" for arg in call.args)
    foreign = [n for n in names if not n.startswith(("torch.", "builtins.", "itertools."))]
    if not foreign or resolver.callees(call, module):
        return False
    named = any(_says_gradient(name.rpartition(".")[2]) for name in foreign)
    return named or any(_is_parameters(argument) for argument in call.args)


def _says_gradient(name: str) -> bool:
    """Whether ``name`` is that of a function which looks at gradients: ``clip_gradients``, ``log_grad_norm``."""
    words = set(name.lower().split("_"))
    return bool(words & _GRADIENT_WORDS) and not words & _CLEARING_WORDS


def _is_parameters(argument: ast.expr) -> bool:
    """Whether ``argument`` is ``model.parameters()`` or the like."""
    return (
        isinstance(argument, ast.Call)
        and isinstance(argument.func, ast.Attribute)
        and argument.func.attr in {"parameters", "named_parameters"}
    )
