"""What is not the same in every process that trains on a share of each batch: measurements, draws, times.

A variable diverges where one of the bindings that reach it does: from a batch or a network's results, from random
numbers or the clock, or because it was made under a condition that diverges. Objects that are handed something that
diverges do from then on; of one that is given it as an attribute or under a key (``args.seed = draw()``) that part does.
Reductions and broadcasts (``agreed``) end it.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from ..calls.signatures import argument_for
from ..facts import DataLoader
from ..loading.random_draws import is_draw
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned, Binding, Iterated, Managed, Parameter, Path, Untraceable
from ..program.syntax import FunctionNode, Module
from ..program.trees import child_nodes
from ..training.loops import WRAPPING_ITERATORS, is_forward, iterated_loaders
from ..values.resolver import Resolver
from ..values.unpacking import unpacked_element
from ..values.values import External, Made
from .object_parts import NO_PART, Holder, ObjectParts, part_name

CLOCK = ("time.", "datetime.", "uuid.", "os.getpid", "builtins.input", "torch.cuda.mem", "psutil.")
_SAME_ANYWAY = frozenset(
    {"builtins.len", "builtins.isinstance", "builtins.hasattr", "builtins.type"}
)
_SAME_METHODS = frozenset({"dim", "is_floating_point", "parameters", "state_dict", "keys"})
_SHAPE = frozenset("dtype device ndim layout is_cuda is_cpu is_xpu is_mps is_meta".split())
_MUTATORS = frozenset({"append", "extend", "add", "insert", "setdefault", "appendleft"})


class Divergence:
    """Answers for one script, once. ``agreed`` are nodes whose values all processes have in common.

    An ``ast.expr`` among them is agreed as it stands; a ``(loop, name)`` is so for all that reads ``name`` behind ``loop``.
    """

    def __init__(
        self,
        resolver: Resolver,
        loaders: tuple[DataLoader, ...],
        agreed: Collection[ast.AST],
        sums: Collection[tuple[ast.AST, str]],
    ) -> None:
        self._resolver, self._loaders, self._agreed = resolver, loaders, frozenset(agreed)
        self._sums = frozenset(sums)
        self._bindings: set[Binding] = set()
        self._attributes: set[tuple[ast.ClassDef, str]] = set()
        self._parts = ObjectParts(resolver)
        self._returns: set[ast.AST] = set()
        self._owners = list(self._all_bindings())
        self._settle()

    def agreeing(
        self, agreed: Collection[ast.AST], sums: Collection[tuple[ast.AST, str]] = ()
    ) -> Divergence:
        """What diverges where all processes have the values of ``agreed`` and the ``sums`` in common as well."""
        if not agreed and self._sums.issuperset(sums):
            return self
        every = self._agreed.union(agreed)
        return Divergence(self._resolver, self._loaders, every, self._sums.union(sums))

    def of(self, expression: ast.expr, module: Module) -> bool:
        """Whether ``expression`` may be another thing in every process."""
        return self._expression(expression, module)

    def has_sum(self, loop: ast.AST, name: str) -> bool:
        """Whether all processes have in common what ``loop`` has added up as ``name``."""
        return (loop, name) in self._sums

    def binds(self, binding: Binding) -> bool:
        """Whether the value of ``binding`` may be another one in every process."""
        return binding in self._bindings

    def decides(
        self, node: ast.AST, module: Module, outside: ast.AST | None = None
    ) -> ast.expr | None:
        """The outermost condition around ``node`` that diverges, within its function and inside of ``outside``."""
        found: ast.expr | None = None
        child = node
        for around in module.ancestors(node):
            if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or (
                around is outside
            ):
                break
            if (
                isinstance(around, ast.If | ast.While)
                and child is not around.test
                and self._expression(around.test, module)
            ):
                found = around.test
            child = around
        return found

    # To the fixed point

    def _all_bindings(self) -> Iterator[tuple[Module, Binding]]:
        for module in self._resolver.project.modules:
            for scope in module.scopes.by_node.values():
                for bindings in scope.bindings.values():
                    for binding in bindings:
                        yield module, binding

    def _settle(self) -> None:
        size = -1
        while size != self._size():
            size = self._size()
            for module, binding in self._owners:
                if binding not in self._bindings:
                    if self._binding(binding, module):
                        self._bindings.add(binding)
                    else:
                        self._parts.follow(binding, module)
            for module in self._resolver.project.modules:
                self._effects(module)

    def _size(self) -> int:
        wholes = len(self._bindings) + len(self._attributes) + len(self._returns)
        return wholes + len(self._parts)

    def _binding(self, binding: Binding, module: Module) -> bool:
        match binding.source:
            case Assigned(value=value, path=path):
                made = self._part(value, path, module)
            case Iterated(iterable=iterable, path=path):
                made = self._element(iterable, path, module)
            case Managed(context=context):
                made = self._expression(context, module)
            case Parameter(function=function):
                return isinstance(function, ast.FunctionDef) and self._given(function, binding.name)
            case Untraceable() if isinstance(
                parent := module.parents.get(binding.node), ast.AugAssign
            ):
                made = self._expression(parent.value, module) or self._name(parent.target, module)
            case _:
                return False
        return made or self._made_under(binding.node, module)

    def _made_under(self, node: ast.AST, module: Module) -> bool:
        return self.decides(node, module) is not None

    def _part(self, value: ast.expr, path: Path, module: Module) -> bool:
        return self._expression(unpacked_element(value, path), module, NO_PART)

    def _element(self, iterable: ast.expr, path: Path, module: Module) -> bool:
        if path[:1] == (0,) and self._counts(iterable, module):
            return False
        if iterated_loaders(self._resolver, self._loaders, iterable, module)[0]:
            return True
        return self._expression(iterable, module)

    def _counts(
        self, iterable: ast.expr, module: Module, within: frozenset[ast.AST] = frozenset()
    ) -> bool:
        """Whether ``iterable`` is an ``enumerate``, maybe in a progress bar."""
        if iterable in within:
            return False
        within |= {iterable}
        if not isinstance(iterable, ast.Call):
            values = self._resolver.values(iterable, module)
            made = [v for v in values if isinstance(v, Made) and isinstance(v.maker, External)]
            known = bool(made) and len(made) == len(values)
            return known and all(self._counts(v.call, v.module, within) for v in made)
        names = self._resolver.names(iterable.func, module)
        if names == frozenset({"builtins.enumerate"}):
            return True
        bars = bool(names) and names <= WRAPPING_ITERATORS and bool(iterable.args)
        return bars and self._counts(iterable.args[0], module, within)

    def _given(self, function: FunctionNode, name: str) -> bool:
        for site in self._resolver.call_sites(function):
            passed = argument_for(function, name, site.call, site.bound)
            given = passed.given if passed is not None else None
            if given is not None and self._expression(given, site.module, NO_PART):
                return True
        return False

    # What statements do to objects

    def _effects(self, module: Module) -> None:
        self._returned(module)
        self._stored(module)
        self._called_upon(module)

    def _returned(self, module: Module) -> None:
        for node in module.nodes_of(ast.Return):
            function = module.function(node)
            if function is None or function in self._returns or node.value is None:
                continue
            if self._expression(node.value, module, NO_PART) or self._made_under(node, module):
                self._returns.add(function)

    def _stored(self, module: Module) -> None:
        for node in module.nodes_of(ast.Assign, ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for part in [target, *(target.elts if isinstance(target, ast.Tuple) else [])]:
                    if isinstance(part, ast.Attribute | ast.Subscript):
                        if self._expression(node.value, module, NO_PART) or self._made_under(
                            node, module
                        ):
                            self._changed(part, module)
                        else:
                            self._parts.keep(part, node.value, module)

    def _called_upon(self, module: Module) -> None:
        for call in module.calls:
            function = call.func
            if not isinstance(function, ast.Attribute) or self._resolver.names(function, module):
                continue
            for_effect = isinstance(module.parents[call], ast.Expr) or function.attr in _MUTATORS
            if for_effect and not self._resolver.callees(call, module):
                given = [*call.args, *(keyword.value for keyword in call.keywords)]
                if any(self._expression(argument, module) for argument in given):
                    self._changed(function.value, module)

    def _changed(self, target: ast.expr, module: Module, part: str | None = None) -> None:
        """The object that ``target`` is a part of has got something that diverges; of ``target`` that is its ``part``."""
        base = target
        while isinstance(base, ast.Attribute | ast.Subscript):
            if isinstance(base, ast.Attribute):
                classes = [cls.node for cls in self._resolver.classes(base.value, module)]
                for cls in classes:
                    self._mark((cls, base.attr), part)
                if classes:
                    return
            part = part_name(base)
            base = base.value
        if isinstance(base, ast.Name):
            found = module.scope(base).lookup(base.id)
            for binding in found[1] if found else ():
                if self._mark(binding, part):
                    self._changed_arguments(binding, part)

    def _mark(self, holder: Holder, part: str | None) -> bool:
        """Let ``part`` of what ``holder`` keeps diverge, all of it for None; whether it did not before."""
        if part is not None:
            return self._parts.add(holder, part)
        if isinstance(holder, Binding):
            known = holder in self._bindings
            self._bindings.add(holder)
        else:
            known = holder in self._attributes
            self._attributes.add(holder)
        return not known

    def _changed_arguments(self, binding: Binding, part: str | None) -> None:
        if isinstance(binding.source, Parameter) and isinstance(
            function := binding.source.function, ast.FunctionDef
        ):
            for site in self._resolver.call_sites(function):
                passed = argument_for(function, binding.name, site.call, site.bound)
                if passed is not None and isinstance(passed.given, ast.Name | ast.Attribute):
                    self._changed(passed.given, site.module, part)

    # Expressions

    def _expression(self, node: ast.expr, module: Module, part: str | None = None) -> bool:
        """Whether ``node`` diverges, or of the object that it is the ``part`` that is asked for."""
        if node in self._agreed:
            return False
        match node:
            case ast.Constant() | ast.Lambda():
                return False
            case ast.Name():
                return self._name(node, module, part)
            case ast.Attribute(value=value, attr=attr):
                return attr not in _SHAPE and (
                    self._of_object(node, module, part) or self._expression(value, module, attr)
                )
            case ast.Subscript(value=ast.Attribute(attr="shape"), slice=ast.Constant(value=0)):
                return False
            case ast.Subscript(value=value, slice=ast.Constant(value=str() as key)):
                return self._expression(value, module, f"[{key}]")
            case ast.Call():
                return self._call(node, module)
            case _:
                return any(self._expression(child, module) for child in _expressions(node))

    def _of_object(self, node: ast.Attribute, module: Module, part: str | None) -> bool:
        """Whether ``node`` is an attribute in which an object of the script keeps something of which ``part`` diverges."""
        for cls in self._resolver.classes(node.value, module):
            holder = (cls.node, node.attr)
            if holder in self._attributes or self._parts.has(holder, part):
                return True
            for method in cls.node.body:  # a property
                if method in self._returns and getattr(method, "name", "") == node.attr:
                    return True
        return False

    def _name(self, node: ast.expr, module: Module, part: str | None = None) -> bool:
        if not isinstance(node, ast.Name):
            return False
        scope = module.scope(node)
        found = scope.lookup(node.id)
        if found is None:
            return False
        owner, bindings = found
        diverging = {b for b in bindings if b in self._bindings or self._parts.has(b, part)}
        if not diverging:
            return False
        seen = reaching_bindings(module, owner, bindings, scope, node)
        return any(b in diverging and not self._is_summed(b, node, module) for b in seen)

    def _is_summed(self, binding: Binding, use: ast.Name, module: Module) -> bool:
        """Whether ``binding`` is in a loop whose sums all processes share, and ``use`` below it."""
        around = list(module.ancestors(use))
        return any(
            (loop, binding.name) in self._sums and loop not in around
            for loop in module.loops(binding.node)
        )

    def _call(self, call: ast.Call, module: Module) -> bool:
        resolver = self._resolver
        names = resolver.names(call.func, module)
        if names and names <= _SAME_ANYWAY:
            return False
        if any(name.startswith(CLOCK) or is_draw(name) for name in names):
            return True
        if is_forward(resolver, call, module):
            return True
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        callees = resolver.callees(call, module)
        if callees:
            if all(getattr(callee.node, "name", "") != "__init__" for callee in callees):
                return any(callee.node in self._returns for callee in callees)
            return any(self._expression(argument, module, NO_PART) for argument in given)
        if isinstance(call.func, ast.Attribute):
            sizes = call.func.attr == "size" and [ast.dump(a) for a in call.args] == [
                ast.dump(ast.Constant(0))
            ]
            if sizes or call.func.attr in _SAME_METHODS:
                return False
            if self._expression(call.func.value, module):
                return True
        return any(self._expression(argument, module) for argument in given)


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    for child in child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.comprehension):
            yield child.iter
            yield from child.ifs
        elif isinstance(child, ast.keyword | ast.FormattedValue | ast.Slice):
            yield from _expressions(child)
