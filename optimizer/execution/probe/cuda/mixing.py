"""CUDA's rules for operands on different devices."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .float_only import FLOAT_ONLY
from .marks import Mark, Undecided, mark_of

_ANY = {"copy_", "copy", "_copy_from", "_foreach_copy_", "_foreach_copy", "set_", "record_stream"}
"""Operations that take tensors of any devices."""
_INDEXING = {"index", "_unsafe_index"}
_INDEX_WRITING = {"index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"}
_LENGTHS_ON_HOST = {
    "_pack_padded_sequence",
    "_pack_padded_sequence_backward",
    "_pad_packed_sequence",
    "_ctc_loss",
    "_ctc_loss_backward",
}
"""Operations whose lengths belong on the host, whatever is counted."""
_SCALAR_VALUES = {
    "masked_fill",
    "masked_fill_",
    "index_fill",
    "index_fill_",
    "where",
    "searchsorted",
    "bucketize",
    "fill",
    "fill_",
}
"""Operations that take a value of no dimension from the host, besides those that go element by element."""


def check_mixture(
    func: Any, args: Any, kwargs: dict[str, Any], operands: Sequence[Tensor], marks: Sequence[Mark]
) -> None:
    """Raise what CUDA would raise for these operands, of which not all are on one device."""
    name = func.overloadpacket.__name__
    if name in _ANY or name in _LENGTHS_ON_HOST:
        return
    if name in _INDEXING or name in _INDEX_WRITING:
        indices: Sequence[Tensor | None] = args[1]
        _check_indices(args[0], indices)
        places = {id(index) for index in indices}
        marks = [m for t, m in zip(operands, marks, strict=True) if id(t) not in places]
        operands = [t for t in operands if id(t) not in places]
    scalars = _takes_host_scalars(func, name)
    written = _written(func, args, kwargs) if scalars else set()
    counted = [
        (tensor, mark)
        for tensor, mark in zip(operands, marks, strict=True)
        if not isinstance(mark, Undecided)
        and not (scalars and mark is None and tensor.dim() == 0 and id(tensor) not in written)
    ]
    devices = list(dict.fromkeys(mark for _, mark in counted))
    if len(devices) > 1:
        raise RuntimeError(_message(name, devices, counted))


def check_generator(own: str, asked: torch.device | None, marks: Sequence[Mark]) -> None:
    """Raise what CUDA raises for numbers drawn with a generator of the device type ``own`` for another one."""
    device = asked or next((mark for mark in marks if isinstance(mark, torch.device)), None)
    expected = "cpu" if device is None else device.type
    if own != expected:
        raise RuntimeError(f"Expected a '{expected}' device type for generator but found '{own}'")


def check_kernel(func: Any, operands: Sequence[Tensor]) -> None:
    """Raise what CUDA raises and the CPU may not.

    It has no products of whole numbers, no decompositions of half-precision matrices, and wants lengths on the host.
    """
    name = func.overloadpacket.__name__
    if name == "_pack_padded_sequence" and isinstance(mark_of(operands[1]), torch.device):
        lengths = operands[1]
        raise RuntimeError(
            "'lengths' argument should be a 1D CPU int64 tensor, but got "
            f"{lengths.dim()}D {mark_of(lengths)} {_LEGACY[lengths.dtype]} tensor"
        )
    if name in _FLOATING_PRODUCTS and operands[0].dtype in _WHOLE:
        kind = _LEGACY[operands[0].dtype]
        raise RuntimeError(f"\"{_FLOATING_PRODUCTS[name]}\" not implemented for '{kind}'")
    reduced = next((o.dtype for o in operands if o.dtype in _REDUCED), None)
    if name in FLOAT_ONLY and reduced is not None:
        raise RuntimeError(f"\"{name.strip('_')}_cuda\" not implemented for '{_LEGACY[reduced]}'")


def host_results(func: Any, results: Any) -> list[Tensor]:
    """Those of the results that are on the host even on CUDA: the batch sizes of a packed sequence, and lengths."""
    if func.overloadpacket.__name__ in ("_pack_padded_sequence", "_pad_packed_sequence"):
        return [results[1]]
    return []


def _check_indices(tensor: Tensor, indices: Sequence[Tensor | None]) -> None:
    own = mark_of(tensor)
    for index in indices:
        if index is None:
            continue
        where = mark_of(index)
        if where is not None and not isinstance(where, Undecided) and where != own:
            raise RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor "
                f"({'cpu' if own is None else own})"
            )


def _takes_host_scalars(func: Any, name: str) -> bool:
    return (
        torch.Tag.pointwise in func.tags
        or name in _SCALAR_VALUES
        or name in _INDEX_WRITING
        or name.startswith(("_foreach_", "_fused_", "_amp_"))
    )


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> set[int]:
    """The ids of the tensors that the operation writes to."""
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False))
    given |= kwargs
    written: set[int] = set()
    for argument in func._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = given.get(argument.name)
            written |= {id(item) for item in (value if isinstance(value, list) else [value])}
    return written


def _message(name: str, devices: Sequence[Any], counted: Sequence[tuple[Tensor, Mark]]) -> str:
    if name in ("convolution", "_convolution", "convolution_overrideable") and len(counted) > 1:
        first, second = (_type_name(tensor, mark) for tensor, mark in counted[:2])
        if first != second:
            return f"Input type ({first}) and weight type ({second}) should be the same"
    found = " and ".join("cpu" if device is None else str(device) for device in devices[:2])
    return (
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{found}! (in aten::{name})"
    )


def _type_name(tensor: Tensor, mark: Mark) -> str:
    return legacy_name(tensor.dtype, on_device=mark is not None)


_LEGACY = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.bool: "Bool",
}


def legacy_name(dtype: torch.dtype, *, on_device: bool) -> str:
    """The name that ``Tensor.type()`` gives: ``torch.cuda.FloatTensor``."""
    place = "torch.cuda." if on_device else "torch."
    return f"{place}{_LEGACY.get(dtype, str(dtype).removeprefix('torch.').capitalize())}Tensor"


_REDUCED = (torch.float16, torch.bfloat16)
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_FLOATING_PRODUCTS = {
    "mm": "addmm_cuda",
    "addmm": "addmm_cuda",
    "bmm": "baddbmm_cuda",
    "baddbmm": "baddbmm_cuda",
    "addmv": "addmv_impl_cuda",
    "mv": "addmv_impl_cuda",
    "dot": "dot",
}
"""The kernels that cuBLAS has for floating point only, by the operations that call them."""

LEGACY_DTYPES = {f"{name}Tensor": dtype for dtype, name in _LEGACY.items()}
"""The dtypes by the names of the old tensor types."""
