"""The GPUs that a script chooses by their numbers, in place of which every process has its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...rewriting.edits import FileEdit, Wrap
from ..calls.signatures import call_argument
from ..devices.devices import DEVICE_MAKERS
from ..devices.numbered_gpus import numbered_texts
from ..editing.replacing import replacement
from ..facts import Fact
from ..obstacles import Obstacle
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import Literal, Option
from .process_names import Place, ProcessNames

_TEMPLATES = re.compile(r"cuda:(%[ds]|\{(:d)?\})")


@dataclass(frozen=True, eq=False)
class GpuNumber(Fact):
    """The number of a GPU: ``0`` in ``model.cuda(0)``, ``args.gpu`` in ``f"cuda:{args.gpu}"``."""

    node: ast.expr

    @property
    def is_first(self) -> bool:
        """Whether it is that of the first GPU, as written."""
        node = self.node
        return isinstance(node, ast.Constant) and type(node.value) is int and node.value == 0

    def is_chosen(self, resolver: Resolver) -> bool:
        """Whether it is an option, a variable that holds a number, or the first of several: ``device_ids[0]``."""
        node = self.node
        if isinstance(node, ast.Constant):
            return False
        if isinstance(node, ast.Call) and "builtins.int" in resolver.names(node.func, self.module):
            node = node.args[0] if node.args else node
        if isinstance(node, ast.Subscript):
            return isinstance(node.slice, ast.Constant) and node.slice.value == 0
        return all(
            isinstance(value, Option) or (isinstance(value, Literal) and type(value.value) is int)
            for value in resolver.values(node, self.module)
        )


def gpu_obstacle(resolver: Resolver) -> Fact | None:
    """Where GPUs are chosen in a way that would be the same in every process."""
    modules = resolver.project.modules
    chosen: list[GpuNumber] = []
    for number in _numbers(resolver, modules):
        if number.is_first:
            continue
        if not number.is_chosen(resolver):
            if "torch.cuda.set_device" in _callees(resolver, number.node, number.module):
                why = "the script chooses its GPU itself"
                return Obstacle(number.module, number.module.statement(number.node), why)
            why = f"every process would use the GPU `{number.module.code(number.node)}`"
            return Obstacle(number.module, number.node, why)
        chosen.append(number)
    return (
        _several([(n.module, n.node, n.module.code(n.node)) for n in chosen])
        or _several(numbered_texts(modules))
        or _visible_obstacle(resolver)
    )


def gpu_notes(resolver: Resolver, modules: Iterable[Module]) -> Iterator[str]:
    """What is said of GPUs that the script alone would choose: torchrun's processes are on those that it sees."""
    for module, node in _shown(resolver, modules):
        if not isinstance(node.value, ast.Constant):
            chosen = module.code(node.value)
            yield f"torchrun takes the GPUs that it sees, whatever `{chosen}` says: `CUDA_VISIBLE_DEVICES` before `torchrun` chooses"
            return


def gpu_edits(
    resolver: Resolver, modules: Iterable[Module], names: ProcessNames
) -> Iterator[FileEdit]:
    """The GPU that a process has been given, in place of one that is chosen by its number.

    What an option chooses stays the GPU of a process that is alone.
    """
    modules = tuple(modules)
    for number in _numbers(resolver, modules):
        module, mine = number.module, names.name(Place.LOCAL_RANK, number.module)
        if not number.is_first:
            several = names.name(Place.WORLD_SIZE, module)
            mine = f"{mine} if {several} > 1 else {module.code(number.node)}"
            if isinstance(module.parents[number.node], ast.BinOp):
                mine = f"({mine})"
        yield replacement(module, number.node, mine)
    for module, node, name in numbered_texts(modules):
        code = module.code(node).replace(name, "cuda")
        yield replacement(module, node, code)
    for module, node in _shown(resolver, modules):
        if not isinstance(node.value, ast.Constant):
            alone = f"if {names.name(Place.WORLD_SIZE, module)} == 1:"
            yield FileEdit(module.path, Wrap(module.span(node), module.span(node), alone))


def _several(found: Sequence[tuple[Module, ast.expr, str]]) -> Fact | None:
    for module, node, name in found:
        if name != found[0][2]:
            why = f"the script uses several GPUs, `{found[0][2]}` and `{name}`"
            return Obstacle(module, node, why)
    return None


