"""Which expressions may hold a tensor with an autograd graph behind it.

The answer is one-sided: ``free`` means proven, by what library functions return, by the bindings of names and by
the assignments to attributes. Everything else may carry a graph.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cached_property

from ..calls.callbacks import is_handed_around, is_property
from ..calls.reach import lexical_nodes
from ..calls.signatures import argument_for
from ..networks.models import is_loss_name, is_module_value
from ..networks.networks import Networks
from ..program.attribute_reads import literal_name
from ..program.reaching import reaching_bindings
from ..program.scopes import (
    Assigned,
    Binding,
    Defined,
    Deleted,
    Imported,
    Iterated,
    Managed,
    Parameter,
    Untraceable,
)
from ..program.syntax import FunctionNode, Module
from ..values.additions import Additions
from ..values.questions import Answers, Questions
from ..values.resolver import Resolver
from ..values.unpacking import unpacked_element
from ..values.values import (
    Class,
    External,
    FirstPartyModule,
    Function,
    Instance,
    Literal,
    Made,
    Option,
    Value,
)
from .graph_names import (
    ARRANGING_METHODS,
    GRAPH_FREE_ATTRIBUTES,
    GRAPH_FREE_METHODS,
    INDEX_OF_PAIR,
    gives_no_graph,
    makes_no_tensor,
    passes_graph_on,
)


class Gradients:
    """Answers for one project, which does not change; answers are remembered."""

    def __init__(self, resolver: Resolver, networks: Networks) -> None:
        self._resolver = resolver
        self._networks = networks
        self._additions = Additions(resolver)
        self._questions = Questions()
        # What leads back to itself holds none: only a source can bring one in.
        self._answers = Answers[tuple[str, ast.AST], bool](nothing=True, incomplete=lambda _: False)

    def free(self, expression: ast.expr, module: Module) -> bool:
        """Whether ``expression`` is proven to hold no tensor with a graph."""
        key = ("expression", expression)
        return self._questions.ask(key, self._answers, lambda: self._free(expression, module))

    def binding_is_free(self, binding: Binding, module: Module) -> bool:
        """Whether what ``binding`` gives its name holds no graph, also after later additions to it."""
        key = ("binding", binding.node)
        return self._questions.ask(
            key,
            self._answers,
            lambda: (
                self._binding(binding, module)
                and all(self.free(e, m) for e, m in self._additions.to_binding(binding))
            ),
        )

    def is_plain_attribute(self, name: str) -> bool:
        """Whether ``x.<name>`` holds no graph whatever ``x`` is (``shape``, ``data``)."""
        return name in GRAPH_FREE_ATTRIBUTES and not self._additions.is_stored_on_self(name)

    def _all(self, expressions: Iterable[ast.expr | None], module: Module) -> bool:
        return all(e is None or self.free(e, module) for e in expressions)

    def _free(self, node: ast.expr, module: Module) -> bool:
        match node:
            case ast.Constant() | ast.JoinedStr() | ast.Compare() | ast.Lambda() | ast.Slice():
                return True
            case ast.Name():
                return self._name(node, module)
            case ast.Attribute():
                return self._attribute(node, module)
            case ast.Subscript():
                index = node.slice.value if isinstance(node.slice, ast.Constant) else None
                return _is_index_part(node.value, index) or self.free(node.value, module)
            case ast.Call():
                return self._call(node, module)
            case _:
                parts = _parts(node)
                return parts is not None and self._all(parts, module)

    # Names

    def _name(self, node: ast.Name, module: Module) -> bool:
        if self._are_no_tensors(self._resolver.values(node, module)):
            return True
        scope = module.scope(node)
        found = scope.lookup(node.id)
        if found is None:
            return not scope.root.star_imports
        owner, bindings = found
        reaching = reaching_bindings(module, owner, bindings, scope, node)
        if any(isinstance(b.source, Untraceable) for b in reaching):
            reaching = bindings
        return all(self.binding_is_free(b, module) for b in reaching)

    def _binding(self, binding: Binding, module: Module) -> bool:
        match binding.source:
            case Assigned(value, path):
                return (bool(path) and _is_index_part(value, path[0])) or self.free(
                    unpacked_element(value, path), module
                )
            case Iterated(iterable, _):
                return self.free(iterable, module)
            case Managed(context, _):
                return self.free(context, module)
            case Defined() | Deleted():
                return True
            case Imported() as source:
                return self._imported(source, module)
            case Parameter(function, kind):
                return kind == "plain" and self._parameter(function, binding.name, module)
            case Untraceable():
                statement = module.statement(binding.node)
                return not isinstance(statement, ast.AugAssign) or self.free(
                    statement.value, module
                )

    def _imported(self, source: Imported, module: Module) -> bool:
        origin = self._resolver.project.find(module, source)
        return origin is None or source.attribute is None or self._global(origin, source.attribute)

    def _global(self, module: Module, name: str) -> bool:
        """Whether the variable ``name`` of a first-party module holds no graph."""
        bindings = module.scopes.by_node[module.tree].bindings.get(name, [])
        return all(self.binding_is_free(binding, module) for binding in bindings)

    def _parameter(self, function: FunctionNode | ast.Lambda, name: str, module: Module) -> bool:
        if isinstance(function, ast.Lambda) or self._networks.is_part_of_network(function, module):
            return False  # called by torch itself
        sites = self._resolver.call_sites(function)
        for site in sites:
            passed = argument_for(function, name, site.call, site.bound)
            if passed is None:
                return False
            if passed.given is not None and not self.free(passed.given, site.module):
                return False
            if passed.default is not None and not self.free(passed.default, module):
                return False
        return bool(sites) and not is_handed_around(self._resolver, function)

    def _are_no_tensors(self, values: frozenset[Value]) -> bool:
        """Whether ``values`` are things that are no tensors themselves, whatever they hold."""
        return bool(values) and all(self._is_no_tensor(value) for value in values)

    def _is_no_tensor(self, value: Value) -> bool:
        match value:
            case External() | FirstPartyModule() | Function() | Class() | Instance():
                return True
            case Literal() | Option() | Made(_, _, Class()):
                return True
            case Made(_, _, External(name)):
                is_object = is_module_value(self._resolver, value) or is_loss_name(name)
                return is_object or makes_no_tensor(name)
            case _:
                return False

    # Attributes

    def _attribute(self, node: ast.Attribute, module: Module) -> bool:
        if self.is_plain_attribute(node.attr):
            return True
        if self._are_no_tensors(self._resolver.values(node, module)):
            return True
        base = self._networks.unwrapped(node.value, module)
        if any(isinstance(v, FirstPartyModule) for v in base):
            owners = [v.module for v in base if isinstance(v, FirstPartyModule)]
            return all(self._global(owner, node.attr) for owner in owners)
        if any(self._is_library_network(value) for value in base):
            return False  # a parameter of a layer
        if not all(
            self.free(value, owner) for value, owner in self._additions.to_attribute(node.attr)
        ):
            return False
        assigned = self._additions.assigned_to_attribute(node.attr)
        if assigned:
            return all(self.free(value, owner) for value, owner in assigned)
        if node.attr == "__dict__":
            return False
        if node.attr in self._properties:
            return all(self._returns(f.node, f.module) for f in self._properties[node.attr])
        if any(self._networks.is_network_value(v) or isinstance(v, Instance) for v in base):
            return False
        made = [v for v in base if isinstance(v, Made) and isinstance(v.maker, Class)]
        if not all(self._arguments(value.call, value.module) for value in made):
            return False  # a field of a dataclass
        return self.free(node.value, module)

    @cached_property
    def _properties(self) -> dict[str, list[Function]]:
        """The first-party functions that run when an attribute is read."""
        found: dict[str, list[Function]] = {}
        for module in self._resolver.project.modules:
            for node in module.nodes:
                if isinstance(node, ast.FunctionDef) and is_property(node):
                    found.setdefault(node.name, []).append(Function(node, module))
        return found

    def _is_library_network(self, value: Value) -> bool:
        first_party = isinstance(value, Instance) or (
            isinstance(value, Made) and isinstance(value.maker, Class)
        )
        return not first_party and self._networks.is_network_value(value)

    # Calls

    def _call(self, node: ast.Call, module: Module) -> bool:
        if _requires_grad(node):
            return False
        func = node.func
        values = self._networks.unwrapped(func, module)
        if any(isinstance(value, Function) for value in values):
            return all(self._result(value, node, module) for value in values)
        if self._networks.is_call(node, module):
            return False  # also of a layer that is called as a tensor's method is: `self.item`, an embedding
        if isinstance(func, ast.Attribute) and func.attr in GRAPH_FREE_METHODS:
            return True
        return all(self._result(value, node, module) for value in values)

    def _result(self, callee: Value, node: ast.Call, module: Module) -> bool:
        match callee:
            case External("builtins.getattr"):
                return self._getattr(node, module)
            case External(name):
                known = passes_graph_on(name) and self._arguments(node, module)
                return gives_no_graph(name) or known
            case Class():
                return True
            case Function(function, owner):
                return self._returns(function, owner)
            case Made(_, _, External(name)) if is_loss_name(name):
                return self._arguments(node, module)
            case _ if isinstance(node.func, ast.Attribute):
                receiver = node.func.value
                return (
                    not self._networks.is_network(receiver, module)
                    and self.free(receiver, module)
                    and (node.func.attr in ARRANGING_METHODS or self._arguments(node, module))
                )
            case _:
                return False

    def _getattr(self, node: ast.Call, module: Module) -> bool:
        name = literal_name(node)
        if name is None or self._networks.is_network(node.args[0], module):
            return False
        stored = [
            *self._additions.to_attribute(name),
            *self._additions.assigned_to_attribute(name),
        ]
        return self._arguments(node, module) and all(self.free(v, owner) for v, owner in stored)

    def _arguments(self, node: ast.Call, module: Module) -> bool:
        given = [*node.args, *(k.value for k in node.keywords)]
        return self._all(given, module) and not any(
            self._networks.is_network(argument, module) for argument in given
        )

    def _returns(self, function: FunctionNode | ast.Lambda, module: Module) -> bool:
        if isinstance(function, ast.Lambda):
            return self.free(function.body, module)
        return self._questions.ask(
            ("function", function),
            self._answers,
            lambda: all(
                self._all([node.value], module)
                for node in lexical_nodes(function.body)
                if isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom))
            ),
        )


def _parts(node: ast.expr) -> list[ast.expr] | None:
    """The operands whose graphs ``node`` takes over; None where that is not known."""
    match node:
        case ast.IfExp():
            return [node.body, node.orelse]
        case ast.BinOp():
            return [node.left, node.right]
        case ast.UnaryOp():
            return [] if isinstance(node.op, ast.Not) else [node.operand]
        case ast.BoolOp() | ast.Dict():
            return node.values
        case ast.Tuple() | ast.List() | ast.Set():
            return node.elts
        case ast.Starred() | ast.NamedExpr() | ast.DictComp():
            return [node.value]
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
            return [node.elt]
        case _:
            return None


def _requires_grad(call: ast.Call) -> bool:
    return any(
        k.arg == "requires_grad" and not (isinstance(k.value, ast.Constant) and not k.value.value)
        for k in call.keywords
    )


def _is_index_part(value: ast.expr, part: object) -> bool:
    """Whether part ``part`` of ``value`` is the indices of ``torch.max(x, 1)`` or its like."""
    if not isinstance(value, ast.Call) or part != 1:
        return False
    name = (
        value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
    )
    return name in INDEX_OF_PAIR
