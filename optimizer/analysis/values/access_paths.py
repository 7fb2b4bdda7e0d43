"""Of what an expression may be a part: after ``pairs = data.pairs``, ``pairs`` is one of ``data``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.reach import lexical_nodes
from ..calls.signatures import argument_for, first_parameter
from ..facts import Fact
from ..program.classes import class_attribute
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned, Iterated, Parameter, Path
from ..program.syntax import Module
from .resolver import Resolver
from .values import Class, Display, External, Function, Made, Value

SAME_OBJECT_FUNCTIONS = frozenset(
    {
        "torch.from_numpy",
        "torch.as_tensor",
        "numpy.asarray",
        "builtins.enumerate",
        "builtins.zip",
        "builtins.reversed",
    }
)
PART_METHODS = frozenset("get setdefault items values numpy view squeeze unsqueeze detach".split())
_LOOKS_INTO = frozenset({"builtins.vars", "builtins.type", "builtins.getattr"})
_NEW_LISTS = frozenset(
    {"builtins.list", "builtins.sorted", "os.listdir", "glob.glob", "builtins.str.split"}
)
_SPLITS = frozenset({"torch.utils.data.random_split"})
_MAKES_ITEMS = ("torch.utils.data.", "torchvision.datasets.", "torchaudio.datasets.", "datasets.")


def holders(resolver: Resolver, expression: ast.expr, module: Module) -> Iterator[Fact]:
    """``expression`` and, outwards, whatever holds the object it names: ``data.pairs`` and ``data`` for ``pairs``.

    A copy (``list(data.pairs)``) is not held by what it was made from, nor is an item that a dataset makes when it is indexed.
    """
    seen: set[ast.expr] = set()
    pending = [(expression, module)]
    while pending:
        node, owner = pending.pop()
        if node not in seen:
            seen.add(node)
            if not _is_copy(resolver, node, owner):
                yield Fact(owner, node)
                pending += _held_by(resolver, node, owner)


def _is_copy(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is a new list with a part of another, or a variable for one: ``data.pairs[:]``."""
    match node:
        case ast.Subscript(value=value, slice=ast.Slice(), ctx=ast.Load()):
            return all(map(_is_new_list, resolver.values(value, module)))
        case ast.Name():
            scope = module.scope(node)
            found = scope.lookup(node.id)
            sources = (
                [b.source for b in reaching_bindings(module, *found, scope, node)] if found else []
            )
            return bool(sources) and all(
                isinstance(source, Assigned)
                and not source.path
                and isinstance(source.value, ast.Subscript)
                and _is_copy(resolver, source.value, module)
                for source in sources
            )
        case _:
            return False


def _held_by(
    resolver: Resolver, node: ast.expr, module: Module
) -> Iterator[tuple[ast.expr, Module]]:
    match node:
        case ast.Attribute(value=value) | ast.NamedExpr(value=value) | ast.Starred(value=value):
            yield value, module
        case ast.Subscript(value=value):
            yield from _elements_held_by(resolver, value, module)
        case ast.IfExp(body=one, orelse=other):
            yield from ((one, module), (other, module))
        case ast.BoolOp(values=values):
            yield from ((value, module) for value in values)
        case ast.Call():
            yield from _result_held_by(resolver, node, module)
        case ast.Name():
            yield from _variable_held_by(resolver, node, module)
        case _:
            pass


def _elements_held_by(
    resolver: Resolver, value: ast.expr, module: Module
) -> Iterator[tuple[ast.expr, Module]]:
    """What holds an element of ``value``: ``value`` itself, unless it makes its elements when asked."""
    if all(holds_its_elements(resolver, made) for made in resolver.values(value, module)):
        yield value, module


def holds_its_elements(resolver: Resolver, value: Value) -> bool:
    """Whether what stands in ``value`` is what indexing it gives, and not made then, as by a dataset."""
    match value:
        case Made(_, _, External(name)):
            return name in _SPLITS or not name.startswith(_MAKES_ITEMS)
        case Made(_, _, Class() as cls):
            found = (class_attribute(resolver, cls, m) for m in ("__getitem__", "__iter__"))
            methods = [v for values in found for v in values if isinstance(v, Function)]
            return not methods or any(_gives_part(method) for method in methods)
        case _:
            return True


def _gives_part(method: Function) -> bool:
    """Whether ``method`` returns, or yields, something that its object holds: ``return self.x[i], self.y[i]``."""
    if isinstance(method.node, ast.Lambda):
        return False
    mine = first_parameter(method.node)
    for node in lexical_nodes(method.node.body):
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and node.value is not None:
            parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            roots = [_root(part) for part in parts]
            if any(root is not None and root.id == mine for root in roots):
                return True
    return False


def _root(path: ast.expr) -> ast.Name | None:
    """``self`` of ``self.x[i]``; None where an expression is more than a path of attributes and elements."""
    while isinstance(path, ast.Attribute | ast.Subscript):
        path = path.value
    return path if isinstance(path, ast.Name) else None


def _is_new_list(value: Value) -> bool:
    """Whether ``value`` is a list, as it is written or as a library makes it."""
    match value:
        case Display(node):
            return isinstance(node, ast.List | ast.ListComp)
        case Made(_, _, External(name)):
            return name in _NEW_LISTS
        case _:
            return False


def _result_held_by(
    resolver: Resolver, call: ast.Call, module: Module
) -> Iterator[tuple[ast.expr, Module]]:
    names = resolver.names(call.func, module)
    if names & _LOOKS_INTO:
        yield from ((argument, module) for argument in call.args[:1])
        return
    if names & SAME_OBJECT_FUNCTIONS:
        for argument in call.args:
            yield from _elements_held_by(resolver, argument, module)
        return
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    callees = resolver.callees(call, module)
    for callee in callees:
        if isinstance(callee.node, ast.Lambda) or callee.node.name == "__init__":
            continue
        if callee.bound and receiver is not None:
            if _gives_part(callee):
                yield receiver, module
            continue
        for node in lexical_nodes(callee.node.body):
            if isinstance(node, ast.Return) and node.value is not None:
                yield node.value, callee.module
    if not callees and not names and receiver is not None and call.func.attr in PART_METHODS:  # type: ignore[attr-defined]
        yield receiver, module


def _variable_held_by(
    resolver: Resolver, name: ast.Name, module: Module
) -> Iterator[tuple[ast.expr, Module]]:
    scope = module.scope(name)
    found = scope.lookup(name.id)
    if found is None:
        return
    for binding in reaching_bindings(module, *found, scope, name):
        match binding.source:
            case Assigned(value, path):
                yield _written_part(value, path), module
            case Iterated(value):
                yield from _elements_held_by(resolver, value, module)
            case Parameter(ast.FunctionDef() | ast.AsyncFunctionDef() as function, "plain"):
                for site in resolver.call_sites(function):
                    passed = argument_for(function, binding.name, site.call, site.bound)
                    is_self = site.bound and binding.name == first_parameter(function)
                    if passed is not None and passed.given is not None and not is_self:
                        yield passed.given, site.module
            case _:
                pass


def _written_part(value: ast.expr, path: Path) -> ast.expr:
    """``b`` of ``a, b`` for a variable that gets the second part."""
    match value, path:
        case ((ast.Tuple(elts=parts) | ast.List(elts=parts)), (int() as index, *rest)):
            if index < len(parts) and not any(isinstance(p, ast.Starred) for p in parts):
                return _written_part(parts[index], tuple(rest))
            return value
        case _:
            return value
