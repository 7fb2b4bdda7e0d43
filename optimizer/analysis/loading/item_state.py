"""Which objects that outlive an item are changed while it is made: caches, counters, globals."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..calls.reach import Reached
from ..calls.signatures import argument_for, first_parameter
from ..facts import Fact
from ..program.classes import family
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned, Binding, Iterated, Parameter, Scope
from ..program.syntax import FunctionNode, Module
from ..program.trees import is_name
from ..values.access_paths import PART_METHODS, SAME_OBJECT_FUNCTIONS
from ..values.changed_objects import changed_objects
from ..values.resolver import Resolver
from ..values.unpacking import Path

_CACHES = frozenset({"functools.lru_cache", "functools.cache", "joblib.Memory.cache"})


@dataclass(frozen=True, eq=False)
class StoredChange(Fact):
    """A statement or call that changes something that outlives the item."""

    message: str


def stored_changes(resolver: Resolver, code: tuple[Reached, ...]) -> Iterator[StoredChange]:
    """What ``code`` stores beyond its own end. Opening something once per process is no change."""
    lifetime = _Lifetime(resolver, code)
    for reached in code:
        node, module = reached.node, reached.module
        for target in changed_objects(resolver, node, module):
            if (
                lifetime.outlives(target, module)
                and not _is_set_once(node, target, module)
                and not _is_read_here_only(resolver, node, target, module)
            ):
                what = f"`{module.code(node).partition(chr(10))[0]}`"
                yield StoredChange(
                    module, node, f"{what} changes what later items or the script may read"
                )
        for name in _globals_set(node, module):
            yield StoredChange(
                module, node, f"it sets the global `{name}`, which a worker cannot give back"
            )
        if isinstance(node, ast.Call):
            cached = _cached_function(resolver, node, module)
            if cached is not None:
                message = (
                    f"`{cached}` keeps its results; every worker would fill a cache of its own"
                )
                yield StoredChange(module, node, message)


def _globals_set(node: ast.AST, module: Module) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        scope = module.scope(node)
        if node.id in scope.outer_names:
            yield node.id


def _is_set_once(node: ast.AST, target: ast.expr, module: Module) -> bool:
    """Whether ``self.x = ...`` runs only while ``self.x`` is unset: ``if self.x is None:``.

    Opening a file that way is how worker-safe datasets do it; storing a random generator that way is not safe and is
    told apart by what is assigned.
    """
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return False
    attribute = node.targets[0]
    if not (isinstance(attribute, ast.Attribute) and attribute.value is target):
        return False
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, ast.If) and _tests_unset(ancestor.test, attribute):
            return not _is_generator(node.value)
    return False


def _is_read_here_only(resolver: Resolver, node: ast.AST, target: ast.expr, module: Module) -> bool:
    """Whether ``self.x = ...`` keeps for the lines below only: whatever reads ``x`` assigns it first, in the same call."""
    match node:
        case ast.Assign(targets=[ast.Attribute(value=owner, attr=name)]) if owner is target:
            pass
        case _:
            return False
    if not is_name(target, "self") or _reads_attributes_unseen(module):
        return False
    reads: list[tuple[ast.Attribute, Module]] = []
    for use, other in _uses(resolver, name, target, module):
        if isinstance(use.ctx, ast.Load):
            reads.append((use, other))
        elif not isinstance(other.parents[use], ast.Assign):
            return False
    return bool(reads) and all(_is_assigned_above(read, other) for read, other in reads)


def _uses(
    resolver: Resolver, attribute: str, owner: ast.expr, module: Module
) -> Iterator[tuple[ast.Attribute, Module]]:
    """Where the attribute of that name is used, but for those of the ``self`` of classes that have nothing to do with ``owner``'s."""
    own = {member.node for member in family(resolver, module.enclosing_class(owner), module)}
    for other in resolver.project.modules:
        for use in other.attributes_of(attribute):
            if not is_name(use.value, "self") or other.enclosing_class(use) in {None, *own}:
                yield use, other


def _reads_attributes_unseen(module: Module) -> bool:
    """Whether code beside it may read any attribute: ``self.__dict__``, ``getattr(self, name)``."""
    return "__dict__" in module.source.text or bool(
        [*module.calls_named("getattr"), *module.calls_named("vars")]
    )


def _is_assigned_above(read: ast.Attribute, module: Module) -> bool:
    """Whether a statement that always runs before ``read``, in the same function, assigns the attribute."""
    for child in (module.statement(read), *module.ancestors(module.statement(read))):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        if not isinstance(child, ast.stmt):
            continue
        block = module.block(child)
        for above in block[: block.index(child)]:
            if isinstance(above, ast.Assign) and any(
                ast.unparse(target) == ast.unparse(read) for target in above.targets
            ):
                return True
    return False


def _tests_unset(test: ast.expr, attribute: ast.Attribute) -> bool:
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Is):
        comparator = test.comparators[0]
        is_none = isinstance(comparator, ast.Constant) and comparator.value is None
        return is_none and ast.unparse(test.left) == ast.unparse(attribute)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        operand = test.operand
        if isinstance(operand, ast.Call) and ast.unparse(operand.func) == "hasattr":
            named = operand.args[1] if len(operand.args) == 2 else None
            return isinstance(named, ast.Constant) and named.value == attribute.attr
        return ast.unparse(operand) == ast.unparse(attribute)
    return False


