"""The functions of ``torch.cuda`` and ``torch.accelerator``: devices, memory, random numbers, streams."""

# pyright: reportPrivateUsage=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import torch

from ..patches import Patches
from .state import CAPABILITY, MEMORY, NAME, Devices
from .streams import CUDAGraph, Event, Stream, StreamContext, graphs_missing

_NOTHING = """
    empty_cache ipc_collect init reset_peak_memory_stats reset_max_memory_allocated
    reset_max_memory_cached reset_accumulated_memory_stats manual_seed manual_seed_all seed seed_all
    set_per_process_memory_fraction set_sync_debug_mode _lazy_call _check_capability _check_cubins
    _sleep
""".split()
"""Functions with nothing to do, once their device has been checked."""
_ZERO = """
    memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached
    max_memory_cached utilization memory_usage device_memory_used temperature power_draw clock_rate
    get_sync_debug_mode
""".split()
"""Measures that are not taken."""
_TAKE_NO_DEVICE = {
    "manual_seed",
    "manual_seed_all",
    "set_per_process_memory_fraction",
    "set_sync_debug_mode",
    "_lazy_call",
    "_sleep",
}


def patch_management(patches: Patches, devices: Devices) -> None:
    """Replace what asks the driver."""
    put = functools.partial(_put, patches)
    for name in _NOTHING:
        put(name, _checked(devices, name, None))
    for name in _ZERO:
        put(name, _checked(devices, name, 0))
    for name, function in {
        **_device_functions(devices),
        **_memory_functions(devices),
        **_random_functions(devices),
        **_stream_functions(devices),
    }.items():
        put(name, function)
    _patch_accelerator(patches, devices)
    for name in ("_accelerator_exchangeDevice", "_accelerator_maybeExchangeDevice"):
        if hasattr(torch._C, name):
            patches.put(torch._C, name, torch.cuda._exchange_device)
    for name in ("Stream", "Event"):
        if hasattr(torch, name):
            patches.put(torch, name, getattr(torch.cuda, name))
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        patches.put(torch.cuda.nvtx, name, lambda *args, **kwargs: 0)
    patches.put(torch.backends.cudnn, "is_available", lambda: True)
    patches.put(torch.backends.cudnn, "version", lambda: 90100)
    # Asked before recurrent weights are put into cuDNN's own buffer, which changes nothing that a script sees.
    patches.put(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    patches.put(torch.backends.cuda, "is_built", lambda: True)
    patches.put(torch.version, "cuda", torch.version.cuda or "12.6")


def _put(patches: Patches, name: str, value: Any) -> None:
    """Replace ``name`` in ``torch.cuda`` and in the module of it that it comes from."""
    for module in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
        if module is torch.cuda or hasattr(module, name):
            patches.put(module, name, value)


def _checked(devices: Devices, name: str, answer: Any) -> Any:
    """A function of an optional device that gives ``answer``."""

    def function(device=None, *args, **kwargs):
        if name != "_lazy_call" and not name.endswith(("seed", "seed_all")):
            devices.initialize()
        if name not in _TAKE_NO_DEVICE:
            devices.index(device)
        return answer

    return function


def _device_functions(devices: Devices) -> dict[str, Any]:
    def current_device() -> int:
        devices.initialize()
        return devices.current

    def exchange(index) -> int:
        devices.initialize()
        outer = devices.current
        if index is not None and index >= 0:
            devices.current = devices.index(index)
        return outer

    def set_device(device) -> None:
        devices.initialize()
        devices.current = devices.index(device)

    def properties(device=None):
        devices.initialize()
        devices.index(device)
        return SimpleNamespace(
            name=NAME,
            major=CAPABILITY[0],
            minor=CAPABILITY[1],
            total_memory=MEMORY,
            multi_processor_count=108,
            max_threads_per_multi_processor=2048,
            warp_size=32,
            regs_per_multiprocessor=65536,
            shared_memory_per_block=49152,
            is_integrated=0,
            is_multi_gpu_board=0,
            gcnArchName="",
        )

    return {
        "is_available": lambda: devices.count > 0,
        "device_count": lambda: devices.count,
        "current_device": current_device,
        "set_device": set_device,
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
        "is_initialized": lambda: devices.initialized,
        "_is_in_bad_fork": lambda: devices.forked,
        "_lazy_init": devices.initialize,
        "get_device_name": lambda device=None: properties(device).name,
        "get_device_properties": properties,
        "get_device_capability": lambda device=None: (
            properties(device).major,
            properties(device).minor,
        ),
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_tf32_supported": lambda: True,
        "can_device_access_peer": lambda device, peer: device != peer,
        "get_arch_list": lambda: ["sm_80"],
        "is_current_stream_capturing": lambda: False,
    }


def _memory_functions(devices: Devices) -> dict[str, Any]:
    return {
        "mem_get_info": lambda device=None: (MEMORY, MEMORY),
        "memory_stats": lambda device=None: _Zeros(),
        "memory_stats_as_nested_dict": lambda device=None: {},
        "memory_snapshot": lambda *args, **kwargs: [],
        "memory_summary": lambda device=None, abbreviated=False: f"{NAME}: memory is not counted",
        "list_gpu_processes": lambda device=None: f"{NAME}: no processes",
        "_record_memory_history": lambda *args, **kwargs: None,
    }


class _Zeros(dict[str, int]):
    """Memory statistics: none are kept."""

    def __missing__(self, key: str) -> int:
        return 0


def _random_functions(devices: Devices) -> dict[str, Any]:
    """The emulated devices draw from the host's generator: what is saved and restored is its state."""

    def set_state(new_state, device="cuda") -> None:
        torch.default_generator.set_state(new_state)

    def set_all(new_states) -> None:
        for state in list(new_states)[:1]:
            set_state(state)

    return {
        "get_rng_state": lambda device="cuda": torch.default_generator.get_state(),
        "get_rng_state_all": lambda: [torch.default_generator.get_state()] * devices.count,
        "set_rng_state": set_state,
        "set_rng_state_all": set_all,
        "initial_seed": lambda: torch.default_generator.initial_seed(),
        "default_generators": tuple([torch.default_generator] * devices.count),
    }


def _stream_functions(devices: Devices) -> dict[str, Any]:
    stream_class = type("Stream", (Stream,), {"devices": devices, "__module__": "torch.cuda"})
    event_class = type("Event", (Event,), {"devices": devices, "__module__": "torch.cuda"})
    current: dict[int, Any] = {}
    defaults: dict[int, Any] = {}

    def default_stream(device=None):
        index = devices.index(device)
        if index not in defaults:
            defaults[index] = stream_class(index)
        return defaults[index]

    def current_stream(device=None):
        return current.get(devices.index(device)) or default_stream(device)

    def set_stream(stream) -> None:
        if stream is not None:
            current[stream.device_index] = stream

    def synchronize(device=None) -> None:
        devices.index(device)
        devices.copies.wait()

    return {
        "Stream": stream_class,
        "ExternalStream": stream_class,
        "Event": event_class,
        "synchronize": synchronize,
        "stream": lambda stream: StreamContext(current, stream),
        "StreamContext": functools.partial(StreamContext, current),
        "current_stream": current_stream,
        "default_stream": default_stream,
        "set_stream": set_stream,
        "CUDAGraph": CUDAGraph,
        "graph": CUDAGraph,
        "make_graphed_callables": graphs_missing,
        "graph_pool_handle": graphs_missing,
    }


def _patch_accelerator(patches: Patches, devices: Devices) -> None:
    accelerator: Any = getattr(torch, "accelerator", None)
    if accelerator is None:
        return
    functions: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: devices.count,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: torch.cuda.current_device(),
        "current_device_idx": lambda: torch.cuda.current_device(),
        "set_device_index": lambda device: torch.cuda.set_device(device),
        "set_device_idx": lambda device: torch.cuda.set_device(device),
        "current_stream": lambda device=None: torch.cuda.current_stream(device),
        "set_stream": lambda stream: torch.cuda.set_stream(stream),
        "synchronize": lambda device=None: torch.cuda.synchronize(device),
        "get_device_capability": lambda device=None: {},
    }
    functions |= {name: getattr(torch.cuda, name) for name in ("empty_cache", "memory_stats")}
    functions |= {name: getattr(torch.cuda, name) for name in _ZERO[:4]}
    functions["reset_peak_memory_stats"] = torch.cuda.reset_peak_memory_stats
    functions["reset_accumulated_memory_stats"] = torch.cuda.reset_accumulated_memory_stats
    for name, function in functions.items():
        if hasattr(accelerator, name):
            patches.put(accelerator, name, function)
