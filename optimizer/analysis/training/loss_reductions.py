"""How the loss of a training step is reduced from the samples of its batch: to their mean, to their sum, or in another way.

What the script's own functions and criteria compute is followed into them, with what each call gives them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ..calls.reach import lexical_nodes
from ..calls.signatures import argument_for
from ..networks.models import is_module_value
from ..networks.networks import Networks
from ..program.changes import may_show_change
from ..program.parameters import parameter_names
from ..program.reaching import bindings_of
from ..program.scopes import Assigned, Binding, Defined, Imported, Iterated, Parameter, Path
from ..program.syntax import Module
from ..program.trees import is_none, walk
from ..values.changed_objects import changes_receiver
from ..values.resolver import Resolver
from ..values.values import Class, External, Function, Made
from .followed_calls import Branches, Frame, written_out
from .library_reductions import SEVERAL_PARTS, TRANSPOSED, LibraryReductions
from .loss_forms import (
    is_beside_samples,
    is_enumerate,
    is_method,
    makes_layers,
    moved_batch,
    size_at,
)
from .reductions import Reduced, Reduction, added, elementwise, gathered, operation
from .written_parts import part_written_in

_MOST_CALLS = 6
"""Calls within calls that are followed."""


class LossReductions:
    """Answers for the expressions of one training step or evaluation: of ``loop``, or of the function that is called in it."""

    def __init__(self, resolver: Resolver, loop: ast.AST) -> None:
        self._resolver, self._loop = resolver, loop
        self._networks = Networks(resolver)
        self._library = LibraryReductions(resolver, self._of)
        self._open: set[tuple[ast.AST, int]] = set()
        self._cuts = 0
        """How often an answer was made of what is being asked already: such answers are not remembered."""
        self._known: dict[tuple[ast.expr, object], Reduced] = {}

    def of(self, loss: ast.expr, module: Module) -> Reduced:
        """How ``loss``, an expression of the step, is reduced from the samples of the batch."""
        return self._of(loss, module, Frame(Branches(self._resolver)))

    def _of(self, node: ast.expr, module: Module, frame: Frame) -> Reduced:
        if not isinstance(node, ast.Call | ast.Name | ast.Attribute | ast.Subscript):
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

    def _made_of(self, node: ast.expr, module: Module, frame: Frame) -> Reduced:
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
            case ast.IfExp():
                taken = frame.code.taken(node, module)
                return added([self._of(branch, module, frame) for branch in taken])
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                kinds = {self._of(element, module, frame) for element in elements}
                return Reduction.FIXED if kinds <= {Reduction.FIXED} else None
            case ast.Attribute():
                part = self._written(node.value, (node.attr,), module, frame)
                return self._library.attribute(node, module, frame) if part is None else part
            case ast.Subscript(value=whole, slice=ast.Constant(value=int() | str() as key)) if (
                part := self._written(whole, (key,), module, frame)
            ) is not None:
                return part
            case ast.Subscript():
                return self._library.subscript(node, module, frame)
            case ast.Call():
                return self._call(node, module, frame, ())
            case ast.Name():
                return self._name(node, module, frame)
            case _:
                batch = moved_batch(node)
                of = self._of(batch, module, frame) if batch is not None else None
                return of if of in SEVERAL_PARTS else None

    # Names

    def _name(self, name: ast.Name, module: Module, frame: Frame) -> Reduced:
        if module.scope(name).lookup(name.id) is None:
            return Reduction.FIXED
        kinds: list[Reduced] = []
        for binding in frame.code.live(bindings_of(module, name), name, module):
            key = (binding.node, frame.depth)
            self._cuts += key in self._open
            if key in self._open:
                continue
            self._open.add(key)
            kinds.append(self._binding(binding, module, frame))
            self._open.discard(key)
        kinds += self._changes(name, module, frame)
        return added(kinds) if kinds else None

    def _changes(self, name: ast.Name, module: Module, frame: Frame) -> Iterator[Reduced]:
        """What the variable may be once it has been changed in place: by ``x.mul_(..)``, ``x[0] = 1``."""
        for use in module.names_of(name.id):
            key = (use, frame.depth)
            if key in self._open or not may_show_change(module, name, use):
                self._cuts += key in self._open and isinstance(use.ctx, ast.Load)
                continue
            match module.parents[use]:
                case ast.Subscript(value=changed, ctx=ast.Store()) as part if changed is use:
                    self._open.add(key)
                    yield self._put(part, module, frame)
                    self._open.discard(key)
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

    def _put(self, part: ast.Subscript, module: Module, frame: Frame) -> Reduced:
        """What is put into ``part`` of a variable: of every sample the same part, with numbers of the sample itself."""
        match module.parents[part]:
            case ast.Assign(value=value) | ast.AugAssign(value=value) if (
                self._library.is_beside_samples(part.slice, module, frame)
            ):
                return elementwise([Reduction.FIXED, self._of(value, module, frame)])
            case _:
                return None

    def _binding(self, binding: Binding, module: Module, frame: Frame) -> Reduced:
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
        self._cuts += 1
        asked = {node for node, _ in self._open}
        return all(binding.node in asked for binding in bindings_of(module, target))

    def _iterated(
        self, binding: Binding, iterable: ast.expr, path: Path, module: Module, frame: Frame
    ) -> Reduced:
        is_counter = path[:1] == (0,) and is_enumerate(iterable)
        if frame.function is None and binding.node in set(walk(_target(self._loop))):
            return Reduction.FIXED if is_counter else Reduction.GIVEN
        kind = self._of(iterable, module, frame)
        return Reduction.FIXED if kind is Reduction.FIXED or is_counter else None

    def _part(self, value: ast.expr, path: Path, module: Module, frame: Frame) -> Reduced:
        """What the part of ``value`` at ``path`` is."""
        if not path:
            return self._of(value, module, frame)
        if isinstance(value, ast.Call):
            kind = self._call(value, module, frame, path)
        elif (written := self._written(value, path, module, frame)) is not None:
            return written
        else:
            kind = self._of(value, module, frame)
            kind = kind if kind in {*SEVERAL_PARTS, Reduction.SIZES, Reduction.FIXED} else None
        return size_at(path[0]) if kind is Reduction.SIZES else kind

    # Parts that are written out

    def _written(self, value: ast.expr, path: Path, module: Module, frame: Frame) -> Reduced:
        """What the part of ``value`` at ``path`` is, where the tuple or the dict is written that it is a part of."""
        if not path:
            return self._of(value, module, frame)
        if path[0] in TRANSPOSED:
            return None
        match value:
            case ast.IfExp():
                taken = frame.code.taken(value, module)
                return added([self._written(branch, path, module, frame) for branch in taken])
            case (
                ast.Attribute(value=whole, attr=key)
                | ast.Subscript(value=whole, slice=ast.Constant(value=int() | str() as key))
            ):
                return self._written(whole, (key, *path), module, frame)
            case ast.Name():
                return self._written_in(value, path, module, frame)
            case ast.Call() if functions := self._callees(value, module)[0]:
                return self._written_by(value, functions, path, module, frame)
            case _:
                found = part_written_in(self._resolver, value, path, module)
                return self._written(*found, module, frame) if found is not None else None

    def _written_in(self, name: ast.Name, path: Path, module: Module, frame: Frame) -> Reduced:
        if any(True for _ in self._changes(name, module, frame)):
            return None
        kinds: list[Reduced] = []
        for binding in frame.code.live(bindings_of(module, name), name, module):
            key, source = (binding.node, frame.depth), binding.source
            self._cuts += key in self._open
            inside = (frame.function or self._loop) in module.ancestors(binding.node)
            if key in self._open or not inside or not isinstance(source, Assigned):
                return None
            self._open.add(key)
            kinds.append(self._written(source.value, (*source.path, *path), module, frame))
            self._open.discard(key)
        return added(kinds) if kinds else None

    def _written_by(
        self,
        call: ast.Call,
        functions: Sequence[Function],
        path: Path,
        module: Module,
        frame: Frame,
    ) -> Reduced:
        """What the part of a result is that ``call`` has ``functions`` return."""
        kinds: list[Reduced] = []
        for function in functions:
            inner = self._entered(function, call, module, frame)
            if inner is None:
                return None
            kinds += [
                self._written(value, path, function.module, inner) if value is not None else None
                for value in self._returns(inner, function.module)
            ]
        found = added(kinds) if kinds else None
        return gathered(found) if self._is_gathered(call, module) else found

    def _is_gathered(self, call: ast.Call, module: Module) -> bool:
        """Whether ``call`` may run replicas of a network, of which each returns what it has computed."""
        values = self._resolver.values(call.func, module)
        return self._networks.unwrapped(call.func, module) != values

    # Calls

    def _call(self, call: ast.Call, module: Module, frame: Frame, path: Path) -> Reduced:
        names = self._resolver.names(call.func, module)
        if names == frozenset({"builtins.next"}):
            return Reduction.GIVEN
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if any(isinstance(argument, ast.Starred) for argument in given):
            return None
        if names:
            return self._library.call(call, names, module, frame)
        functions, layers = self._callees(call, module)
        if functions or layers:
            kinds = [self._returned(f, call, module, frame, path) for f in functions]
            if layers:
                kinds.append(self._library.layer_call(call, layers, module, frame))
            found = added(kinds)
            if self._is_gathered(call, module):
                found = gathered(found) or Reduction.RESULT
            if found not in {None, Reduction.MIXED, Reduction.WHOLE}:
                return found
            # A network may mix its samples, as BatchNorm does.
            network = self._of_network(call, module)
            return network if network is not None else found
        if self._networks.is_call(call, module):
            return Reduction.RESULT
        if isinstance(call.func, ast.Attribute):
            return self._library.tensor_call(
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
        for value in self._networks.unwrapped(call.func, module):
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
        self, function: Function, call: ast.Call, module: Module, frame: Frame, path: Path
    ) -> Reduced:
        inner = self._entered(function, call, module, frame)
        if inner is None:
            return None
        returned = list(self._returns(inner, function.module))
        kinds = [
            self._part(value, path, function.module, inner) if value is not None else None
            for value in returned
        ]
        return added(kinds) if kinds else None

    def _returns(self, frame: Frame, module: Module) -> Iterator[ast.expr | None]:
        """What the function of ``frame`` may return."""
        assert isinstance(frame.function, ast.FunctionDef)
        for node in lexical_nodes(frame.function.body):
            if isinstance(node, ast.Return) and not frame.code.contains(node, module):
                yield node.value

    def _entered(
        self, function: Function, call: ast.Call, module: Module, frame: Frame
    ) -> Frame | None:
        """The frame of ``function`` in ``call``; None where it is not followed."""
        node = function.node
        if not isinstance(node, ast.FunctionDef) or frame.depth == _MOST_CALLS:
            return None
        bound, call = function.bound or is_method(node, function.module), written_out(call, module)
        arguments: dict[str, Reduced] = {}
        given: dict[str, bool] = {}
        for index, name in enumerate(parameter_names(node)):
            if index == 0 and bound:
                arguments[name] = Reduction.FIXED
                continue
            passed = argument_for(node, name, call, bound)
            if passed is not None and passed.given is not None:
                arguments[name] = self._of(passed.given, module, frame)
                is_given = self._is_given(passed.given, arguments[name], frame)
            else:
                arguments[name] = Reduction.FIXED if passed is not None else None
                default = passed.default if passed is not None else None
                is_given = None if default is None else not is_none(default)
            if is_given is not None:
                given[name] = is_given
        return Frame(Branches(self._resolver, node, given), node, arguments, given, frame.depth + 1)

    def _is_given(self, argument: ast.expr, kind: Reduced, frame: Frame) -> bool | None:
        """Whether a parameter that gets ``argument`` is given something; None where it may be None."""
        if isinstance(argument, ast.Name) and argument.id in frame.given:
            return frame.given[argument.id]
        if kind is Reduction.FIXED or kind is None:
            return False if is_none(argument) else None
        return True


def _target(loop: ast.AST) -> ast.AST:
    """What ``loop`` binds anew in each pass."""
    return loop.target if isinstance(loop, ast.For | ast.AsyncFor) else ast.Pass()
