"""Finds the calls that give the allocator's cached memory back to the driver, and how often each runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from ..calls.reach import lexical_nodes, reached_nodes
from ..facts import Fact, Loop, LoopKind
from ..program.syntax import FunctionNode, LoopNode, Module
from ..values.resolver import Resolver
from ..values.values import Function

EMPTY_CACHE = frozenset(
    f"torch.{name}.empty_cache"
    for name in (
        "cuda",
        "cuda.memory",
        "xpu",
        "xpu.memory",
        "mps",
        "accelerator",
        "accelerator.memory",
    )
)
COLLECT = frozenset({"gc.collect", "torch.cuda.ipc_collect"})
_MEMORY_QUERIES = frozenset(
    "memory_allocated memory_reserved memory_cached memory_stats memory_summary memory_snapshot mem_get_info "
    "max_memory_reserved max_memory_cached list_gpu_processes nvmlDeviceGetMemoryInfo virtual_memory".split()
)


class Pace(Enum):
    """How often a statement runs, as seen from the loops around it and around the calls of its function."""

    STEP = "every step"
    ONCE = "in one round of a loop"
    PHASE = "between phases"
    ERROR = "after an exception"
    SHORTAGE = "when memory is short"
    LOOP = "in every pass of a loop that may be over steps"
    UNKNOWN = "as often as its function is called, which nothing is seen to do"
    MIXED = "both in and outside of a loop over steps"


@dataclass(frozen=True, eq=False)
class CacheRelease(Fact):
    """A statement that only empties the allocator's cache, by a call of torch or of a function that does just that.

    ``companions`` are the ``gc.collect()`` statements of the same block.
    """

    node: ast.Expr
    companions: tuple[ast.Expr, ...]
    pace: Pace


def find_cache_releases(resolver: Resolver, loops: tuple[Loop, ...]) -> tuple[CacheRelease, ...]:
    """Every statement of the project that empties the cache, in source order per module."""
    if not any("empty_cache" in module.source.text for module in resolver.project.modules):
        return ()
    paces = _Paces(resolver, _step_loops(loops))
    found: list[CacheRelease] = []
    for module in resolver.project.modules:
        for call in module.calls:
            statement = module.parents[call]
            if not (isinstance(statement, ast.Expr) and _empties(resolver, call, module)):
                continue
            function = module.function(statement)
            if function is None or not _only_releases(resolver, Function(function, module)):
                companions = tuple(
                    sibling
                    for sibling in module.block(statement)
                    if isinstance(sibling, ast.Expr) and _collects(resolver, sibling, module)
                )
                pace = paces.of(statement, module)
                found.append(CacheRelease(module, statement, companions, pace))
    return tuple(found)


def memory_queries(resolver: Resolver) -> Iterator[Fact]:
    """The calls that read how much memory the process holds: emptying the cache shows in their answer."""
    for module in resolver.project.modules:
        for call in module.calls:
            if _identifier(call.func) in _MEMORY_QUERIES:
                yield Fact(module, call)


def _identifier(expression: ast.expr) -> str:
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def _empties(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    values = resolver.values(call.func, module)
    names = resolver.names(call.func, module)
    if names and len(names) == len(values):
        return names <= EMPTY_CACHE
    return bool(values) and all(
        isinstance(v, Function) and _only_releases(resolver, v) for v in values
    )


def _only_releases(resolver: Resolver, function: Function) -> bool:
    """Whether a first-party function does nothing but ``gc.collect()`` and ``torch.cuda.empty_cache()``."""
    body = function.node.body
    if not isinstance(body, list):
        return False
    kinds: set[bool] = set()
    for statement in body:
        if not isinstance(statement, ast.Expr):
            return False
        if isinstance(statement.value, ast.Call):
            names = resolver.names(statement.value.func, function.module)
            if not names or not names <= EMPTY_CACHE | COLLECT:
                return False
            kinds.add(bool(names <= EMPTY_CACHE))
        elif not isinstance(statement.value, ast.Constant):
            return False
    return True in kinds


def _collects(resolver: Resolver, statement: ast.Expr, module: Module) -> bool:
    call = statement.value
    if not isinstance(call, ast.Call):
        return False
    names = resolver.names(call.func, module)
    return bool(names) and names <= COLLECT


def _is_once(branch: ast.If, module: Module) -> bool:
    """Whether ``branch`` runs in one round of a loop that counts: ``if i == 1:``, unless it sets the counter back."""
    set_back = {
        node.id
        for node in lexical_nodes(branch.body)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return any(name not in set_back for name in _reached_counters(branch.test, module))


def _reached_counters(test: ast.expr, module: Module) -> Iterator[str]:
    """The counters that equal one number where ``test`` holds: ``i == 1``, ``step == args.warmup and verbose``."""
    match test:
        case ast.BoolOp(ast.And(), parts):
            for part in parts:
                yield from _reached_counters(part, module)
        case ast.Compare(ast.Name(id=name), [ast.Eq()], [ast.Constant(value=int(value))]):
            if not isinstance(value, bool):
                yield name
        case ast.Compare(ast.Name(id=name), [ast.Eq()], [other]):
            if not isinstance(other, ast.Constant) and _counts(name, module):
                yield name
        case _:
            pass


def _counts(name: str, module: Module) -> bool:
    """Whether ``name`` is a variable that is counted up somewhere in ``module``."""
    return any(_counted(node) == name for node in module.nodes_of(ast.AugAssign, ast.For))


def _counted(node: ast.AST) -> str | None:
    """The variable that ``node`` counts up: by ``+= 1``, or as a loop over ``range`` or ``enumerate``."""
    match node:
        case (
            ast.AugAssign(ast.Name(id=name), ast.Add(), ast.Constant(value=int()))
            | ast.For(ast.Name(id=name), ast.Call(func=ast.Name("range")))
            | ast.For(ast.Tuple(elts=[ast.Name(id=name), *_]), ast.Call(func=ast.Name("enumerate")))
        ):
            return name
        case _:
            return None


def _step_loops(loops: tuple[Loop, ...]) -> frozenset[LoopNode]:
    """The loops whose body is one step: training, evaluation, or any other that calls a network itself."""
    found: set[LoopNode] = set()
    for loop in loops:
        if loop.kind in {LoopKind.TRAINING, LoopKind.EVALUATION}:
            found.add(loop.node)
        elif loop.kind is LoopKind.OTHER:
            around = set(loop.module.ancestors(loop.node))
            inner = [o for o in loops if o is not loop and o.node not in around]
            own = {f.node for f in loop.forwards} - {f.node for o in inner for f in o.forwards}
            if own:
                found.add(loop.node)
    return frozenset(found)


class _Paces:
    def __init__(self, resolver: Resolver, step_loops: frozenset[LoopNode]) -> None:
        self._resolver = resolver
        self._step_loops = step_loops
        self._active: set[FunctionNode] = set()

    def of(self, statement: ast.AST, module: Module) -> Pace:
        """How often ``statement`` runs."""
        child: ast.AST = statement
        for ancestor in module.ancestors(statement):
            if isinstance(ancestor, ast.FunctionDef | ast.AsyncFunctionDef):
                return self._of_function(ancestor)
            if isinstance(ancestor, ast.ExceptHandler):
                return Pace.ERROR
            if isinstance(ancestor, ast.If | ast.While) and _asks_for_memory(ancestor.test):
                return Pace.SHORTAGE
            if (
                isinstance(ancestor, ast.If)
                and child in ancestor.body
                and _is_once(ancestor, module)
            ):
                return Pace.ONCE
            if isinstance(ancestor, ast.If) and self._is_phase(ancestor, child, module):
                return Pace.ERROR if _recovers(module, ancestor) else Pace.PHASE
            if ancestor in self._step_loops and child in ancestor.body:  # type: ignore[attr-defined]
                return Pace.STEP
            if isinstance(ancestor, ast.For) and child in ancestor.body and _moves_items(ancestor):
                return Pace.LOOP
            child = ancestor
        return Pace.PHASE

    def _of_function(self, function: FunctionNode) -> Pace:
        sites = self._resolver.call_sites(function)
        if not sites:
            return Pace.UNKNOWN
        if function in self._active:
            return Pace.PHASE
        self._active.add(function)
        paces = {self.of(site.call, site.module) for site in sites}
        self._active.discard(function)
        if len(paces) == 1:
            return paces.pop()
        if Pace.STEP in paces:
            return Pace.STEP if function.name == "forward" else Pace.MIXED
        return Pace.PHASE

    def _is_phase(self, branch: ast.If, child: ast.AST, module: Module) -> bool:
        """Whether a conditional block is a phase of its own: it runs a loop, as an evaluation every so often does."""
        block = branch.body if child in branch.body else branch.orelse
        return any(
            isinstance(r.node, ast.For | ast.AsyncFor | ast.While)
            for r in reached_nodes(self._resolver, block, module)
        )


def _recovers(module: Module, branch: ast.If) -> bool:
    """Whether ``branch`` is part of what is done about an exception: ``if "out of memory" in str(e):``."""
    around = module.parents[branch]
    while isinstance(around, ast.If | ast.With):
        around = module.parents[around]
    return isinstance(around, ast.ExceptHandler)


def _moves_items(loop: ast.For) -> bool:
    """Whether ``loop`` copies what it goes over to a device, as loops over batches do: ``x = x.to(device)``."""
    items = {node.id for node in lexical_nodes([loop.target]) if isinstance(node, ast.Name)}
    return any(
        isinstance(node, ast.Call)
        and _identifier(node.func) in {"to", "cuda"}
        and any(isinstance(n, ast.Name) and n.id in items for n in lexical_nodes([node.func]))
        for node in lexical_nodes(loop.body)
    )


def _asks_for_memory(test: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Call) and _identifier(node.func) in _MEMORY_QUERIES
        for node in lexical_nodes([test])
    )
