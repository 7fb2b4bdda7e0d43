"""Where a tensor goes after it is computed, until it is turned into plain numbers or meets autograd.

The trace follows names, attributes (by name, in every file), containers, arguments and results. What it cannot
follow counts as an escape: a tensor of an evaluation may lose its graph only if no trace of it escapes.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from ..calls.call_contexts import CALLED_BY_REGION, CallContexts, Context, Place
from ..calls.call_effects import CallEffects
from ..calls.callbacks import is_property
from ..networks.networks import Networks
from ..program.attribute_reads import AttributeReads
from ..program.module_names import reads_elsewhere
from ..program.name_uses import NameUses
from ..program.scopes import Untraceable
from ..program.syntax import FunctionNode, Module
from ..values.additions import Additions
from ..values.resolver import Resolver
from ..values.unpacking import assigned_parts, unpacked_names
from ..values.values import Function
from .gradients import Gradients
from .graph_escapes import Escape, Source
from .graph_names import BACKWARD_METHODS, GRAPH_QUESTIONS, MUTATING_METHODS, TENSOR_METHODS

_KEEPING_METHODS = MUTATING_METHODS - TENSOR_METHODS - {"copy_", "setdefault"}
_ENDS_IN = (ast.Compare, ast.If, ast.While, ast.Assert, ast.Raise, ast.Expr, ast.Delete, ast.Slice)
_PLAIN_RESULTS = frozenset({"__len__", "__bool__", "__int__", "__float__", "__str__", "__repr__"})
"""Methods of which Python itself takes nothing but numbers and texts."""
_UNFOLLOWED = (ast.Lambda, ast.Yield, ast.YieldFrom, ast.Await)


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What the trace asks."""

    resolver: Resolver
    networks: Networks
    gradients: Gradients
    reads: AttributeReads
    additions: Additions
    effects: CallEffects
    uses: NameUses


