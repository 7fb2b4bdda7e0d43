"""Lists of losses that training steps of Lightning fill with numbers, and the end of the epoch reads.

``self.losses.append(loss.item())`` waits for the GPU in every step; a list of tensors becomes one of numbers when the epoch is over.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..calls.reach import lexical_nodes
from ..facts import Fact
from ..program.syntax import FunctionNode, Module
from ..program.trees import is_name, walk
from ..values.resolver import Resolver
from ..values.values import Class
from .lightning import LightningUse, item_receiver, methods, returned_losses

_STEP, _START, _END = "training_step", "on_train_epoch_start", "on_train_epoch_end"


@dataclass(frozen=True, eq=False)
class KeptLosses(Fact):
    """A list of losses in an attribute of a LightningModule; ``node`` is the first call that adds one.

    ``items`` are the calls that give numbers (``loss.item()``) and their losses. ``reader`` is the first statement at the end of the
    epoch that looks at ``attribute``, such as ``self.losses``.
    """

    node: ast.Call
    attribute: str
    items: tuple[tuple[ast.Call, ast.Name], ...]
    reader: ast.stmt


def find_kept_losses(resolver: Resolver, use: LightningUse) -> Iterator[KeptLosses]:
    """The lists that can hold the losses themselves until the epoch ends, in source order."""
    for cls in use.modules:
        found = {method.name: method for method in methods(cls)}
        if _STEP in found and _END in found and not resolver.subclasses(cls):
            appends: dict[str, list[ast.Call]] = {}
            for call in lexical_nodes(found[_STEP].body):
                attribute = _appended_to(call, found[_STEP])
                if attribute is not None and isinstance(call, ast.Call):
                    appends.setdefault(attribute, []).append(call)
            for attribute, calls in appends.items():
                kept = _kept(resolver, cls, found, attribute, calls)
                if kept is not None:
                    yield kept


def _appended_to(node: ast.AST, method: FunctionNode) -> str | None:
    """``losses`` of ``self.losses.append(..)``."""
    match node:
        case ast.Call(
            func=ast.Attribute(
                value=ast.Attribute(value=ast.Name() as owner, attr=name), attr="append"
            ),
            args=[_],
            keywords=[],
        ) if is_name(owner, _owner(method)):
            return name
        case _:
            return None


def _kept(
    resolver: Resolver,
    cls: Class,
    found: Mapping[str, FunctionNode],
    name: str,
    calls: list[ast.Call],
) -> KeptLosses | None:
    step, end, start = found[_STEP], found[_END], found.get(_START)
    items = [(call.args[0], item_receiver(call.args[0])) for call in calls]
    known = [
        (value, loss)
        for value, loss in items
        if isinstance(value, ast.Call)
        and isinstance(loss, ast.Name)
        and loss.id in returned_losses(step)
        and not _changes_in_place(step, loss.id)
    ]
    hooks = [end] if start is None else [end, start]
    readers = [s for s in end.body if any(_is_attribute(n, name, end) for n in walk(s))]
    if len(known) < len(items) or not readers or not _is_emptied(readers[0], hooks, name):
        return None
    uses = {call.func.value for call in calls if isinstance(call.func, ast.Attribute)}
    uses |= {n for hook in hooks for n in walk(hook) if _is_attribute(n, name, hook)}
    for module in resolver.project.modules:
        if f'"{name}"' in module.source.text or f"'{name}'" in module.source.text:
            return None
        for node in module.nodes_of(ast.Attribute):
            if node.attr == name and node not in uses and not _is_start(cls, module, node):
                return None
    return KeptLosses(cls.module, calls[0], f"{_owner(end)}.{name}", tuple(known), readers[0])


def _is_emptied(reader: ast.stmt, hooks: list[FunctionNode], name: str) -> bool:
    """Whether each epoch certainly begins with an empty list: one of ``hooks`` sees to that after ``reader``."""
    return not _empties(reader, name) and any(
        any(_empties(statement, name) for statement in hook.body)
        and not any(isinstance(node, ast.Return) for node in walk(hook))
        for hook in hooks
    )


def _owner(method: FunctionNode) -> str:
    return method.args.args[0].arg if method.args.args else ""


def _is_attribute(node: ast.AST, name: str, method: FunctionNode) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and is_name(node.value, _owner(method))
    )


def _is_start(cls: Class, module: Module, node: ast.Attribute) -> bool:
    """Whether ``node`` is given an empty list where the module is made."""
    statement, function = module.statement(node), module.function(node)
    return (
        module.enclosing_class(node) is cls.node
        and function is not None
        and function.name == "__init__"
        and _empties(statement, node.attr)
    )


def _empties(statement: ast.stmt, name: str) -> bool:
    """Whether ``statement`` is ``self.losses = []``, ``self.losses: list[float] = []`` or ``self.losses.clear()``."""
    match statement:
        case (
            ast.Assign(targets=[ast.Attribute(attr=attribute)], value=ast.List(elts=[]))
            | ast.AnnAssign(target=ast.Attribute(attr=attribute), value=ast.List(elts=[]))
            | ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=ast.Attribute(attr=attribute), attr="clear"), args=[]
                )
            )
        ):
            return attribute == name
        case _:
            return False


def _changes_in_place(step: FunctionNode, loss: str) -> bool:
    """Whether ``step`` may write to the tensor that the variable ``loss`` is."""
    for node in lexical_nodes(step.body):
        match node:
            case ast.AugAssign(target=ast.Name(id=name)) if name == loss:
                return True
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if (
                name == loss and method.endswith("_")
            ):
                return True
            case _:
                pass
    return False
