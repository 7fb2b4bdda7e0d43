"""Networks whose last operation is a sigmoid, and what they are without it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from ...rewriting.edits import FileEdit, RemoveStatement
from ..editing.replacing import replacement
from ..program.scopes import Assigned
from ..program.syntax import Module
from ..program.trees import walk
from ..values.resolver import Resolver
from ..values.values import Class, External, Made

SHAPES = frozenset(
    "view reshape squeeze unsqueeze flatten detach contiguous view_as reshape_as to cuda".split()
)
"""Methods that give the same numbers in another shape or place."""
_FUNCTIONS = frozenset({"torch.sigmoid", "torch.nn.functional.sigmoid", "torch.special.expit"})
_LAYER = "torch.nn.Sigmoid"
_COMMENT_BEHIND = re.compile(r"^(\s*,?)[ \t]*#[^\n]*")
_RUNS_FIRST = "torch.nn.parallel.data_parallel"


@dataclass(frozen=True, eq=False)
class SigmoidEnd:
    """``edits`` make the network return what went into its last sigmoid."""

    edits: tuple[FileEdit, ...]


class _OtherEndError(Exception):
    """The network ends in something else; the message says in what way."""


def is_sigmoid(resolver: Resolver, node: ast.AST, module: Module) -> bool:
    """Whether ``node`` is a call that computes a sigmoid."""
    return isinstance(node, ast.Call) and sigmoid_argument(resolver, node, module) is not None


def sigmoid_argument(resolver: Resolver, call: ast.Call, module: Module) -> ast.expr | None:
    """What ``call`` computes the sigmoid of; None when it computes something else."""
    if len(call.args) + len(call.keywords) > 1:
        return None
    values = resolver.values(call.func, module)
    if call.args:
        names = resolver.names(call.func, module)
        is_layer = bool(values) and all(
            isinstance(v, Made) and isinstance(v.maker, External) and v.maker.name == _LAYER
            for v in values
        )
        return call.args[0] if is_layer or names & _FUNCTIONS else None
    is_method = isinstance(call.func, ast.Attribute) and call.func.attr == "sigmoid"
    known = any(isinstance(v, External | Class | Made) for v in values)
    return call.func.value if is_method and not known and not call.keywords else None  # type: ignore[union-attr]


def without_sigmoid(call: ast.Call, argument: ast.expr, module: Module) -> FileEdit:
    """The edit that puts ``argument`` where its sigmoid was; ``x = sigmoid(x)`` goes away."""
    statement = module.parents[call]
    if (
        isinstance(statement, ast.Assign)
        and [ast.dump(target) for target in statement.targets]
        == [ast.dump(argument).replace("Load()", "Store()")]
        and len(module.block(statement)) > 1
    ):
        return FileEdit(module.path, RemoveStatement(module.span(statement)))
    return replacement(module, call, module.code(argument))


def sigmoid_end(resolver: Resolver, network: Made) -> SigmoidEnd | str:
    """``network`` without the sigmoid it ends in, or how it ends instead."""
    try:
        if isinstance(network.maker, Class):
            return SigmoidEnd(tuple(_Forward(resolver, network.maker).edits()))
        return SigmoidEnd((_shortened(resolver, network.call, network.module),))
    except _OtherEndError as error:
        return str(error)


@dataclass(eq=False)
class _Forward:
    """The ``forward`` of a class, followed from what it returns to the sigmoid."""

    resolver: Resolver
    cls: Class
    read: set[ast.AST] = field(default_factory=set)
    found: dict[ast.AST, FileEdit] = field(default_factory=dict)
    layers: list[ast.Attribute] = field(default_factory=list[ast.Attribute])

    def edits(self) -> list[FileEdit]:
        functions = [
            s for s in self.cls.node.body if isinstance(s, ast.FunctionDef) and s.name == "forward"
        ]
        if len(functions) != 1 or self._is_subclassed():
            raise _OtherEndError("inherits its forward pass, or hands it down")
        nodes = list(walk(functions[0]))
        returns = [node for node in nodes if isinstance(node, ast.Return)]
        if len(returns) != 1 or returns[0].value is None:
            raise _OtherEndError("returns in several places")
        self._follow(returns[0].value)
        names = {node.id for node in self.read if isinstance(node, ast.Name)}
        for node in nodes:
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            if node.id in names and node not in self.read and not self._goes_in(node):
                raise _OtherEndError(f"uses `{node.id}` in another way too")
        self._nothing_else_runs_it()
        return list(self.found.values())

    def _nothing_else_runs_it(self) -> None:
        """Raises where the layers that lose their sigmoid are used elsewhere, or a method calls the network."""
        followed, attributes = set(self.layers), {layer.attr for layer in self.layers}
        for module in self.resolver.project.modules:
            for node in module.nodes:
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    is_layer = node.attr in attributes and node not in followed
                    if is_layer and self._may_be_of_class(node, module):
                        raise _OtherEndError(f"has its `{node.attr}` used elsewhere")
                    if node.attr == "forward" and self._may_be_of_class(node, module):
                        raise _OtherEndError("has its `forward` called by name")
        for call in self.cls.module.calls:
            if self.cls.module.enclosing_class(call) is self.cls.node and _is_self(
                call.func, self.cls.module
            ):
                raise _OtherEndError("calls itself")

    def _may_be_of_class(self, node: ast.Attribute, module: Module) -> bool:
        """Whether ``node`` may be an attribute of the network, not of ``self`` or ``super()`` in another class."""
        own = module.enclosing_class(node)
        if own is None or own is self.cls.node:
            return True
        return not _is_self(node.value, module)

    def _goes_in(self, node: ast.Name) -> bool:
        """Whether ``node`` is read in what goes into the sigmoid, where its name means something earlier."""
        around = set(self.cls.module.ancestors(node))
        first = min(getattr(end, "lineno", 0) for end in self.found)
        return any(end in around for end in self.found) or node.lineno < first

    def _is_subclassed(self) -> bool:
        return any(
            isinstance(node, ast.ClassDef)
            and any(
                isinstance(value, Class) and value.node is self.cls.node
                for base in node.bases
                for value in self.resolver.values(base, module)
            )
            for module in self.resolver.project.modules
            for node in module.nodes
        )

    def _follow(self, node: ast.expr) -> None:
        module = self.cls.module
        if node in self.read:
            return
        self.read.add(node)
        if isinstance(node, ast.Name):
            return self._follow_name(node)
        if not isinstance(node, ast.Call):
            raise _OtherEndError("does not end in a sigmoid")
        argument = sigmoid_argument(self.resolver, node, module)
        if argument is not None:
            self.found[node] = without_sigmoid(node, argument, module)
            return None
        if isinstance(node.func, ast.Attribute) and node.func.attr in SHAPES:
            return self._follow(node.func.value)
        if _RUNS_FIRST in self.resolver.names(node.func, module) and node.args:
            return self._follow_layer(node.args[0], node)
        return self._follow_layer(node.func, node)

    def _follow_name(self, node: ast.Name) -> None:
        module = self.cls.module
        scope = module.scope(node)
        bindings = scope.bindings.get(node.id, [])
        # Of assignments one after the other, the last one counts; those in branches all do.
        at_top = [
            b for b in bindings if module.statement(b.node) in getattr(scope.node, "body", ())
        ]
        if at_top and at_top[-1] is bindings[-1]:
            bindings = bindings[-1:]
        if not bindings or self.cls.module.loops(bindings[0].node):
            raise _OtherEndError("does not end in a sigmoid")
        for binding in bindings:
            if not isinstance(binding.source, Assigned) or binding.source.path:
                raise _OtherEndError("does not end in a sigmoid")
            self._follow(binding.source.value)

    def _follow_layer(self, layer: ast.expr, call: ast.Call) -> None:
        module, node = self.cls.module, layer
        if not isinstance(node, ast.Attribute):
            raise _OtherEndError("does not end in a sigmoid")
        assigned = module.self_assignments.get((self.cls.node, node.attr), [])
        if len(assigned) != 1 or assigned[0][1] or not isinstance(assigned[0][0], ast.Call):
            raise _OtherEndError("does not end in a sigmoid")
        made = assigned[0][0]
        if "torch.nn.Sequential" not in self.resolver.names(made.func, module):
            raise _OtherEndError("does not end in a sigmoid")
        self.found[made] = _shortened(self.resolver, made, module)
        self.found.setdefault(call, self.found[made])
        self.layers.append(node)


def _is_self(node: ast.expr, module: Module) -> bool:
    function = module.function(node)
    arguments = function.args.args if function is not None else []
    return isinstance(node, ast.Name) and bool(arguments) and arguments[0].arg == node.id


def _shortened(resolver: Resolver, call: ast.Call, module: Module) -> FileEdit:
    """The ``nn.Sequential(.., nn.Sigmoid())`` without its last layer."""
    last = call.args[-1] if len(call.args) > 1 and not call.keywords else None
    if not isinstance(last, ast.Call) or _LAYER not in resolver.names(last.func, module):
        raise _OtherEndError("does not end in a sigmoid")
    code = module.code(call)
    start, end = _offset(module, call, call.args[-2]), _offset(module, call, last)
    if "#" in code[start:end]:
        raise _OtherEndError("ends in a sigmoid with a comment above")
    # A comment behind the layer is about it, and goes with it.
    rest = _COMMENT_BEHIND.sub(r"\1", code[end:])
    return replacement(module, call, code[:start] + rest)


def _offset(module: Module, call: ast.Call, node: ast.expr) -> int:
    """Where ``node`` ends in the text of ``call``."""
    outer, inner = module.span(call), module.span(node)
    lines = module.code(call).splitlines(keepends=True)
    row = inner.end_line - outer.line
    column = inner.end_column - (outer.column if row == 0 else 0)
    return sum(len(line) for line in lines[:row]) + column
