"""The time of a run in what it writes: ``results/20261128-0218/log.txt``, ``run_1795828713``.

Two runs of one script that are seconds apart have other names, or the same ones, as it happens. What names a moment between
a run's start and its end has the same mark in its place in every run, so that what is written under such a name is compared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .observations import Checkpoint, Observations

STAND_IN = "<time>"

_BETWEEN = r"[-_.:,/Tth @]{0,2}"
"""What may stand between the parts of a time; ``15h30m02`` has letters there."""
_NO_DIGIT = r"(?<!\d)(?<!\d\.)"
_EPOCH = re.compile(
    rf"{_NO_DIGIT}(?P<seconds>\d{{10}})(?:\d{{3}}|\d{{6}}|\d{{9}}|\.\d{{1,9}})?(?!\d)"
)
_SLACK_S = 1.0
"""Names have whole seconds, rounded either way."""


@dataclass(frozen=True)
class TimeStamps:
    """Those of a run from ``begun`` to ``ended``, in seconds since 1970, in local time and in UTC."""

    begun: float
    ended: float

    def masked(self, text: str) -> str:
        """``text`` with a mark in place of each moment of the run: a date with the hour and the minute at least, a date with
        its year, or seconds since 1970."""
        text = _EPOCH.sub(self._seconds, text)
        for pattern in self._patterns:
            text = pattern.sub(self._moment, text)
        return text

    @cached_property
    def _minutes(self) -> frozenset[tuple[int, int]]:
        """The hours and minutes that the run saw, by a clock of 24 hours and one of 12."""
        return frozenset(
            (hour, moment.minute)
            for moment in self._moments()
            for hour in (moment.hour, (moment.hour - 1) % 12 + 1)
        )

    def _moments(self) -> Iterator[datetime]:
        at = self.begun - _SLACK_S
        while at < self.ended + _SLACK_S + 60:
            utc = datetime.fromtimestamp(min(at, self.ended + _SLACK_S), timezone.utc)
            yield utc
            yield utc.astimezone()
            at += timedelta(minutes=1).total_seconds()

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], ...]:
        """Dates with times of day, then dates by themselves."""
        days = sorted({moment.date() for moment in self._moments()})
        full = "|".join(form for day in days for form in _dates(day.year, day.month, day.day))
        short = "|".join(
            form for day in days for form in _short_dates(day.year, day.month, day.day)
        )
        before, after = _time_of_day(1), _time_of_day(2)
        return (
            re.compile(
                rf"{_NO_DIGIT}(?:(?:{full}|{short}){_BETWEEN}{before}|{after}{_BETWEEN}(?:{full}|{short}))(?!\d)"
            ),
            re.compile(rf"{_NO_DIGIT}(?:{full})(?!\d)"),
        )

    def _seconds(self, found: re.Match[str]) -> str:
        within = self.begun - _SLACK_S <= int(found["seconds"]) <= self.ended + _SLACK_S
        return STAND_IN if within else found[0]

    def _moment(self, found: re.Match[str]) -> str:
        parts = found.groupdict()
        if not parts:
            return STAND_IN
        hour, minute = (parts[f"{unit}1"] or parts[f"{unit}2"] for unit in ("hour", "minute"))
        return STAND_IN if (int(hour), int(minute)) in self._minutes else found[0]


def _time_of_day(number: int) -> str:
    """A pattern for an hour and a minute, in groups with that ``number``, and the second and more."""
    return (
        rf"(?P<hour{number}>[012]?\d){_BETWEEN}(?P<minute{number}>[0-5]\d)"
        r"(?:[-_.:m ]?[0-5]\d(?:s|[._,]?\d{1,6})?)?m?(?: ?[AaPp][Mm])?"
    )


def _dates(year: int, month: int, day: int) -> Iterator[str]:
    """How a day is written with its year, of four digits."""
    name = datetime(year, month, day).strftime("%b")
    of_month, of_day = rf"0?{month}", rf"0?{day}"
    for parts in (
        (str(year), of_month, of_day),
        (of_day, of_month, str(year)),
        (of_month, of_day, str(year)),
        (str(year), name, of_day),
        (of_day, name, str(year)),
        (name, of_day, str(year)),
    ):
        yield "[-_./ ]?".join(parts)


def _short_dates(year: int, month: int, day: int) -> Iterator[str]:
    """How it is written with a year of two digits, or without one."""
    name = datetime(year, month, day).strftime("%b")
    for first, second in ((f"{month:02}", f"{day:02}"), (f"{day:02}", f"{month:02}")):
        yield rf"(?:{year % 100:02}[-_./ ]?)?{first}[-_./ ]?{second}(?:[-_./ ]?{year % 100:02})?"
    yield rf"{name}[-_./ ]?0?{day}"
    yield rf"0?{day}[-_./ ]?{name}"


def without_time_stamps(run: Observations, stamps: TimeStamps) -> Observations:
    """``run`` with a mark in place of each of its moments, in the paths of what it wrote, the words it saved and its output.

    What then has one path is numbered, in the order of the paths it had.
    """
    written = {one.path for one in (*run.files, *run.checkpoints)} | {*run.removed}
    paths = {path: stamps.masked(path) for path in sorted(written)}
    alike, seen = Counter(paths.values()), Counter[str]()
    for path, name in paths.items():
        if alike[name] > 1:
            seen[name] += 1
            paths[path] = f"{name} ({seen[name]})"
    return replace(
        run,
        stamps=stamps,
        stdout=stamps.masked(run.stdout),
        files=tuple(
            replace(
                file,
                path=paths[file.path],
                leads_to=None if file.leads_to is None else stamps.masked(file.leads_to),
            )
            for file in run.files
        ),
        checkpoints=tuple(_saved(save, paths[save.path], stamps) for save in run.checkpoints),
        removed=tuple(paths[path] for path in run.removed),
        ranks=tuple(without_time_stamps(rank, stamps) for rank in run.ranks),
    )


def _saved(save: Checkpoint, path: str, stamps: TimeStamps) -> Checkpoint:
    entries = {
        key: entry if entry.value is None else replace(entry, value=stamps.masked(entry.value))
        for key, entry in save.entries.items()
    }
    return replace(save, path=path, entries=entries)
