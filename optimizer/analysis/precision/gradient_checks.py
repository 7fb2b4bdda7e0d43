"""Checks of gradients that end a training: where the norm is not finite, the script raises or leaves.

The gradients of float16 overflow in the first steps by design: that is how a ``GradScaler`` finds its scale
(https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling). A check of the loss sees nothing of it, as the loss
itself is not scaled.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import chain

from ..calls.reach import Reached, lexical_nodes, reached_nodes
from ..calls.signatures import argument_for
from ..obstacles import Obstacle
from ..program.scopes import Parameter
from ..program.syntax import FunctionNode, LoopNode, Module
from ..program.trees import walk
from ..training.steps import StepCode, reads_gradient
from ..values.dataflow import Flow, own_nodes
from ..values.questions import Answers, Questions
from ..values.resolver import Resolver
from ..values.values import Function

_EXITS = frozenset({"sys.exit", "builtins.exit", "builtins.quit", "os._exit", "os.abort"})
_WITHOUT_VALUES = frozenset(
    "is_sparse shape size dim ndim numel dtype device is_cuda requires_grad isinstance hasattr len".split()
)
_ENDS = "gradients that overflow, as those of float16 do at first, end the training"
_GOES_BACK = (
    "gradients that overflow, as those of float16 do at first, make the script load weights"
)


def gradient_checks(resolver: Resolver, step: StepCode) -> Iterator[Obstacle]:
    """The tests of ``step`` on gradients that end the training, or load weights saved earlier."""
    tests = _GradientTests(resolver)
    around = reached_nodes(resolver, [step.loop.node], step.loop.module)
    for reached in {r.node: r for r in chain(step.nodes(resolver), around)}.values():
        node, module = reached.node, reached.module
        match node:
            case ast.Assert(test=test):
                why = _ENDS
            case ast.If(test=test, body=body, orelse=orelse):
                why = _outcome(resolver, step, [*body, *orelse], module)
            case _:
                continue
        if why is not None and any(tests.depends(p, node, module) for p in _compared(test)):
            yield Obstacle(module, test, why, float16_only=True)


def _compared(test: ast.expr) -> Iterator[ast.expr]:
    """The parts of ``test`` that are about what tensors hold, not about whether there are any, of what size or type."""
    match test:
        case ast.BoolOp(values=values):
            for value in values:
                yield from _compared(value)
        case ast.UnaryOp(operand=operand):
            yield from _compared(operand)
        case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return
        case ast.Compare(left=left, comparators=comparators):
            for side in (left, *comparators):
                yield from _compared(side)
        case (
            ast.Attribute(attr=attr) | ast.Call(func=ast.Attribute(attr=attr) | ast.Name(id=attr))
        ) if attr in _WITHOUT_VALUES:
            return
        case _:
            yield test


def _outcome(
    resolver: Resolver, step: StepCode, branches: Iterable[ast.stmt], module: Module
) -> str | None:
    """What becomes of the training in one of ``branches``, as a reason; None where it goes on."""
    for reached in reached_nodes(resolver, branches, module):
        match reached.node:
            case ast.Raise():
                return _ENDS
            case ast.Return() if any(
                _is_of_passes(step, loop) for loop in reached.module.loops(reached.node)
            ):
                return _ENDS
            case ast.Break() if _is_of_passes(step, reached.module.loops(reached.node)[0]):
                return _ENDS
            case ast.Call(func=ast.Attribute(attr="load_state_dict")):
                return _GOES_BACK
            case ast.Call() if resolver.names(reached.node.func, reached.module) & _EXITS:
                return _ENDS
            case _:
                pass
    return None


def _is_of_passes(step: StepCode, loop: LoopNode) -> bool:
    """Whether the passes of ``loop`` are steps."""
    return loop in {step.node, step.loop.node} or any(
        backward.node in set(walk(loop)) for backward in step.backwards
    )


class _GradientTests:
    """Answers whether tests depend on gradients: themselves, or on whether a variable was set because of them."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._questions = Questions()
        self._expressions = Answers[ast.expr, bool](nothing=False, incomplete=lambda _: True)
        self._parameters = Answers[tuple[FunctionNode, str], bool](False, lambda _: True)
        self._flows: dict[ast.AST, Flow] = {}

    def depends(self, expression: ast.expr, at: ast.stmt, module: Module) -> bool:
        return self._questions.ask(
            expression, self._expressions, lambda: self._depends(expression, at, module)
        )

    def _depends(self, expression: ast.expr, at: ast.stmt, module: Module) -> bool:
        behind = self._flow(module, at).statements_behind(expression, at)
        return any(self._reads(part, module) for part in (expression, *behind)) or any(
            self._is_chosen(statement, module) for statement in behind
        )

    def _flow(self, module: Module, at: ast.stmt) -> Flow:
        function = module.function(at)
        owner = module.tree if function is None else function
        return self._flows.setdefault(owner, Flow(module, tuple(owner.body)))

    def _reads(self, part: ast.AST, module: Module) -> bool:
        """Whether ``part`` reads gradients, is handed what depends on them, or calls a function that returns such."""
        for node in own_nodes(part):
            if reads_gradient(self._resolver, Reached(node, module, True)):
                return True
            match node:
                case ast.Name(ctx=ast.Load()) if self._is_handed(node, module):
                    return True
                case ast.Call() if any(
                    map(self._is_returned, self._resolver.callees(node, module))
                ):
                    return True
                case _:
                    pass
        return False

    def _is_chosen(self, statement: ast.stmt, module: Module) -> bool:
        """Whether a test that depends on gradients decides if ``statement`` runs."""
        for ancestor in module.ancestors(statement):
            if isinstance(ancestor, FunctionNode):
                return False
            if isinstance(ancestor, ast.If) and self.depends(ancestor.test, ancestor, module):
                return True
        return False

    def _is_handed(self, name: ast.Name, module: Module) -> bool:
        found = module.scope(name).lookup(name.id)
        functions = (
            binding.source.function
            for binding in (found[1] if found else ())
            if isinstance(binding.source, Parameter)
        )
        return any(
            self._is_given(function, name.id)
            for function in functions
            if isinstance(function, FunctionNode)
        )

    def _is_given(self, function: FunctionNode, name: str) -> bool:
        """Whether a call hands the parameter ``name`` of ``function`` what depends on gradients."""
        return self._questions.ask(
            (function, name),
            self._parameters,
            lambda: any(
                passed is not None
                and passed.given is not None
                and self.depends(passed.given, site.module.statement(site.call), site.module)
                for site in self._resolver.call_sites(function)
                for passed in (argument_for(function, name, site.call, site.bound),)
            ),
        )

    def _is_returned(self, callee: Function) -> bool:
        if isinstance(callee.node, ast.Lambda):
            return False
        for node in lexical_nodes(callee.node.body):
            if isinstance(node, ast.Return) and node.value is not None:
                value, module = node.value, callee.module
                if self.depends(value, node, module) or self._is_chosen(node, module):
                    return True
        return False
