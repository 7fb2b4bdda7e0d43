"""Decisions that all processes have to take alike: whether to stop, which learning rate, which weights.

A process that leaves a loop in which the others go on to exchange gradients keeps them waiting for ever. Where a decision
hangs on what each process has measured by itself, the first process decides for all.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ...rewriting.edits import FileEdit
from ..calls.reach import lexical_nodes, reached_nodes
from ..editing.replacing import replacement
from ..obstacles import Obstacle
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned
from ..program.syntax import Module
from ..program.trees import position, walk
from ..script import TrainingScript
from ..training.loops import is_forward
from ..training.steps import StepCode
from .divergence import Divergence
from .process_names import Helper, ProcessNames

_TOGETHER = frozenset({"backward", "load_state_dict", "add_param_group", "requires_grad_"})
_TOGETHER_ALONE = "what processes do together would hang on what each has measured by itself"
_PLATEAU = "ReduceLROnPlateau"
_EXITS = frozenset({"sys.exit", "builtins.exit", "builtins.quit", "os._exit"})
_PASSING = frozenset({"KeyboardInterrupt", "SystemExit", "GeneratorExit"})
_MOST_DECISIONS = 12


@dataclass(frozen=True)
class _Problem:
    """``expression`` decides what processes have to do together, and diverges; ``test`` is the condition it is, if it is one."""

    module: Module
    expression: ast.expr
    why: str
    can_agree: bool = True


@dataclass(frozen=True)
class Agreement:
    """The ``edits`` by which processes decide alike in ``places``, and what still diverges between them."""

    edits: tuple[FileEdit, ...]
    places: frozenset[ast.AST]
    divergence: Divergence


def agree_on_decisions(
    script: TrainingScript,
    step: StepCode,
    sums: Collection[tuple[ast.AST, str]],
    reductions: Collection[ast.AST],
    common: Collection[ast.AST],
    names: ProcessNames,
) -> Agreement | Obstacle:
    """How the first process decides for all where that is needed, or what stands against it.

    ``sums`` are the variables that processes have in common behind a loop, as they have the values of ``common``; at
    ``reductions`` they exchange something.
    """
    agreed: dict[ast.expr, Module] = {}
    for _ in range(_MOST_DECISIONS):
        decisions = _Decisions(script, step, sums, [*reductions, *agreed], [*common, *agreed])
        problem = next(decisions.problems(), None)
        if problem is None:
            edits = tuple(_agreement(each, module, names) for each, module in agreed.items())
            return Agreement(edits, frozenset(agreed), decisions.diverging)
        place = decisions.where_to_agree(problem) if problem.can_agree else None
        if place is None or place in agreed:
            return Obstacle(problem.module, problem.expression, problem.why)
        agreed[place] = problem.module
    return Obstacle(step.module, step.node, "too many decisions hang on what is measured")


def _agreement(expression: ast.expr, module: Module, names: ProcessNames) -> FileEdit:
    code = module.code(expression)
    is_test = isinstance(module.parents[expression], ast.If | ast.While)
    is_bool = isinstance(expression, ast.Compare) or (
        isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.Not)
    )
    if is_test and not is_bool:
        code = f"bool({code})"
    code = f"{names.helper(Helper.FIRST, module)}({code})"
    return replacement(module, expression, code)


class _Decisions:
    def __init__(
        self,
        script: TrainingScript,
        step: StepCode,
        sums: Collection[tuple[ast.AST, str]],
        exchanges: Collection[ast.AST],
        agreed: Collection[ast.AST],
    ) -> None:
        self._script, self._step, self._resolver = script, step, script.resolver
        self._exchanges = frozenset(exchanges)
        self.diverging = Divergence(script.resolver, script.loaders, agreed, sums)
        self._in_step = {r.node for r in step.nodes(script.resolver)}
        self._known: dict[ast.AST, bool] = {}

    def problems(self) -> Iterator[_Problem]:
        """What hangs on something that diverges and must not."""
        for module in self._script.modules:
            for node in module.nodes_of(ast.If, ast.While):
                if self._runs(node, module) and self.diverging.of(node.test, module):
                    why = self._breaks_step(node, module)
                    if why is not None:
                        yield _Problem(module, node.test, why, node not in self._in_step)
            for node in module.nodes_of(ast.IfExp):
                if node in self._in_step and self.diverging.of(node.test, module):
                    done = [self._done_in(branch, module) for branch in (node.body, node.orelse)]
                    if done[0] != done[1]:
                        yield _Problem(module, node.test, _TOGETHER_ALONE, False)
            for node in module.nodes_of(ast.Try):
                if self._runs(node, module) and self._gets_over(node, module):
                    why = "an error that one process gets over alone would keep the others waiting"
                    yield _Problem(module, node.handlers[0].type or _first(node), why, False)
            yield from self._rates(module)

    def where_to_agree(self, problem: _Problem) -> ast.expr | None:
        """The condition or argument that, decided by the first process, settles ``problem``."""
        module, expression = problem.module, problem.expression
        around = self.diverging.decides(expression, module)
        if around is None:
            around = next(self._made_under(expression, module), None)
        if around is None:
            return expression
        deeper = self.diverging.decides(around, module) or next(
            self._made_under(around, module), None
        )
        chosen = deeper or around
        return None if module.statement(chosen) in self._in_step else chosen

    def _made_under(self, expression: ast.expr, module: Module) -> Iterator[ast.expr]:
        """The diverging conditions under which variables of ``expression`` get values that do not diverge themselves."""
        found: list[ast.expr] = []
        for name in walk(expression):
            if not isinstance(name, ast.Name) or not self.diverging.of(name, module):
                continue
            scope = module.scope(name)
            known = scope.lookup(name.id)
            if known is None:
                continue
            for binding in reaching_bindings(module, *known, scope, name):
                if not self.diverging.binds(binding):
                    continue
                source = binding.source
                parent = module.parents.get(binding.node)
                value = parent.value if isinstance(parent, ast.AugAssign) else None
                if isinstance(source, Assigned) and not source.path:
                    value = source.value
                test = self.diverging.decides(binding.node, module)
                if value is None or self.diverging.of(value, module):
                    if test is None:
                        return  # it diverges by itself
                    continue
                if test is not None:
                    found.append(test)
        yield from found

    def _runs(self, node: ast.AST, module: Module) -> bool:
        function = module.function(node)
        return function is None or function in self._script.functions_run

    def _breaks_step(self, node: ast.If | ast.While, module: Module) -> str | None:
        region = [*node.body, *node.orelse]
        if isinstance(node, ast.While):
            region = [node]
        if self._exchanges_in(region, module) and not self._do_alike(node, module):
            return _TOGETHER_ALONE
        for inner in lexical_nodes(region):
            around: ast.AST | None = None
            match inner:
                case ast.Break() | ast.Continue():
                    around = next(iter(module.loops(inner)), None)
                case ast.Return():
                    around = module.function(inner)
                case ast.Call() if self._exits_quietly(inner, module):
                    return "the training would stop by what each process has measured by itself"
                case _:
                    pass
            if (
                around is not None
                and around not in walk(node)
                and self._does_exchange(around, module)
            ):
                return "the training would stop by what each process has measured by itself"
        return None

    def _does_exchange(self, around: ast.AST, module: Module) -> bool:
        if around not in self._known:
            body: list[ast.stmt] = getattr(around, "body", [])
            self._known[around] = self._exchanges_in(body, module)
        return self._known[around]

    def _exchanges_in(self, region: Collection[ast.AST], module: Module) -> bool:
        """Whether ``region`` does what all processes do together or none: exchange something, change the weights."""
        reached = reached_nodes(self._resolver, region, module)
        return any(self._is_done_together(each.node, each.module) for each in reached)

    def _done_in(self, branch: ast.expr, module: Module) -> list[str]:
        """What all processes do together or none in ``branch``, one after the other."""
        reached = reached_nodes(self._resolver, [branch], module)
        together = [r.node for r in reached if self._is_done_together(r.node, r.module)]
        return [_what_is_called(each) for each in sorted(together, key=position)]

    def _is_done_together(self, node: ast.AST, module: Module) -> bool:
        if node in self._exchanges:
            return True
        return isinstance(node, ast.Call) and (
            (isinstance(node.func, ast.Attribute) and node.func.attr in _TOGETHER)
            or self._steps(node, module)
            or is_forward(self._resolver, node, module)
        )

    def _do_alike(self, node: ast.If | ast.While, module: Module) -> bool:
        """Whether both branches of ``node`` do the same together, one after the other: each runs the network once, say."""
        if not isinstance(node, ast.If):
            return False
        done: list[list[str]] = []
        for branch in (node.body, node.orelse):
            together = [
                each.node
                for each in reached_nodes(self._resolver, branch, module)
                if self._is_done_together(each.node, each.module)
            ]
            directly = {n for n in _directly_in(branch) if isinstance(n, ast.Call)}
            if not directly.issuperset(together) or not self._exchanges.isdisjoint(together):
                return False
            together.sort(key=position)
            done.append([_what_is_called(each) for each in together])
        return done[0] == done[1]

    def _steps(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call`` steps an optimizer or a schedule."""
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
            return False
        makers = self._resolver.maker_names(call.func.value, module)
        return any(name.startswith("torch.optim.") for name in makers)

    def _exits_quietly(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call`` ends the process as if all were well: torchrun ends the others only when one fails."""
        if not self._resolver.names(call.func, module) & _EXITS:
            return False
        code = call.args[0] if call.args else None
        return code is None or (isinstance(code, ast.Constant) and code.value in {0, None})

    def _gets_over(self, node: ast.Try, module: Module) -> bool:
        if not self._exchanges_in(node.body, module):
            return False
        for handler in node.handlers:
            caught = (
                {n.id for n in walk(handler.type) if isinstance(n, ast.Name)}
                if handler.type
                else {""}
            )
            if caught <= _PASSING or isinstance(handler.body[-1], ast.Raise):
                continue
            ends = handler.body[-1]
            call = ends.value if isinstance(ends, ast.Expr) else None
            if isinstance(call, ast.Call) and self._resolver.names(call.func, module) & _EXITS:
                continue
            return True
        return False

    def _rates(self, module: Module) -> Iterator[_Problem]:
        """Learning rates that follow something that diverges."""
        why = "the learning rate would follow what each process has measured by itself"
        for call in module.calls_named("step"):
            assert isinstance(call.func, ast.Attribute | ast.Name)
            given = [*call.args, *(k.value for k in call.keywords)]
            if isinstance(call.func, ast.Name) or not given or not self._runs(call, module):
                continue
            makers = self._resolver.maker_names(call.func.value, module)
            if any(_PLATEAU in n for n in makers) and self.diverging.of(given[0], module):
                yield _Problem(module, given[0], why)
        for node in module.nodes_of(ast.Assign, ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                is_rate = (
                    isinstance(target, ast.Subscript)
                    and isinstance(target.slice, ast.Constant)
                    and target.slice.value in {"lr", "momentum", "weight_decay"}
                )
                if is_rate and self._runs(node, module):
                    test = self.diverging.decides(node, module)
                    if test is not None:
                        yield _Problem(module, test, why)
                    elif self.diverging.of(node.value, module):
                        yield _Problem(module, node.value, why, False)


def _directly_in(block: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """What runs whenever ``block`` does, in that order: not what stands in further tests and loops."""
    for statement in block:
        match statement:
            case ast.With(items=items, body=body):
                yield from (node for item in items for node in walk(item))
                yield from _directly_in(body)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Expr():
                yield from lexical_nodes([statement])
            case _:
                pass


def _what_is_called(call: ast.AST) -> str:
    """What ``call`` runs, whichever the loss is that a backward pass begins with."""
    function = getattr(call, "func", None)
    attribute = getattr(function, "attr", None)
    return "backward" if attribute == "backward" else ast.unparse(function or call)


def _first(node: ast.Try) -> ast.expr:
    """An expression of ``node`` to point at."""
    return next(n for n in walk(node) if isinstance(n, ast.expr))
