"""Where a step waits for the device without asking for a number by ``.item()``: ``if loss > 5``, ``print(loss)``.

What waits is what needs the values of a tensor on the host:
https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..calls.reach import lexical_nodes, reached_nodes
from ..devices.host_tensors import holds_host_numbers
from ..facts import Fact, Loop
from ..program.syntax import Module, last_identifier
from ..program.trees import walk
from ..tensors.tensor_kinds import TensorKind, TensorKinds
from ..values.resolver import Resolver
from .device_reads import DeviceRead, runs_rarely
from .step_uses import SHOWS, why_needed

_TENSORS = frozenset({TensorKind.FLOAT, TensorKind.INTEGER, TensorKind.TENSOR})
_FETCHING_METHODS = frozenset(
    "cpu numpy tolist nonzero masked_select unique equal allclose".split()
)
_FETCHING_FUNCTIONS = frozenset(
    f"torch.{name}"
    for name in "nonzero argwhere masked_select unique unique_consecutive equal allclose is_nonzero".split()
) | frozenset(f"builtins.{name}" for name in "bool str repr format print min max range".split())
"""Functions that look at the values of the tensors they are given; the sizes of some results depend on them."""
_COPYING_METHODS = frozenset({"cpu", "numpy", "to", "tolist"})
_SHOWING_METHODS = SHOWS | {"add_scalar", "format"}


def find_waits(
    resolver: Resolver, kinds: TensorKinds, loop: Loop, reads: Iterable[DeviceRead]
) -> tuple[Fact, ...]:
    """Where ``loop`` waits for the device in every step, other than by the ``reads`` in its own body."""
    module = loop.module
    elsewhere: dict[ast.AST, DeviceRead] = {r.node: r for r in reads if _may_wait(r)}
    inside = {node for read in reads for node in walk(read.node)}
    found: list[Fact] = []
    for node in lexical_nodes(loop.node.body):
        if node in inside or runs_rarely(module, node, loop.node):
            continue
        own = [wait for wait in waits_at(resolver, kinds, node, module) if wait not in inside]
        found += [Fact(module, wait) for wait in own]
        if not own and isinstance(node, ast.Call):
            reached = reached_nodes(resolver, [node], module)
            found += [elsewhere[r.node] for r in reached if not r.direct and r.node in elsewhere]
    return tuple({fact.node: fact for fact in found}.values())


def _may_wait(read: DeviceRead) -> bool:
    """Whether ``read`` asks a tensor; ``.item()`` does, too, as long as what it is called on may be one."""
    is_item = isinstance(read.node, ast.Call) and last_identifier(read.node.func) == "item"
    return read.kind in _TENSORS or (is_item and read.kind is TensorKind.UNKNOWN)


def why_waits(resolver: Resolver, wait: Fact) -> str:
    """What ``wait`` does in a step that keeps the host waiting, in words."""
    module, node, code = wait.module, wait.node, f"`{wait.excerpt}`"
    if not isinstance(node, ast.Call):
        return f"{code} needs its values in every step"
    method = last_identifier(node.func)
    if method in _COPYING_METHODS and isinstance(node.func, ast.Attribute):
        return f"{code} copies to the host"
    if method == "synchronize":
        return f"{code} asks for it"
    if method not in {"item", "float", "int"}:
        return f"{code} needs its values in every step"
    function, statement = module.function(node), module.statement(node)
    if isinstance(function, ast.FunctionDef) and isinstance(statement, ast.Return):
        return f"{code} is what `{function.name}` gives back"
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return f"{code} is read in every step"
    return f"{code} {why_needed(resolver, node, module)}"


def waits_at(
    resolver: Resolver, kinds: TensorKinds, node: ast.AST, module: Module
) -> Iterator[ast.expr]:
    """What of ``node`` itself, not of what it consists of, waits for a tensor."""
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            asked: list[ast.expr] = [test]
        case ast.Assert(test=test):
            asked = [test]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            asked = [operand]
        case ast.BoolOp(values=values):
            asked = values
        case ast.FormattedValue(value=value) if kinds.of(value, module) in _TENSORS:
            asked = []
            yield value
        case ast.BinOp(ast.Constant(str()), ast.Mod(), shown):
            asked = []
            parts = shown.elts if isinstance(shown, ast.Tuple) else [shown]
            yield from (part for part in parts if kinds.of(part, module) in _TENSORS)
        case ast.Subscript(slice=ast.Compare() as mask, ctx=ast.Load()):
            asked = [mask]
        case ast.Slice(lower=lower, upper=upper, step=step):
            asked = [bound for bound in (lower, upper, step) if bound is not None]
        case ast.Call():
            asked = []
            if _call_waits(resolver, kinds, node, module):
                yield node
        case _:
            asked = []
    yield from (each for each in asked if _is_tensor(resolver, kinds, each, module))


def _is_tensor(resolver: Resolver, kinds: TensorKinds, node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is a tensor on the device; so is what ``any`` and ``all`` make of one."""
    if _is_drawn_on_host(resolver, kinds, node, module):
        return False
    if kinds.of(node, module) in _TENSORS:
        return True
    if not isinstance(node, ast.Call):
        return False
    names = resolver.names(node.func, module)
    if names and names <= {"torch.any", "torch.all"} and node.args:
        return kinds.of(node.args[0], module) in _TENSORS
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in {"any", "all"}:
        return False
    return kinds.of(node.func.value, module) in _TENSORS


def _is_drawn_on_host(
    resolver: Resolver, kinds: TensorKinds, node: ast.expr, module: Module
) -> bool:
    """Whether ``node`` is ``torch.rand(1)``, or ``torch.rand(1) < 0.5``."""
    if isinstance(node, ast.Compare):
        others = [kinds.of(other, module) for other in node.comparators]
        return holds_host_numbers(resolver, node.left, module) and not _TENSORS & set(others)
    return holds_host_numbers(resolver, node, module)


def _call_waits(resolver: Resolver, kinds: TensorKinds, call: ast.Call, module: Module) -> bool:
    names = resolver.names(call.func, module)
    if "torch.cuda.synchronize" in names:
        return True
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    given = any(kinds.of(argument, module) in _TENSORS for argument in arguments)
    if names and all(n in _FETCHING_FUNCTIONS or n.startswith("math.") for n in names):
        return given
    if not isinstance(call.func, ast.Attribute):
        return False
    method, receiver = call.func.attr, call.func.value
    if method in _SHOWING_METHODS:
        return given
    goes_to_host = method == "to" and any(
        isinstance(argument, ast.Constant) and argument.value == "cpu" for argument in arguments
    )
    return (method in _FETCHING_METHODS or goes_to_host) and kinds.of(receiver, module) in _TENSORS
