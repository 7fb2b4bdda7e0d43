"""Layers and weights of a network that something else gets hold of, so that they may be trained there: ``student.head = teacher.head``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from ..program.syntax import Module
from ..program.trees import is_name, walk
from ..values.resolver import Resolver
from ..values.values import Attribute, Element, Literal
from .models import is_module_value, models_in

_LISTINGS = frozenset({"children", "named_children", "modules", "named_modules"})
_PARAMETERS = frozenset({"parameters", "named_parameters"})
"""Methods whose results are looked at elsewhere: they are all the weights, not a part."""
_NO_WEIGHTS = frozenset(
    "in_features out_features in_channels out_channels num_features num_embeddings embedding_dim embed_dim hidden_size "
    "d_model input_size num_layers kernel_size config device dtype shape ndim training p data grad detach clone size dim "
    "numel item tolist numpy requires_grad requires_grad_ eval train to cuda cpu state_dict load_state_dict "
    "__class__ __name__ __dict__".split()
)
"""Attributes that are no weights, or copies of them, or methods that give out none."""
_COMPUTE = ("torch.", "numpy.", "math.", "builtins.")
_KEEP = frozenset(
    f"builtins.{name}"
    for name in "setattr list tuple dict set iter next filter map reversed".split()
)


def shared_part(
    resolver: Resolver, module: Module, is_network: Callable[[ast.expr], bool]
) -> ast.expr | None:
    """The first place in ``module`` where a part of the network goes into something else; ``is_network`` knows the network itself."""
    for node in module.nodes_of(ast.Name, ast.Attribute, ast.Subscript):
        parent = module.parents[node]
        if isinstance(parent, ast.Attribute | ast.Subscript) and is_network(node):
            part = _part(resolver, node, module)
            if part is None or (is_name(node, "self") and _stays_inside(part, module)):
                continue
            if _is_kept(resolver, part, module):
                return part
    return None


def joined_networks(resolver: Resolver) -> Iterator[frozenset[ast.Call]]:
    """The calls that made two networks of which one gets a part of the other: ``teacher.head = student.head``."""
    for module in resolver.project.modules:
        for node in module.nodes_of(ast.Assign):
            part = node.value
            if not isinstance(part, ast.Attribute | ast.Subscript):
                continue
            if isinstance(part, ast.Attribute) and part.attr in _NO_WEIGHTS:
                continue
            given = _holders(resolver, part, module)
            for target in node.targets if given else ():
                taken = _holders(resolver, target, module)
                if taken - given:
                    yield given | taken


def _holders(resolver: Resolver, part: ast.expr, module: Module) -> frozenset[ast.Call]:
    """The calls that made the networks that ``part`` may belong to."""
    found: set[ast.Call] = set()
    while isinstance(part, ast.Attribute | ast.Subscript):
        part = part.value
        found.update(m.node for m in models_in(resolver, resolver.values(part, module)))
    return frozenset(found)


def _stays_inside(part: ast.expr, module: Module) -> bool:
    """Whether the network's own code only gives ``part`` a name or returns it: what its caller does with it shows there."""
    match module.parents[part]:
        case ast.Assign(targets=targets):
            return all(isinstance(t, ast.Name) or is_name(_owner(t), "self") for t in targets)
        case ast.Call():
            return False
        case _:
            return True


def _owner(target: ast.expr) -> ast.expr:
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
    return target


def _part(resolver: Resolver, network: ast.expr, module: Module) -> ast.expr | None:
    """The layers or weights that the expression around ``network`` takes out of it; None where it takes none."""
    node = network
    while True:
        parent = module.parents[node]
        match parent:
            case ast.Attribute(attr=attr, ctx=ast.Load()) if attr not in _NO_WEIGHTS | _PARAMETERS:
                node = parent
            case ast.Subscript(value=value, ctx=ast.Load()) if value is node:
                node = parent
            case ast.Call(func=function) if function is node:
                is_listing = isinstance(node, ast.Attribute) and node.attr in _LISTINGS
                if not is_listing and not _gives_layers(resolver, parent, module):
                    return None
                node = parent
            case ast.Attribute():
                return None
            case _:
                break
    values = resolver.values(node, module)
    if values and all(isinstance(value, Literal) for value in values):
        return None
    return node


def _gives_layers(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` runs a method of the project that returns a part: ``model.get_head()``."""
    return bool(resolver.callees(call, module)) and any(
        is_module_value(resolver, value) or isinstance(value, Attribute | Element)
        for value in resolver.values(call, module)
    )


def _is_kept(resolver: Resolver, part: ast.expr, module: Module) -> bool:
    """Whether what stands around ``part`` may keep it."""
    parent = module.parents[part]
    match parent:
        case ast.For(iter=iterable) if iterable is part:
            return _loop_shares(parent)
        case ast.Call(func=ast.Name(id="zip" | "enumerate")):
            return _is_kept(resolver, parent, module)
        case ast.Call():
            names = resolver.names(parent.func, module)
            return not names or any(_may_keep(name) for name in names)
        case (
            ast.Assign()
            | ast.AnnAssign()
            | ast.NamedExpr()
            | ast.AugAssign()
            | ast.Return()
            | ast.Yield()
            | ast.List()
            | ast.Tuple()
            | ast.Set()
            | ast.Dict()
            | ast.Starred()
            | ast.keyword()
            | ast.IfExp()
        ):
            return True
        case _:
            return False


def _may_keep(name: str) -> bool:
    """Whether what the library callable ``name`` returns may hold the layers and weights it is given."""
    is_class = name.rpartition(".")[2][:1].isupper()
    return not name.startswith(_COMPUTE) or is_class or name in _KEEP or ".utils." in name


def _loop_shares(loop: ast.For) -> bool:
    """Whether a loop over layers puts some of them, or their weights, somewhere else."""
    return any(
        (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Name | ast.Attribute | ast.Subscript)
            and any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
            and not (isinstance(node.value, ast.Attribute) and node.value.attr in _NO_WEIGHTS)
        )
        or (
            isinstance(node, ast.Attribute)
            and node.attr
            in {"append", "extend", "add_module", "register_module", "register_parameter"}
        )
        for node in walk(loop)
    )
