"""Scripts that are written for several processes, which torchrun or a like program starts."""

from __future__ import annotations

from ..calls.reach import never_runs
from ..values.resolver import Resolver

_JOINING = {
    "init_process_group": "torch.distributed.init_process_group",
    "Accelerator": "accelerate.Accelerator",
}
"""What joins the group of the processes that the environment tells of, by its last name."""
_STARTING = {
    "spawn": "torch.multiprocessing.spawn",
    "start_processes": "torch.multiprocessing.start_processes",
}


def joins_process_group(resolver: Resolver) -> bool:
    """Whether the script joins a process group as torchrun's processes do, and starts no processes by itself."""
    return _calls(resolver, _JOINING) and not _calls(resolver, _STARTING)


def _calls(resolver: Resolver, functions: dict[str, str]) -> bool:
    return any(
        full in resolver.names(call.func, module)
        for module in resolver.project.modules
        for name, full in functions.items()
        for call in module.calls_named(name)
        if not never_runs(resolver, call, module)
    )
