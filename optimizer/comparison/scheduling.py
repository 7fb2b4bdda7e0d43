"""When the learning-rate schedulers were stepped: seen also where the rate itself does not change yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from ..execution.observations import Observations
from .findings import Finding, Kind, Severity, note

_SHOWN = 3


def compare_scheduling(original: Observations, other: Observations) -> Iterator[Finding]:
    """The first step of each scheduler that is missing, added, or made at another time.

    A note where a GradScaler skipped other steps: many scripts step the scheduler only after a step that was made. Also where
    only one version has schedulers, and the other was seen to set the same rates: whether they are, is judged by themselves.
    """
    if _by_hand(original, other) or _by_hand(other, original):
        version = "original" if _by_hand(original, other) else "rewrite"
        message = (
            f"only the {version} has schedulers; the other sets the same learning rates itself"
        )
        yield note(Kind.SCHEDULER_STEPS, message)
        return
    skipped = [s.skipped for s in original.steps] != [s.skipped for s in other.steps]
    severity = Severity.NOTE if skipped else Severity.FAILURE
    pairs = zip_longest(original.schedulers, other.schedulers)
    for number, (ours, theirs) in enumerate(pairs):
        one = ours or theirs
        before, after = (Counter(s.steps if s else ()) for s in (ours, theirs))
        if one is None or before == after:
            continue
        at = _first_apart(before, after)
        yield Finding(
            Kind.SCHEDULER_STEPS,
            f"scheduler {number} ({one.class_name}) {_message(before, after, at, other)}",
            severity,
            step=max(at, 1),
            original=before.total(),
            rewritten=after.total(),
        )


def schedules_of_ranks(ranks: Sequence[Observations]) -> Iterator[Finding]:
    """The first scheduler that a rank steps at other times than rank 0, so that one day it trains at another rate.

    Not what is behind the last round, where ranks may end one after the other. A scheduler that only rank 0 has is no mistake by
    itself: what it sets may be sent to the others.
    """
    for number, rank in enumerate(ranks[1:], start=1):
        last = min(ranks[0].rounds, rank.rounds)
        pairs = zip(ranks[0].schedulers, rank.schedulers, strict=False)
        for scheduler, (ours, theirs) in enumerate(pairs):
            before, after = (Counter(r for r in s.steps if r < last) for s in (ours, theirs))
            if ours.class_name == theirs.class_name and before != after:
                message = (
                    f"scheduler {scheduler} ({ours.class_name}) is stepped {_told(after)} on rank {number}, "
                    f"{_told(before)} on rank 0"
                )
                step = max(_first_apart(before, after), 1)
                yield Finding(Kind.SCHEDULER_STEPS, message, step=step)
                return


def unseen_schedule(original: Observations, other: Observations) -> str | None:
    """The first scheduler that has another setting in the rewrite, a patience say; None where there is none.

    It is asked for where the rates are the same as far as was compared: what it does to those that follow shows nowhere.
    """
    pairs = zip(original.schedulers, other.schedulers, strict=False)
    for number, (ours, theirs) in enumerate(pairs):
        if ours.class_name != theirs.class_name:
            continue
        for name in sorted(ours.settings.keys() & theirs.settings.keys()):
            before, after = ours.settings[name], theirs.settings[name]
            if before != after:
                return (
                    f"scheduler {number} ({ours.class_name}) has {name}={after}, not {before}: here that changes no "
                    "learning rate, and nothing shows what it does to later ones"
                )
    return None


def _by_hand(scheduled: Observations, other: Observations) -> bool:
    """Whether every scheduler of ``scheduled`` changed a rate that a later step had, and ``other`` does it without any."""
    stepped = [s for s in scheduled.schedulers if s.steps]
    seen = all(min(s.changes, default=other.rounds) < other.rounds for s in stepped)
    return bool(stepped) and seen and not any(s.steps for s in other.schedulers)


def _first_apart(before: Counter[int], after: Counter[int]) -> int:
    """The first number of rounds after which the counts differ."""
    return min(r for r in before.keys() | after.keys() if before[r] != after[r])


def _message(before: Counter[int], after: Counter[int], at: int, other: Observations) -> str:
    """What is wrong; ``at`` is the first number of rounds after which the counts differ."""
    told = _told(before)
    if after == Counter({place: 2 * count for place, count in before.items()}):
        return f"is stepped twice as often: {after[at]} times after step {at}, not {before[at]}"
    if len(before) < len(after) and len(after) >= other.rounds - 1 > 1 and _once_behind_each(after):
        return f"is stepped after every optimizer step; in the original {told}"
    fewer = len(after) < len(before) and at in sorted(before)[:_SHOWN] and not after[at]
    if fewer and len(before) >= other.rounds - 1 > 1:
        return f"is no longer stepped after every optimizer step, but {_told(after)}"
    if at == 0 and not before[0]:
        several = f" {_times(after[0])}" if after[0] > 1 else ""
        return f"is stepped{several} before the first optimizer step; in the original {told}"
    if not after[at]:
        return f"is no longer stepped after step {at}; in the original {_times(before[at])}"
    if not before[at]:
        return (
            f"is stepped {_times(after[at])} after step {at}, where the original does not step it"
        )
    return f"is stepped {_times(after[at])} after step {at}; in the original {_times(before[at])}"


def _once_behind_each(places: Counter[int]) -> bool:
    """Whether no optimizer step has more than one step of the scheduler behind it: a step for each batch makes several of them
    where gradients are accumulated, some before the first optimizer step."""
    return 0 not in places and set(places.values()) == {1}


def _told(places: Counter[int]) -> str:
    if not places:
        return "never within these steps"
    listed = sorted(places)
    more = ", ..." if len(listed) > _SHOWN else ""
    noun = "step" if len(listed) == 1 else "steps"
    return f"after {noun} {', '.join(map(str, listed[:_SHOWN]))}{more}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
