"""How binary cross entropy of probabilities can take logits instead: the sigmoid goes where nothing else reads it.

``BCELoss`` raises under autocast on CUDA. Where the sigmoid before it is the last thing a network does, or is written
out in the script, it can move into the loss (``BCEWithLogitsLoss``); whatever else reads the probabilities gets a
sigmoid of its own. All of that is proven for the whole script, or nothing is changed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...rewriting.edits import FileEdit
from ..calls.reach import Reached
from ..editing.references import reference
from ..editing.replacing import replacement
from ..networks.forward_code import called_names
from ..networks.models import is_module_class, unwrap
from ..obstacles import Obstacle
from ..program.scopes import Assigned, Scope
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import Class, External, Made, Value
from .sigmoid_ends import (
    SHAPES,
    SigmoidEnd,
    is_sigmoid,
    sigmoid_argument,
    sigmoid_end,
    without_sigmoid,
)

_LOSS = "torch.nn.BCELoss"
_FUNCTIONAL = "torch.nn.functional.binary_cross_entropy"
_WITHOUT_VALUES = frozenset({"size", "shape", "dim", "ndim", "device", "dtype", "numel", "is_cuda"})
_PLAIN_METHODS = frozenset(
    "parameters named_parameters state_dict load_state_dict train eval to cuda cpu zero_grad apply requires_grad_ "
    "modules named_modules children named_children compile".split()
)


class _NotLogitsError(Exception):
    def __init__(self, module: Module, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.obstacle = Obstacle(module, node, why)


@dataclass(eq=False)
class _Search:
    """What the losses were traced to, and what that asks for."""

    resolver: Resolver
    read: set[ast.AST] = field(default_factory=set)
    """The names, calls and shape changes through which a loss gets its input."""
    variables: dict[tuple[int, str], tuple[Module, Scope, str]] = field(default_factory=dict)
    sigmoids: dict[ast.Call, Module] = field(default_factory=dict)
    networks: dict[ast.AST, tuple[Value, ast.Call, Module]] = field(default_factory=dict)


def logits_form(resolver: Resolver) -> tuple[FileEdit, ...] | Obstacle:
    """The edits that move every sigmoid before a binary cross entropy into it, or what stands against that."""
    search = _Search(resolver)
    try:
        edits = list(_losses(search))
        for value, call, module in list(search.networks.values()):
            edits += _network(search, value, call, module)
        for call, module in search.sigmoids.items():
            edits.append(_without_sigmoid(resolver, call, module))
        for module, scope, name in search.variables.values():
            edits += _other_reads(search, module, scope, name)
    except _NotLogitsError as error:
        return error.obstacle
    return tuple(dict.fromkeys(edits))


def _losses(search: _Search) -> Iterator[FileEdit]:
    resolver = search.resolver
    for module in resolver.project.modules:
        for call in module.calls:
            if _LOSS in resolver.names(call.func, module):
                yield from _renamed(call, module, "BCELoss", "BCEWithLogitsLoss", _LOSS)
                _only_called(resolver, call, module)
                continue
            names = called_names(resolver, Reached(call, module, True))
            if not names & {_LOSS, _FUNCTIONAL}:
                continue
            if (
                names - {_LOSS, _FUNCTIONAL}
                or not call.args
                or len(_makers(resolver, call, module)) > 1
            ):
                raise _NotLogitsError(
                    module, call, "it is not the only loss that may be meant here"
                )
            if _FUNCTIONAL in names:
                short = "binary_cross_entropy"
                yield from _renamed(call, module, short, f"{short}_with_logits", _FUNCTIONAL)
            _trace(search, call.args[0], module)


def _makers(resolver: Resolver, call: ast.Call, module: Module) -> set[str]:
    return {
        value.maker.name if isinstance(value.maker, External) else value.maker.node.name
        for value in resolver.values(call.func, module)
        if isinstance(value, Made)
    }


def _renamed(call: ast.Call, module: Module, old: str, new: str, name: str) -> Iterator[FileEdit]:
    spelled = module.code(call.func)
    if isinstance(call.func, ast.Attribute) and spelled.endswith(old):
        code = spelled.removesuffix(old) + new
    else:
        wanted = reference(module, name.removesuffix(old) + new)
        code = wanted.code
        yield from wanted.edits
    yield replacement(module, call.func, code)


def _only_called(resolver: Resolver, maker: ast.Call, module: Module) -> None:
    """Raises where the loss object made by ``maker`` goes where its calls are not seen."""
    for owner in resolver.project.modules:
        for node in owner.nodes:
            if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(
                node.ctx, ast.Load
            ):
                continue
            if not any(
                isinstance(value, Made) and value.call is maker
                for value in resolver.values(node, owner)
            ):
                continue
            if not _is_harmless(resolver, node, owner):
                raise _NotLogitsError(owner, node, "where the loss goes is not followed")


def _is_harmless(resolver: Resolver, node: ast.expr, module: Module) -> bool:
    """Whether ``node`` is called, assigned, asked for its parameters or handed to a function of the script."""
    parent = module.parents[node]
    if isinstance(parent, ast.Attribute):
        return parent.attr in _PLAIN_METHODS
    if isinstance(parent, ast.keyword):
        parent = module.parents[parent]
    if isinstance(parent, ast.Call):
        return (
            parent.func is node
            or bool(resolver.callees(parent, module))
            or _wraps(resolver, parent, module)
        )
    return isinstance(parent, ast.Assign | ast.Return)


def _wraps(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    names = resolver.names(call.func, module)
    is_class = any(isinstance(v, Class) for v in resolver.values(call.func, module))
    return is_class or bool(names & {"builtins.print", "torch.nn.parallel.DataParallel"})


def _trace(search: _Search, node: ast.expr, module: Module) -> None:
    """Follow the input of a loss to the sigmoids it comes from."""
    resolver = search.resolver
    if node in search.read:
        return
    search.read.add(node)
    if isinstance(node, ast.Name):
        _trace_name(search, node, module)
        return
    if isinstance(node, ast.Call):
        argument = sigmoid_argument(resolver, node, module)
        if argument is not None:
            search.sigmoids[node] = module
            return
        if isinstance(node.func, ast.Attribute) and node.func.attr in SHAPES:
            _trace(search, node.func.value, module)
            return
        made = [v for v in unwrap(resolver, resolver.values(node.func, module))]
        if len(made) == 1 and _is_network(resolver, made[0]):
            search.networks.setdefault(_key(made[0]), (made[0], node, module))
            return
    raise _NotLogitsError(module, node, "this input of the loss is not traced to a sigmoid")


def _trace_name(search: _Search, node: ast.Name, module: Module) -> None:
    found = module.scope(node).lookup(node.id)
    if found is None or found[0].node is not (module.function(node) or module.tree):
        raise _NotLogitsError(module, node, "this input of the loss is set elsewhere")
    scope, bindings = found
    if (id(scope.node), node.id) in search.variables:
        return
    search.variables[id(scope.node), node.id] = (module, scope, node.id)
    for binding in bindings:
        if not (isinstance(binding.source, Assigned) and not binding.source.path):
            raise _NotLogitsError(module, node, "this input of the loss is not traced to a sigmoid")
        _trace(search, binding.source.value, module)


def _is_network(resolver: Resolver, value: Value) -> bool:
    if not isinstance(value, Made):
        return False
    if isinstance(value.maker, Class):
        return is_module_class(resolver, value.maker)
    return value.maker.name == "torch.nn.Sequential"


def _key(value: Value) -> ast.AST:
    """What is changed for the network ``value``: its class, or the call that makes it."""
    assert isinstance(value, Made)
    return value.maker.node if isinstance(value.maker, Class) else value.call


def _network(search: _Search, value: Value, call: ast.Call, module: Module) -> Iterator[FileEdit]:
    """The edits that make a network end without its sigmoid, and that give one to everybody else who calls it."""
    assert isinstance(value, Made)
    resolver, key = search.resolver, _key(value)
    end = sigmoid_end(resolver, value)
    if not isinstance(end, SigmoidEnd):
        raise _NotLogitsError(module, call, f"the network {end}")
    if isinstance(value.maker, Class) and _used_elsewhere(resolver, value.maker):
        raise _NotLogitsError(module, call, "other files beside these use the network")
    yield from end.edits
    for owner in resolver.project.modules:
        for node in owner.nodes:
            if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(
                node.ctx, ast.Load
            ):
                continue
            values = unwrap(resolver, resolver.values(node, owner))
            if not any(isinstance(v, Made) and _key(v) is key for v in values):
                continue
            parent = owner.parents[node]
            if isinstance(parent, ast.Call) and parent.func is node:
                if parent not in search.read:
                    code = f"{reference(owner, 'torch.sigmoid').code}({owner.code(parent)})"
                    yield replacement(owner, parent, code)
                elif len(values) > 1:
                    raise _NotLogitsError(owner, parent, "another network may be meant here")
            elif not _is_harmless(resolver, node, owner):
                raise _NotLogitsError(owner, node, "where the network goes is not followed")


def _used_elsewhere(resolver: Resolver, cls: Class) -> bool:
    """Whether a file that is no part of the script names the class: its code may want probabilities."""
    known = {module.path for module in resolver.project.modules}
    folders: Iterable[Path] = {path.parent for path in known}
    if cls.module is resolver.project.entry:
        return False
    return any(
        cls.node.name in path.read_text(encoding="utf-8", errors="replace")
        for folder in folders
        for path in folder.glob("*.py")
        if path not in known
    )


def _without_sigmoid(resolver: Resolver, call: ast.Call, module: Module) -> FileEdit:
    argument = sigmoid_argument(resolver, call, module)
    assert argument is not None
    return without_sigmoid(call, argument, module)


def _other_reads(search: _Search, module: Module, scope: Scope, name: str) -> Iterator[FileEdit]:
    """A sigmoid for every read of the variable that no loss gets."""
    for node in module.names_of(name):
        found = module.scope(node).lookup(name)
        if found is None or found[0] is not scope or node in search.read:
            continue
        statement = module.parents[node]
        if isinstance(statement, ast.AugAssign):
            raise _NotLogitsError(module, node, "the probabilities are changed in place")
        if not isinstance(node.ctx, ast.Load):
            continue
        if isinstance(statement, ast.Attribute) and statement.attr in _WITHOUT_VALUES:
            continue
        if module.scope(node) is not scope or is_sigmoid(search.resolver, statement, module):
            raise _NotLogitsError(module, node, "the probabilities are read in another scope")
        code = f"{reference(module, 'torch.sigmoid').code}({name})"
        yield replacement(module, node, code)
