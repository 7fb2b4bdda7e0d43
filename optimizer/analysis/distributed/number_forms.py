"""The forms of the numbers that training loops add up and tell: sums, means, zeros to begin with, conversions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.reach import lexical_nodes
from ..networks.forward_losses import returns_mean
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned, Binding
from ..program.syntax import Module
from ..program.trees import walk
from ..training.batch_targets import AnyTargets
from ..training.mean_losses import not_a_mean
from ..values.resolver import Resolver
from ..values.unpacking import written_part

_ZEROS = frozenset({"torch.zeros", "torch.tensor", "torch.zeros_like", "torch.FloatTensor"})
SAME_NUMBER = frozenset(
    "item detach cpu cuda to float double int long half data numpy tolist clone squeeze".split()
)


def is_mean_loss(resolver: Resolver, value: ast.expr, module: Module) -> bool:
    """Whether ``value`` is a mean over the samples of a batch, by its form or because its network computes one."""
    return not_a_mean(resolver, value, module, AnyTargets()) is None or returns_mean(
        resolver, value, module
    )


def goes_on(name: ast.Name, module: Module, roots: frozenset[ast.AST]) -> bool:
    """Whether the variable is computed from what it was before the pass of the loop, one of ``roots``, that computes it."""
    found = module.scope(name).lookup(name.id)
    if found is None:
        return False
    for binding in found[1]:
        statement = module.statement(binding.node)
        if roots.isdisjoint(module.ancestors(binding.node)):
            continue
        if isinstance(statement, ast.AugAssign):
            return True
        for use in module.names_of(name.id):
            if isinstance(use.ctx, ast.Load) and statement in module.ancestors(use):
                before = reaching_bindings(module, *found, module.scope(use), use)
                if any(
                    roots.isdisjoint(module.ancestors(b.node))
                    or module.statement(b.node).lineno >= statement.lineno
                    for b in before
                ):
                    return True
    return False


def is_compared(value: ast.expr) -> bool:
    """Whether ``value`` counts how many numbers are equal, which has no gradient."""
    return any(
        isinstance(node, ast.Compare)
        or (isinstance(node, ast.Attribute) and node.attr in {"eq", "eq_"})
        for node in walk(value)
    ) and not any(isinstance(node, ast.BinOp) for node in walk(value))


def adds_up_samples(call: ast.Call) -> bool:
    """Whether ``call`` is ``x.view(-1).sum(0)``: all elements, of whatever shape they were."""
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr != "sum":
        return False
    given = [*call.args, *(k.value for k in call.keywords if k.arg == "dim")]
    if len(given) != 1 or not isinstance(given[0], ast.Constant) or given[0].value != 0:
        return False
    value = function.value
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        flat = [ast.unparse(argument) for argument in value.args]
        if (value.func.attr in {"view", "reshape"} and flat == ["-1"]) or (
            value.func.attr == "flatten" and not flat
        ):
            return True
        if value.func.attr not in SAME_NUMBER:
            return False
        value = value.func.value
    return False


def listed(name: ast.Name, function: ast.FunctionDef) -> Iterator[ast.expr]:
    """What ``function`` appends to its list ``name``."""
    for node in lexical_nodes(function.body):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=listed), attr="append"), args=[given]
            ) if listed == name.id:
                yield given
            case _:
                pass


def converted(binding: Binding) -> ast.Name | None:
    """The variable itself, where ``binding`` makes another kind of number of it: ``correct = int(correct)``."""
    source = binding.source
    if not isinstance(source, Assigned) or source.path:
        return None
    value: ast.expr = source.value
    while True:
        match value:
            case ast.Call(func=ast.Name(id="float" | "int"), args=[given], keywords=[]):
                value = given
            case ast.Call(func=ast.Attribute(value=given, attr=attr), args=[], keywords=[]) if (
                attr in SAME_NUMBER
            ):
                value = given
            case ast.Name() if value.id == binding.name:
                return value
            case _:
                return None


def makes_zero(resolver: Resolver, binding: Binding, module: Module) -> bool:
    source = binding.source
    return isinstance(source, Assigned) and _is_zero(resolver, source, module)


def _is_zero(resolver: Resolver, source: Assigned, module: Module) -> bool:
    value = written_part(source.value, source.path)
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr not in SAME_NUMBER:
            break
        value = value.func.value
    match value:
        case ast.Constant(value=number):
            return type(number) in {int, float} and number == 0
        case ast.Call(func=function):
            names = resolver.names(function, module)
            if names == frozenset({"torch.tensor"}):
                first = value.args[0] if value.args else None
                first = first.elts[0] if isinstance(first, ast.List) and first.elts else first
                return isinstance(first, ast.Constant) and first.value == 0
            return bool(names) and names <= _ZEROS
        case _:
            return False
