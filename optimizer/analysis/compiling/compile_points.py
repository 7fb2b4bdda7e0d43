"""Where a network can be compiled: below everything that makes, moves and wraps it, above the training loop."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from ..calls.reach import reached_nodes
from ..calls.signatures import argument_for, first_parameter
from ..editing.bound_attributes import is_kept_always, is_read_always
from ..editing.bound_names import is_bound, may_not_run
from ..editing.own_attributes import own_name
from ..program.classes import family, kept_as
from ..program.scopes import Assigned, Binding, Parameter, Path, Scope
from ..program.syntax import FunctionNode, Module
from ..program.trees import position, walk
from ..training.loops import backward_calls
from ..values.resolver import CallSite, Resolver
from ..values.unpacking import element_at


@dataclass(frozen=True, eq=False)
class CompilePoint:
    """Above ``statement`` the network is final, and known as ``code``."""

    module: Module
    statement: ast.stmt
    code: str


def compile_point(
    resolver: Resolver,
    network: ast.expr,
    module: Module,
    run: frozenset[FunctionNode | ast.Lambda],
) -> CompilePoint | None:
    """Where the network called as ``network`` can be compiled; None when there is no single place.

    ``run`` are the functions that run with the script: calls in others do not count.
    """
    found = _Search(resolver, run).points(network, module, network)
    points = [point for point in found or () if _trains(resolver, point)]
    scopes = {(p.module, p.module.function(p.statement), p.code) for p in points}
    if len(scopes) != 1:
        return None
    points.sort(key=lambda point: position(point.statement))
    first = points[0]
    if _is_set_between(first, points[-1]):
        return None
    return replace(first, statement=_above_try(first.module, first.statement))


def common_point(first: CompilePoint, second: CompilePoint) -> CompilePoint | None:
    """The place for a network of ``second`` that an earlier branch trains at ``first``: above that ``if``; None where there is none."""
    module = first.module
    if module is not second.module or first.code != second.code:
        return None
    block = module.block(second.statement)
    above = block[: block.index(second.statement)]
    around = next((a for a in module.ancestors(first.statement) if a in above), None)
    if not isinstance(around, ast.stmt) or _is_set_in(around, first.code):
        return None
    return replace(first, statement=around)


def _is_set_between(first: CompilePoint, last: CompilePoint) -> bool:
    """Whether a later training may be that of another network: a new one has the name."""
    module = first.module
    begin, end = position(first.statement), position(last.statement)
    owner = module.function(first.statement) or module.tree
    return any(begin <= position(node) < end for node in walk(owner) if _sets(node, first.code))


def _is_set_in(statement: ast.stmt, code: str) -> bool:
    """Whether ``statement`` sets what ``code`` names."""
    return any(_sets(node, code) for node in walk(statement))


def _sets(node: ast.AST, code: str) -> bool:
    """Whether ``node`` is what ``code`` names, being assigned to."""
    return (
        isinstance(node, ast.Name | ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node) == code
    )


def _above_try(module: Module, statement: ast.stmt) -> ast.stmt:
    """The ``try`` that ``statement`` opens, which is about what the training raises; else ``statement`` itself."""
    around = module.parents[statement]
    while isinstance(around, ast.Try) and around.body[0] is statement:
        statement, around = around, module.parents[around]
    return statement


def _trains(resolver: Resolver, point: CompilePoint) -> bool:
    return bool(backward_calls(reached_nodes(resolver, [point.statement], point.module)))


class _Search:
    """Follows a network from where it is called to where it was made."""

    def __init__(self, resolver: Resolver, run: frozenset[FunctionNode | ast.Lambda]) -> None:
        self._resolver = resolver
        self._run = run
        self._seen: set[ast.AST] = set()
        self._may_not_run = False
        """Whether a function on the way calls the network in some of its branches only."""

    def points(self, network: ast.expr, module: Module, at: ast.AST) -> list[CompilePoint] | None:
        """The places for what ``network`` stands for where ``at`` runs; None when one of them cannot be told."""
        if isinstance(network, ast.Attribute):
            return self._of_attribute(network, module, at)
        found = module.scope(network).lookup(network.id) if isinstance(network, ast.Name) else None
        return self._of_name(*found, module, at) if found is not None else None

    def _of_name(
        self, scope: Scope, bindings: list[Binding], module: Module, at: ast.AST
    ) -> list[CompilePoint] | None:
        function, name = module.function(at), bindings[0].name
        own = function is not None and all(module.function(b.node) is function for b in bindings)
        if scope.node is not (function or module.tree) and not own:
            # A name of the module, or of a function around this one, that this does not set as `global`: see who calls it.
            self._may_not_run |= may_not_run(module, at, function)
            return self._each_site(
                function,
                lambda site: (
                    self._of_name(scope, bindings, module, site.call)
                    if site.module is module
                    else None
                ),
            )
        if any(isinstance(binding.source, Parameter) for binding in bindings):
            if len(bindings) > 1 or function is None:
                return None
            return self._each_site(function, lambda site: self._given(function, name, site))
        unpacked = _unpacked(module, bindings)
        if function is not None and unpacked is not None:
            parameter, index = unpacked
            found = self._each_site(
                function, lambda site: self._element(function, parameter, index, site)
            )
            if found is not None:
                return found
        if any(_is_alias(b) for b in bindings) and self._runs_again(function):
            return None  # made elsewhere, and named anew in every call
        nodes = [binding.node for binding in bindings if not _sets_mode(binding)]
        statement = self._above_bound(module, at, nodes)
        return [CompilePoint(module, statement, name)] if statement is not None else None

    def _above_bound(
        self, module: Module, at: ast.AST, bindings: Sequence[ast.AST]
    ) -> ast.stmt | None:
        """See :func:`_above`; None where a variable that some branches leave unset may have no value yet."""
        statement = _above(module, at, bindings)
        if statement is None or is_bound(module, bindings, statement):
            return statement
        return None if self._may_not_run or may_not_run(module, at, statement) else statement

    def _given(
        self, function: FunctionNode, name: str, site: CallSite
    ) -> list[CompilePoint] | None:
        if site.bound and name == first_parameter(function):
            called = site.call.func
            receiver = called.value if isinstance(called, ast.Attribute) else None
            return self.points(receiver, site.module, site.call) if receiver is not None else None
        passed = argument_for(function, name, site.call, site.bound)
        if passed is None or passed.given is None:
            return None
        return self.points(passed.given, site.module, site.call)

    def _element(
        self, function: FunctionNode, parameter: str, index: int, site: CallSite
    ) -> list[CompilePoint] | None:
        """The places for an element of what ``parameter`` is given, ``train(.., [generator, discriminator])``."""
        passed = argument_for(function, parameter, site.call, site.bound)
        match passed.given if passed is not None else None:
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                element = element_at(elements, index)
                return self.points(element, site.module, site.call) if element else None
            case _:
                return None

    def _runs_again(self, function: FunctionNode | None) -> bool:
        """Whether ``function`` is called in a loop, in every epoch say, or from a function that is."""
        pending, seen = [function], set[FunctionNode]()
        while pending:
            called = pending.pop()
            if called is None or called in seen:
                continue
            seen.add(called)
            for site in self._sites(called):
                if site.module.loops(site.call):
                    return True
                pending.append(site.module.function(site.call))
        return False

    def _of_attribute(
        self, network: ast.Attribute, module: Module, at: ast.AST
    ) -> list[CompilePoint] | None:
        """``self.model``: in the outermost of the methods that lead to the call."""
        is_self = getattr(network.value, "id", "") == own_name(at, module)
        return self._of_self(network.attr, module, at) if is_self else None

    def _of_self(
        self, attribute: str, module: Module, at: ast.AST, is_read: bool = True
    ) -> list[CompilePoint] | None:
        """The places for ``self.attribute``, without which what runs at ``at`` fails where ``is_read``."""
        function, cls = module.function(at), module.enclosing_class(at)
        if function is None or cls is None:
            return None
        is_read = is_read and not may_not_run(module, at, function)
        is_read = is_read or is_read_always(module, function, attribute)
        sites = self._sites(function)
        relatives = {member.node for member in family(self._resolver, cls, module)}
        inside = [s for s in sites if s.module.enclosing_class(s.call) in relatives]
        outside = [site for site in sites if site not in inside]
        if inside:
            return self._each_site(
                function,
                lambda site: self._of_self(attribute, site.module, site.call, is_read),
                inside,
            )
        if not (is_read or is_kept_always(self._resolver, cls, module, attribute)):
            return None
        kept = kept_as(self._resolver, cls, module, attribute)
        if any(site.module.loops(site.call) for site in outside):
            # Called for every epoch or step: only its caller can do something once.
            return self._each_site(
                function, lambda site: self._of_object(attribute, kept, site), outside
            )
        here = [value for value, _, where in kept if where.function(value) is function]
        statement = _above(module, at, here)
        own = own_name(at, module)
        if statement is None or own is None:
            return None
        return [CompilePoint(module, statement, f"{own}.{attribute}")]

    def _of_object(
        self, attribute: str, kept: Sequence[tuple[ast.expr, Path, Module]], site: CallSite
    ) -> list[CompilePoint] | None:
        """``trainer.model``, where ``trainer`` is made in the function that calls its methods."""
        function = site.call.func
        base = function.value if isinstance(function, ast.Attribute) else None
        if not isinstance(base, ast.Name):
            return None
        found = site.module.scope(base).lookup(base.id)
        owner = site.module.function(site.call)
        if found is None or found[0].node is not (owner or site.module.tree):
            return None
        if any(isinstance(binding.source, Parameter) for binding in found[1]):
            return None
        nodes = [binding.node for binding in found[1]]
        statement = self._above_bound(site.module, site.call, nodes)
        code = _given_to(found[1], kept, site.module) or f"{base.id}.{attribute}"
        return [CompilePoint(site.module, statement, code)] if statement is not None else None

    def _each_site(
        self,
        function: FunctionNode | None,
        found_at: Callable[[CallSite], list[CompilePoint] | None],
        sites: Iterable[CallSite] | None = None,
    ) -> list[CompilePoint] | None:
        """What is found at every call of ``function``; None when there is none, or one leads nowhere."""
        if function is None or function in self._seen:
            return None
        self._seen.add(function)
        points: list[CompilePoint] = []
        for site in self._sites(function) if sites is None else sites:
            found = found_at(site)
            if found is None:
                return None
            points += found
        self._seen.discard(function)
        return points or None

    def _sites(self, function: FunctionNode) -> list[CallSite]:
        """The calls of ``function`` that run with the script."""
        return [
            site
            for site in self._resolver.call_sites(function)
            if (caller := site.module.function(site.call)) is None or caller in self._run
        ]


def _is_conditional(module: Module, binding: ast.AST, loop: ast.AST) -> bool:
    """Whether ``binding`` does not run in every pass of ``loop``."""
    for ancestor in module.ancestors(binding):
        if ancestor is loop:
            return False
        if isinstance(ancestor, ast.If | ast.Try | ast.While | ast.For):
            return True
    return False


def _sets_mode(binding: Binding) -> bool:
    """Whether it is ``net = net.train()``, which gives back the network itself.

    https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.train
    """
    match binding.source:
        case Assigned(ast.Call(func=ast.Attribute(ast.Name(name), "train" | "eval")), ()):
            return name == binding.name
        case _:
            return False


def _unpacked(module: Module, bindings: Sequence[Binding]) -> tuple[str, int] | None:
    """The parameter that a variable is unpacked from, and as which element: ``generator, discriminator = nets``."""
    if len(bindings) != 1:
        return None
    match bindings[0].source:
        case Assigned(ast.Name(parameter) as value, (int(index),)):
            found = module.scope(value).lookup(parameter)
            is_given = found is not None and all(isinstance(b.source, Parameter) for b in found[1])
            return (parameter, index) if is_given else None
        case _:
            return None


def _given_to(
    bindings: Sequence[Binding], kept: Sequence[tuple[ast.expr, Path, Module]], module: Module
) -> str | None:
    """The variable whose network an object was given and keeps as it is: ``trainer = Trainer(model)``; None where there is none."""
    if len(bindings) != 1 or len(kept) != 1:
        return None
    (value, path, where) = kept[0]
    function = where.function(value)
    match bindings[0].source, value:
        case Assigned(ast.Call() as call, ()), ast.Name(name) if (
            function is not None and function.name == "__init__" and not path
        ):
            passed = argument_for(function, name, call, bound=True)
        case _:
            return None
    in_init = where.scope(value).lookup(name)
    given = passed.given if passed is not None else None
    found = module.scope(given).lookup(given.id) if isinstance(given, ast.Name) else None
    if not isinstance(given, ast.Name) or in_init is None or found is None:
        return None
    is_kept = all(isinstance(b.source, Parameter) for b in in_init[1])
    stays = found[0].node is (module.function(call) or module.tree) and all(
        getattr(b.node, "lineno", call.lineno) < call.lineno for b in found[1]
    )
    return given.id if is_kept and stays else None


def _is_alias(binding: Binding) -> bool:
    """Whether a binding gives a name to what there is already: ``net = self.net``, ``g, d = nets``."""
    source = binding.source
    return isinstance(source, Assigned) and isinstance(
        source.value, ast.Name | ast.Attribute | ast.Subscript
    )


def _above(module: Module, at: ast.AST, bindings: Sequence[ast.AST]) -> ast.stmt | None:
    """The outermost loop around ``at`` that sets none of ``bindings``; the statement itself when in no loop.

    None when every loop sets one of them, or when none comes before. What is set behind, ``net = train(net)``, is another matter.
    """
    function = module.function(at)
    if any(module.function(b) is not function for b in bindings):
        return None
    statement = module.statement(at)
    loops = module.loops(at)
    for loop in loops:
        inside = [binding for binding in bindings if binding in set(walk(loop))]
        if inside and all(_is_conditional(module, binding, loop) for binding in inside):
            return None  # compiled in every pass, though not made anew in every one
        if inside:
            break
        statement = loop
    if loops and statement not in loops:
        return None
    earlier = any(position(binding) < position(statement) for binding in bindings)
    return statement if earlier or not bindings else None
