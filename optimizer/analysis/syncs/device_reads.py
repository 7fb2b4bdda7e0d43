"""Where a step asks the device for a number, and so waits for it: ``loss.item()``, ``float(loss)``, ``loss.cpu().numpy()``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..devices.host_tensors import holds_host_numbers
from ..facts import Fact, Loop, LoopKind
from ..program.reaching import reaching_bindings
from ..program.syntax import LoopNode, Module
from ..program.trees import walk
from ..tensors.tensor_kinds import TensorKind, TensorKinds
from ..values.resolver import Resolver
from .loop_definitions import arithmetic_root, operators

STEPS = (LoopKind.TRAINING, LoopKind.EVALUATION)
_NUMBER_CALLS = frozenset({"builtins.float", "builtins.int"})
_SAME_NUMBER = frozenset({"detach", "cpu", "clone"})


@dataclass(frozen=True, eq=False)
class DeviceRead(Fact):
    """Where the one element of ``tensor`` becomes a Python number: a call, or where the number arrives of ``within``.

    A loss may become an array of numpy's, too, see :attr:`is_array`.

    ``within`` is the read in a function of the script's own that gives the number back.
    """

    node: ast.expr
    tensor: ast.expr
    kind: TensorKind
    within: DeviceRead | None = None

    @property
    def source(self) -> DeviceRead:
        """The read itself, where its tensor is written out."""
        return self if self.within is None else self.within

    @property
    def result(self) -> ast.expr:
        """The arithmetic expression of which the :attr:`source` is a part, or all."""
        return arithmetic_root(self.source.module, self.source.node)

    @property
    def divides(self) -> bool:
        """Whether there is a division in that expression."""
        return any(isinstance(operator, ast.Div) for operator in operators(self.result))

    @property
    def is_array(self) -> bool:
        """Whether it becomes an array instead, which computes in the precision of the tensor."""
        return _is_call(self.source.node, "numpy")

    @property
    def told(self) -> str:
        """The read and, where it is another function's, what its number arrives as, for messages."""
        if self.within is None:
            return f"`{self.excerpt}`"
        return f"`{self.within.excerpt}`, given back as `{self.excerpt}`,"

    @property
    def converter(self) -> str:
        """``float`` or ``int`` where one of them reads the number, else nothing: ``.item()``."""
        call = self.source.node
        return getattr(call.func, "id", "") if isinstance(call, ast.Call) else ""


def find_device_reads(resolver: Resolver, kinds: TensorKinds) -> tuple[DeviceRead, ...]:
    """Every such call on what is, or may be, a tensor on a device, in source order per module."""
    found: list[DeviceRead] = []
    for module in resolver.project.modules:
        for call in module.calls:
            tensor = _read_tensor(resolver, call, module)
            if tensor is None:
                continue
            kind = kinds.of(tensor, module)
            unclear = kind in {TensorKind.UNKNOWN, TensorKind.TENSOR}
            if unclear and any(backpropagated_by(tensor, module)):
                kind = TensorKind.FLOAT  # gradients are computed of nothing else
            is_method = isinstance(call.func, ast.Attribute) or _is_call(call.args[0], "item")
            # What `float()` is given is a number more often than not; nothing but a tensor or an array has `.item()`.
            if kind is TensorKind.HOST or (kind is TensorKind.UNKNOWN and not is_method):
                continue
            if holds_host_numbers(resolver, tensor, module):
                continue
            found.append(DeviceRead(module, call, tensor, kind))
    return tuple(found)


def backpropagated_by(tensor: ast.expr, module: Module) -> Iterator[ast.Call]:
    """The calls that compute gradients of the value that the variable ``tensor`` has."""
    if not isinstance(tensor, ast.Name):
        return
    for call in module.calls:
        for loss in backpropagated_from(call):
            is_it = isinstance(loss, ast.Name) and loss.id == tensor.id
            if is_it and _same_value(loss, tensor, module):
                yield call


