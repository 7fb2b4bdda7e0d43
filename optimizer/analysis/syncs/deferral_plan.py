"""Which loops can do without waiting for the device in every step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..calls.signatures import call_argument
from ..devices.numbered_gpus import several_gpus
from ..facts import Fact, Loop, excerpt
from ..obstacles import Obstacle
from ..tensors.tensor_kinds import TensorKinds
from ..values.resolver import Resolver
from .conversions import Conversion, Conversions
from .deferral_checks import Refused
from .deferrals import LoopDeferral
from .deferred import Deferred
from .deferred_meters import DeferredMeter, MeterDeferral
from .device_reads import DeviceRead, find_device_reads, runs_rarely, step_loop
from .device_waits import find_waits, why_waits
from .loop_definitions import HandedOver
from .returned_reads import returned_reads
from .step_uses import why_needed
from .untold_waits import untold_waits, wait_beside

_STREAMS = re.compile(r"cuda\.Stream|cuda\.stream|CUDAGraph|reduce-overhead")


@dataclass(frozen=True, eq=False)
class LoopPlan(Fact):
    """A loop over steps that reads numbers from the device.

    ``deferred`` are the variables that can wait, with where they become numbers; ``meters`` the objects that can be given
    tensors; ``obstacles`` the reads that cannot wait. ``given_back`` are those whose numbers functions give back.
    ``asks`` is false where the loop itself reads no number, and waits all the same.
    """

    loop: Loop
    deferred: tuple[tuple[Deferred, tuple[Conversion, ...]], ...]
    meters: tuple[DeferredMeter, ...]
    obstacles: tuple[Obstacle, ...]
    given_back: tuple[DeviceRead, ...] = ()
    asks: bool = True

    @property
    def reads(self) -> tuple[DeviceRead, ...]:
        """What the variables and meters that can wait are computed from."""
        kept = (*(variable for variable, _ in self.deferred), *self.meters)
        return tuple(read for each in kept for read in each.reads)


def plan_loops(
    resolver: Resolver, loops: tuple[Loop, ...], kinds: TensorKinds
) -> tuple[LoopPlan, ...]:
    """The loops over steps in which the device is asked for numbers, in source order per module."""
    by_node = {loop.node: loop for loop in loops}
    reads: dict[Loop, list[DeviceRead]] = {}
    everything = find_device_reads(resolver, kinds)
    for read in everything:
        loop = step_loop(read.module, read.node, by_node)
        if loop is not None:
            reads.setdefault(loop, []).append(read)
    refused: dict[Loop, list[Obstacle]] = {}
    given_back: set[ast.expr] = set()
    numbers = [read for read in everything if not read.is_array]
    for loop, read, why in returned_reads(resolver, numbers, by_node):
        own = reads.setdefault(loop, [])
        given_back.add(read.source.node)
        if why is None:
            own.append(read)
        else:
            refused.setdefault(loop, []).append(Obstacle(read.module, read.node, why))
    others = [read for read in everything if read.node not in given_back]
    obstacle = _global_obstacle(resolver)
    found: list[LoopPlan] = []
    for loop, own in reads.items():
        plan = _plan(resolver, loop, own, obstacle)
        plan = replace(plan, obstacles=(*plan.obstacles, *refused.get(loop, ())))
        if plan.deferred or plan.meters:
            waits = find_waits(resolver, kinds, loop, others)
            more = [Obstacle(w.module, w.node, why_waits(resolver, w)) for w in waits]
            plan = replace(plan, obstacles=(*plan.obstacles, *more))
            if not plan.obstacles:
                wait = wait_beside(resolver, kinds, everything, loop, plan.reads)
                plan = replace(plan, obstacles=() if wait is None else (wait,))
        found.append(plan)
    told = {plan.loop for plan in found if plan.obstacles or plan.deferred or plan.meters}
    for loop, why in untold_waits(resolver, kinds, by_node, everything, told):
        found.append(LoopPlan(loop.module, loop.node, loop, (), (), (why,), asks=False))
    return tuple(found)


def _plan(
    resolver: Resolver,
    loop: Loop,
    reads: list[DeviceRead],
    general: Obstacle | None,
) -> LoopPlan:
    planned = LoopDeferral(resolver, loop, reads)
    conversions = Conversions(resolver)
    obstacles = list(planned.obstacles)
    deferred: list[tuple[Deferred, tuple[Conversion, ...]]] = []
    for variable in planned.deferred:
        try:
            deferred.append((variable, conversions.of(variable)))
        except Refused as refused:
            obstacles.append(Obstacle(loop.module, refused.node, refused.why))
    meters: list[DeferredMeter] = []
    for meter in _meters(resolver, planned, reads):
        if isinstance(meter, DeferredMeter):
            meters.append(meter)
        else:
            obstacles.append(meter)
    if deferred or meters:
        obstacles += [general] if general is not None else []
        obstacles += [*_timed_steps(conversions, loop), *_timed_functions(conversions, reads)]
    return LoopPlan(
        loop.module,
        loop.node,
        loop,
        tuple(deferred),
        tuple(meters),
        tuple(obstacles),
        tuple(read for read in reads if read.within is not None),
    )


def _meters(
    resolver: Resolver, planned: LoopDeferral, reads: list[DeviceRead]
) -> Iterator[DeferredMeter | Obstacle]:
    """The objects that the loop gives numbers to, or what keeps them from being given tensors."""
    module = planned.module
    by_node = {read.node: read for read in reads}
    deferral = MeterDeferral(resolver, planned.loop, by_node, planned.deferred)
    by_name: dict[str, list[HandedOver]] = {}
    for handed in planned.handed_over:
        by_name.setdefault(handed.name, []).append(handed)
    for calls in by_name.values():
        try:
            meter = deferral.of(calls)
        except Refused as refused:
            yield Obstacle(module, refused.node, refused.why)
            continue
        if meter is not None:
            yield meter
            continue
        for handed in calls:
            why = why_needed(resolver, handed.value, module)
            yield Obstacle(module, handed.value, f"`{excerpt(module, handed.value)}` {why}")


def _timed_steps(conversions: Conversions, loop: Loop) -> list[Obstacle]:
    """A clock that is read in every step measures the work of the step only as long as the step waits for it."""
    module = loop.module
    clock = conversions.clock(
        (s for s in loop.node.body if not isinstance(s, ast.FunctionDef | ast.ClassDef)), module
    )
    if clock is None or all(
        runs_rarely(module, call, loop.node)
        for call in module.calls
        if loop.node in module.ancestors(call) and conversions.clock([call], module) is call
    ):
        return []
    return [Obstacle(module, clock, f"it is timed (`{excerpt(module, clock)}`)")]


def _timed_functions(conversions: Conversions, reads: Iterable[DeviceRead]) -> Iterator[Obstacle]:
    """A clock in a function that gives numbers back measures its work only as long as the function waits for them."""
    for read in reads:
        if read.within is None:
            continue
        function = read.within.module.function(read.within.node)
        clock = function and conversions.clock([function], read.within.module)
        if clock:
            code = excerpt(read.within.module, clock)
            yield Obstacle(read.module, read.node, f"the step is timed (`{code}`)")


def _global_obstacle(resolver: Resolver) -> Obstacle | None:
    """Something of the project that may rely on waiting: other GPUs, streams, copies to the host that do not wait."""
    several = several_gpus(resolver)
    if several is not None:
        return several
    for module in resolver.project.modules:
        stream = module.search(_STREAMS)
        if stream is not None:
            why = f"the script orders its work itself (`{stream.group()}`)"
            return Obstacle(module, module.tree, why)
        for call in module.calls:
            if _copies_without_waiting(call):
                return Obstacle(
                    module, call, f"the script copies without waiting (`{excerpt(module, call)}`)"
                )
    return None


def _copies_without_waiting(call: ast.Call) -> bool:
    """A copy to the host that the script does not wait for, or pinned memory that it fills itself."""
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "pin_memory":
        return True
    pinned = call_argument(call, "pin_memory")
    if pinned is not None and call.func.attr in {"empty", "zeros", "ones", "empty_like"}:
        return True
    if call_argument(call, "non_blocking") is None:
        return False
    first = call.args[0] if call.args else None
    to_host = isinstance(first, ast.Constant) and first.value == "cpu"
    return to_host or call.func.attr in {"cpu", "copy_"}