def _is_generator(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in {
        "RandomState",
        "default_rng",
        "Generator",
        "Random",
    }


def _cached_function(resolver: Resolver, call: ast.Call, module: Module) -> str | None:
    for callee in resolver.callees(call, module):
        if isinstance(callee.node, ast.Lambda):
            continue
        for decorator in callee.node.decorator_list:
            function = decorator.func if isinstance(decorator, ast.Call) else decorator
            if resolver.names(function, callee.module) & _CACHES:
                return callee.node.name
    return None


class _Lifetime:
    """Tells objects that are there before an item is made from those made with it."""

    def __init__(self, resolver: Resolver, code: tuple[Reached, ...]) -> None:
        self._resolver = resolver
        self._own = {reached.node for reached in code}
        self._functions = {reached.module.function(reached.node) for reached in code}
        self._seen: set[ast.AST] = set()

    def outlives(self, node: ast.expr, module: Module) -> bool:
        """Whether the object ``node`` names exists before the item and stays when it is done."""
        if node in self._seen:
            return False
        self._seen.add(node)
        try:
            return self._outlives(node, module)
        finally:
            self._seen.discard(node)

    def _outlives(self, node: ast.expr, module: Module) -> bool:
        match node:
            case ast.Name():
                return self._name_outlives(node, module)
            case ast.Attribute() | ast.Subscript() | ast.NamedExpr():
                return self.outlives(node.value, module)
            case ast.IfExp():
                return any(self.outlives(part, module) for part in (node.body, node.orelse))
            case ast.BoolOp():
                return any(self.outlives(part, module) for part in node.values)
            case ast.Call(func=ast.Attribute(value=receiver, attr=method)) if (
                method in PART_METHODS and not self._resolver.names(node.func, module)
            ):
                return self.outlives(receiver, module)
            case ast.Call() if self._resolver.names(node.func, module) & (
                SAME_OBJECT_FUNCTIONS | {"builtins.type"}
            ):
                return any(self.outlives(argument, module) for argument in node.args)
            case _:
                return False

    def _name_outlives(self, node: ast.Name, module: Module) -> bool:
        scope = module.scope(node)
        found = scope.lookup(node.id)
        if found is None:
            return False
        owner, bindings = found
        if isinstance(owner.node, ast.Module | ast.ClassDef):
            return True
        if not self._is_running(owner, module):
            return True
        reaching = reaching_bindings(module, owner, bindings, scope, node)
        return any(self._binding_outlives(binding, module) for binding in reaching)

    def _is_running(self, scope: Scope, module: Module) -> bool:
        node: ast.AST = scope.node
        while not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node in self._own or isinstance(node, ast.Module):
                return True
            node = module.parents[node]
        return node in self._functions

    def _binding_outlives(self, binding: Binding, module: Module) -> bool:
        match binding.source:
            case Assigned(value):
                return self.outlives(value, module)
            case Iterated(value, path):
                gone_over = self._gone_over(value, path, module)
                return gone_over is not None and self.outlives(gone_over, module)
            case Parameter(ast.FunctionDef() | ast.AsyncFunctionDef() as function, "plain"):
                return self._parameter_outlives(function, binding.name, module)
            case _:
                return False

    def _gone_over(self, iterable: ast.expr, path: Path, module: Module) -> ast.expr | None:
        """What the part ``path`` of the elements is an element of: ``means`` for the second of ``zip(image, means)``; None for a count."""
        match iterable, path:
            case ast.Call(args=arguments, keywords=[]) as call, (int(place), *rest) if not any(
                isinstance(argument, ast.Starred) for argument in arguments
            ):
                names = self._resolver.names(call.func, module)
                if names == frozenset({"builtins.zip"}) and place < len(arguments):
                    return self._gone_over(arguments[place], tuple(rest), module)
                if names == frozenset({"builtins.enumerate"}) and arguments:
                    given = arguments[0]
                    return self._gone_over(given, tuple(rest), module) if place == 1 else None
            case _:
                pass
        return iterable

    def _parameter_outlives(self, function: FunctionNode, name: str, module: Module) -> bool:
        first = first_parameter(function)
        sites = [s for s in self._resolver.call_sites(function) if s.call in self._own]
        in_class = isinstance(module.parents[function], ast.ClassDef)
        if in_class and first == name:
            # An object made with the item ends with it; one whose method starts the work was there before.
            return function.name != "__init__" and (
                not sites or any(self.outlives(_receiver(s.call), s.module) for s in sites)
            )
        passed = [(argument_for(function, name, s.call, s.bound), s.module) for s in sites]
        return any(p and p.given and self.outlives(p.given, owner) for p, owner in passed)


def _receiver(call: ast.Call) -> ast.expr:
    """The object a method call is made on, or the callable object that is called."""
    return call.func.value if isinstance(call.func, ast.Attribute) else call.func
