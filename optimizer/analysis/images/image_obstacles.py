"""What of a script as a whole, and of a dataset's class, keeps images from staying bytes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..devices.placement import default_device_call
from ..facts import Fact
from ..program.classes import class_attribute, first_party_bases
from ..program.syntax import Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import Class, FirstPartyModule, Instance
from .image_flow import refuse

_SETS_DTYPE = frozenset({"torch.set_default_dtype", "torch.set_default_tensor_type"})
_BASES = frozenset({"torch.utils.data.Dataset", "builtins.object"})


def general_obstacle(resolver: Resolver) -> str | None:
    """What in the script makes ``ToTensor`` give something else than floats of 32 bits on the host."""
    for module in resolver.project.modules:
        if default_device_call(resolver, module) is not None:
            return "new tensors are made on the GPU by default"
        for call in module.calls:
            names = resolver.names(call.func, module)
            if names & _SETS_DTYPE:
                return "the script changes the default type of floats"
            if "torchvision.set_image_backend" in names:
                return "the script chooses another image backend"
    return None


def check_dataset_class(resolver: Resolver, cls: Class, at: Fact) -> None:
    """Refuses unless items of ``cls`` are made by its ``__getitem__`` and used outside of the class alone."""
    name = cls.node.name
    if not resolver.base_names(cls) <= _BASES:
        refuse(at, f"`{name}` is more than a map-style Dataset")
    for method in ("__iter__", "__getitems__"):
        if class_attribute(resolver, cls, method):
            refuse(at, f"`{name}` has its own `{method}`")
    for module in resolver.project.modules:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef) and node is not cls.node:
                bases = first_party_bases(resolver, Class(node, module))
                if any(base.node is cls.node for base in bases):
                    refuse(at, f"`{node.name}` derives from `{name}`")
            elif isinstance(node, ast.Attribute) and node.attr == "__getitem__":
                refuse(Fact(module, node), "`__getitem__` is called by its name")
    _check_own_uses(resolver, cls)
    for other in resolver.project.modules:
        for use in _other_uses(resolver, cls, other):
            fact = Fact(other, other.statement(use))
            refuse(fact, f"`{fact.excerpt}` may make a `{name}`, too")


def _other_uses(resolver: Resolver, cls: Class, module: Module) -> Iterator[ast.expr]:
    """Where ``cls``, or the module it is defined in, is handed on, so that instances of it may be made unseen."""
    for node in module.nodes:
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        parent = module.parents[node]
        if (isinstance(parent, ast.Call) and parent.func is node) or _is_annotation(parent, node):
            continue
        if isinstance(parent, ast.Attribute) or _is_type_test(resolver, parent, module):
            continue
        for value in resolver.values(node, module):
            if value == cls or (isinstance(value, FirstPartyModule) and value.module is cls.module):
                yield node


def _is_annotation(parent: ast.AST, node: ast.expr) -> bool:
    return any(
        getattr(parent, field, None) is node for field in ("annotation", "returns")
    ) or isinstance(parent, ast.Subscript)


def _is_type_test(resolver: Resolver, parent: ast.AST, module: Module) -> bool:
    if not isinstance(parent, ast.Call):
        return False
    names = resolver.names(parent.func, module)
    return bool(names) and names <= {"builtins.isinstance", "builtins.super"}


def _check_own_uses(resolver: Resolver, cls: Class) -> None:
    """Refuses when the class hands itself on or indexes itself."""
    for node in walk(cls.node):
        if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
            continue
        parent = cls.module.parents[node]
        values = resolver.values(node, cls.module)
        is_self = any(isinstance(value, Instance) for value in values)
        if is_self and not isinstance(parent, ast.Attribute) and not _is_super(parent):
            fact = Fact(cls.module, cls.module.statement(node))
            refuse(fact, f"`{fact.excerpt}` may make items of the dataset")


def _is_super(parent: ast.AST) -> bool:
    return (
        isinstance(parent, ast.Call)
        and isinstance(parent.func, ast.Name)
        and parent.func.id == "super"
    )
