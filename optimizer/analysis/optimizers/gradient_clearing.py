"""Where gradients are filled with zeros and not dropped, by hand or with ``set_to_none=False``, and whether they are cleared at all."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ...rewriting.edits import Edit, RemoveArgument, ReplaceExpression, ReplaceStatement
from ..facts import Fact
from ..networks.models import is_optimizer_name
from ..program.syntax import Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import External, Made, Value

_CLEARING = frozenset({"zero_", "detach_", "requires_grad_"})


@dataclass(frozen=True, eq=False)
class GradientClearing(Fact):
    """A statement or call that fills the gradients of ``owner`` (a network or an optimizer) with zeros."""

    owner: ast.expr

    @property
    def statement(self) -> ast.stmt:
        return self.module.statement(self.node)

    @property
    def edit(self) -> Edit:
        """The edit that lets ``owner`` drop them."""
        if isinstance(self.node, ast.Call):
            if self.node.keywords:
                return RemoveArgument(self.span, "set_to_none")
            return ReplaceExpression(self.span, f"{self.module.code(self.node.func)}()")
        return ReplaceStatement(self.span, f"{self.module.code(self.owner)}.zero_grad()")


def find_gradient_clearings(resolver: Resolver) -> tuple[GradientClearing, ...]:
    """Every place that fills gradients with zeros, in source order per module."""
    found: list[GradientClearing] = []
    for module in resolver.project.modules:
        if "grad" in module.source.text:
            found += sorted(_clearings(module), key=lambda clearing: clearing.span)
    return tuple(found)


def other_gradient_use(resolver: Resolver, clearings: tuple[GradientClearing, ...]) -> Fact | None:
    """Where a gradient is looked at, or set, other than by ``clearings``."""
    inside = {node for clearing in clearings for node in walk(clearing.node)}
    for module in resolver.project.modules:
        for node in module.nodes:
            if (
                isinstance(node, ast.Attribute)
                and node.attr == "grad"
                and node not in inside
                and not resolver.names(node, module) & {"torch.autograd.grad"}
            ):
                return Fact(module, node)
    return None


def may_be_cleared(resolver: Resolver, optimizer: ast.expr, module: Module, loop: ast.AST) -> bool:
    """Whether something may clear the gradients of ``optimizer`` (of ``module``) as ``loop`` goes on, or sees them at all.

    What only runs before ``loop`` does not, nor what clears those of other optimizers.
    """
    stepped = resolver.values(optimizer, module)
    for other in resolver.project.modules:
        for node in (*other.attributes_of("grad"), *other.attributes_of("zero_grad")):
            if other is module and _is_beside(node, loop, module):
                continue
            if node.attr == "grad" and not resolver.names(node, other) & {"torch.autograd.grad"}:
                return True
            if node.attr == "zero_grad" and not _is_another(resolver, node.value, other, stepped):
                return True
    return False


def _is_beside(node: ast.AST, loop: ast.AST, module: Module) -> bool:
    """Whether ``node`` is in the function of ``loop``, and not in it."""
    if not isinstance(loop, ast.For | ast.AsyncFor | ast.While):
        return False
    return module.function(node) is module.function(loop) and loop not in module.ancestors(node)


def _is_another(
    resolver: Resolver, owner: ast.expr, module: Module, stepped: frozenset[Value]
) -> bool:
    """Whether ``owner`` is certainly an optimizer that is not among ``stepped``."""
    values = resolver.values(owner, module)
    return bool(values) and not values & stepped and all(map(_is_optimizer, values))


def _is_optimizer(value: Value) -> bool:
    return (
        isinstance(value, Made)
        and isinstance(value.maker, External)
        and is_optimizer_name(value.maker.name)
    )


def _clearings(module: Module) -> Iterator[GradientClearing]:
    for node in module.nodes:
        match node:
            case ast.For(orelse=[]):
                owner = cleared_by(node)
                if owner is not None:
                    yield GradientClearing(module, node, owner)
            case ast.Call(func=ast.Attribute(value=owner, attr="zero_grad")):
                match node.args, node.keywords:
                    case ([ast.Constant(value=False)], []) | (
                        [],
                        [ast.keyword(arg="set_to_none", value=ast.Constant(value=False))],
                    ):
                        yield GradientClearing(module, node, owner)
                    case _:
                        pass
            case _:
                pass


def cleared_by(loop: ast.For) -> ast.expr | None:
    """The network or optimizer whose gradients ``loop`` fills with zeros, None when it does anything else."""
    match loop:
        case ast.For(
            target=ast.Name(id=name),
            iter=ast.Call(func=ast.Attribute(value=owner, attr="parameters"), args=[], keywords=[]),
        ) if _clears(loop.body, name):
            return owner
        case ast.For(
            target=ast.Tuple(elts=[ast.Name(), ast.Name(id=name)]),
            iter=ast.Call(
                func=ast.Attribute(value=owner, attr="named_parameters"), args=[], keywords=[]
            ),
        ) if _clears(loop.body, name):
            return owner
        case ast.For(
            target=ast.Name(id=group),
            iter=ast.Attribute(value=owner, attr="param_groups"),
            body=[
                ast.For(
                    target=ast.Name(id=name),
                    iter=ast.Subscript(
                        value=ast.Name(id=subscripted), slice=ast.Constant(value="params")
                    ),
                    body=body,
                    orelse=[],
                )
            ],
        ) if subscripted == group and _clears(body, name):
            return owner
        case _:
            return None


def _clears(body: list[ast.stmt], name: str) -> bool:
    """Whether ``body`` fills the gradient of the parameter ``name`` with zeros, where it has one, and nothing else."""
    match body:
        case [ast.If(test=test, body=inner, orelse=[])] if _has_gradient(test, name):
            body = inner
        case _:
            pass
    methods = [_method_on_gradient(statement, name) for statement in body]
    return None not in methods and "zero_" in methods


def _has_gradient(test: ast.expr, name: str) -> bool:
    match test:
        case ast.Compare(
            left=ast.Attribute(value=ast.Name(id=tested), attr="grad"),
            ops=[ast.IsNot() | ast.NotEq()],
            comparators=[ast.Constant(value=None)],
        ):
            return tested == name
        case _:
            return False


def _method_on_gradient(statement: ast.stmt, name: str) -> str | None:
    """The method that ``statement`` calls on the gradient of the parameter ``name``, when it clears."""
    match statement:
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(
                    value=ast.Attribute(value=ast.Name(id=parameter), attr="grad")
                    | ast.Attribute(
                        value=ast.Attribute(value=ast.Name(id=parameter), attr="grad"), attr="data"
                    ),
                    attr=method,
                )
            )
        ) if parameter == name and method in _CLEARING:
            return method
        case _:
            return None