def backpropagated_from(call: ast.Call) -> Iterator[ast.expr]:
    """What ``loss.backward()``, ``scaler.scale(loss).backward()`` and ``accelerator.backward(loss)`` start from."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "backward"):
        return
    receiver = call.func.value
    if call.args and not isinstance(receiver, ast.Call):
        yield call.args[0]
    elif isinstance(receiver, ast.Call) and getattr(receiver.func, "attr", "") == "scale":
        yield from receiver.args
    else:
        yield receiver


def _same_value(one: ast.expr, other: ast.Name, module: Module) -> bool:
    assert isinstance(one, ast.Name)
    found = module.scope(one).lookup(one.id)
    if found is None or found != module.scope(other).lookup(other.id):
        return False
    owner, bindings = found
    return set(reaching_bindings(module, owner, bindings, module.scope(one), one)) == set(
        reaching_bindings(module, owner, bindings, module.scope(other), other)
    )


def _read_tensor(resolver: Resolver, call: ast.Call, module: Module) -> ast.expr | None:
    """The tensor whose number ``call`` reads, seen through ``.detach()``, ``.data`` and ``.cpu()``; by ``float(loss.item())`` it is read once.

    By ``.numpy()`` any tensor may be copied: only what is backpropagated is known to have one element.
    """
    if isinstance(call.func, ast.Attribute):
        around = module.parents[call]
        if isinstance(around, ast.Call) and _converts(resolver, around, module):
            return None
        tensor = _bare(call.func.value)
        is_array = _is_call(call, "numpy") and any(backpropagated_by(tensor, module))
        return tensor if is_array or _is_call(call, "item") else None
    if not _converts(resolver, call, module):
        return None
    match call.args[0]:
        case ast.Call(func=ast.Attribute(value=tensor)) as argument if _is_call(argument, "item"):
            return _bare(tensor)
        case argument:
            return _bare(argument)


def _converts(resolver: Resolver, call: ast.Call, module: Module) -> bool:
    """Whether ``call`` is ``float(x)`` or ``int(x)``."""
    if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
        return False
    if not isinstance(call.func, ast.Name) or call.func.id not in {"float", "int"}:
        return False
    return resolver.names(call.func, module) <= _NUMBER_CALLS


def _is_call(node: ast.expr, name: str) -> bool:
    """Whether ``node`` is ``x.name()``."""
    match node:
        case ast.Call(func=ast.Attribute(attr=method), args=[], keywords=[]):
            return method == name
        case _:
            return False


def _bare(node: ast.expr) -> ast.expr:
    while True:
        match node:
            case ast.Attribute(value=value, attr="data"):
                node = value
            case ast.Call(func=ast.Attribute(value=value, attr=method), args=[], keywords=[]) if (
                method in _SAME_NUMBER
            ):
                node = value
            case _:
                return node


def step_loop(module: Module, node: ast.AST, loops: dict[LoopNode, Loop]) -> Loop | None:
    """The loop over steps around ``node``: the outermost one of the kind of the innermost, as inner ones are part of a step."""
    around = [loops[loop] for loop in module.loops(node)]
    steps = [loop for loop in around if loop.kind in STEPS]
    if not steps:
        return next((x for x in around if x.kind is LoopKind.OTHER and x.forwards), None)
    outermost = steps[0]
    for loop in around[around.index(steps[0]) :]:
        if loop.kind is not outermost.kind:
            break
        outermost = loop
    return outermost


def runs_rarely(module: Module, node: ast.AST, loop: LoopNode) -> bool:
    """Whether ``node`` runs in few of the passes of ``loop``: every so many steps, or when the loop is left."""
    child = node
    for ancestor in module.ancestors(node):
        if ancestor is loop:
            return False
        if isinstance(ancestor, ast.If) and child in ancestor.body:
            last = ancestor.body[-1]
            leaves = isinstance(last, (ast.Return, ast.Raise)) or (
                isinstance(last, ast.Break) and module.loops(ancestor)[:1] == [loop]
            )
            if leaves or _is_rare(module, ancestor.test, loop):
                return True
        child = ancestor
    return False


def _is_rare(module: Module, test: ast.expr, loop: LoopNode) -> bool:
    """Whether ``test`` asks for the position in ``loop``: ``i % 100 == 0``, ``i == len(loader) - 1``."""
    match test:
        case ast.BoolOp(op=ast.And()):
            return any(_is_rare(module, part, loop) for part in test.values)
        case ast.BoolOp(op=ast.Or()):
            return all(_is_rare(module, part, loop) for part in test.values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_remainder(module, operand, loop)
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return (
                _is_remainder(module, left, loop)
                or _is_remainder(module, right, loop)
                or (_counts(module, left, loop) and not _counts(module, right, loop))
            )
        case _:
            return False


def _is_remainder(module: Module, node: ast.expr, loop: LoopNode) -> bool:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)):
        return False
    every_step = isinstance(node.right, ast.Constant) and node.right.value == 1
    names = (n for n in walk(node.left) if isinstance(n, ast.Name))
    return not every_step and any(_counts(module, name, loop) for name in names)


def _counts(module: Module, node: ast.AST, loop: LoopNode) -> bool:
    """Whether ``node`` is a variable that ``loop`` gives another value in every pass."""
    if not isinstance(node, ast.Name):
        return False
    roots: Iterable[ast.AST] = [loop.target] if not isinstance(loop, ast.While) else []
    counted = (s for s in walk(loop) if isinstance(s, ast.AugAssign) and isinstance(s.op, ast.Add))
    targets = [n for root in roots for n in walk(root)] + [s.target for s in counted]
    return any(isinstance(t, ast.Name) and t.id == node.id for t in targets)
