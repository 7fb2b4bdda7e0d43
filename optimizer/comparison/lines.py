"""The lines of a program's output: words and numbers, and which lines of two outputs belong together."""

from __future__ import annotations

import difflib
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from .optimization import IMPLEMENTATION_CHOICES

OPTIONS = re.compile(r"\bNamespace\((.*)\)")
"""Options as argparse prints them: what went into the run, not what came out. What they do is compared itself."""

_CHOICE = re.compile(
    rf"\b((?:{'|'.join(sorted(IMPLEMENTATION_CHOICES))})['\"]?): (?:None|True|False)\b"
)
"""A setting of an optimizer, as it is printed, that chooses how an update is computed, not which."""

_IN_PLACE = re.compile(r"(?:, )?\binplace=(?:True|False)\b")
"""Of a printed network: whether a layer writes over what it was given, which changes no number (where backward misses it, torch raises)."""

_MASKS = (
    (OPTIONS, "Namespace(<options>)"),
    (re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), ""),
    (re.compile(r",? ?grad_fn=<[^>]*>"), ""),
    (re.compile(r", device='[^']*'"), ""),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "<address>"),
    (_CHOICE, r"\1: <choice>"),
    (_IN_PLACE, ""),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b"), "<date>"),
    # not the 1:55.23 of R@1:55.23, nor the 10:62 of hit@10:62
    (re.compile(r"(?<![@\w])\d{1,2}:[0-5]\d(?::[0-5]\d)?(?:[.,]\d+)?\b"), "<time>"),
    # 1s203ms in one run, 980ms in another
    (
        re.compile(r"(?<![\w.])(?:\d+D)?(?:\d+h)?(?:\d+m)?(?:\d+s|(?:\d+s)?\d+ms)(?![\w.])"),
        "<duration>",
    ),
    (re.compile(r"(?<![\w/.])(?:[A-Za-z]:)?(?:[\\/][\w.+@~-]+){2,}"), "<path>"),
)
"""What names no number and differs between runs that do the same; all replaced before lines are compared."""

PROFILER_TABLE = re.compile(
    r"^-{3,}(?: +-{3,})+ *\n.*\bSelf CPU\b.*\n(?:.*\n)*?Self CPU time total:.*(?:\nSelf \w+ time total:.*)?",
    re.MULTILINE,
)
"""A table of PyTorch's profiler: what it measured, how often and in which order is another in every run."""

_BAR = re.compile(r"\d%\|.*\||[━╸╺]{3,}|\[[=#]*>?[.\- ]*\] .*(?:/s|/it|/step|ETA|<time>)")
"""A progress bar, as tqdm, rich and Keras draw them: when there is time to draw it, and what it says then, is another in every run."""

NUMBER = re.compile(
    r"(?<![A-Za-z_0-9.])([-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan\b|inf(?:inity)?\b))(?![0-9_])",
    re.IGNORECASE,
)
"""A number as it is printed."""
_UNIT_AFTER = re.compile(
    r"\s*(?:(?:s|secs?|seconds?|ms|msec|milliseconds?|us|µs|ns|mins|minutes?|h|hrs?|hours?|[KMGT]i?B|[KMGTP]?FLOPs?)\b"
    # the minimum, where a number follows that is no seconds
    r"|min\b(?!\s*[:=]?\s*[-+]?\d[\d.]*(?![\d.])(?!\s*(?:s|secs?|seconds?)\b))"
    r"|\w+\s?/\s?(?:s|sec|second|min|minute|hour|h)\b|(?:s|ms|sec|seconds)\s?/\s?\w+)",
    re.IGNORECASE,
)
_QUANTITY_BEFORE = re.compile(
    r"(?:\b|_)(?:(?:run|wall)?time|times|elapsed|took|duration|latency|eta|speed|throughput|fps|per[_ ]sec(?:ond)?|secs?|seconds|ms"
    r"|memory|mem|[KMGTP]?flop?s)"
    r"[^A-Za-z0-9]*(?:\([^)]*\)[^A-Za-z0-9]*)?$",
    re.IGNORECASE,
)
_MEMORY = re.compile(r"[KMGT]i?B|mem|flop?s?", re.IGNORECASE)
"""What is no clock's, and may well be the same in two runs: memory, and how many operations were computed."""


