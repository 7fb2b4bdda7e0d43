"""The typed constructors of old (``torch.FloatTensor``) and what they are called today.

``torch.FloatTensor(2, 3)`` makes an uninitialised tensor of that size, and so does ``torch.FloatTensor(x.shape)`` of a tensor's
``torch.Size``; ``torch.FloatTensor([2, 3])`` makes one of those values, and so does it of any other tuple
(https://docs.pytorch.org/docs/stable/tensors.html#torch.Tensor).
"""

from __future__ import annotations

import ast
import re

from ..program.syntax import Module
from .host_data import HostData

_TYPE = re.compile(r"^torch\.(cuda\.)?(\w*)Tensor$")
_DTYPES = {
    "": "float32",
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "long",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
}
DEFAULT_DTYPE = "float32"


def legacy_dtype(names: frozenset[str]) -> str | None:
    """The dtype, as in ``torch.<dtype>``, of the tensor types ``names``; None when they are none or differ."""
    found = {_DTYPES.get(match[2]) if (match := _TYPE.match(name)) else None for name in names}
    return found.pop() if len(found) == 1 else None


def is_cuda_type(name: str) -> bool:
    """Whether a tensor type is one of CUDA (``torch.cuda.FloatTensor``)."""
    match = _TYPE.match(name)
    return bool(match and match[1])


def is_host_type(name: str) -> bool:
    """Whether a tensor type is one of the CPU (``torch.FloatTensor``)."""
    match = _TYPE.match(name)
    return bool(match and not match[1])


def takes_sizes(host: HostData, call: ast.Call, module: Module) -> bool | None:
    """Whether a legacy constructor is given sizes (True) or data (False); None when that is not proven."""
    if call.keywords:
        return None
    arguments = call.args
    if len(arguments) != 1:
        return True  # several arguments, or none, can only be sizes
    (argument,) = arguments
    if isinstance(argument, ast.Starred):
        return True if host.is_shape(argument.value) else None
    if host.is_int(argument, module) or host.is_torch_size(argument):
        return True
    return False if host.is_data(argument, module) else None