class GradientFlow:
    """One trace. ``ignores`` says which uses do not count (those that run only when gradients are recorded).

    With ``losses_train``, what enters a loss function counts as trained on, even where no backward pass is in sight.
    ``may_return`` says of which functions all callers are known. ``region`` is all code that would lose its gradients,
    in the function ``owner``.
    """

    def __init__(
        self,
        knowledge: Knowledge,
        ignores: Callable[[ast.AST], bool],
        may_return: Callable[[FunctionNode, Module], bool],
        losses_train: bool,
        region: frozenset[ast.AST],
        owner: FunctionNode | None,
    ) -> None:
        self._known = knowledge
        self._ignores = ignores
        self._may_return = may_return
        self._losses_train = losses_train
        self._region = region
        self._owner = owner
        self._in_any_forward = False
        self._seen: set[tuple[ast.AST, Context]] = set()
        self._kept: set[tuple[ast.AST, Context]] = set()
        self._lambdas: set[tuple[ast.Lambda, Context]] = set()
        self._pending: list[Place] = []
        self._calls = CallContexts()

    def escape(self, sources: Iterable[Source]) -> Escape | None:
        """Where the first of the tensors escapes, None when all end as plain numbers."""
        for s in sorted(sources, key=lambda source: source.certain):
            context = CALLED_BY_REGION if s.called else None
            place = Place(s.node, s.module, context, s.certain)
            if not s.in_place:
                self._pending.append(place)
            elif escape := self._keep(s.node, place):
                return escape
        while self._pending:
            place = self._pending.pop()
            key = (place.node, place.context)
            if key in self._seen or self._ignores(place.node):
                continue
            self._seen.add(key)
            if self._known.gradients.free(place.node, place.module):
                continue
            escape = self._follow(place)
            if escape is not None:
                return escape
        return None

    def _go(self, place: Place, node: ast.expr) -> None:
        self._pending.append(Place(node, place.module, place.context, place.certain))

    def _go_from(self, place: Place, use: ast.expr, module: Module) -> None:
        """On to a use of a variable or attribute, in this run of the function or, elsewhere, in any."""
        if module is place.module and module.function(use) is module.function(place.node):
            self._go(place, use)
        else:
            self._go_elsewhere(place, use, module)

    def _go_elsewhere(self, place: Place, node: ast.expr, module: Module) -> None:
        self._pending.append(Place(node, module, None, place.certain))

    def _follow(self, place: Place) -> Escape | None:
        """One step from an expression that holds the tensor to what becomes of it."""
        node, module = place.node, place.module
        parent = module.parents[node]
        if isinstance(parent, _ENDS_IN) or node in (
            getattr(parent, "slice", None),
            getattr(parent, "test", None),
        ):
            return None
        match parent:
            case ast.Attribute():
                return self._of_attribute(place, parent)
            case ast.Call():
                return self._argument(place, parent)
            case ast.keyword() if isinstance(call := module.parents[parent], ast.Call):
                return self._argument(place, call)
            case ast.BinOp(left=ast.Constant(value=str()) as text, op=ast.Mod()):
                as_text = "%s" in str(text.value) or "%r" in str(text.value)
                return self._printed(place) if as_text else None
            case ast.FormattedValue():
                is_number = parent.format_spec is not None or _is_scalar(node)
                return None if is_number else self._printed(place)
            case ast.comprehension():
                for name, _ in unpacked_names(parent.target):
                    self._bound(place, name)
                return None
            case ast.stmt():
                return self._statement(place, parent)
            case ast.Lambda() if (parent, place.context) in self._lambdas and place.context:
                self._pending += self._calls.leave(place.context, place.context, place.certain)
                return None
            case ast.expr() if not isinstance(parent, _UNFOLLOWED):
                return self._expression(place, parent)
            case _:
                return Escape(module, node, "is used in a way that could not be followed")

    def _expression(self, place: Place, parent: ast.expr) -> Escape | None:
        assign = place.module.parents[parent]
        if isinstance(parent, ast.Tuple | ast.List) and isinstance(assign, ast.Assign):
            return self._assigned_part(place, assign, parent)
        if isinstance(parent, ast.NamedExpr):
            self._bound(place, parent.target)
        self._go(place, parent)  # arithmetic, displays, comprehensions, subscripts
        return None

    def _statement(self, place: Place, statement: ast.stmt) -> Escape | None:
        match statement:
            case ast.Assign():
                return self._assigned(place, statement.targets)
            case ast.AugAssign() | ast.AnnAssign():
                return self._assigned(place, [statement.target])
            case ast.For() | ast.AsyncFor():
                return self._assigned(place, [statement.target])
            case ast.Return():
                return self._returned(place, statement)
            case _:
                why = "is used in a way that could not be followed"
                return Escape(place.module, place.node, why)

    def _of_attribute(self, place: Place, attribute: ast.Attribute) -> Escape | None:
        call = place.module.parents[attribute]
        if attribute.attr in GRAPH_QUESTIONS:
            why = f"is asked for its `{attribute.attr}`"
            return Escape(place.module, attribute, why)
        if not (isinstance(call, ast.Call) and call.func is attribute):
            if not self._known.gradients.is_plain_attribute(attribute.attr):
                self._go(place, attribute)
        elif attribute.attr in BACKWARD_METHODS:
            return Escape(place.module, call, "reaches a backward pass")
        elif attribute.attr not in _KEEPING_METHODS:
            self._go(place, call)
        return None

    def _printed(self, place: Place) -> Escape | None:
        """A tensor with a graph prints its ``grad_fn``; only a 0-dimensional one formats as its number."""
        if not place.certain:
            return None
        return Escape(place.module, place.node, "is printed with its grad_fn")

    # Names and attributes that are given the tensor

    def _assigned(self, place: Place, targets: list[ast.expr]) -> Escape | None:
        for target in targets:
            for part in _parts(target):
                if isinstance(part, ast.Name):
                    self._bound(place, part)
                elif escape := self._keep(part, place):
                    return escape
        return None

    def _assigned_part(
        self, place: Place, assign: ast.Assign, display: ast.Tuple | ast.List
    ) -> Escape | None:
        """``a, b = x, y`` gives each name its own part."""
        for target in assign.targets:
            parts = [t for t, value in assigned_parts(target, display) if value is place.node]
            if escape := self._assigned(place, parts or [target]):
                return escape
        return None

    def _bound(self, place: Place, name: ast.Name) -> None:
        """Follow the reads of a name that was just given the tensor."""
        module = place.module
        found = module.scope(name).lookup(name.id)
        binding = next((b for b in found[1] if b.node is name), None) if found else None
        if found is None or binding is None:
            return
        adds = isinstance(binding.source, Untraceable)  # `x += y` keeps what was in x
        if adds or not self._known.gradients.binding_is_free(binding, module):
            for use in self._known.uses.of(binding, module):
                if use is not name:
                    self._read(place, use)
            if found[0].parent is None:
                for use, user in reads_elsewhere(self._known.resolver, module, name.id):
                    self._go_elsewhere(place, use, user)

    def _read(self, place: Place, use: ast.Name) -> None:
        module = place.module
        statement = module.parents[use]
        if isinstance(use.ctx, ast.Load):
            self._go_from(place, use, module)
        elif isinstance(statement, ast.AugAssign) and (use, place.context) not in self._seen:
            self._seen.add((use, place.context))
            self._bound(place, use)

    def _keep(self, target: ast.expr, place: Place) -> Escape | None:
        """The tensor is put into an attribute or a container: follow what is read from there."""
        holders = list(self._known.additions.holders(target, place.module))
        if not holders:
            return Escape(place.module, target, "is kept where it could not be followed")
        for holder, module in holders:
            key = (holder, place.context)
            if key in self._kept:
                continue
            self._kept.add(key)
            if isinstance(holder, ast.Attribute):
                self._keep_in_attribute(holder.attr, place)
            elif (escape := self._keep_in_name(holder, module, place)) is not None:
                return escape
        return None

    def _keep_in_attribute(self, name: str, place: Place) -> None:
        if self._known.gradients.is_plain_attribute(name):
            return
        own = place.module.statement(place.node)
        # A `sum` that was added up is not the method of a tensor that is called elsewhere.
        skips_calls = _is_calculated(own)
        later = list(self._known.reads.of(name, self._region))
        # What is assigned anew in every run of its function is still read in this very run.
        now = [r for r in self._known.reads.of(name, self._region | {own}) if r not in later]
        for read, owner in later:
            if not (skips_calls and _is_called(read, owner)):
                self._go_elsewhere(place, read, owner)
        for read, owner in now:
            if not (skips_calls and _is_called(read, owner)):
                self._go_from(place, read, owner)

    def _keep_in_name(self, holder: ast.Name, module: Module, place: Place) -> Escape | None:
        found = module.scope(holder).lookup(holder.id)
        if found is None:
            why = f"is kept in `{holder.id}`, which could not be followed,"
            return Escape(module, holder, why)
        for use in module.names_of(holder.id):
            lookup = module.scope(use).lookup(holder.id)
            if lookup is None or lookup[0] is not found[0] or not isinstance(use.ctx, ast.Load):
                continue
            if found[0].node is module.function(use):
                self._go_on_in(found[0].node, holder, use, module, place)
            else:
                self._go_elsewhere(place, use, module)  # it outlives this run
        if found[0].parent is None:
            for use, user in reads_elsewhere(self._known.resolver, module, holder.id):
                self._go_elsewhere(place, use, user)
        return None

    def _go_on_in(
        self, function: ast.AST, holder: ast.Name, use: ast.Name, module: Module, place: Place
    ) -> None:
        """On to ``use`` of a variable of ``function``, which may have been handed to the function the trace is in now."""
        outside = (
            place.context is not None
            and module.function(holder) is function
            and function is not place.module.function(place.node)
        )
        if outside and place.context is CALLED_BY_REGION and function is not self._owner:
            self._pending.append(replace(place, node=use, module=module))  # so is its caller
        elif outside and place.context and self._calls.caller(place.context) is function:
            self._pending += self._calls.leave(place.context, use, place.certain)
        else:
            self._go_from(place, use, module)

    # Calls and returns

    def _argument(self, place: Place, call: ast.Call) -> Escape | None:
        module = place.module
        if self._losses_train and self._known.effects.feeds_loss(call, module):
            return Escape(module, call, "feeds a loss")
        for effect in self._known.effects.of(call, place.node, module):
            place = replace(place, certain=place.certain and effect.certain)
            if effect.escape is not None:
                return Escape(module, call, effect.escape)
            is_text = effect.prints and not (effect.formats and _is_scalar(place.node))
            if is_text and (escape := self._printed(place)):
                return escape
            if effect.in_result:
                self._go(place, call)
            for function, argument in effect.enters:
                self._enter(place, call, function, argument)
            if effect.any_forward:
                self._enter_any_forward(place)
            if effect.kept_in is not None and (escape := self._keep(effect.kept_in, place)):
                return escape
        return None

    def _enter_any_forward(self, place: Place) -> None:
        """The tensor may reach the ``forward`` of any network of the project; its result is followed at the call."""
        if self._in_any_forward:
            return
        self._in_any_forward = True
        for function in self._known.networks.forwards:
            if isinstance(function.node, ast.FunctionDef):
                for argument in function.node.args.args[1:]:
                    self._enter(place, CALLED_BY_REGION, function, argument)

    def _enter(self, place: Place, call: ast.Call, function: Function, argument: ast.arg) -> None:
        module = function.module
        if call is not CALLED_BY_REGION:
            self._pending += self._calls.enter(call, place)
        if isinstance(function.node, ast.Lambda):
            self._lambdas.add((function.node, call))
        found = module.scopes.by_node[function.node].bindings.get(argument.arg, [])
        for binding in found:
            if binding.node is argument:
                for use in self._known.uses.of(binding, module):
                    inside = self._innermost(use, function) is function.node
                    context = call if inside else None
                    self._read(Place(use, module, context, place.certain), use)

    @staticmethod
    def _innermost(use: ast.Name, function: Function) -> ast.AST | None:
        """The function that ``use`` of a parameter of ``function`` is part of; a lambda if that is what ``function`` is."""
        if not isinstance(function.node, ast.Lambda):
            return function.module.function(use)
        return next(a for a in function.module.ancestors(use) if isinstance(a, ast.Lambda))

    def _returned(self, place: Place, statement: ast.Return) -> Escape | None:
        module = place.module
        function = module.function(statement)
        if function is not None and function.name in _PLAIN_RESULTS:
            return None
        if place.context is not None:
            self._pending += self._calls.leave(place.context, place.context, place.certain)
            return None
        if function is None or not self._may_return(function, module):
            return Escape(module, statement, "is returned to callers that are not all known")
        for site in self._known.resolver.call_sites(function):
            self._go_elsewhere(place, site.call, site.module)
        if is_property(function):
            for read, owner in self._known.reads.of(function.name, self._region):
                self._go_elsewhere(place, read, owner)
        return None


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    """The names, attributes and items that ``target`` assigns."""
    if isinstance(target, ast.Starred):
        yield from _parts(target.value)
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _parts(element)
    else:
        yield target


def _is_calculated(statement: ast.stmt) -> bool:
    """Whether ``statement`` assigns the result of arithmetic, which cannot be called."""
    if isinstance(statement, ast.AugAssign):
        return True
    return isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp)


def _is_called(read: ast.expr, module: Module) -> bool:
    call = module.parents[read]
    return isinstance(call, ast.Call) and call.func is read


def _is_scalar(node: ast.expr) -> bool:
    """Whether a tensor expression is plainly 0-dimensional, which formats as its number."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"mean", "sum"}
        and not (node.args or node.keywords)
    )
