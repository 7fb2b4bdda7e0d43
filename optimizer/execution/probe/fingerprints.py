"""Tensors in figures and on disk."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch's own annotations are partial.

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Odd constants, so that multiplying by them loses no bit (Knuth's and the golden ratio's).
_POSITION, _VALUE = 2654435761, -7046029254386353131
_PART = 2**19
"""So many elements at a time: 4 MiB of integers stay in a cache. Whole, a tensor of 7.3 million took 17 times as long on a CPU, most of
it for memory that the system had to find anew for every step of the sum."""

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_SAFETENSORS_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def dtype_name(tensor: Tensor) -> str:
    """The dtype as ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")


def plain(tensor: Tensor) -> Tensor:
    """``tensor`` without its graph, dense, not quantized, real, contiguous in logical order, on its device."""
    tensor = tensor.detach()
    if tensor.is_sparse or tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.resolve_neg().contiguous()


def checksum(tensor: Tensor) -> Tensor:
    """A 64-bit integer, still on the device, in which every bit and its position count."""
    bits = plain(tensor)
    bits = bits.view(_INTEGERS[bits.element_size()]).flatten()
    sums: list[Tensor] = []
    offsets = torch.arange(min(_PART, bits.numel()), device=bits.device, dtype=torch.int64)
    offsets *= _POSITION
    for number, part in enumerate(bits.split(_PART)):
        mixed = part.to(torch.int64) + offsets[: part.numel()]
        mixed += _as_int64(number * _PART * _POSITION)
        mixed *= _VALUE
        mixed ^= mixed >> 29
        mixed *= _VALUE
        sums.append(mixed.sum())
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum()


def _as_int64(number: int) -> int:
    """``number`` as 64-bit integers wrap around."""
    return (number + 2**63) % 2**64 - 2**63


def row_checksums(tensors: Sequence[Tensor], rows: int) -> list[int]:
    """For each of so many ``rows`` a 64-bit integer, in which every bit that the ``tensors`` have there counts, and its place in the row.

    Zeros at the end of a row do not, so that it is the same however wide the others of its batch are. What has no rows
    counts in all of them.
    """
    # On the host, whatever device a script has made the default.
    total = torch.zeros(rows, dtype=torch.int64, device="cpu")
    for tensor in tensors:
        if tensor.shape[:1] == (rows,):
            bits = plain(tensor)
            bits = bits.view(_INTEGERS[bits.element_size()]).reshape(rows, -1)
            places = torch.arange(bits.shape[1], device=bits.device, dtype=torch.int64)
            found = torch.cat(
                [
                    _rows_mixed(part, 2 * places + 1)
                    for part in bits.split(max(1, _PART // max(1, bits.shape[1])))
                ]
            )
        else:
            found = checksum(tensor)
        total = (total + found.cpu()) * _VALUE
        total ^= total >> 31
    return total.tolist()


def _rows_mixed(bits: Tensor, factors: Tensor) -> Tensor:
    """The sums of each row's ``bits``, each mixed before its place's odd factor and again behind it: zero stays zero.

    Without the first, a word 3 in the first place would count as a word 1 in the second.
    """
    mixed = bits.to(torch.int64) * _VALUE
    mixed ^= mixed >> 29
    mixed *= factors
    mixed ^= mixed >> 31
    mixed *= _VALUE
    return mixed.sum(1)


def norm(tensor: Tensor) -> Tensor:
    """The L2 norm in float64, still on the device."""
    return torch.linalg.vector_norm(plain(tensor).double())


def sha256(tensor: Tensor) -> str:
    """A hash over dtype, shape and bytes in logical order."""
    on_host = plain(tensor).cpu()
    digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    digest.update(_bytes(on_host))
    return digest.hexdigest()


def summary(tensor: Tensor) -> dict[str, Any]:
    """The fields of a ``TensorSummary``. Waits for the device."""
    values = plain(tensor).double()
    finite = values.isfinite()
    values = torch.where(finite, values, 0.0)
    count = int(finite.sum())
    return {
        "shape": list(tensor.shape),
        "dtype": dtype_name(tensor),
        "checksum": int(checksum(tensor)),
        "mean": float(values.sum()) / count if count else math.nan,
        "norm": float(torch.linalg.vector_norm(values)),
        "largest": float(values.abs().max()) if values.numel() else 0.0,
        "finite": bool(finite.all()),
    }


def storable(tensor: Tensor) -> Tensor:
    """``tensor`` on the host, as it is stored: bfloat16 and float16 widened to float32, which is exact."""
    on_host = plain(tensor).cpu()
    return on_host if on_host.dtype in _SAFETENSORS_NAMES else on_host.float()


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file (https://github.com/huggingface/safetensors#format)."""
    stored = {name: storable(tensor) for name, tensor in tensors.items()}
    # Widest first, so that every tensor is aligned.
    order = sorted(stored, key=lambda name: -stored[name].element_size())
    header: dict[str, Any] = {}
    end = 0
    for name in order:
        start, end = end, end + stored[name].nbytes
        header[name] = {
            "dtype": _SAFETENSORS_NAMES[stored[name].dtype],
            "shape": list(stored[name].shape),
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)))
        file.write(encoded)
        for name in order:
            file.write(_bytes(stored[name]))


def total_bytes(tensors: Iterable[Tensor]) -> int:
    """What the tensors take in memory."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _bytes(tensor: Tensor) -> bytes | memoryview:
    """The bytes of a contiguous tensor on the host, without numpy, which need not be there."""
    if not tensor.numel():
        return b""
    buffer = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    return memoryview(buffer)
