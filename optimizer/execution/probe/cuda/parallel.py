"""Several devices: DataParallel with one replica, NCCL by way of gloo, SyncBatchNorm on the host, tensors grouped by device."""

# pyright: reportPrivateUsage=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import _functions as layer_functions
from torch.nn.parallel import comm

from ..patches import Patches
from ..whole_batch import normalized_over_ranks
from .state import Devices
from .tensors import device_of

_COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "gather",
    "scatter",
    "send",
    "recv",
    "isend",
    "irecv",
)


def patch_parallel(patches: Patches, devices: Devices) -> None:
    """Replace what spreads work over devices and processes."""
    patches.wrap(nn.DataParallel, "__init__", functools.partial(_one_replica, devices))
    patches.wrap(comm, "scatter", _scatter)
    patches.wrap(comm, "gather", _gather)
    patches.put(torch._C, "_group_tensors_by_device_and_dtype", group_tensors)
    if torch.distributed.is_available():
        _patch_distributed(patches)


def _one_replica(devices: Devices, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(parallel, module, device_ids=None, output_device=None, dim=0):
        ids = list(range(devices.count)) if device_ids is None else list(device_ids)
        ids = [devices.index(device) for device in ids]
        original(parallel, module, ids[:1], output_device, dim)

    return wrapper


def _scatter(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(tensor, devices=None, chunk_sizes=None, dim=0, streams=None, *, out=None):
        if devices is not None and len(devices) == 1 and out is None:
            return (
                tensor.to(torch.device("cuda", torch.cuda._utils._get_device_index(devices[0]))),
            )
        return original(tensor, devices, chunk_sizes, dim, streams, out=out)

    return wrapper


def _gather(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(tensors, dim=0, destination=None, *, out=None):
        tensors = tuple(tensors)
        if len(tensors) == 1 and out is None:
            device = "cuda" if destination is None else "cpu" if destination == -1 else destination
            return tensors[0].to(device)
        return original(tensors, dim, destination, out=out)

    return wrapper


def group_tensors(tensorlistlist: Any, with_indices: bool = False) -> dict[Any, Any]:
    """See torch.utils._foreach_utils: the lists, split by the device and dtype of the first one's tensors."""
    groups: dict[tuple[torch.device, torch.dtype], tuple[list[list[Tensor | None]], list[int]]] = {}
    for position, first in enumerate(tensorlistlist[0]):
        key = device_of(first), first.dtype
        lists, indices = groups.setdefault(key, ([[] for _ in tensorlistlist], []))
        for kept, given in zip(lists, tensorlistlist, strict=True):
            if given:
                kept.append(given[position])
        if with_indices:
            indices.append(position)
    return groups


def _patch_distributed(patches: Patches) -> None:
    from torch import distributed
    from torch.distributed import distributed_c10d

    processes = _Processes()
    for module in (distributed, distributed_c10d):
        patches.wrap(module, "init_process_group", processes.init)
        patches.wrap(module, "new_group", processes.new_group)
        patches.wrap(module, "barrier", processes.barrier)
        patches.wrap(module, "get_backend", processes.backend)
        patches.put(module, "is_nccl_available", lambda: True)
    for name in _COLLECTIVES:
        if hasattr(distributed, name):
            patches.wrap(distributed, name, processes.collective)
    patches.put(layer_functions.SyncBatchNorm, "apply", _sync_batch_norm)


class _Processes:
    """Groups of processes: one asked of NCCL is gloo's and, as NCCL, takes tensors on devices only."""

    def __init__(self) -> None:
        self._nccl = False

    def init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``init_process_group``."""

        @functools.wraps(original)
        def init_process_group(backend=None, *args, **kwargs):
            kwargs.pop("device_id", None)
            original(_without_nccl(backend or "nccl"), *args, **kwargs)
            self._nccl = str(backend).lower() == "nccl"

        return init_process_group

    def new_group(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``new_group``."""

        @functools.wraps(original)
        def wrapper(ranks=None, timeout=None, backend=None, *args, **kwargs):
            kwargs.pop("device_id", None)
            return original(ranks, timeout, _without_nccl(backend), *args, **kwargs)

        return wrapper

    def barrier(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``barrier``: gloo knows no devices."""

        @functools.wraps(original)
        def wrapper(group=None, async_op=False, device_ids=None):
            return original(group, async_op)

        return wrapper

    def backend(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``get_backend``: what was asked for."""

        @functools.wraps(original)
        def get_backend(group=None):
            return "nccl" if self._nccl and group is None else original(group)

        return get_backend

    def collective(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A function that exchanges tensors."""

        @functools.wraps(original)
        def wrapper(*args, **kwargs):
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            if self._nccl and any(not tensor.is_cuda for tensor in tensors):
                raise RuntimeError("No backend type associated with device type cpu")
            return original(*args, **kwargs)

        return wrapper


def _sync_batch_norm(
    input, weight, bias, running_mean, running_var, eps, momentum, process_group, world_size
):
    """What SyncBatchNorm calls where it has others to ask: PyTorch's own is for GPUs only."""
    running = (running_mean, running_var, momentum)
    return normalized_over_ranks(input, weight, bias, eps, running, process_group)


def _without_nccl(backend: Any) -> Any:
    return "gloo" if backend is not None and "nccl" in str(backend).lower() else backend