STAND_IN = "<default>"
"""In place of what an option is told to be whose default the rewrite changes."""


def without_options(text: str, names: Iterable[str]) -> str:
    """``text`` with a mark in place of what it tells of the options ``names``: ``n_cpu=0``, ``'n_cpu': 0``, ``n_cpu: 0``."""
    spelled = "|".join(re.escape(name) for name in sorted(names))
    if not spelled:
        return text
    pattern = rf"(?<![\w-])((?:{spelled})['\"]?\s*[=:]\s*)[^\s,)}}\]]+"
    return re.sub(pattern, rf"\1{STAND_IN}", text)


@dataclass(frozen=True)
class Line:
    """One line: its 1-based number, its words with ``#`` for numbers, the numbers, and which are times or memory.

    ``timed`` are those of ``measured`` that read like times, or like rates.
    """

    number: int
    text: str
    skeleton: str
    numbers: tuple[str, ...]
    measured: frozenset[int]
    timed: frozenset[int]


_WITH_DIGITS = re.compile(r"[A-Za-z0-9]*\d[A-Za-z0-9]*")
"""Part of a name: the second a run was started in, a hash, a count."""

_SECONDS = re.compile(r"\d{1,2}s?|\d{6}")
_UNIT_OF_TIME = re.compile(r"\d{1,2}[hm]?|\d{4}|\d{8}")

Pairs: TypeAlias = "Sequence[tuple[Line | None, Line | None]]"
"""The lines of two outputs, in order; None stands for a line that the other does not have."""


def read_lines(text: str) -> list[Line]:
    """The non-empty lines of a program's output without progress bars; a carriage return starts a line too."""
    lines: list[Line] = []
    text = PROFILER_TABLE.sub(lambda table: "\n" * table[0].count("\n"), text)
    for number, raw in enumerate(text.splitlines(), start=1):
        for mask, stand_in in _MASKS:
            raw = mask.sub(stand_in, raw)
        if raw.strip() and not _BAR.search(raw):
            lines.append(_line(number, " ".join(raw.split())))
    return lines


def _line(number: int, text: str) -> Line:
    matches = list(NUMBER.finditer(text))
    quantities = {
        place: (
            _UNIT_AFTER.match(text, match.end()),
            _QUANTITY_BEFORE.search(text[: match.start()]),
        )
        for place, match in enumerate(matches)
    }
    measured = frozenset(place for place, found in quantities.items() if any(found))
    memory = {
        place
        for place, found in quantities.items()
        if any(quantity and _MEMORY.search(quantity[0]) for quantity in found)
    }
    numbers = tuple(match.group(1) for match in matches)
    return Line(number, text, NUMBER.sub("#", text), numbers, measured, measured - memory)


def aligned(
    ours: Sequence[Line], theirs: Sequence[Line]
) -> Iterable[tuple[Line | None, Line | None]]:
    """Pairs of lines with the same skeleton, in order; None stands for a line that the other does not have.

    Where lines of one skeleton follow each other, such as those of epochs, the ones without a partner are those that
    leave the most others paired with their like.
    """
    matcher = difflib.SequenceMatcher(
        a=[line.skeleton for line in ours], b=[line.skeleton for line in theirs], autojunk=False
    )
    opcodes = matcher.get_opcodes()
    moved = 0
    for index, (tag, start, end, other_start, other_end) in enumerate(opcodes):
        if tag == "equal":
            yield from zip(
                ours[start + moved : end], theirs[other_start + moved : other_end], strict=True
            )
            moved = 0
            continue
        follows = opcodes[index + 1] if index + 1 < len(opcodes) else None
        same = ours[follows[1] : follows[2]] if follows else ours[:0]
        if tag == "insert":
            moved = _further(theirs[other_start:other_end], theirs[other_end:], same)
            yield from zip(same[:moved], theirs[other_start : other_start + moved], strict=True)
        elif tag == "delete":
            partners = theirs[follows[3] : follows[4]] if follows else theirs[:0]
            moved = _further(ours[start:end], ours[end:], partners)
            yield from zip(ours[start : start + moved], partners[:moved], strict=True)
        kept = 0 if tag == "insert" else moved
        yield from ((line, None) for line in ours[start + kept : end + kept])
        kept = 0 if tag == "delete" else moved
        yield from ((None, line) for line in theirs[other_start + kept : other_end + kept])


