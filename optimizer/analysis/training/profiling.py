"""Finds profilers that a loop over steps starts and stops again in every pass, and other debugging aids left on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..calls.reach import lexical_nodes
from ..facts import Fact, Loop, LoopKind, excerpt
from ..program.name_uses import NameUses
from ..program.syntax import LoopNode, Module
from ..program.trees import is_true, walk
from ..values.resolver import Resolver
from .loops import is_forward

AUTOGRAD_PROFILER = "torch.autograd.profiler.profile"
_PROFILERS = frozenset(
    {"torch.profiler.profile", "torch.profiler.profiler.profile", AUTOGRAD_PROFILER}
)
_RECORD_FUNCTION = frozenset(
    {"torch.profiler.record_function", "torch.autograd.profiler.record_function"}
)
_REPORTING = frozenset({"key_averages", "export_chrome_trace", "export_stacks"})
"""What both kinds of profiler offer once they have stopped."""
_AIDS = {
    "torch.autograd.profiler.emit_nvtx": "marks every operation for Nsight",
    "torch.autograd.profiler.emit_itt": "marks every operation for VTune",
    "torch.autograd.set_detect_anomaly": "checks every gradient for NaN and records where each operation was called",
    "torch.autograd.detect_anomaly": "checks every gradient for NaN and records where each operation was called",
    "torch.autograd.anomaly_mode.set_detect_anomaly": "checks every gradient for NaN and records where each operation was called",
    "torch.autograd.anomaly_mode.detect_anomaly": "checks every gradient for NaN and records where each operation was called",
}
_JUMPS = ast.Return | ast.Break | ast.Continue | ast.Yield | ast.YieldFrom | ast.Await
_PURE = (
    ast.Name | ast.Attribute | ast.Subscript | ast.Constant | ast.Slice | ast.Tuple | ast.Starred
)


@dataclass(frozen=True, eq=False)
class StepProfile(Fact):
    """A ``with`` statement in a loop over steps that profiles what it holds, anew in every pass.

    ``call`` makes the profiler, ``name`` is what the script calls it. ``reports`` are the statements that print or
    save what was measured. ``idle_forward`` is set when all that is profiled is a forward pass whose result nothing
    uses. ``obstacle`` says why the profiler has to stay where it is.
    """

    node: ast.With
    call: ast.Call
    library_name: str
    loop: Loop
    name: str | None
    reports: tuple[ast.Expr, ...]
    idle_forward: ast.Call | None
    obstacle: str | None


@dataclass(frozen=True, eq=False)
class DebuggingAid(Fact):
    """A call that switches on something that slows every step down; ``effect`` says what it does."""

    node: ast.Call
    effect: str


def find_step_profiles(resolver: Resolver, loops: tuple[Loop, ...]) -> tuple[StepProfile, ...]:
    """The profilers inside of training and evaluation loops, in source order per module."""
    by_node = {loop.node: loop for loop in loops}
    found: list[StepProfile] = []
    for module in resolver.project.modules:
        if "profile" not in module.source.text:
            continue
        for node in module.nodes:
            if isinstance(node, ast.With):
                found += _profiles(resolver, node, module, by_node)
    return tuple(found)


def find_debugging_aids(resolver: Resolver) -> tuple[DebuggingAid, ...]:
    """The calls that switch on anomaly detection or marks for a system profiler."""
    found: list[DebuggingAid] = []
    for module in resolver.project.modules:
        if not any(aid.rpartition(".")[2] in module.source.text for aid in _AIDS):
            continue
        for call in module.calls:
            effects = {_AIDS[n] for n in resolver.names(call.func, module) if n in _AIDS}
            if effects and not _switched_off(call):
                found.append(DebuggingAid(module, call, effects.pop()))
    return tuple(found)


def _switched_off(call: ast.Call) -> bool:
    """Whether it is, or may be, called to switch the aid off: its first argument is anything but ``True``."""
    values = [*call.args[:1], *(k.value for k in call.keywords if k.arg in {"mode", "enabled"})]
    return any(not is_true(v) for v in values)


def _profiles(
    resolver: Resolver, node: ast.With, module: Module, loops: dict[LoopNode, Loop]
) -> Iterator[StepProfile]:
    around = module.loops(node)
    loop = loops[around[0]] if around else None
    if loop is None or loop.kind not in {LoopKind.TRAINING, LoopKind.EVALUATION}:
        return
    for item in node.items:
        call = item.context_expr
        if not isinstance(call, ast.Call):
            continue
        names = resolver.names(call.func, module) & _PROFILERS
        if not names:
            continue
        target = item.optional_vars
        name = target.id if isinstance(target, ast.Name) else None
        uses = _uses(module, target) if isinstance(target, ast.Name) else ()
        reports, other = _reports(node, module, uses)
        obstacle = _obstacle(node, call, module, loop, target)
        if obstacle is None and other is not None:
            use = excerpt(module, other)
            obstacle = f"what it measures is used in a way that could not be followed (`{use}`)"
        idle = _idle_forward(resolver, node, module)
        yield StepProfile(module, node, call, min(names), loop, name, reports, idle, obstacle)


def _uses(module: Module, target: ast.Name) -> tuple[ast.Name, ...]:
    found = module.scope(target).lookup(target.id)
    assert found is not None
    binding = next(b for b in found[1] if b.node is target)
    return tuple(
        use
        for use in NameUses().of(binding, module)
        if not isinstance(use.ctx, ast.Store) or isinstance(module.parents[use], ast.AugAssign)
    )


def _reports(
    node: ast.With, module: Module, uses: tuple[ast.Name, ...]
) -> tuple[tuple[ast.Expr, ...], ast.stmt | None]:
    """The statements below ``node`` that print or save what was measured, and the first that uses it otherwise."""
    statements = dict.fromkeys(module.statement(use) for use in uses)
    found: list[ast.Expr] = []
    for statement in sorted(statements, key=lambda s: s.lineno):
        if not (isinstance(statement, ast.Expr) and _is_report(statement, node, module, uses)):
            return (), statement
        found.append(statement)
    return tuple(found), None


def _is_report(
    statement: ast.Expr, node: ast.With, module: Module, uses: tuple[ast.Name, ...]
) -> bool:
    block = module.block(node)
    if statement not in block:
        return False
    if any(isinstance(n, ast.NamedExpr | ast.Lambda | _JUMPS) for n in walk(statement)):
        return False
    inside = set(walk(statement))
    return block.index(statement) > block.index(node) and all(
        isinstance(parent := module.parents[use], ast.Attribute) and parent.attr in _REPORTING
        for use in uses
        if use in inside
    )


def _obstacle(
    node: ast.With,
    call: ast.Call,
    module: Module,
    loop: Loop,
    target: ast.expr | None,
) -> str | None:
    if target is not None and not isinstance(target, ast.Name):
        return f"it is kept in `{module.code(target)}`"
    if any(k.arg in {None, "schedule"} for k in call.keywords):
        return "it has a schedule of its own, or one may come through `**`"
    for ancestor in module.ancestors(node):
        if ancestor is loop.node:
            break
        if not isinstance(ancestor, ast.With):
            return f"it does not run in every step (`{excerpt(module, ancestor)}`)"
    if any(isinstance(n, _JUMPS) for n in lexical_nodes(node.body)):
        return "the code it measures leaves the step early"
    if any(
        isinstance(n, ast.Return | ast.Yield | ast.YieldFrom) for n in lexical_nodes(loop.node.body)
    ):
        return "the function returns, or yields, from inside the loop"
    if target is not None and len(_bindings(module, target)) > 1:
        return f"`{module.code(target)}` is also bound elsewhere"
    changing = _bound_in(loop.node) & {n.id for n in walk(call) if isinstance(n, ast.Name)}
    if changing:
        return f"its arguments depend on `{min(changing)}`, which is another in every step"
    if "#" in module.code(call):
        return "its arguments are commented"
    return None


def _bindings(module: Module, target: ast.Name) -> list[object]:
    found = module.scope(target).lookup(target.id)
    return list(found[1]) if found else []


def _bound_in(loop: LoopNode) -> set[str]:
    return {n.id for n in walk(loop) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}


def _idle_forward(resolver: Resolver, node: ast.With, module: Module) -> ast.Call | None:
    """The forward pass that is all ``node`` runs, when nothing reads its result."""
    body = node.body
    while len(body) == 1 and isinstance(inner := body[0], ast.With):
        functions = [
            i.context_expr.func for i in inner.items if isinstance(i.context_expr, ast.Call)
        ]
        named = [resolver.names(f, module) for f in functions]
        if len(named) < len(inner.items) or not all(
            n and n <= _RECORD_FUNCTION | {"torch.no_grad", "torch.inference_mode"} for n in named
        ):
            return None
        body = inner.body
    if len(body) != 1 or not isinstance(statement := body[0], ast.Expr | ast.Assign):
        return None
    call = statement.value
    if not (isinstance(call, ast.Call) and is_forward(resolver, call, module)):
        return None
    arguments = [call.func, *call.args, *(k.value for k in call.keywords)]
    if not all(isinstance(n, _PURE | ast.expr_context) for a in arguments for n in walk(a)):
        return None
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if not all(isinstance(t, ast.Name) and not _uses(module, t) for t in targets):
        return None
    return call
