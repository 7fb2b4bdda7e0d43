"""The parts of a training step: which statements compute a loss, where it is backpropagated, what updates follow."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .dataflow import Flow, dotted, own_nodes
from .facts import Fact, Loop, LoopKind
from .forward_code import networks_run
from .loops import backward_calls, forward_calls, is_forward, optimizer_steps
from .reach import Reached, lexical_nodes, reached_nodes
from .resolver import Resolver
from .syntax import FunctionNode, LoopNode, Module
from .trees import walk

_CLIPPING = frozenset({"clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "get_total_norm"})


@dataclass(frozen=True, eq=False)
class Region:
    """Sibling statements from ``first`` to ``last`` that run a network and compute a loss from what it returns."""

    module: Module
    first: ast.stmt
    last: ast.stmt

    @property
    def statements(self) -> list[ast.stmt]:
        block = self.module.block(self.first)
        return block[block.index(self.first) : block.index(self.last) + 1]


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
class StepCode(Fact):
    """The part of one function (or of the module) that backpropagates, as one pass of the training loop runs it.

    ``node`` is the training loop around it, or the function when the loop is elsewhere. ``regions`` are in source
    order. ``gradient_readers`` are the statements after a backward that look at gradients before they are applied.
    """

    node: LoopNode | FunctionNode
    loop: Loop
    regions: tuple[Region, ...]
    backwards: tuple[Backward, ...]
    updates: tuple[Update, ...]
    gradient_readers: tuple[ast.stmt, ...]

    @property
    def body(self) -> list[ast.stmt]:
        return self.node.body


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
                found[owner] = step
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
    barriers = _barriers(resolver, flow)
    members = {
        member
        for backward in backwards
        for member in _forward_statements(resolver, flow, backward.loss, backward.statement)
    }
    regions = tuple(_regions(resolver, flow, members - barriers, barriers))
    readers = tuple(_gradient_readers(resolver, flow, backwards))
    return StepCode(module, owner, loop, regions, backwards, updates, readers)


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
    """Whether the loss expression calls something with what a network returned (methods of tensors do not count)."""
    calls = [n for n in walk(loss) if isinstance(n, ast.Call)]
    return any(
        is_forward(resolver, call, flow.module)
        or (
            call.args
            and not _is_tensor_method(resolver, call, flow.module)
            and _forward_statements(resolver, flow, call, statement)
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


def runs_forward(resolver: Resolver, nodes: Iterable[ast.AST], module: Module) -> bool:
    """Whether ``nodes`` run a network, themselves or in a function they call."""
    return bool(forward_calls(resolver, reached_nodes(resolver, nodes, module)))


def _forward_statements(
    resolver: Resolver, flow: Flow, expression: ast.AST, at: ast.stmt
) -> set[ast.stmt]:
    """Of the statements behind the gradient of ``expression``, those that run a network or compute with what one returned."""
    behind = flow.differentiable_behind(expression, at)
    found = {s for s in behind if runs_forward(resolver, own_nodes(s), flow.module)}
    pending = list(behind - found)
    while True:
        dependent = [s for s in pending if not found.isdisjoint(flow.sources(s, s))]
        if not dependent:
            return found
        found.update(dependent)
        pending = [s for s in pending if s not in found]


def _barriers(resolver: Resolver, flow: Flow) -> set[ast.stmt]:
    """The statements that backpropagate or step an optimizer, directly or inside, and those around them."""
    found: set[ast.stmt] = set()
    for statement in flow.statements:
        reached = list(reached_nodes(resolver, own_nodes(statement), flow.module))
        if backward_calls(reached) or optimizer_steps(resolver, reached):
            found.add(statement)
            for ancestor in flow.module.ancestors(statement):
                if isinstance(ancestor, ast.stmt):
                    found.add(ancestor)
    return found


def _regions(
    resolver: Resolver, flow: Flow, members: set[ast.stmt], barriers: set[ast.stmt]
) -> Iterator[Region]:
    """Runs of members within one block, with no barrier between them; what needs no gradients is apart."""
    module = flow.module
    lifted = {_lifted(flow, member, barriers) for member in members}
    runs: list[list[ast.stmt]] = []
    for statement in sorted(lifted, key=lambda s: (s.lineno, s.col_offset)):
        block = module.block(statement)
        last = runs[-1][-1] if runs else None
        if last is not None and last in block:
            following = block[block.index(last) + 1 : block.index(statement) + 1]
            if barriers.isdisjoint(following):
                for each in following:
                    if _apart(resolver, module, runs[-1], each):
                        runs.append([])
                    runs[-1].append(each)
                continue
        runs.append([statement])
    for run in runs:
        if not all(map(_hands_on, run)):
            yield Region(module, run[0], run[-1])


def _hands_on(statement: ast.stmt) -> bool:
    """Whether ``statement`` computes nothing: ``delta = delta.detach()``."""
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    match value:
        case ast.Call(func=ast.Attribute(attr="detach", value=handed_on)):
            return dotted(handed_on) is not None
        case _:
            return value is not None and dotted(value) is not None


def _apart(resolver: Resolver, module: Module, run: list[ast.stmt], statement: ast.stmt) -> bool:
    """Whether a network runs without gradients in ``run`` and then with them in ``statement``.

    In one autocast region the second pass would get the weights the first one cast, which have no history
    (https://github.com/pytorch/pytorch/issues/112583, up to PyTorch 2.10). The other way round costs nothing.
    """
    suspended = [suspends_gradients(resolver, s, module) for s in (*run, statement)]
    if suspended[-1] or not any(suspended):
        return False
    networks = [
        {model.node for model in networks_run(resolver, reached_nodes(resolver, [s], module))}
        for s in (*run, statement)
    ]
    return any(
        earlier & networks[-1]
        for earlier, is_suspended in zip(networks, suspended[:-1], strict=False)
        if is_suspended
    )


def suspends_gradients(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` is a ``with torch.no_grad():`` or a call of a function decorated that way."""
    contexts: list[tuple[ast.expr, Module]] = []
    if isinstance(node, ast.With):
        contexts = [(item.context_expr, module) for item in node.items]
    elif isinstance(node, ast.Call):
        for callee in resolver.callees(node, module):
            decorators = getattr(callee.node, "decorator_list", [])
            contexts += [(decorator, callee.module) for decorator in decorators]
    return any(_is_no_grad(resolver, context, owner) for context, owner in contexts)


def _is_no_grad(resolver: Resolver, context: ast.expr, module: Module) -> bool:
    function = context.func if isinstance(context, ast.Call) else context
    names = resolver.names(function, module)
    if names & {"torch.no_grad", "torch.inference_mode"}:
        return True
    arguments = context.args if isinstance(context, ast.Call) else []
    is_off = bool(arguments) and isinstance(arguments[0], ast.Constant) and not arguments[0].value
    return is_off and "torch.set_grad_enabled" in names


def _lifted(flow: Flow, statement: ast.stmt, barriers: set[ast.stmt]) -> ast.stmt:
    """The outermost statement of the body around ``statement`` that holds no barrier."""
    inside = set(flow.statements)
    for ancestor in flow.module.ancestors(statement):
        if not isinstance(ancestor, ast.stmt) or ancestor not in inside or ancestor in barriers:
            break
        statement = ancestor
    return statement


def _gradient_readers(
    resolver: Resolver, flow: Flow, backwards: Iterable[Backward]
) -> Iterator[ast.stmt]:
    first = min((b.statement.lineno for b in backwards), default=0)
    for statement in flow.statements:
        if statement.lineno < first:
            continue
        reached = reached_nodes(resolver, own_nodes(statement), flow.module)
        if any(_reads_gradient(resolver, r) for r in reached):
            yield statement


def _reads_gradient(resolver: Resolver, reached: Reached) -> bool:
    node, module = reached.node, reached.module
    if isinstance(node, ast.Call):
        names = resolver.names(node.func, module)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        return method in _CLIPPING or any(n.rpartition(".")[2] in _CLIPPING for n in names)
    if not (isinstance(node, ast.Attribute) and node.attr == "grad"):
        return False
    if isinstance(node.value, ast.Name) and node.value.id in {"autograd", "torch"}:
        return False
    parent = module.parents.get(node)
    if not isinstance(node.ctx, ast.Load):
        return isinstance(parent, ast.AugAssign)
    while isinstance(parent, ast.Attribute):
        if parent.attr in {"zero_", "detach_", "requires_grad_"}:
            return False
        parent = module.parents.get(parent)
    is_test = isinstance(parent, ast.Compare) and any(
        isinstance(c, ast.Constant) and c.value is None for c in parent.comparators
    )
    return not is_test
