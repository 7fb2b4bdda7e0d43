"""Which variables of a loop keep what a network computed until the next pass replaces it, and may be deleted before.

A variable may go at the end of the loop's body if every pass that gets there has bound it, and if everything that reads it
does so behind a binding of the same pass, or behind one that is not in the loop.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ..devices.cache_release import memory_queries
from ..facts import Fact, Loop, LoopKind
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned, Binding, Iterated, Scope
from ..program.syntax import LoopNode, Module
from ..program.trees import position, walk
from ..tensors.tensor_kinds import TensorKind, TensorKinds
from ..values.resolver import Resolver
from ..values.unpacking import element_at
from ..values.values import External, Made
from .loops import is_forward

_TENSORS = frozenset({TensorKind.FLOAT, TensorKind.INTEGER, TensorKind.TENSOR})
_LEAVES = (ast.Return, ast.Break, ast.Continue, ast.Raise)
_RUN_IN_PLACE = (ast.ListComp, ast.SetComp, ast.DictComp)
KEEPS = frozenset({"append", "appendleft", "extend", "add", "put", "insert", "setdefault"})
_SEES_VARIABLES = frozenset({"locals", "eval", "exec", "breakpoint", "get_ipython"})
_SEES_WITHOUT_ARGUMENTS = frozenset({"vars", "dir", "embed"})
_STOPS_TO_LOOK = frozenset({"set_trace", "interact"})
_OWN_ORDER = re.compile(
    r"\b[Ss]tream\(|CUDAGraph|cuda\.graph\b|async_op|\bisend\b|data_ptr|weakref|__del__|"
    r"f_locals|_getframe|currentframe"
)
"""What lets work run in an order of its own, notices that memory is freed, or looks at the variables of its callers."""
_LETS_PASS = frozenset(
    {
        "contextlib.nullcontext",
        "torch.amp.autocast",
        "torch.autocast",
        "torch.cuda.amp.autocast",
        "torch.cpu.amp.autocast",
        "torch.autograd.detect_anomaly",
        "torch.autograd.set_detect_anomaly",
        "torch.autograd.profiler.record_function",
        "torch.enable_grad",
        "torch.inference_mode",
        "torch.no_grad",
        "torch.profiler.profile",
        "torch.profiler.record_function",
        "torch.set_grad_enabled",
    }
)
"""Context managers that swallow no exception."""


@dataclass(frozen=True, eq=False)
class LateRelease(Fact):
    """A loop whose variables ``names`` keep results of a network alive while the next pass computes new ones.

    ``kept`` are other such variables, each with why it must not be deleted at the end of the body.
    """

    node: LoopNode
    loop: Loop
    names: tuple[str, ...]
    kept: tuple[tuple[ast.AST, str], ...]


def find_late_releases(
    resolver: Resolver, loops: tuple[Loop, ...], kinds: TensorKinds
) -> tuple[LateRelease, ...]:
    """All of them, in source order per module."""
    found: list[LateRelease] = []
    for loop in loops:
        if loop.kind in {LoopKind.TRAINING, LoopKind.EVALUATION} and loop.forwards:
            body = _Body(resolver, kinds, loop)
            names: list[str] = []
            kept: list[tuple[ast.AST, str]] = []
            for binding in body.results():
                why = body.objection(binding)
                if why is None:
                    names.append(binding.name)
                else:
                    kept.append((binding.node, f"`{binding.name}` {why}"))
            # What `backward()` has been through holds no activations any more: a scalar alone is not worth a line.
            if all(body.is_backpropagated(name) for name in names):
                names = []
            if names or kept:
                found.append(LateRelease(loop.module, loop.node, loop, tuple(names), tuple(kept)))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class _Body:
    """The body of one loop."""

    resolver: Resolver
    kinds: TensorKinds
    loop: Loop

    @property
    def module(self) -> Module:
        return self.loop.module

    @cached_property
    def scope(self) -> Scope:
        return self.module.scope(self.loop.node.body[0])

    @cached_property
    def inside(self) -> frozenset[ast.AST]:
        return frozenset(node for s in self.loop.node.body for node in walk(s))

    @cached_property
    def first_forward(self) -> tuple[int, int] | None:
        """Where the first network of a pass runs: what is bound before is replaced before the memory is needed."""
        own = [position(f.node) for f in self.loop.forwards if f.node in self.inside]
        return min(own, default=None)

    def results(self) -> Iterator[Binding]:
        """The first binding of each variable that gets a result of the network in this very loop."""
        first = self.first_forward
        if first is None:
            return
        for name, bindings in self.scope.bindings.items():
            own = [b for b in bindings if b.node in self.inside]
            if name == "_" or not own or self._is_target(own) or self._is_let_go(name):
                continue
            is_result = any(
                self.module.loops(b.node)[:1] == [self.loop.node]
                and _end(self.module.statement(b.node)) > first
                and self._holds_result(b)
                for b in own
            )
            if is_result and not self._is_handed_on(name):
                yield min(own, key=lambda b: position(b.node))

    def _is_target(self, bindings: list[Binding]) -> bool:
        """Whether a loop inside runs over the variable, or the loop itself does."""
        if isinstance(self.loop.node, ast.While):
            return any(isinstance(b.source, Iterated) for b in bindings)
        targets = {n.id for n in walk(self.loop.node.target) if isinstance(n, ast.Name)}
        return any(isinstance(b.source, Iterated) or b.name in targets for b in bindings)

    def _is_let_go(self, name: str) -> bool:
        """Whether the end of the body deletes or clears the variable as it is."""
        for statement in self.loop.node.body:
            match statement:
                case ast.Delete(targets=targets):
                    gone = [n for target in targets for n in walk(target)]
                case ast.Assign(targets=gone, value=ast.Constant(value=None)):
                    pass
                case _:
                    continue
            if any(isinstance(n, ast.Name) and n.id == name for n in gone):
                return True
        return False

    def _is_handed_on(self, name: str) -> bool:
        """Whether something else keeps the value: then nothing is won."""
        for use in self.module.names_of(name):
            parent = self.module.parents[use]
            if use not in self.inside or not isinstance(use.ctx, ast.Load):
                continue
            if isinstance(parent, ast.List | ast.Tuple | ast.Dict):
                if isinstance(self.module.parents[parent], ast.Assign | ast.AugAssign):
                    return True
            elif isinstance(parent, ast.Assign):
                if not isinstance(parent.targets[0], ast.Tuple | ast.List):
                    return True
            elif isinstance(parent, ast.Yield) or (
                isinstance(parent, ast.Call) and getattr(parent.func, "attr", "") in KEEPS
            ):
                return True
        return False

    def is_backpropagated(self, name: str) -> bool:
        """Whether a pass calls ``backward`` on the variable itself."""
        for use in self.module.names_of(name):
            if use in self.inside:
                calls = (c for c in self.module.ancestors(use) if isinstance(c, ast.Call))
                functions = [getattr(call.func, "attr", "") for call in calls]
                if "backward" in functions[:2]:
                    return True
        return False

    def _holds_result(self, binding: Binding) -> bool:
        source = binding.source
        if not isinstance(source, Assigned):
            return False
        value, path = source.value, source.path
        while path and isinstance(value, ast.Tuple):
            element = element_at(value.elts, path[0])
            if element is None:
                return False
            value, path = element, path[1:]
        if isinstance(value, ast.Call) and is_forward(self.resolver, value, self.module):
            return True
        if path or isinstance(value, ast.Name):
            return False
        kind = self.kinds.of(value, self.module)
        is_count = kind is TensorKind.INTEGER and getattr(
            getattr(value, "func", None), "attr", ""
        ) in {"sum", "count_nonzero"}
        return kind in _TENSORS and not is_count

    def objection(self, first: Binding) -> str | None:
        """Why the variable must not be deleted at the end of the body; ``first`` is where a pass first binds it."""
        name, module, node = first.name, self.module, self.loop.node
        last = node.body[-1]
        if isinstance(last, _LEAVES):
            return f"is not replaced: every pass ends in `{module.code(last)}`"
        if not isinstance(self.scope.node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            return "is a variable of a class"
        return (
            self._general_objection(name)
            or self._binding_objection(first)
            or next(self._use_objections(first), None)
        )

    def _general_objection(self, name: str) -> str | None:
        """What in the script may notice that the variable is gone, wherever it is read."""
        module, root = self.module, self.scope.node
        for other in self.resolver.project.modules:
            found = other.search(_OWN_ORDER)
            if found is not None:
                return f"stays: `{found.group()}` in {other.path.name} may need it for longer"
        query = next(memory_queries(self.resolver), None)
        if query is not None:
            return f"stays: `{query.excerpt}` in {query.path.name} looks at the memory in use"
        for node in walk(root):
            if _looks_at_variables(node):
                return f"may be read by `{module.code(node)}`, which does not name it"
        if isinstance(root, ast.Module):
            if module is not self.resolver.project.entry:
                return "is a variable that other files may import"
            importer = next(self._importers(), None)
            if importer is not None:
                return f"may be read in {importer.path.name}, which imports this file"
            if any(isinstance(n, ast.Name) and n.id == "globals" for n in module.nodes):
                return "may be read by `globals()`"
        return None

    def _importers(self) -> Iterator[Module]:
        """The other files that import this one: the script, once more under its own name."""
        own = {self.module.path.stem, "__main__"}
        for other in self.resolver.project.modules:
            imported = {
                part
                for node in other.nodes
                if isinstance(node, ast.Import | ast.ImportFrom)
                for spelled in (getattr(node, "module", None), *(a.name for a in node.names))
                for part in (spelled or "").split(".")
            }
            if other is not self.module and own & imported:
                yield other

    def _binding_objection(self, first: Binding) -> str | None:
        """Why the end of the body may be reached while the variable is unbound."""
        module, name = self.module, first.name
        around = {*module.ancestors(self.loop.node)}
        for binding in self.scope.bindings[name]:
            if isinstance(binding.source, Iterated) and module.statement(binding.node) in around:
                return "is what a loop around this one runs over"
            if binding.node in self.inside and not isinstance(binding.node, ast.Name):
                # `except .. as name` unbinds it again.
                return "is not only bound by assignments"
        statement = module.statement(first.node)
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or not _is_target_of(
            first.node, statement
        ):
            return "may not be bound in every pass"
        around_it: ast.stmt = statement
        while around_it not in self.loop.node.body:
            outer = module.parents[around_it]
            if not isinstance(outer, ast.With | ast.AsyncWith):
                return "may not be bound in every pass"
            for item in outer.items:
                if not self._lets_pass(item.context_expr):
                    code = module.code(item.context_expr)
                    return f"may not be bound in every pass: `{code}` may swallow an exception"
            around_it = outer
        return None

    def _lets_pass(self, context: ast.expr) -> bool:
        values = self.resolver.values(context, self.module)
        return all(
            isinstance(v, Made) and isinstance(v.maker, External) and v.maker.name in _LETS_PASS
            for v in values
        )

    def _use_objections(self, first: Binding) -> Iterator[str]:
        """What may read the variable of a pass that has come to its end."""
        module, name = self.module, first.name
        bound = module.statement(first.node)
        own = [b for b in self.scope.bindings[name] if b.node in self.inside]
        enclosing = [self.loop.node, *module.loops(self.loop.node)]
        headers = {n for loop in enclosing for n in _header(loop)}
        for use in module.names_of(name):
            scope = module.scope(use)
            found = scope.lookup(name)
            if found is None or found[0] is not self.scope:
                continue
            if not self._runs_in_place(use, scope):
                yield "is used by a function, or by code that runs later"
            elif isinstance(use.ctx, ast.Store) and not isinstance(
                module.parents[use], ast.AugAssign
            ):
                continue
            elif use in self.inside:
                if isinstance(use.ctx, ast.Del):
                    yield "may be deleted already"
                elif position(use) < _end(bound):
                    yield "is read before it is bound again"
                elif getattr(getattr(module.parents[use], "func", None), "id", "") == "id":
                    yield "is told from others by its address (`id`)"
            elif use in headers:
                yield "is read by the head of a loop"
            else:
                reaching = reaching_bindings(module, found[0], found[1], scope, use)
                if any(binding in own for binding in reaching):
                    where = "behind the loop" if position(use) > position(first.node) else "before"
                    yield f"is read {where} ({module.place(use)})"

    def _runs_in_place(self, use: ast.AST, scope: Scope) -> bool:
        while scope is not self.scope and isinstance(scope.node, _RUN_IN_PLACE):
            assert scope.parent is not None
            scope = scope.parent
        return scope is self.scope and not any(
            isinstance(around, ast.GeneratorExp) for around in self.module.ancestors(use)
        )


def _is_target_of(node: ast.AST, statement: ast.Assign | ast.AnnAssign) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return any(node in set(walk(target)) for target in targets)


def _looks_at_variables(node: ast.AST) -> bool:
    """Whether ``node`` may show or read variables by other means than their names."""
    if isinstance(node, ast.Attribute):
        return node.attr in _STOPS_TO_LOOK
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        bare = not node.args and not node.keywords
        return bare and node.func.id in _SEES_WITHOUT_ARGUMENTS | _STOPS_TO_LOOK
    return isinstance(node, ast.Name) and node.id in _SEES_VARIABLES


def _header(loop: LoopNode) -> Iterator[ast.AST]:
    if isinstance(loop, ast.While):
        yield from walk(loop.test)
    else:
        yield from walk(loop.target)
        yield from walk(loop.iter)


def _end(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "end_lineno", 0), getattr(node, "end_col_offset", 0)
