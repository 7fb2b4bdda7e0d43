"""Where an object goes: every place that uses it, followed through variables, attributes, containers, calls and returns.

What the flow cannot follow is a use like any other, so the uses are complete: whoever accepts them all knows
everything that happens to the object.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..calls.callbacks import has_known_callers
from ..calls.signatures import argument_for, parameter_of
from ..facts import Fact
from ..program.classes import first_party_bases
from ..program.module_names import reads_elsewhere
from ..program.name_uses import NameUses
from ..program.parameters import parameter_named
from ..program.reaching import reaching_bindings
from ..program.scopes import Binding, Iterated, Parameter
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from .resolver import Resolver
from .unpacking import element_at
from .values import Class, Function, Instance, Made

EACH = "each element"
"""A step of a path: any element of a container."""

Steps: TypeAlias = tuple[int | str, ...]
_Place = tuple[ast.expr, Module, Steps]


@dataclass(frozen=True, eq=False)
class Use(Fact):
    """``node`` is the object, or holds it at ``steps``, and the code around it does more than pass it on."""

    node: ast.expr
    steps: Steps = ()

    @property
    def parent(self) -> ast.AST:
        """The node around it; for a keyword argument, the call."""
        parent = self.module.parents[self.node]
        return self.module.parents[parent] if isinstance(parent, ast.keyword) else parent

    @property
    def argument_of(self) -> ast.Call | None:
        """The call that gets the object, whole, as an argument."""
        call = self.parent
        is_argument = isinstance(call, ast.Call) and call.func is not self.node and not self.steps
        return call if is_argument else None  # type: ignore[return-value]


class ObjectFlow:
    """Follows one object, which may start at several places.

    ``exact`` is for objects that code must not mix up with others: places where the object *may* be meant, beside something
    else, are then uses, too, and :meth:`mixed` says which variables may hold something else. Following ends where ``ends``
    says so, of a variable that holds the object by a binding.
    """

    def __init__(
        self,
        resolver: Resolver,
        *,
        exact: bool = False,
        ends: Callable[[ast.Name, Binding, Module], bool] | None = None,
    ) -> None:
        self._resolver = resolver
        self._exact = exact
        self._ends = ends
        self._names = NameUses()
        self._seen: set[tuple[ast.AST, Steps]] = set()
        self._bound: set[tuple[ast.AST, Steps]] = set()
        self._reads: list[_Place] = []
        self._pending: list[_Place] = []
        self._uses: list[Use] = []

    def follow(self, node: ast.expr, module: Module, path: Steps = ()) -> list[Use]:
        """The uses of the object that ``node`` is, or holds at ``path``, that are not known yet."""
        self._pending.append((node, module, path))
        return self._run()

    def follow_target(self, target: ast.expr, module: Module, path: Steps) -> list[Use]:
        """The uses of the object when what ``target`` is assigned holds it at ``path``."""
        self._bind(target, target, module, path)
        return self._run()

    def mixed(self, others: Sequence[ObjectFlow] = ()) -> Iterator[Fact]:
        """The places where a variable followed so far may hold something else than the object.

        What ``others`` follow counts as the same object.
        """
        flows = (self, *others)
        for read, module, path in self._reads:
            assert isinstance(read, ast.Name)
            found = module.scope(read).lookup(read.id)
            bindings = found[1] if found is not None else []
            owner = found[0] if found is not None else module.scope(read)
            for binding in reaching_bindings(module, owner, bindings, module.scope(read), read):
                if not self._holds(binding, path, flows):
                    yield Fact(module, read)
                    break

    def _holds(self, binding: Binding, path: Steps, flows: Sequence[ObjectFlow]) -> bool:
        if not any((binding.node, path) in flow._bound for flow in flows):
            return False
        source = binding.source
        if isinstance(source, Iterated):
            return True
        if not isinstance(source, Parameter) or isinstance(source.function, ast.Lambda):
            return True
        for site in self._resolver.call_sites(source.function):
            passed = argument_for(source.function, binding.name, site.call, site.bound)
            given = passed.given if passed is not None else None
            if given is None or not any((given, path) in flow._seen for flow in flows):
                return False
        return True

    def _run(self) -> list[Use]:
        self._uses = []
        while self._pending:
            node, module, path = self._pending.pop()
            if (node, path) not in self._seen:
                self._seen.add((node, path))
                self._step(node, module, path)
        return sorted(self._uses, key=lambda use: (str(use.steps), use.span))

    def _use(self, node: ast.expr, module: Module, path: Steps) -> None:
        self._uses.append(Use(module, node, path))

    def _step(self, node: ast.expr, module: Module, path: Steps) -> None:
        parent = module.parents[node]
        match parent:
            case ast.Assign():
                for target in parent.targets:
                    self._bind(target, node, module, path)
            case ast.AnnAssign(target=target):
                self._bind(target, node, module, path)
            case ast.NamedExpr(target=target):
                self._bind(target, node, module, path)
                self._pending.append((parent, module, path))
            case ast.Return():
                self._returned(parent, node, module, path)
            case ast.Call() if parent.func is not node:
                self._passed(parent, node, module, path)
            case ast.keyword():
                call = module.parents[parent]
                if isinstance(call, ast.Call):
                    self._passed(call, node, module, path)
            case ast.Subscript(value=value) if value is node and path:
                self._subscripted(parent, node, module, path)
            case _:
                if not _is_no_use(parent, node):
                    self._contained(parent, node, module, path)

    def _contained(self, parent: ast.AST, node: ast.expr, module: Module, path: Steps) -> None:
        """``node`` becomes a part of a display, or one of several alternatives, or is gone over."""
        match parent:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                place = parts.index(node)
                if element_at(parts, place) is None:
                    self._use(node, module, path)
                else:
                    self._pending.append((parent, module, (place, *path)))
            case ast.Dict():
                index = next((i for i, v in enumerate(parent.values) if v is node), None)
                key = parent.keys[index] if index is not None else None
                name = key.value if isinstance(key, ast.Constant) else None
                known = isinstance(name, str | int)
                if key is None or (self._exact and not known):
                    self._use(node, module, path)
                else:
                    step = name if isinstance(name, str | int) else EACH
                    self._pending.append((parent, module, (step, *path)))
            case ast.DictComp(value=inner) | ast.ListComp(elt=inner) if (
                inner is node and not self._exact
            ):
                self._pending.append((parent, module, (EACH, *path)))
            case ast.IfExp() | ast.BoolOp() if not self._exact:
                self._pending.append((parent, module, path))
            case ast.For(target=target, iter=it) | ast.comprehension(target=target, iter=it) if (
                it is node and path[:1] == (EACH,) and not self._exact
            ):
                self._bind(target, node, module, path[1:])
            case _:
                self._use(node, module, path)

    def _subscripted(
        self, parent: ast.Subscript, node: ast.expr, module: Module, path: Steps
    ) -> None:
        try:
            key = self._resolver.literal(parent.slice, module)
        except LookupError:
            key = None
        known = isinstance(key, int | str) and not (isinstance(key, int) and key < 0)
        if not isinstance(parent.ctx, ast.Load) or isinstance(parent.slice, ast.Slice):
            self._use(node, module, path)
        elif known and path[0] != EACH:
            if key == path[0]:
                self._pending.append((parent, module, path[1:]))
        elif self._exact:
            self._use(node, module, path)
        else:
            self._pending.append((parent, module, path[1:]))

    def _returned(self, statement: ast.Return, node: ast.expr, module: Module, path: Steps) -> None:
        function = module.function(statement)
        sites = self._resolver.call_sites(function) if function is not None else ()
        if function is None or not sites or not self._returns_to(function, module):
            self._use(node, module, path)
            return
        for site in sites:
            self._pending.append((site.call, site.module, path))

    def _returns_to(self, function: FunctionNode, module: Module) -> bool:
        """Whether what ``function`` returns goes to the calls of it that are seen, and nowhere else."""
        inner = [n for statement in function.body for n in walk(statement)]
        if any(isinstance(n, ast.Yield | ast.YieldFrom) for n in inner):
            return False
        if self._exact and sum(isinstance(n, ast.Return) for n in inner) > 1:
            return False
        return has_known_callers(self._resolver, function, module)

    def _passed(self, call: ast.Call, node: ast.expr, module: Module, path: Steps) -> None:
        values = self._resolver.values(call.func, module)
        names = self._resolver.names(call.func, module)
        if names == frozenset({"torch.autograd.Variable"}) and call.args[:1] == [node]:
            self._pending.append((call, module, path))
            return
        callees = self._resolver.callees(call, module)
        known = all(isinstance(value, Function | Class) for value in values)
        targets: list[tuple[ast.arg, FunctionNode, Module]] = []
        for callee in callees:
            function = callee.node
            if isinstance(function, ast.Lambda):
                break
            name = parameter_of(function, node, call, callee.bound)
            parameter = parameter_named(function, name)
            if parameter is None or _looks_at_all_names(function):
                break
            targets.append((parameter, function, callee.module))
        if not known or not callees or len(targets) != len(callees):
            self._use(node, module, path)
            return
        for parameter, function, owner in targets:
            self._read_all(owner, function, parameter, path)

    def _read_all(
        self, module: Module, scope_node: ast.AST, name_node: ast.arg, path: Steps
    ) -> None:
        scope = module.scopes.by_node[scope_node]
        for binding in scope.bindings.get(name_node.arg, []):
            if binding.node is name_node:
                self._read(binding, module, path)

    def _bind(self, target: ast.expr, node: ast.expr, module: Module, path: Steps) -> None:
        match target:
            case ast.Name() if module.scope(target).is_class:
                self._use(node, module, path)  # An attribute of the class, and of its instances.
            case ast.Name():
                found = module.scope(target).lookup(target.id)
                for binding in found[1] if found is not None else []:
                    if binding.node is target:
                        self._read(binding, module, path)
                        if found is not None and isinstance(found[0].node, ast.Module):
                            self._pending += [
                                (read, other, path)
                                for read, other in reads_elsewhere(
                                    self._resolver, module, target.id
                                )
                            ]
            case ast.Attribute() if not self._exact:
                self._pending += [
                    (read, other, path) for read, other in self._attribute_reads(target, module)
                ]
            case ast.Tuple(elts=parts) | ast.List(elts=parts) if path and not any(
                isinstance(part, ast.Starred) for part in parts
            ):
                part = element_at(parts, path[0])
                if path[0] == EACH:
                    for each in parts:
                        self._bind(each, node, module, path[1:])
                elif part is not None:
                    self._bind(part, node, module, path[1:])
                else:
                    self._use(node, module, path)
            case _:
                self._use(node, module, path)

    def _read(self, binding: Binding, module: Module, path: Steps) -> None:
        self._bound.add((binding.node, path))
        for use in self._names.of(binding, module):
            if isinstance(use.ctx, ast.Load):
                self._reads.append((use, module, path))
                if path or self._ends is None or not self._ends(use, binding, module):
                    self._pending.append((use, module, path))
            elif isinstance(module.parents[use], ast.AugAssign):
                self._use(use, module, path)
        for use in module.names_of(binding.name):
            # `class A: x = x` reads the outer variable.
            scope = module.scope(use)
            if scope.is_class and binding.name in scope.bindings and isinstance(use.ctx, ast.Load):
                self._use(use, module, path)

    def _attribute_reads(
        self, target: ast.Attribute, module: Module
    ) -> Iterable[tuple[ast.expr, Module]]:
        """The reads of an attribute of that name, of every object that may be the one ``target`` assigns it to."""
        owners = self._owners(target, module)
        for other in self._resolver.project.modules:
            for node in other.nodes:
                if (
                    isinstance(node, ast.Attribute)
                    and node.attr == target.attr
                    and isinstance(node.ctx, ast.Load)
                ):
                    reading = self._owners(node, other)
                    if owners is None or reading is None or owners & reading:
                        yield node, other

    def _owners(self, node: ast.Attribute, module: Module) -> frozenset[ast.ClassDef] | None:
        """The project's classes whose instance ``node`` is an attribute of; None when it may be of anything."""
        found: set[ast.ClassDef] = set()
        for value in self._resolver.values(node.value, module):
            match value:
                case Instance(cls) | Made(_, _, Class() as cls):
                    found |= _family(self._resolver, cls)
                case _:
                    return None
        return frozenset(found)


def _family(resolver: Resolver, cls: Class) -> set[ast.ClassDef]:
    """``cls``, the classes it derives from and those that derive from it."""
    found = {cls.node, *(base.node for base in first_party_bases(resolver, cls))}
    for module in resolver.project.modules:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and node is not cls.node:
                bases = first_party_bases(resolver, Class(node, module))
                if any(base.node is cls.node for base in bases):
                    found.add(node)
    return found


def _looks_at_all_names(function: FunctionNode) -> bool:
    """Whether code in ``function`` may read its parameters without naming them: ``locals()``, ``eval(..)``."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"locals", "vars", "eval", "exec"}
        for node in walk(function)
    )


def _is_no_use(parent: ast.AST, node: ast.expr) -> bool:
    """Whether only the object's presence is looked at: ``if x:``, ``x is not None``."""
    match parent:
        case ast.Expr() | ast.Delete():
            return True
        case (
            ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test)
        ):
            return test is node
        case ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Compare(ops=ops, comparators=[ast.Constant(value=None)]):
            return all(isinstance(op, ast.Is | ast.IsNot) for op in ops)
        case _:
            return False
