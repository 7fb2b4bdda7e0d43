"""What must hold for a tensor to stand where a number stood, until it is looked at."""

from __future__ import annotations

import ast

from ..editing.bound_names import is_bound
from ..facts import excerpt
from ..program.scopes import Assigned
from ..program.syntax import Module, last_identifier
from ..program.trees import walk
from ..tensors.tensor_kinds import TensorKind
from .deferred import Deferred
from .device_reads import DeviceRead

_NARROW = frozenset("uint8 int8 int16 int32 byte char short int".split())
_WIDEN = frozenset({"sum", "prod", "count_nonzero", "argmax", "argmin", "long"})


class Refused(Exception):
    """A variable cannot be deferred because of ``node``."""

    def __init__(self, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.node, self.why = node, why


def check_divisor(module: Module, leaf: ast.expr, value: ast.expr) -> None:
    """A number that is divided by raises an exception where it is 0; a tensor does not."""
    child: ast.AST = leaf
    while child is not value:
        parent = module.parents[child]
        divides = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div)
        if divides and getattr(parent, "right", None) is child:
            raise Refused(leaf, f"`{excerpt(module, parent)}` may divide by zero")
        child = parent


def check_alias(read: DeviceRead) -> None:
    """A tensor that is kept must not be changed in place afterwards."""
    source = read.source
    module = source.module
    for name in (n.id for n in walk(source.tensor) if isinstance(n, ast.Name)):
        for use in module.names_of(name):
            parent = module.parents[use]
            in_place = isinstance(parent, ast.Attribute) and parent.attr.endswith("_")
            adds = isinstance(parent, ast.AugAssign) and parent.target is use
            if not (in_place or adds) or module.function(use) is not module.function(source.node):
                continue
            if not _is_changed_first(module, use, source.node):
                place = use if read is source else read.node
                raise Refused(place, f"`{name}` is changed in place")


def _is_changed_first(module: Module, use: ast.Name, read: ast.AST) -> bool:
    """Whether a pass of the loop around ``read`` changes a tensor of its own at ``use``, ahead of ``read``: ``loss = 0``, then ``loss += part``."""
    loops = module.loops(read)
    if not loops or use not in set(walk(loops[0])) or use.lineno >= module.statement(read).lineno:
        return False
    found = module.scope(use).lookup(use.id)
    made = [
        binding.node
        for binding in (found[1] if found is not None else [])
        if isinstance(binding.source, Assigned)
        and not binding.source.path
        and isinstance(binding.source.value, ast.Constant | ast.Call | ast.BinOp)
    ]
    return is_bound(module, made, module.statement(use), within=loops[0])


def check_width(read: DeviceRead) -> None:
    """Sums of Python's integers do not overflow; those of tensors of 8 or 32 bits do, unless they come from ``.sum()``, which widens them."""
    tensor = read.source.tensor
    is_widened = isinstance(tensor, ast.Call) and last_identifier(tensor.func) in _WIDEN
    named = {node.attr for node in walk(tensor) if isinstance(node, ast.Attribute)}
    if read.source.kind is TensorKind.INTEGER and not is_widened and named & _NARROW:
        code = excerpt(read.source.module, tensor)
        raise Refused(read.node, f"`{code}` has few bits, and its sums may overflow")


def check_arrays(variable: Deferred) -> None:
    """Arrays compute otherwise than numbers, and are kept as they are: in a list of nothing else."""
    arrays = [read for read in variable.reads if read.is_array]
    if arrays and not (variable.holds_arrays and len(arrays) == len(variable.definitions)):
        code = excerpt(arrays[0].source.module, arrays[0].source.node)
        raise Refused(arrays[0].node, f"`{code}` is an array, which is not only kept in a list")


def check_kind(read: DeviceRead) -> None:
    code = excerpt(read.source.module, read.source.tensor)
    if read.kind is TensorKind.UNKNOWN:
        raise Refused(read.node, f"it could not be proven that `{code}` is a tensor on the device")
    if read.kind is TensorKind.TENSOR:
        raise Refused(read.node, f"whether `{code}` holds integers or floats is not known")
    if read.source.kind is TensorKind.FLOAT and read.converter == "int":
        raise Refused(read.node, f"`{read.source.excerpt}` rounds")
