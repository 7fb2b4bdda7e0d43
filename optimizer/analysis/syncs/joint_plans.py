"""Loops that get tensors of one function of the script's own: all of them can do without its numbers, or none can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..facts import Loop
from ..obstacles import Obstacle
from .deferral_plan import LoopPlan
from .device_reads import DeviceRead


def agreed(plans: Sequence[LoopPlan]) -> tuple[LoopPlan, ...]:
    """``plans``, with an obstacle in each that gets a number which another loop needs, or takes for another kind of number."""
    found = {plan.loop: plan for plan in plans}
    is_settled = False
    while not is_settled:
        is_settled = True
        for source, arrivals in _arrivals(found.values()).items():
            why = _disagreement(source, found, arrivals)
            for loop, read in arrivals if why is not None else ():
                plan = found[loop]
                if plan.obstacles:
                    continue
                obstacle = Obstacle(read.module, read.node, f"{read.told} {why}")
                found[loop] = replace(plan, obstacles=(obstacle,))
                is_settled = False
    return tuple(found.values())


def joined(plans: Iterable[LoopPlan]) -> list[list[LoopPlan]]:
    """``plans`` in groups, of which each changes functions of its own."""
    groups: list[list[LoopPlan]] = []
    for plan in plans:
        mine = _sources(plan)
        near = [group for group in groups if any(mine & _sources(other) for other in group)]
        groups = [group for group in groups if group not in near]
        groups.append([*(other for group in near for other in group), plan])
    return groups


def _sources(plan: LoopPlan) -> set[DeviceRead]:
    return {read.within for read in plan.reads if read.within is not None}


def _arrivals(plans: Iterable[LoopPlan]) -> dict[DeviceRead, list[tuple[Loop, DeviceRead]]]:
    """For each read in a function, the loops that get its number, and where."""
    found: dict[DeviceRead, list[tuple[Loop, DeviceRead]]] = {}
    for plan in plans:
        for read in plan.given_back:
            found.setdefault(read.source, []).append((plan.loop, read))
    return found


def _disagreement(
    source: DeviceRead, plans: dict[Loop, LoopPlan], arrivals: list[tuple[Loop, DeviceRead]]
) -> str | None:
    """Why the loops of ``arrivals`` cannot all get the tensor of ``source``, as the end of a sentence; None where they can."""
    for loop, read in arrivals:
        if plans[loop].obstacles or read not in plans[loop].reads:
            return f"is needed in every step by another loop ({loop.place})"
    counts = {
        variable.is_integer
        for loop, _ in arrivals
        for variable, _ in plans[loop].deferred
        if any(read.within is source for read in variable.reads)
    }
    return "is a count in one loop and part of a fraction in another" if len(counts) > 1 else None
