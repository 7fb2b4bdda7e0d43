"""How the loss of a training step is reduced from the samples of its batch: to their mean, to their sum, or in another way.

What the script's own functions and criteria compute is followed into them, with what each call gives them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..calls.reach import lexical_nodes
from ..calls.signatures import argument_for, call_argument
from ..networks.models import is_module_value
from ..networks.networks import Networks
from ..program.dead_code import DeadCode
from ..program.reaching import reaching_bindings
from ..program.scopes import Assigned, Binding, Defined, Imported, Iterated, Parameter, Path, Scope
from ..program.syntax import FunctionNode, Module
from ..values.changed_objects import changes_receiver
from ..values.resolver import Resolver
from ..values.unpacking import element_at
from ..values.values import Class, External, Function, Made
from .loss_forms import (
    is_beside_samples,
    is_enumerate,
    is_loss,
    is_method,
    is_set_outside_init,
    makes_layers,
    whose_sizes,
)
from .mean_losses import averages
from .reductions import EACH, REDUCED, Reduced, Reduction, added, elementwise, operation
from .tensor_reductions import tensor_reduction

_MOST_CALLS = 6
"""Calls within calls that are followed."""
_FACTORIES = frozenset("zeros ones full empty".split())
_DRAWS = re.compile(r"\brand|random|\bnormal\b|bernoulli|multinomial|distributions")
_PARTS = frozenset({Reduction.GIVEN, Reduction.RESULT})
"""What may be a tuple or a dict of tensors."""
_LENGTHS: dict[Reduced, Reduction] = {
    Reduction.FIXED: Reduction.FIXED,
    Reduction.GIVEN: Reduction.COUNT,
    Reduction.SAMPLES: Reduction.COUNT,
}
"""What the length of a value is. That of a network's results may be how many there are for each sample."""
_SEVERAL_RESULTS = frozenset(
    {"torch.nn.RNN", "torch.nn.LSTM", "torch.nn.GRU", "torch.nn.MultiheadAttention"}
)
_NUMBERS = frozenset({"builtins.float", "builtins.int", "builtins.abs"})


@dataclass(frozen=True)
class _Frame:
    """A function that is followed, and what its parameters are; the training step itself where there is none."""

    function: FunctionNode | None = None
    arguments: Mapping[str, Reduced] = field(default_factory=dict[str, Reduced])
    depth: int = 0

    @cached_property
    def key(self) -> object:
        """What two frames have in common in which every expression is the same."""
        return self.function, frozenset(self.arguments.items()), self.depth


