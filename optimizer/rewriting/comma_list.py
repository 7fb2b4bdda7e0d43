"""The items between two brackets, edited in the layout they are written in."""

from __future__ import annotations

import re
import tokenize
from dataclasses import dataclass, replace

from .lines import NOT_CODE, line_starts, tokens

_LINE_END = re.compile(r"(?<![\\\r])(?:\r\n|\r|\n)")
_OPENING, _CLOSING = "([{", ")]}"


@dataclass(frozen=True)
class CommaList:
    """What stands between an opening bracket and its closing one.

    ``lead`` is what precedes the first item and ``gaps[i]`` what separates item ``i`` from the next: white space
    and comments, around one comma. ``tail`` follows the last item, and begins the trailing comma if there is one.
    """

    opening: str
    lead: str
    items: tuple[str, ...]
    gaps: tuple[str, ...]
    tail: str
    closing: str

    @classmethod
    def parse(cls, text: str) -> CommaList:
        """The list written in ``text``, which begins and ends with its brackets."""
        runs: list[tuple[int, int]] = []
        for start, end, is_comma in _top_level(text):
            if is_comma:
                runs.append((-1, -1))
            elif not runs or runs[-1][0] < 0:
                runs.append((start, end))
            else:
                runs[-1] = (runs[-1][0], end)
        spans = [run for run in runs if run[0] >= 0]
        if not spans:
            return cls(text[0], text[1:-1], (), (), "", text[-1])
        edges = [1, *(edge for span in spans for edge in span), len(text) - 1]
        between = [text[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2)]
        items = tuple(text[start:end] for start, end in spans)
        return cls(text[0], between[0], items, tuple(between[1:-1]), between[-1], text[-1])

    @property
    def text(self) -> str:
        if not self.items:
            return self.opening + self.lead + self.closing
        parts = [self.opening, self.lead]
        for item, gap in zip(self.items, (*self.gaps, self.tail), strict=True):
            parts += [item, gap]
        return "".join([*parts, self.closing])

    def replace(self, index: int, item: str) -> CommaList:
        """The list with another item at ``index``."""
        return replace(self, items=(*self.items[:index], item, *self.items[index + 1 :]))

    def insert(
        self, index: int, item: str, newline: str, unit: str, longest: int | None = None
    ) -> CommaList:
        """The list with ``item`` before the one at ``index``, on a line of its own where its neighbour has one.

        Behind the last one, lines of several items are filled as long as they do not become longer than ``longest``. Comments stay with the
        items they follow. A trailing comma stays if there is one.
        """
        items = (*self.items[:index], item, *self.items[index:])
        if not self.items:
            return self._first(item, newline, unit)
        if index == len(self.items):
            gap, tail = self._appended(newline)
            if longest is not None:
                gap = self._packed(gap, item, newline, longest)
            return replace(self, items=items, gaps=(*self.gaps, gap), tail=tail)
        if index == 0:
            gap = "," + newline + _last_line(self.lead) if _breaks(self.lead) else ", "
            return replace(self, items=items, gaps=(gap, *self.gaps))
        before, after = self._divided(index - 1, newline)
        gaps = (*self.gaps[: index - 1], before, after, *self.gaps[index:])
        return replace(self, items=items, gaps=gaps)

    def _divided(self, index: int, newline: str) -> tuple[str, str]:
        """Two gaps for the one at ``index``: where a line ends that has other items, too, on the shorter of both lines.

        Between two lines of one item each it gets one of its own, whatever the other lines have.
        """
        gap = self.gaps[index]
        if not _breaks(gap) or "#" in gap or all(map(_breaks, self.gaps)):
            return _divide(gap, newline)
        starts = [self.lead, *self.gaps]
        lines = [""]
        for start, item in zip(starts, self.items, strict=True):
            lines += [""] * _breaks(start)
            lines[-1] += start + item
        ending = sum(map(_breaks, starts[: index + 1]))
        around = [*map(_breaks, starts[index:]), True]  # before either item, and behind the second
        if around[0] and around[2]:
            return _divide(gap, newline)
        is_shorter = len(lines[ending]) <= len(lines[ending + 1])
        return (", ", gap) if is_shorter else (gap, ", ")

    def remove(self, index: int) -> CommaList:
        """The list without the item at ``index`` and the comment behind it; comments on own lines stay."""
        items = (*self.items[:index], *self.items[index + 1 :])
        if not items:
            lead = ""
            if "#" in self.lead:
                lead = self.lead.removesuffix(_last_line(self.lead)) + _last_line(self.tail)
            return replace(self, lead=lead, items=(), gaps=(), tail="")
        if index == len(self.items) - 1:
            return replace(self, items=items, gaps=self.gaps[:-1], tail=self._tail_without_last())
        behind = self.gaps[index]
        if index == 0:
            lead = _merge(self.lead, behind)
            return replace(self, lead=lead, items=items, gaps=self.gaps[1:])
        gap = _merge(self.gaps[index - 1], behind)
        return replace(
            self, items=items, gaps=(*self.gaps[: index - 1], gap, *self.gaps[index + 1 :])
        )

    def comment(self, index: int) -> str:
        """What the comment on the line where the item at ``index`` ends says; empty where there is none."""
        return _first_line(self._behind(index))[0].partition("#")[2].strip()

    def with_comment(self, index: int, comment: str, newline: str) -> CommaList:
        """The list with ``comment`` instead of that."""
        closes = index == len(self.items) - 1
        code, rest = _first_line(self._behind(index))
        if not rest:
            rest = newline + ("" if closes else _last_line(self.lead or self.gaps[0]))
        behind = f"{code.partition('#')[0].rstrip()}  # {comment}{rest}"
        if closes:
            return replace(self, tail=behind)
        return replace(self, gaps=(*self.gaps[:index], behind, *self.gaps[index + 1 :]))

    def _behind(self, index: int) -> str:
        return self.gaps[index] if index < len(self.gaps) else self.tail

    def _first(self, item: str, newline: str, unit: str) -> CommaList:
        if not _breaks(self.lead):
            return replace(self, lead="", items=(item,))
        closing_indent = _last_line(self.lead)
        lead = self.lead[: len(self.lead) - len(closing_indent)] + closing_indent + unit
        return replace(self, lead=lead, items=(item,), tail="," + newline + closing_indent)

    def _appended(self, newline: str) -> tuple[str, str]:
        """The gap before an item added behind the last one, and the tail behind it."""
        pattern = self.gaps[-1] if self.gaps else self.lead
        if self.gaps and _breaks(pattern.partition(",")[0]) and "#" not in pattern:
            return pattern, self.tail  # commas lead their lines
        trailing, rest = ("," if self._trailing_comma else ""), self.tail
        if trailing:
            rest = _without_comma(rest)
        if not _breaks(pattern):
            spaced = pattern if self.gaps and "#" not in pattern and "\\" not in pattern else ", "
            return spaced, trailing + rest
        comment, after = _first_line(rest)
        if "#" not in comment:
            return "," + newline + _last_line(pattern), trailing + comment + after
        return "," + comment + newline + _last_line(pattern), trailing + after

    def _packed(self, gap: str, item: str, newline: str, longest: int) -> str:
        """The gap before an item added behind the last one: in lines of several items, on the last one if it has room there."""
        starts = [self.lead, *self.gaps]
        begun = max((i for i, start in enumerate(starts) if _breaks(start)), default=None)
        indent = _last_line(starts[begun]) if begun is not None else ""
        if begun is None or all(map(_breaks, self.gaps)) or indent.strip() or "#" in self.tail:
            return gap
        if self._trailing_comma and all(map(_breaks, self.gaps[-2:])):
            return gap  # the last ones have a line each: `data, 64,` and then one keyword a line
        kept = zip(self.items[begun:], [*self.gaps[begun:], ""], strict=True)
        text = indent + "".join(part + behind for part, behind in kept)
        last = _last_line(text) if begun == 0 else text
        closing = "" if _breaks(self.tail) else self.closing
        has_room = len(last) + len(f", {item}{closing}") <= longest
        if begun == 0 and not (closing or _breaks(text)):
            return gap  # all on one line between the brackets, as black has it
        if gap == ", " and not has_room and begun < len(self.items) - 1:
            return "," + newline + indent
        return ", " if has_room and gap == "," + newline + indent else gap

    @property
    def _trailing_comma(self) -> bool:
        return any(is_comma for *_, is_comma in _top_level(f"({self.tail})"))

    def _tail_without_last(self) -> str:
        before, behind = self.gaps[-1], self.tail
        trailing = "," if self._trailing_comma else ""
        _, closing = _first_line(_without_comma(behind))
        comment, own_lines = _first_line(_without_comma(before))
        kept = own_lines[: len(own_lines) - len(_last_line(own_lines))].rstrip("\r\n")
        if "#" not in comment:
            comment = ""
        if "#" in comment + kept and not _breaks(closing):
            closing = own_lines[len(kept) :]
        return trailing + comment + kept + closing


