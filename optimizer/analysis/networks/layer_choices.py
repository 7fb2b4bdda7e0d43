"""Whether the forward passes of a training may run different layers: by chance, by what they are given, as the training goes on.

What is decided when a network is made (``if self.shortcut is not None``) or by a setting that stays is one and the same in every pass.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..calls.reach import Reached
from ..calls.signatures import argument_for
from ..facts import CallFact
from ..obstacles import Obstacle
from ..program.reaching import bindings_of
from ..program.scopes import Assigned, Binding, Iterated, Parameter
from ..program.syntax import FunctionNode, Module
from ..program.trees import walk
from ..values.outside_writes import outside_uses
from ..values.resolver import Resolver
from ..values.values import Class, Function
from .forward_code import method_name
from .networks import Networks

_CHANCE = ("random.", "numpy.random.", "torch.rand", "torch.bernoulli", "torch.distributions.")
_BY_VALUE = frozenset({"torch.equal", "torch.allclose", "torch.any", "torch.all", "torch.isnan"})
_READS = frozenset({"item", "any", "all", "tolist", "equal", "argmax", "nonzero"})
_COUNTERS = frozenset({"builtins.range", "tqdm.trange", "itertools.count"})
_EXITS = (ast.Return, ast.Continue, ast.Break)
_TESTED = (ast.If, ast.IfExp, ast.While)
_MOST_STEPS = 6


def layer_choice(
    resolver: Resolver, forward: CallFact, classes: tuple[Class, ...]
) -> Obstacle | None:
    """Where layers of ``classes``, which the training runs by ``forward``, choose anew each time which layers they run."""
    choices = _Choices(resolver, forward)
    own = {cls.node for cls in classes}
    for function in choices.networks.forwards:
        cls = function.module.enclosing_class(function.node)
        if cls in own:
            found = choices.find(function)
            if found is not None:
                return found
    return None


class _Choices:
    def __init__(self, resolver: Resolver, forward: CallFact) -> None:
        self._resolver = resolver
        self._forward = forward
        self.networks = Networks(resolver)

    def find(self, function: Function) -> Obstacle | None:
        module = function.module
        for node in walk(function.node):
            if isinstance(node, _TESTED) and self._chooses(node, module):
                why = self._varies(node.test, module, _MOST_STEPS)
            elif isinstance(node, ast.Subscript) and self._is_layers(node.value, module):
                why = self._varies(node.slice, module, _MOST_STEPS)
            else:
                continue
            if why is not None:
                return Obstacle(
                    module, node, f"which layers the forward pass runs depends on {why}"
                )
        return None

    def _chooses(self, node: ast.If | ast.IfExp | ast.While, module: Module) -> bool:
        """Whether layers run on one way that do not on the other."""
        if isinstance(node, ast.IfExp):
            ways: tuple[list[ast.AST], list[ast.AST]] = ([node.body], [node.orelse])
        else:
            ways = ([*node.body], [*node.orelse])
        if any(isinstance(part, _EXITS) for way in ways for top in way for part in walk(top)):
            return True
        first, second = ({*self._layers(way, module)} for way in ways)
        return first != second

    def _layers(self, nodes: list[ast.AST], module: Module) -> Iterator[str]:
        for top in nodes:
            for node in walk(top):
                if isinstance(node, ast.Call) and not self._is_library(node, module):
                    yield ast.unparse(node.func)

    def _is_library(self, call: ast.Call, module: Module) -> bool:
        names = self._resolver.names(call.func, module)
        if names:
            return True
        is_method = isinstance(call.func, ast.Attribute) and not self._resolver.callees(
            call, module
        )
        return is_method and not self.networks.is_call(call, module)

    def _is_layers(self, node: ast.expr, module: Module) -> bool:
        makers = self._resolver.maker_names(node, module)
        return bool(
            makers & {"torch.nn.ModuleList", "torch.nn.ModuleDict", "torch.nn.ParameterList"}
        )

    def _varies(self, node: ast.expr, module: Module, steps: int) -> str | None:
        """What the value of ``node`` depends on that is not the same in every pass."""
        if steps == 0:
            return None
        for part in walk(node):
            match part:
                case ast.Call():
                    why = self._call(part, module)
                case ast.Name(ctx=ast.Load()):
                    why = self._name(part, node, module, steps)
                case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                    why = self._attribute(attr)
                case _:
                    why = None
            if why is not None:
                return why
        return None

    def _call(self, call: ast.Call, module: Module) -> str | None:
        names = self._resolver.names(call.func, module)
        if any(name.startswith(_CHANCE) for name in names):
            return "chance"
        method = method_name(self._resolver, Reached(call, module, True))
        if names & _BY_VALUE or (not names and method in _READS):
            return "the values of tensors"
        return None

    def _name(self, name: ast.Name, test: ast.expr, module: Module, steps: int) -> str | None:
        for binding in bindings_of(module, name):
            match binding.source:
                case Assigned(value) if value is not test:
                    why = self._varies(value, module, steps - 1)
                case Parameter(ast.FunctionDef() as function) if not _asks_whether_given(
                    test, name
                ):
                    why = self._given(function, binding.name)
                case _:
                    why = None
            if why is not None:
                return why
        return None

    def _given(self, function: FunctionNode, name: str) -> str | None:
        """A number that the training loop counts up, and hands to the forward pass."""
        if function.name != "forward":
            return None
        passed = argument_for(function, name, self._forward.node, bound=True)
        if passed is None or passed.given is None:
            return None
        where = self._forward.module
        for part in walk(passed.given):
            if isinstance(part, ast.Name) and self._is_counter(part, where):
                return "how far the training has come"
        return None

    def _is_counter(self, name: ast.Name, module: Module) -> bool:
        return any(self._counts(binding, module) for binding in bindings_of(module, name))

    def _counts(self, binding: Binding, module: Module) -> bool:
        match binding.source:
            case Iterated(ast.Call(func=function), path):
                names = self._resolver.names(function, module)
                counts = path[:1] == (0,) and names == frozenset({"builtins.enumerate"})
                return counts or (not path and bool(names & _COUNTERS))
            case _:
                return isinstance(binding.node, ast.AugAssign)

    def _attribute(self, attr: str) -> str | None:
        """An attribute that code outside of the class writes in a loop, as the training goes on."""
        for use, where in outside_uses(self._resolver, attr):
            if isinstance(use.ctx, ast.Store) and where.loops(use):
                return f"`self.{attr}`, which the training changes"
        return None


def _asks_whether_given(test: ast.expr, name: ast.Name) -> bool:
    return any(
        isinstance(part, ast.Compare)
        and part.left is name
        and isinstance(part.ops[0], ast.Is | ast.IsNot)
        for part in walk(test)
    )
