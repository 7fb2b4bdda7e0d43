"""What a script's own autocast leaves in float32: steps for which it is off, and parts of steps that it is not around."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.reach import reached_nodes
from ..facts import Fact
from ..networks.forward_code import forward_code, networks_run
from ..program.reaching import bindings_of
from ..program.scopes import Parameter
from ..program.statements import are_alternatives
from ..program.syntax import FunctionNode, Module
from ..training.loops import forward_calls
from ..training.loss_regions import Region
from ..training.steps import StepCode
from ..values.resolver import Resolver
from ..values.values import Option
from .precision import autocast_contexts, autocast_regions, enabled_by, is_off_by_default


def switch_of_autocast(resolver: Resolver, step: StepCode) -> str | None:
    """What has to be given for ``step`` to run under its autocast, in words; None where it does as it is.

    An option of the command line, which is off by default, or a parameter (``scaler=None``) that no call gives.
    """
    for node, context, module in autocast_contexts(resolver, step):
        for test in _switches(resolver, node, context, module):
            for value in resolver.values(test, module):
                if isinstance(value, Option) and is_off_by_default(value) and value.call.args:
                    flag = value.call.args[-1]
                    return f"`{flag.value}` is given" if isinstance(flag, ast.Constant) else None
            given = _never_given(resolver, test, module)
            if given is not None:
                return f"`{given}` is given, and no call gives one"
    return None


def _switches(
    resolver: Resolver, node: ast.AST, context: ast.expr, module: Module
) -> Iterator[ast.expr]:
    """What decides whether ``node`` makes an autocast region of ``context``: its switch, and the tests around."""
    enabled = enabled_by(resolver, context, module)
    if enabled is not None:
        yield enabled
    child = node
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, FunctionNode):
            return
        if isinstance(ancestor, ast.If) and child in ancestor.body:
            yield ancestor.test
        child = ancestor


def _never_given(resolver: Resolver, test: ast.expr, module: Module) -> str | None:
    """The parameter ``x`` of ``x is not None`` or ``x`` that is None whoever calls."""
    match test:
        case ast.Compare(left=given, ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            pass
        case _:
            given = test
    if not isinstance(given, ast.Name) or not resolver.is_always(given, module, None):
        return None
    sources = [binding.source for binding in bindings_of(module, given)]
    return given.id if sources and all(isinstance(s, Parameter) for s in sources) else None


def outside_autocast(resolver: Resolver, step: StepCode) -> Fact | None:
    """The first forward pass of ``step`` that the script's own autocast, which is around others of it, is not around."""
    contexts = [(node, module) for node, _, module in autocast_contexts(resolver, step)]
    for region in step.regions:
        module = region.module
        if any(True for _ in autocast_regions(resolver, _around(resolver, region))):
            continue
        # `if args.amp: with autocast(): ..`, `else:` the same without
        if any(
            where is module and are_alternatives(region.first, n, module) for n, where in contexts
        ):
            continue
        forwards = forward_calls(resolver, reached_nodes(resolver, region.statements, module))
        if forwards:
            return forwards[0]
    return None


def _around(resolver: Resolver, region: Region) -> Iterator[tuple[ast.AST, Module]]:
    """What the forward passes of ``region`` may run in: what stands around it and its calls, and all that it runs itself."""
    module, function = region.module, region.module.function(region.first)
    places: list[tuple[ast.AST, Module]] = [(region.first, module)]
    sites = resolver.call_sites(function) if function is not None else ()
    places += [(site.call, site.module) for site in sites]
    for node, where in places:
        yield from ((ancestor, where) for ancestor in where.ancestors(node))
    nodes = list(reached_nodes(resolver, region.statements, module, into_forward=True))
    for reached in (*nodes, *forward_code(resolver, networks_run(resolver, nodes))):
        yield reached.node, reached.module
        run = reached.module.function(reached.node)
        if run is not None:
            yield run, reached.module
