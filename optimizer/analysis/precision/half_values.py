"""Where values that a network computed in half precision go to what cannot take them, or loses by them.

NumPy has no bfloat16: ``tensor.numpy()`` raises TypeError on one, and so do the libraries that call it. Steep functions
are no longer run in float32 once autocast has ended.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from ..calls.reach import reached_nodes
from ..facts import Fact, excerpt
from ..program.sharing import user_of_definition
from ..program.syntax import FunctionNode, Module
from ..training.loops import is_forward
from ..values.resolver import Resolver
from ..values.values import Attribute, External, Made, Unknown, Value
from .float_only import float_only
from .float_values import FloatTrace
from .half_functions import is_host_copy, steep_operand
from .half_products import may_multiply, may_run_outside, operands_of_one_type
from .half_trace import OWN_PACKAGES, HalfTrace, runs_network, runs_part

_AT_EASE = OWN_PACKAGES | sys.stdlib_module_names | {"lightning", "pytorch_lightning"}
"""Packages that take a bfloat16 tensor: PyTorch's own, those on it, and Python's, which ask it for a number."""

_UNSCALES = "inverse_transform"
"""What takes a prediction back to the units of the data, by scikit-learn's name: a speed of 61.3 becomes 61.25 in bfloat16
(https://scikit-learn.org/stable/modules/generated/sklearn.preprocessing.StandardScaler.html)."""


@dataclass(frozen=True, eq=False)
class HalfUse(Fact):
    """A value that may be in half precision, at the place where it leaves PyTorch.

    ``value`` is the expression handed over. ``is_float`` says that it is certainly a floating-point tensor, so that
    ``.float()`` restores what was there before autocast. ``taker`` names who gets it.
    """

    value: ast.expr
    is_float: bool
    taker: str


def half_uses(
    resolver: Resolver,
    producers: frozenset[ast.Call],
    covered: frozenset[ast.AST] = frozenset(),
) -> tuple[HalfUse, ...]:
    """Where results of the forward passes ``producers``, run under autocast, leave PyTorch, or meet float32.

    ``covered`` are the nodes that run under autocast, too.
    """
    trace = HalfTrace(resolver, producers, covered)
    modules = resolver.project.modules
    places = {call: module for module in modules for call in module.calls if call in producers}
    floats = FloatTrace(resolver, places)
    leaving = (
        HalfUse(module, call, value, floats.is_float(value, module), taker)
        for module in resolver.project.modules
        for call in module.calls
        for value, taker in _handed_over(resolver, call, module, producers, covered)
        if trace.may_be_half(value, module)
    )
    meeting = (
        HalfUse(module, node, value, floats.is_float(value, module), taker)
        for module in resolver.project.modules
        for node in module.nodes_of(ast.Call, ast.BinOp)
        for value, taker in _met_by_float32(resolver, node, module, trace)
        if may_run_outside(resolver, node, module, covered)
    )
    rounding = (
        HalfUse(module, call, value, True, f"`{excerpt(module, call)}` outside of autocast")
        for module in resolver.project.modules
        for call in module.calls
        if (value := steep_operand(resolver, call, module)) is not None
        and _loses_digits(resolver, call, value, module, trace, covered)
    )
    refused = (
        HalfUse(module, call, value, True, f"`{excerpt(module, call)}` outside of autocast")
        for module in resolver.project.modules
        for call in module.calls
        if may_run_outside(resolver, call, module, covered)
        and (operation := float_only(resolver, call, module)) is not None
        and not operation.has_kernel
        for value in operation.operands
        if trace.may_be_half_outside(value, module)
    )
    found = (*leaving, *meeting, *rounding, *refused)
    return tuple(moved for use in found for moved in _at_calls(resolver, use, trace, floats))


def _loses_digits(
    resolver: Resolver,
    call: ast.Call,
    operand: ast.expr,
    module: Module,
    trace: HalfTrace,
    covered: frozenset[ast.AST],
) -> bool:
    """Whether ``call``, a steep function or a loss, computes in half precision: outside of autocast, or on the host."""
    if may_run_outside(resolver, call, module, covered):
        return trace.may_be_half_outside(operand, module)
    return is_host_copy(operand, module) and trace.may_be_half(operand, module)


def _at_calls(
    resolver: Resolver, use: HalfUse, trace: HalfTrace, floats: FloatTrace, depth: int = 4
) -> tuple[HalfUse, ...]:
    """The arguments that bring the value of ``use`` into a function that scripts beside this one use, too.

    Such a function stays as it is: what it is given becomes float32 where this script calls it. ``use`` itself where no other
    script uses the function, or where that is not enough.
    """
    module, function = use.module, use.module.function(use.node)
    if function is None or module is resolver.project.entry or not depth:
        return (use,)
    if user_of_definition(resolver.project, module, use.span.line) is None:
        return (use,)
    if not _stays_float32(resolver, function, module, trace):
        return (use,)
    found: list[HalfUse] = []
    for site in resolver.call_sites(function):
        for given in (*site.call.args, *(keyword.value for keyword in site.call.keywords)):
            if trace.may_be_half(given, site.module):
                if not floats.is_float(given, site.module):
                    return (use,)
                moved = HalfUse(site.module, site.call, given, True, use.taker)
                found += _at_calls(resolver, moved, trace, floats, depth - 1)
    return tuple(found) or (use,)


def _stays_float32(
    resolver: Resolver, function: FunctionNode, module: Module, trace: HalfTrace
) -> bool:
    """Whether all that ``function`` computes is in float32 if what it is given is, under autocast, too."""
    if module.parents[function] is not module.tree:
        return False  # an attribute of its object may be half
    for reached in reached_nodes(resolver, function.body, module):
        node, owner = reached.node, reached.module
        if isinstance(node, ast.Call) and runs_network(resolver, node, owner):
            return False
        if may_multiply(node) or operands_of_one_type(resolver, node, owner):
            return False
        if isinstance(node, ast.Name) and owner.scope(node).lookup(node.id) is not None:
            is_global = owner.scopes.by_node[owner.tree].bindings.get(node.id)
            if is_global and trace.may_be_half(node, owner):
                return False
    return True


def _met_by_float32(
    resolver: Resolver, node: ast.AST, module: Module, trace: HalfTrace
) -> Iterator[tuple[ast.expr, str]]:
    """The operands of ``node`` that may be half although another is not, where they have to be of one type."""
    operands = operands_of_one_type(resolver, node, module)
    half = [operand for operand in operands if trace.may_be_half_outside(operand, module)]
    if len(half) < len(operands):
        code = excerpt(module, node)
        yield from ((operand, f"`{code}` together with float32") for operand in half)


def _handed_over(
    resolver: Resolver,
    call: ast.Call,
    module: Module,
    producers: frozenset[ast.Call],
    covered: frozenset[ast.AST],
) -> Iterator[tuple[ast.expr, str]]:
    """The arguments of ``call`` that leave PyTorch, or autocast, and where to."""
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr in {"numpy", "__array__"}:
        yield function.value, "NumPy"
        return
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if isinstance(function, ast.Attribute) and function.attr == _UNSCALES:
        yield from ((argument, f"`{ast.unparse(function)}`") for argument in given)
        return
    if call not in producers and (
        runs_network(resolver, call, module)
        or (call not in covered and runs_part(resolver, call, module))
    ):
        yield from ((argument, "a network that runs in float32") for argument in given)
        return
    if not given or resolver.callees(call, module) or is_forward(resolver, call, module):
        return  # a layer takes what comes, whatever else may stand in its place
    values = resolver.values(function, module)
    if External("torch.save") in values:
        yield given[0], "a file"
        return
    if any(_is_foreign(value) for value in values):
        name = ast.unparse(function)
        yield from ((argument, f"`{name}`") for argument in given)


def _is_foreign(callee: Value) -> bool:
    """Whether ``callee`` is nothing of PyTorch, Python or the project, or not known to be."""
    match callee:
        case External(name):
            return name.partition(".")[0] not in _AT_EASE
        case Made(_, _, External(name)):
            package, _, last = name.rpartition(".")
            if package == "builtins" and not hasattr(builtins, last):
                return True
            return name.partition(".")[0] not in _AT_EASE and not name.startswith("<")
        case Attribute(of) if not isinstance(of, Unknown):
            return _is_foreign(of)
        case Unknown():
            return True
        case _:
            return False