class LossReductions:
    """Answers for the expressions of one training step or evaluation: of ``loop``, or of the function that is called in it."""

    def __init__(self, resolver: Resolver, loop: ast.AST) -> None:
        self._resolver, self._loop = resolver, loop
        self._networks, self._dead = Networks(resolver), DeadCode(resolver)
        self._open: set[tuple[ast.AST, int]] = set()
        self._cuts = 0
        """How often an answer was made of what is being asked already: such answers are not remembered."""
        self._known: dict[tuple[ast.expr, object], Reduced] = {}

    def of(self, loss: ast.expr, module: Module) -> Reduced:
        """How ``loss``, an expression of the step, is reduced from the samples of the batch."""
        return self._of(loss, module, _Frame())

    def _of(self, node: ast.expr, module: Module, frame: _Frame) -> Reduced:
        if not isinstance(node, ast.Call | ast.Name):
            return self._made_of(node, module, frame)
        # A network that uses its features again and again, as U-Nets do, has a great many ways through it.
        key = (node, frame.key)
        if key not in self._known:
            before = self._cuts
            found = self._made_of(node, module, frame)
            if self._cuts != before:
                return found
            self._known[key] = found
        return self._known[key]

    def _made_of(self, node: ast.expr, module: Module, frame: _Frame) -> Reduced:
        match node:
            case ast.Constant():
                return Reduction.FIXED
            case ast.UnaryOp(op=op, operand=operand):
                of = self._of(operand, module, frame)
                return of if isinstance(op, ast.USub) else elementwise([of])
            case ast.BinOp(left=left, op=op, right=right):
                return operation(op, self._of(left, module, frame), self._of(right, module, frame))
            case ast.Compare(left=left, comparators=others):
                return elementwise([self._of(n, module, frame) for n in (left, *others)])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                taken = _taken(self._dead.truth(test, module), body, orelse)
                return added([self._of(branch, module, frame) for branch in taken])
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                kinds = {self._of(element, module, frame) for element in elements}
                return Reduction.FIXED if kinds <= {Reduction.FIXED} else None
            case ast.Attribute():
                return self._attribute(node, module, frame)
            case ast.Subscript():
                return self._subscript(node, module, frame)
            case ast.Call():
                return self._call(node, module, frame, ())
            case ast.Name():
                return self._name(node, module, frame)
            case _:
                return None

    def _attribute(self, node: ast.Attribute, module: Module, frame: _Frame) -> Reduced:
        owner = self._of(node.value, module, frame)
        if node.attr in {"T", "mT", "H", "mH"}:
            return Reduction.FIXED if owner is Reduction.FIXED else None
        cls = module.enclosing_class(node)
        inside = module.function(node)
        if cls is not None and inside is not None and isinstance(node.value, ast.Name):
            own = inside.args.args[:1]
            if own and own[0].arg == node.value.id and is_set_outside_init(cls, node):
                return None
        return owner if owner in {*EACH, Reduction.FIXED} else None

    def _subscript(self, node: ast.Subscript, module: Module, frame: _Frame) -> Reduced:
        sizes = whose_sizes(node.value)
        if sizes is not None:
            return self._size(sizes, node.slice, module, frame)
        owner, index = self._of(node.value, module, frame), node.slice
        if owner is Reduction.FIXED:
            return self._of_index(index, module, frame)
        if owner not in EACH:
            return None
        match index:
            case ast.Constant(value=str()):
                return owner
            case ast.Constant(value=int()):  # one of the parts of a batch, of several results
                return owner if owner in _PARTS else None
            case ast.Tuple(elts=[ast.Slice(lower=None, upper=None, step=None), *others]):
                kinds = [self._of_index(part, module, frame) for part in others]
                return owner if all(kind is Reduction.FIXED for kind in kinds) else None
            case _:
                return None

    def _of_index(self, index: ast.expr, module: Module, frame: _Frame) -> Reduced:
        if isinstance(index, ast.Slice):
            bounds = [b for b in (index.lower, index.upper, index.step) if b is not None]
            return elementwise([Reduction.FIXED, *(self._of(b, module, frame) for b in bounds)])
        if isinstance(index, ast.Tuple):
            return elementwise([self._of_index(part, module, frame) for part in index.elts])
        return self._of(index, module, frame)

    def _size(
        self, tensor: ast.expr, dimension: ast.expr, module: Module, frame: _Frame
    ) -> Reduced:
        if not isinstance(dimension, ast.Constant | ast.UnaryOp):
            return None
        of = self._of(tensor, module, frame)
        if of is Reduction.FIXED:
            return of
        first = isinstance(dimension, ast.Constant) and dimension.value == 0
        return (Reduction.COUNT if first else Reduction.FIXED) if of in EACH else None

    # Names

    def _name(self, name: ast.Name, module: Module, frame: _Frame) -> Reduced:
        scope = module.scope(name)
        found = scope.lookup(name.id)
        if found is None:
            return Reduction.FIXED
        kinds: list[Reduced] = []
        for binding in reaching_bindings(module, *found, scope, name):
            key = (binding.node, frame.depth)
            self._cuts += key in self._open
            if key in self._open or self._dead.contains(binding.node, module):
                continue
            self._open.add(key)
            kinds.append(self._binding(binding, module, frame))
            self._open.discard(key)
        kinds += self._changes(name, found, module, frame)
        return added(kinds) if kinds else None

    def _changes(
        self, name: ast.Name, found: tuple[Scope, list[Binding]], module: Module, frame: _Frame
    ) -> Iterator[Reduced]:
        """What the variable may be once it has been changed in place: by ``x.mul_(..)``, ``x[0] = 1``."""
        for use in module.names_of(name.id):
            key = (use, frame.depth)
            if key in self._open or module.scope(use).lookup(use.id) != found:
                self._cuts += key in self._open and isinstance(use.ctx, ast.Load)
                continue
            match module.parents[use]:
                case ast.Subscript(value=changed, ctx=ast.Store()) if changed is use:
                    yield None
                case ast.Attribute(attr=method) as function if changes_receiver(method):
                    call = module.parents[function]
                    if isinstance(call, ast.Call) and isinstance(module.parents[call], ast.Expr):
                        self._open.add(key)
                        arguments = [self._of(argument, module, frame) for argument in call.args]
                        self._open.discard(key)
                        along = not method.startswith("scatter") or is_beside_samples(call)
                        yield elementwise([Reduction.FIXED, *arguments]) if along else None
                case _:
                    pass

    def _binding(self, binding: Binding, module: Module, frame: _Frame) -> Reduced:
        source = binding.source
        if isinstance(source, Imported | Defined):
            return Reduction.FIXED
        if isinstance(source, Parameter):
            is_own = source.function is frame.function and source.kind == "plain"
            if is_own:
                return frame.arguments.get(binding.name)
            if frame.function is not None:
                return None
            return Reduction.RESULT if source.function is self._loop else Reduction.FIXED
        around = [*module.ancestors(binding.node)]
        if frame.function is not None and frame.function not in around:
            return None if self._loop in around else Reduction.FIXED
        if frame.function is None and self._loop not in around:
            return Reduction.FIXED
        statement = module.parents.get(binding.node)
        match source:
            case Assigned(value, path):
                return self._part(value, path, module, frame)
            case Iterated(iterable, path):
                return self._iterated(binding, iterable, path, module, frame)
            case _ if isinstance(statement, ast.AugAssign):
                target = statement.target
                assert isinstance(target, ast.Name)
                before = self._name(target, module, frame)
                value = self._of(statement.value, module, frame)
                if before is None and isinstance(statement.op, ast.Add | ast.Sub):
                    return value if self._begins(target, module) else None
                return operation(statement.op, before, value)
            case _:
                return None

    def _begins(self, target: ast.Name, module: Module) -> bool:
        """Whether all that is known of the variable before is being asked for already: it is added to in a loop."""
        scope = module.scope(target)
        found = scope.lookup(target.id)
        assert found is not None
        self._cuts += 1
        asked = {node for node, _ in self._open}
        return all(b.node in asked for b in reaching_bindings(module, *found, scope, target))

    def _iterated(
        self, binding: Binding, iterable: ast.expr, path: Path, module: Module, frame: _Frame
    ) -> Reduced:
        is_counter = path[:1] == (0,) and is_enumerate(iterable)
        if frame.function is None and binding.node in set(ast.walk(_target(self._loop))):
            return Reduction.FIXED if is_counter else Reduction.GIVEN
        kind = self._of(iterable, module, frame)
        return Reduction.FIXED if kind is Reduction.FIXED or is_counter else None

    def _part(self, value: ast.expr, path: Path, module: Module, frame: _Frame) -> Reduced:
        """What the part of ``value`` at ``path`` is."""
        if not path:
            return self._of(value, module, frame)
        if isinstance(value, ast.Tuple | ast.List):
            element = element_at(value.elts, path[0])
            return self._part(element, path[1:], module, frame) if element is not None else None
        if isinstance(value, ast.Call):
            return self._call(value, module, frame, path)
        kind = self._of(value, module, frame)
        return kind if kind in {*_PARTS, Reduction.FIXED} else None

    # Calls

    def _call(self, call: ast.Call, module: Module, frame: _Frame, path: Path) -> Reduced:
        names = self._resolver.names(call.func, module)
        if names == frozenset({"builtins.next"}):
            return Reduction.GIVEN
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if any(isinstance(argument, ast.Starred) for argument in given):
            return None
        if names:
            return self._library_call(call, names, module, frame)
        functions, layers = self._callees(call, module)
        if functions or layers:
            kinds = [self._returned(f, call, module, frame, path) for f in functions]
            if layers:
                kinds.append(self._layer_call(call, layers, module, frame))
            return added(kinds) if None not in kinds else self._of_network(call, module)
        if self._networks.is_call(call, module):
            return Reduction.RESULT
        if isinstance(call.func, ast.Attribute):
            return self._tensor_call(
                call, call.func.attr, call.func.value, call.args, module, frame
            )
        return None

    def _of_network(self, call: ast.Call, module: Module) -> Reduced:
        """What a call of the project's own is that is not understood: a network of layers computes sample by sample."""
        values = self._networks.unwrapped(call.func, module)
        if not all(is_module_value(self._resolver, value) for value in values):
            return None
        layered = all(
            isinstance(value, Made)
            and isinstance(value.maker, Class)
            and makes_layers(self._resolver, value.maker)
            for value in values
        )
        return Reduction.RESULT if layered else None

    def _callees(self, call: ast.Call, module: Module) -> tuple[list[Function], list[Made]]:
        """The project's functions and the layers of PyTorch that ``call`` may run; none where it may run anything else."""
        functions: list[Function] = []
        layers: list[Made] = []
        values = self._resolver.values(call.func, module)
        if self._networks.unwrapped(call.func, module) != values:
            return [], []  # DataParallel gathers what its replicas return
        for value in values:
            match value:
                case Function():
                    functions.append(value)
                case Made(maker=Class() as cls):
                    functions += self._networks.forwards_of(cls)
                case Made(maker=External(name)) if name.startswith("torch.nn."):
                    layers.append(value)
                case _:
                    return [], []
        return functions, layers

    def _returned(
        self, function: Function, call: ast.Call, module: Module, frame: _Frame, path: Path
    ) -> Reduced:
        node = function.node
        if not isinstance(node, ast.FunctionDef) or frame.depth == _MOST_CALLS:
            return None
        bound = function.bound or is_method(node, function.module)
        arguments: dict[str, Reduced] = {}
        parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for index, parameter in enumerate(parameters):
            if index == 0 and bound:
                arguments[parameter.arg] = Reduction.FIXED
                continue
            passed = argument_for(node, parameter.arg, call, bound)
            if passed is not None and passed.given is not None:
                arguments[parameter.arg] = self._of(passed.given, module, frame)
            else:
                arguments[parameter.arg] = Reduction.FIXED if passed is not None else None
        inner = _Frame(node, arguments, frame.depth + 1)
        returns = [
            n
            for n in lexical_nodes(node.body)
            if isinstance(n, ast.Return) and not self._dead.contains(n, function.module)
        ]
        kinds = [
            self._part(n.value, path, function.module, inner) if n.value is not None else None
            for n in returns
        ]
        return added(kinds) if kinds else None

    def _library_call(
        self, call: ast.Call, names: frozenset[str], module: Module, frame: _Frame
    ) -> Reduced:
        kinds = [self._of(a, module, frame) for a in call.args]
        named = [self._of(keyword.value, module, frame) for keyword in call.keywords]
        short = {name.rpartition(".")[2] for name in names}
        if names == frozenset({"builtins.len"}):
            return _LENGTHS.get(kinds[0]) if kinds else None
        if names <= _NUMBERS and len(kinds) == 1:
            return elementwise(kinds) if "builtins.abs" in names else kinds[0]
        if len(short) == 1 and all(name.startswith(("torch.", "F.")) for name in names):
            (function,) = short
            if is_loss(function):
                return self._loss_call([(call, module)], kinds)
            if function in _FACTORIES:
                sizes = [self._of(x, module, frame) for a in call.args if (x := whose_sizes(a))]
                per_sample = Reduction.COUNT in kinds or bool(EACH & {*sizes})
                return Reduction.GIVEN if per_sample else elementwise(kinds)
            if call.args:
                return self._tensor_call(call, function, call.args[0], call.args[1:], module, frame)
        if any(_DRAWS.search(name) for name in names):
            return None
        return Reduction.FIXED if {*kinds, *named} <= {Reduction.FIXED} else None

    def _tensor_call(
        self,
        call: ast.Call,
        function: str,
        tensor: ast.expr,
        arguments: Sequence[ast.expr],
        module: Module,
        frame: _Frame,
    ) -> Reduced:
        if function == "size" and arguments:
            return self._size(tensor, arguments[0], module, frame)
        kinds = [self._of(argument, module, frame) for argument in arguments]
        keywords = [(word, self._of(word.value, module, frame)) for word in call.keywords]
        of = self._of(tensor, module, frame)
        return tensor_reduction(function, of, arguments, kinds, keywords)

    def _layer_call(
        self, call: ast.Call, layers: Sequence[Made], module: Module, frame: _Frame
    ) -> Reduced:
        """A call of layers of PyTorch: losses, or layers that compute sample by sample."""
        kinds = [self._of(argument, module, frame) for argument in call.args]
        names = [x.maker.name for x in layers if isinstance(x.maker, External)]
        losses = [name.endswith("Loss") for name in names]
        if all(losses):
            return self._loss_call([(layer.call, layer.module) for layer in layers], kinds)
        if any(losses) or REDUCED & set(kinds):
            return None  # what a layer makes of a mean is none of samples any more
        return Reduction.RESULT if _SEVERAL_RESULTS & set(names) else Reduction.SAMPLES

    def _loss_call(
        self, told: Sequence[tuple[ast.Call, Module]], kinds: Sequence[Reduced]
    ) -> Reduced:
        """A loss of PyTorch, which may be any of those that the calls ``told`` make or compute."""
        if REDUCED & set(kinds):
            return None
        found: set[Reduced] = set()
        for call, module in told:
            reduction = call_argument(call, "reduction")
            match reduction:
                case ast.Constant(value="none"):
                    found.add(Reduction.SAMPLES)
                case ast.Constant(value="sum"):
                    found.add(Reduction.SUM)
                case _:
                    is_mean = averages(self._resolver, call, module)
                    found.add(Reduction.MEAN if is_mean else None)
        return added(found)


def _taken(truth: bool | None, body: ast.expr, orelse: ast.expr) -> list[ast.expr]:
    return [body, orelse] if truth is None else [body if truth else orelse]


def _target(loop: ast.AST) -> ast.AST:
    """What ``loop`` binds anew in each pass."""
    return loop.target if isinstance(loop, ast.For | ast.AsyncFor) else ast.Pass()