def _top_level(text: str) -> list[tuple[int, int, bool]]:
    """Start and end of every token directly inside the brackets of ``text``, and whether it is a separating comma.

    The commas between the parameters of a lambda separate nothing.
    """
    starts = line_starts(text)
    found: list[tuple[int, int, bool]] = []
    depth, lambdas = 0, list[int]()
    for token in tokens(text):
        if token.type in NOT_CODE:
            continue
        is_operator = token.type == tokenize.OP
        if is_operator and token.string in _CLOSING:
            depth -= 1
        if depth >= 1:
            comma = is_operator and token.string == "," and depth == 1 and depth not in lambdas
            if token.string == "lambda" and token.type == tokenize.NAME:
                lambdas.append(depth)
            elif is_operator and token.string == ":" and lambdas and lambdas[-1] == depth:
                lambdas.pop()
            start = starts[token.start[0] - 1] + token.start[1]
            end = starts[token.end[0] - 1] + token.end[1]
            found.append((start, end, comma))
        if is_operator and token.string in _OPENING:
            depth += 1
    return found


def _breaks(gap: str) -> bool:
    """Whether a line ends in ``gap`` (other than by a backslash)."""
    return _LINE_END.search(gap) is not None


def _first_line(gap: str) -> tuple[str, str]:
    """``gap`` up to its first line end, and from there on."""
    at = min((at for end in "\r\n" if (at := gap.find(end)) >= 0), default=len(gap))
    return gap[:at], gap[at:]


def _last_line(gap: str) -> str:
    """What follows the last line end of ``gap``."""
    return gap[max(gap.rfind("\n"), gap.rfind("\r")) + 1 :]


def _without_comma(gap: str) -> str:
    comma = next(
        ((start, end) for start, end, is_comma in _top_level(f"({gap})") if is_comma), None
    )
    return gap[: comma[0] - 1] + gap[comma[1] - 1 :] if comma else gap


def _divide(gap: str, newline: str) -> tuple[str, str]:
    """Two gaps for one: a comment on the line of the item before stays there, others stay before the item behind."""
    if not _breaks(gap):
        return gap, (", " if "\\" in gap else gap)
    if "#" not in gap:
        return gap, gap
    before, after = _first_line(gap)
    if "," not in before.partition("#")[0]:
        return gap, ", "
    return before + newline + _last_line(gap), "," + after


def _merge(before: str, behind: str) -> str:
    """One gap for two, when the item between them goes; the comment on the item's line goes with it."""
    _, own_lines = _first_line(_without_comma(behind))
    if "#" in own_lines:
        return before.rstrip() + own_lines
    if not _breaks(before) and before and _breaks(behind):
        return "," + own_lines
    return before
