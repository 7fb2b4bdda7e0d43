"""The loop over epochs around a training loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from ..calls.reach import lexical_nodes, reached_nodes
from ..facts import DataLoader, Fact, Loop
from ..obstacles import Obstacle
from ..program.syntax import Module, first_name
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import Made


@dataclass(frozen=True, eq=False)
class EpochLoop(Fact):
    """``node`` runs a training loop once per pass; ``counter`` is what counts the passes: a variable, or ``self.epoch``."""

    node: ast.For | ast.While
    counter: ast.expr

    def name_of(self, resolver: Resolver, loaders: Sequence[DataLoader]) -> str | None:
        """What the one of ``loaders`` that there is, is called in the body of the loop; None when it has no name there."""
        module, made = self.module, {loader.node for loader in loaders}
        inside = lexical_nodes(self.node.body)
        names = [n for n in inside if isinstance(n, ast.Name | ast.Attribute | ast.Subscript)]
        names += [n for n in module.nodes if isinstance(n, ast.Name)]
        for node in [*names, *self._attributes()]:
            if isinstance(node.ctx, ast.Load) and self._is(resolver, node, made):
                return module.code(node)
        return None

    def _attributes(self) -> Iterator[ast.Attribute]:
        """The uses of ``self.loader`` in the methods of the class that the loop is in, which the loop can name so, too."""
        module, mine = self.module, _own_name(self.module, self.node)
        cls = module.enclosing_class(self.node)
        for node in walk(cls) if cls is not None and mine is not None else ():
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == mine == _own_name(module, node)
            ):
                yield node

    def _is(self, resolver: Resolver, node: ast.expr, loaders: Set[ast.AST]) -> bool:
        made = [v.call if isinstance(v, Made) else None for v in resolver.values(node, self.module)]
        base = first_name(node.value if isinstance(node, ast.Subscript) else node)
        if not made or {*made} != loaders or base is None:
            return False
        there = self.module.scope(node).lookup(base.id)
        here = self.module.scope(self.node).lookup(base.id)
        if there is None or here is None:
            return False
        mine = _own_name(self.module, self.node)
        return there[0] is here[0] or base.id == mine == _own_name(self.module, node)


def _own_name(module: Module, node: ast.AST) -> str | None:
    """What the method around ``node`` calls its object: ``self``."""
    function = module.function(node)
    if not isinstance(function, ast.FunctionDef) or not function.args.args:
        return None
    is_method = isinstance(module.parents[function], ast.ClassDef)
    return function.args.args[0].arg if is_method else None


def epoch_loop(resolver: Resolver, loop: Loop) -> EpochLoop | Obstacle | None:
    """The loop in which ``loop`` runs again and again; None when it runs once, an obstacle when that is not clear."""
    node, module = loop.node, loop.module
    seen: set[ast.AST] = set()
    calls = loop.phase.calls if loop.phase is not None else None
    while True:
        around = module.loops(node)
        if around:
            return _counted(resolver, around[0], module)
        function = module.function(node)
        if function is None or function in seen:
            return None
        seen.add(function)
        if calls is None:
            calls = [(site.call, site.module) for site in resolver.call_sites(function)]
        if len(calls) != 1:
            return Obstacle(
                module, function, f"`{function.name}` is not called in exactly one place"
            )
        node, module = calls[0]
        calls = None


def _counted(resolver: Resolver, loop: ast.AST, module: Module) -> EpochLoop | Obstacle:
    why = "the epochs are not counted by a variable"
    if isinstance(loop, ast.While) and (counter := _counted_up(loop)) is not None:
        return EpochLoop(module, loop, counter)
    if not isinstance(loop, ast.For):
        return Obstacle(module, loop, why)
    makers = {
        name
        for reached in reached_nodes(resolver, [loop.iter], module)
        if isinstance(reached.node, ast.Call)
        for name in resolver.names(reached.node.func, module)
    }
    target = loop.target
    if "builtins.enumerate" in makers and isinstance(target, ast.Tuple):
        target = target.elts[0]
    counts = makers & {"builtins.range", "builtins.enumerate", "tqdm.trange", "tqdm.auto.trange"}
    if not isinstance(target, ast.Name) or not counts:
        return Obstacle(module, loop, why)
    return EpochLoop(module, loop, target)


def _counted_up(loop: ast.While) -> ast.expr | None:
    """What each pass of ``loop`` adds one to, and nothing else in it changes: ``epoch += 1``."""
    for statement in loop.body:
        match statement:
            case ast.AugAssign(
                target=ast.Name() | ast.Attribute() as counter,
                op=ast.Add(),
                value=ast.Constant(value=1),
            ):
                same = [n for n in lexical_nodes(loop.body) if _is_set_as(n, counter)]
                if same == [counter]:
                    return counter
            case _:
                pass
    return None


def _is_set_as(node: ast.AST, variable: ast.expr) -> bool:
    return (
        isinstance(node, ast.Name | ast.Attribute)
        and not isinstance(node.ctx, ast.Load)
        and ast.unparse(node) == ast.unparse(variable)
    )