def _further(odd: Sequence[Line], after: Sequence[Line], partners: Sequence[Line]) -> int:
    """By how many lines ``odd``, a run without partners, is better off further down.

    The lines ``after`` it, which have ``partners``, then stand above it with the lines it begins with in their place.
    """
    lines = [*odd, *after]
    best = score = found = 0
    for index, partner in enumerate(partners):
        first, now = lines[index], lines[index + len(odd)]
        if first.skeleton != now.skeleton:
            break
        score += (first.numbers == partner.numbers) - (now.numbers == partner.numbers)
        if score >= best:
            best, found = score, index + 1
    return found


@dataclass(frozen=True)
class Stretch:
    """Lines without partners that follow each other, from the ``start``-th of the first output's up to the ``stop``-th."""

    start: int
    stop: int
    lost: tuple[Line, ...]
    added: tuple[Line, ...]

    def is_like(self, other: Stretch) -> bool:
        """Whether both replace lines, or both only lose or only add some."""
        return (not self.lost, not self.added) == (not other.lost, not other.added)

    def touches(self, other: Stretch) -> bool:
        overlap = max(self.start, other.start) < min(self.stop, other.stop)
        return overlap or self.start == other.start


def names_of_a_run(
    original: Sequence[Line], repeats: Iterable[Sequence[Line]]
) -> Mapping[str, set[int]]:
    """Lines whose words hold what is another in every run (``runs/dqn__1795619817``), and which of their parts with digits that is."""
    found: dict[str, set[int]] = defaultdict(set)
    for repeat in repeats:
        for odd in stretches(list(aligned(original, repeat))):
            added = list(odd.added)
            for line in odd.lost:
                like = next((one for one in added if _form(one) == _form(line)), None)
                if like is not None:
                    added.remove(like)
                    pairs = zip(_parts(line), _parts(like), strict=True)
                    apart = {n for n, (a, b) in enumerate(pairs) if a != b}
                    found[_form(line)] |= apart | _greater_units(line, apart)
    return found


def _greater_units(line: Line, places: set[int]) -> set[int]:
    """What stands before the seconds of a time in ``line``: a run that comes some minutes later has other ones (``15h_57m_34s``)."""
    parts = list(_WITH_DIGITS.finditer(line.skeleton))
    found: set[int] = set()
    for place in places:
        if not _SECONDS.fullmatch(parts[place][0]):
            continue
        for greater in range(place - 1, -1, -1):
            between = line.skeleton[parts[greater].end() : parts[greater + 1].start()]
            if not _UNIT_OF_TIME.fullmatch(parts[greater][0]) or re.search(r"[\s/\\]", between):
                break
            found.add(greater)
    return found


def without_names_of_a_run(lines: Sequence[Line], places: Mapping[str, set[int]]) -> Sequence[Line]:
    """``lines`` with a mark in place of what is another in every run."""
    return [
        _marked(line, places[form]) if (form := _form(line)) in places else line for line in lines
    ]


def _form(line: Line) -> str:
    return _WITH_DIGITS.sub("0", line.skeleton)


def _parts(line: Line) -> list[str]:
    return _WITH_DIGITS.findall(line.skeleton)


def _marked(line: Line, places: set[int]) -> Line:
    number = itertools.count()
    skeleton = _WITH_DIGITS.sub(
        lambda part: "<run>" if next(number) in places else part[0], line.skeleton
    )
    return replace(line, skeleton=skeleton)


def stretches(pairs: Pairs) -> list[Stretch]:
    """Where the outputs that ``pairs`` are aligned of have other words."""
    found: list[Stretch] = []
    at = 0
    for is_odd, group in itertools.groupby(pairs, key=lambda pair: None in pair):
        members = list(group)
        lost = tuple(a for a, _ in members if a is not None)
        if is_odd:
            added = tuple(b for _, b in members if b is not None)
            found.append(Stretch(at, at + len(lost), lost, added))
        at += len(lost)
    return found
