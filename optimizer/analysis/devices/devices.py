"""Understands the ways scripts name the device they run on.

Among them: ``torch.device("cuda")``, ``torch.device("cuda" if torch.cuda.is_available() else "cpu")``, ``"cuda:0"``, an
integer rank, ``args.device``, ``use_cuda = torch.cuda.is_available()`` flags, ``model.device``,
``next(model.parameters()).device``, ``accelerator.device`` and ``self.device``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ..calls.signatures import call_argument
from ..distributed.spawned import RANK
from ..facts import DeviceKind, DeviceName
from ..program.scopes import Assigned
from ..program.syntax import Module
from ..values.resolver import Resolver
from ..values.values import Attribute, Display, External, Literal, Made, Option, Value

_CHOOSING = frozenset({"torch.accelerator.current_accelerator", "os.environ.get", "os.getenv"})
"""Calls that give whichever device there is, or is asked for."""
DEVICE_MAKERS = frozenset({"torch.device", "torch.accelerator.current_accelerator"})
_INDICES = frozenset(
    {
        "torch.cuda.current_device",
        "torch.distributed.get_rank",
        "torch.distributed.get_node_local_rank",
        "builtins.int",
        RANK.name,
    }
)
"""Calls that give an integer: as a device, an integer is the index of a GPU (``int(os.environ["LOCAL_RANK"])``)."""


_GPU_WORDS = (
    "cuda",
    "torch.accelerator",
    "nccl",
    "import accelerate",
    "from accelerate",
    "Fabric(",
)
_ACCELERATORS = frozenset({"mps", "xpu", "xla", "npu", "hpu", "mlu", "privateuseone"})
_OTHER_ACCELERATORS = re.compile(rf"\b({'|'.join(sorted(_ACCELERATORS))}|torch_xla|torch_npu)\b")
_NEVER_CUDA = frozenset({DeviceKind.CPU, DeviceKind.OTHER})


def device_kind(
    resolver: Resolver,
    expression: ast.expr,
    module: Module,
    within: frozenset[ast.Call] = frozenset(),
) -> DeviceKind:
    """Which device ``expression`` names; ``OTHER`` where it is Apple's (``"mps"``), say, or the CPU, whichever there is.

    ``within`` are the calls it is an argument of: ``device = torch.device(device)`` may lead back to itself.
    """
    kinds = _kinds(resolver, expression, module, within)
    if DeviceKind.OTHER in kinds and kinds <= _NEVER_CUDA:
        return DeviceKind.OTHER
    if isinstance(expression, ast.IfExp | ast.BoolOp) or _is_conditional(
        resolver, expression, module
    ):
        return DeviceKind.CHOSEN if DeviceKind.CUDA in kinds or len(kinds) > 1 else _single(kinds)
    return _single(kinds)


def _kinds(
    resolver: Resolver, expression: ast.expr, module: Module, within: frozenset[ast.Call]
) -> set[DeviceKind]:
    return {
        _value_kind(resolver, value, within)
        for value in resolver.values(expression, module)
        if not (isinstance(value, Made) and value.call in within)
    }


def _single(kinds: set[DeviceKind]) -> DeviceKind:
    if len(kinds) == 1:
        return kinds.pop()
    if kinds and DeviceKind.UNKNOWN not in kinds:
        return DeviceKind.CHOSEN
    return DeviceKind.CHOSEN if DeviceKind.CHOSEN in kinds else DeviceKind.UNKNOWN


def _is_conditional(resolver: Resolver, expression: ast.expr, module: Module) -> bool:
    return any(
        isinstance(v, Made)
        and isinstance(v.maker, External)
        and v.maker.name == "torch.device"
        and v.call.args
        and isinstance(v.call.args[0], (ast.IfExp, ast.BoolOp))
        for v in resolver.values(expression, module)
    )


def _value_kind(resolver: Resolver, value: Value, within: frozenset[ast.Call]) -> DeviceKind:
    match value:
        case Literal(str() as text):
            return _text_kind(text)
        case Literal(bool() | None):
            return DeviceKind.UNKNOWN
        case Literal(int()):
            return DeviceKind.CUDA
        case Made(call, module, External("torch.device")):
            argument = call_argument(call, "type", 0) or call_argument(call, "device", 0)
            kind = (
                device_kind(resolver, argument, module, within | {call})
                if argument
                else DeviceKind.UNKNOWN
            )
            # Whatever a configuration says, it is a device.
            return DeviceKind.CHOSEN if kind is DeviceKind.UNKNOWN else kind
        case Made(_, _, External(name)) if name in _INDICES:
            return DeviceKind.CUDA
        case Made(_, _, External(name)) if name in _CHOOSING:
            return DeviceKind.CHOSEN
        case Display(node) if (text := _beginning(node)) is not None:
            return _text_kind(text)
        case Display(ast.BinOp(op=ast.Mod(), right=count), module):
            # The index of a GPU among those of its machine: `rank % torch.cuda.device_count()`.
            makers = resolver.maker_names(count, module)
            is_index = makers == frozenset({"torch.cuda.device_count"})
            return DeviceKind.CUDA if is_index else DeviceKind.UNKNOWN
        case Option():
            return DeviceKind.CUDA if _is_index(resolver, value) else DeviceKind.CHOSEN
        case Attribute(_, "device"):
            return DeviceKind.CHOSEN
        case Attribute(Made() as device, "type") if is_device(device):
            return _value_kind(resolver, device, within)
        case _:
            return DeviceKind.UNKNOWN


def _is_index(resolver: Resolver, option: Option) -> bool:
    """Whether ``option`` is an integer, which as a device is the index of a GPU: ``--local_rank`` of ``type=int``."""
    kind = call_argument(option.call, "type")
    return kind is not None and resolver.names(kind, option.module) == frozenset({"builtins.int"})


def _beginning(node: ast.expr) -> str | None:
    """What a text begins with that is made by ``node``: ``f"cuda:{i}"``, ``"cuda:%d" % i``, ``"cuda:{}".format(i)``."""
    match node:
        case ast.JoinedStr(values=[ast.Constant(value=str() as text), *_]):
            return text
        case ast.BinOp(left=ast.Constant(value=str() as text)):
            return text
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str() as text), attr="format")):
            return text
        case _:
            return None


def is_device(value: Value) -> bool:
    """Whether it is a ``torch.device``."""
    return (
        isinstance(value, Made)
        and isinstance(value.maker, External)
        and value.maker.name in DEVICE_MAKERS
    )


def is_device_text(value: Value) -> bool:
    """Whether it is the name of a device, or may be: a text, or the ``type`` of a ``torch.device``."""
    match value:
        case Literal(text):
            return isinstance(text, str)
        case Attribute(of, "type"):
            return is_device(of)
        case _:
            return False


def _text_kind(text: str) -> DeviceKind:
    if text.startswith("cuda"):
        return DeviceKind.CUDA
    if text.partition(":")[0] in _ACCELERATORS:
        return DeviceKind.OTHER
    return DeviceKind.CPU if text == "cpu" else DeviceKind.UNKNOWN


def find_devices(resolver: Resolver) -> tuple[DeviceName, ...]:
    """The names assigned a device or a use-CUDA flag, in source order per module."""
    found: list[DeviceName] = []
    for module in resolver.project.modules:
        found += _device_attributes(resolver, module)
        for scope in module.scopes.by_node.values():
            for name, bindings in scope.bindings.items():
                for binding in bindings:
                    if isinstance(binding.source, Assigned) and not binding.source.path:
                        fact = _device_name(resolver, name, binding.source.value, module)
                        if fact is not None:
                            found.append(fact)
    return tuple(sorted(found, key=lambda fact: (str(fact.path), fact.span)))


def _device_attributes(resolver: Resolver, module: Module) -> Iterator[DeviceName]:
    """Devices and flags kept in an attribute of a variable: ``args.cuda = torch.cuda.is_available()``."""
    for node in module.nodes:
        match node:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id=owner), attr=attr)], value=value
            ):
                fact = _device_name(resolver, f"{owner}.{attr}", value, module)
                if fact is not None:
                    yield fact
            case _:
                pass


def _device_name(
    resolver: Resolver, name: str, value: ast.expr, module: Module
) -> DeviceName | None:
    if is_cuda_flag(resolver, value, module):
        return DeviceName(module, value, name, DeviceKind.CHOSEN, True)
    makers = resolver.maker_names(value, module)
    values = resolver.values(value, module)
    told = [v for v in values if is_device_text(v) or isinstance(v, Literal)]
    is_text = bool(told) and all(
        is_device_text(v) and _value_kind(resolver, v, frozenset()) is not DeviceKind.UNKNOWN
        for v in told
    )
    if (makers and makers <= DEVICE_MAKERS) or is_text:
        return DeviceName(module, value, name, device_kind(resolver, value, module), False)
    return None


def is_cuda_flag(resolver: Resolver, value: ast.expr, module: Module) -> bool:
    """Whether ``value`` is true when CUDA is to be used: ``is_available()``, alone or with other conditions."""
    if isinstance(value, ast.BoolOp):
        return any(is_cuda_flag(resolver, part, module) for part in value.values)
    if isinstance(value, ast.IfExp):
        return (
            is_cuda_flag(resolver, value.test, module)
            and isinstance(value.body, ast.Constant)
            and value.body.value is True
        )
    return resolver.maker_names(value, module) == frozenset({"torch.cuda.is_available"})


def mentions_cuda(module: Module) -> bool:
    """Whether the file speaks of CUDA, or of whatever accelerator there is: a script for a GPU."""
    return any(word in module.source.text for word in _GPU_WORDS)


def mentions_accelerator(module: Module) -> bool:
    """Whether the file speaks of CUDA, or of an accelerator of another kind."""
    return mentions_cuda(module) or _OTHER_ACCELERATORS.search(module.source.text) is not None


def is_below_found_gpu(resolver: Resolver, at: ast.stmt, module: Module) -> bool:
    """Whether ``at`` is only reached where ``if torch.cuda.is_available():`` around it has found a GPU."""
    child: ast.AST = at
    for around in module.ancestors(at):
        match around:
            case ast.If(ast.Call(function), body) if child in body:
                if resolver.names(function, module) == frozenset({"torch.cuda.is_available"}):
                    return True
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return False
            case _:
                pass
        child = around
    return False
