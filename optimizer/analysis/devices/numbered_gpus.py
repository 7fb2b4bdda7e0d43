"""Whether a script computes on more than one GPU in one process, by the numbers that it calls them by."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ..calls.signatures import call_argument
from ..facts import excerpt
from ..obstacles import Obstacle
from ..program.syntax import Module, is_docstring
from ..values.resolver import Resolver

_NUMBERED = re.compile(r"cuda:\d+")
_SPREAD = re.compile("device_map")
"""How a library is told to spread a network over the GPUs that there are."""


def numbered_texts(modules: Iterable[Module]) -> list[tuple[Module, ast.expr, str]]:
    """The texts that are the name of a GPU with its number, such as ``"cuda:1"``, and where they stand."""
    return [
        (module, node, node.value)
        for module in modules
        for node in module.nodes_of(ast.Constant)
        if isinstance(node.value, str) and _NUMBERED.fullmatch(node.value)
    ]


def several_gpus(resolver: Resolver) -> Obstacle | None:
    """Where a second GPU is named, or what may spread a network over several.

    Beside one with a number other than 0 that is also whichever is current (``.cuda()``). What an option may be set to is
    one of them at a time.
    """
    modules = resolver.project.modules
    named = list(_named(modules))
    for module, node, name in named:
        if name != named[0][2]:
            why = f"the script uses several GPUs, `{named[0][2]}` and `{name}`"
            return Obstacle(module, node, why)
    if named and named[0][2] != "cuda:0":
        for module, node in _current(modules):
            code = excerpt(module, node)
            why = f"the script may use several GPUs, `{named[0][2]}` and the current one (`{code}`)"
            return Obstacle(module, node, why)
    for module in modules:
        if module.search(_SPREAD):
            why = f"the script may use several GPUs (`{_SPREAD.pattern}`)"
            return Obstacle(module, module.tree, why)
    return None


def _named(modules: Iterable[Module]) -> Iterator[tuple[Module, ast.expr, str]]:
    for module in modules:
        for text in module.nodes_of(ast.Constant):
            if isinstance(text.value, str) and not _is_about_option(text, module):
                yield from ((module, text, name) for name in _NUMBERED.findall(text.value))
        for call in module.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda":
                number = call_argument(call, "device", 0)
                if isinstance(number, ast.Constant) and type(number.value) is int:
                    yield module, number, f"cuda:{number.value}"


def _is_about_option(text: ast.Constant, module: Module) -> bool:
    """Whether ``text`` is the ``help=`` of an option, a part of it, or among its ``choices=``; docstrings name no GPU either."""
    if is_docstring(module.statement(text)):
        return True
    inside = ast.List | ast.Tuple | ast.Set | ast.BinOp
    parent = next(a for a in module.ancestors(text) if not isinstance(a, inside))
    return isinstance(parent, ast.keyword) and parent.arg in {"help", "choices"}


def _current(modules: Iterable[Module]) -> Iterator[tuple[Module, ast.expr]]:
    """Where the GPU is meant that is current: ``.cuda()``, ``torch.device("cuda" if torch.cuda.is_available() else "cpu")``."""
    for module in modules:
        for call in module.calls:
            match call:
                case ast.Call(func=ast.Attribute(attr="cuda"), args=[], keywords=[]):
                    yield module, call
                case _:
                    pass
        for text in module.nodes_of(ast.Constant):
            if text.value == "cuda" and _is_device(text, module):
                yield module, text


def _is_device(text: ast.Constant, module: Module) -> bool:
    """Whether ``text`` says where something goes, and not what kind of device something is for."""
    parent = next(a for a in module.ancestors(text) if not isinstance(a, ast.IfExp | ast.BoolOp))
    match parent:
        case ast.Assign() | ast.AnnAssign() | ast.Return() | ast.keyword(arg="device" | "default"):
            return True
        case ast.Call(func=ast.Attribute(attr="to" | "cuda" | "device") | ast.Name("device")):
            return True
        case _:
            return False