def _numbers(resolver: Resolver, modules: Iterable[Module]) -> Iterator[GpuNumber]:
    for module in modules:
        for call in module.calls:
            number = _of_call(resolver, call, module)
            if number is None or _of_text(number) is not None:
                continue  # the number in a text is found below
            if not _is_device(resolver, number, module):
                yield GpuNumber(module, number)
        for text in module.nodes_of(ast.JoinedStr, ast.BinOp, ast.Call):
            number = _of_text(text)
            if number is not None:
                yield GpuNumber(module, number)


def _of_call(resolver: Resolver, call: ast.Call, module: Module) -> ast.expr | None:
    """The number of the GPU that ``call`` chooses."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda":
        return call_argument(call, "device", 0)
    names = resolver.names(call.func, module)
    if names & {"torch.cuda.set_device", "torch.cuda.device"}:
        return call_argument(call, "device", 0)
    if "torch.device" in names:
        return call_argument(call, "index", 1)
    return None


def _callees(resolver: Resolver, argument: ast.expr, module: Module) -> frozenset[str]:
    """The library functions that ``argument`` is given to."""
    call = module.parents[argument]
    call = module.parents[call] if isinstance(call, ast.keyword) else call
    return resolver.names(call.func, module) if isinstance(call, ast.Call) else frozenset()


def _is_device(resolver: Resolver, number: ast.expr, module: Module) -> bool:
    """Whether ``number`` is no number but a device, which is that of the process where it is made.

    ``set_device`` takes none without a number.
    """
    if "torch.cuda.set_device" in _callees(resolver, number, module):
        return False
    if isinstance(number, ast.Constant) and isinstance(number.value, str):
        return True
    makers = resolver.maker_names(number, module)
    return bool(makers) and makers <= DEVICE_MAKERS


def _of_text(node: ast.AST) -> ast.expr | None:
    """The number in ``f"cuda:{number}"``, ``"cuda:%d" % number``, ``"cuda:{}".format(number)`` and ``"cuda:" + str(number)``."""
    match node:
        case ast.JoinedStr(values=[ast.Constant(value="cuda:"), ast.FormattedValue(value=number)]):
            return number
        case ast.BinOp(
            left=ast.Constant(value="cuda:"),
            op=ast.Add(),
            right=ast.Call(func=ast.Name(id="str"), args=[number]),
        ):
            return number
        case ast.BinOp(left=ast.Constant(value="cuda:"), op=ast.Add(), right=number):
            return number
        case ast.BinOp(left=ast.Constant(value=str() as text), op=ast.Mod(), right=right):
            if not _TEMPLATES.fullmatch(text):
                return None
            return right.elts[0] if isinstance(right, ast.Tuple) and right.elts else right
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str() as text), attr="format"),
            args=[number],
        ):
            return number if _TEMPLATES.fullmatch(text) else None
        case _:
            return None


def _visible_obstacle(resolver: Resolver) -> Fact | None:
    """Where the script shows itself one GPU alone, or says which GPUs it sees where a process cannot leave that out."""
    for module, node in _shown(resolver, resolver.project.modules):
        shown = node.value.value if isinstance(node.value, ast.Constant) else None
        if isinstance(shown, str):
            if "," not in shown:
                return Obstacle(module, node, "the script shows itself one GPU alone")
        elif not _stands_alone(node, module):
            return Obstacle(module, node, "the script chooses the GPUs it sees")
    return None


def _shown(resolver: Resolver, modules: Iterable[Module]) -> Iterator[tuple[Module, ast.Assign]]:
    """The statements that say which GPUs a process sees."""
    for module in modules:
        for node in module.nodes_of(ast.Assign):
            if any(_is_visible_devices(resolver, target, module) for target in node.targets):
                yield module, node


def _stands_alone(node: ast.Assign, module: Module) -> bool:
    """Whether ``node`` can be put under a test: it does nothing else, and no other statement stands in its line."""
    return len(node.targets) == 1 and all(
        statement is node or statement.lineno != node.lineno for statement in module.block(node)
    )


def _is_visible_devices(resolver: Resolver, target: ast.expr, module: Module) -> bool:
    match target:
        case ast.Subscript(value=owner, slice=ast.Constant(value="CUDA_VISIBLE_DEVICES")):
            return "os.environ" in resolver.names(owner, module)
        case _:
            return False
