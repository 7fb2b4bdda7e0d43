"""Which transform made which line: provenance through a sequence of texts, and the diff that tells it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import takewhile
from typing import TypeAlias

from .line_matching import same_runs

_Opcode: TypeAlias = tuple[str, int, int, int, int]
Names: TypeAlias = tuple[str, ...]
_CONTEXT = 3
_BOM = "\ufeff"


@dataclass(frozen=True)
class _Line:
    """A current line: the index of the original line it comes from, and who made or changed it."""

    origin: int
    names: Names = ()


@dataclass(frozen=True)
class Provenance:
    """Where the lines of a text come from, after transforms have changed it one after the other.

    Lines end at ``\\n``, as diffs have it. ``names`` are the transforms so far, in order. ``_lines`` is None as long as
    nobody has changed the text: most files of a tree stay as they are, and shall cost no more than their text.
    """

    original_text: str
    current_text: str
    names: Names = ()
    _lines: tuple[_Line, ...] | None = None
    _touched: Mapping[int, Names] = field(default_factory=dict[int, Names])

    @classmethod
    def of(cls, text: str) -> Provenance:
        """The provenance of a text that nobody has changed."""
        return cls(text, text)

    @property
    def original(self) -> tuple[str, ...]:
        return _split(self.original_text)

    @property
    def current(self) -> tuple[str, ...]:
        return _split(self.current_text)

    def after(self, text: str, transform: str) -> Provenance:
        """The provenance of ``text``, which ``transform`` made of the current text."""
        current, new = self.current, _split(text)
        known = self._lines or tuple(_Line(index) for index in range(len(current)))
        lines: list[_Line] = []
        touched = dict(self._touched)
        for tag, old_start, old_end, start, end in _opcodes(current, new):
            if tag == "equal":
                lines += known[old_start:old_end]
                continue
            old = known[old_start:old_end]
            for line in old:
                touched[line.origin] = _union(
                    touched.get(line.origin, ()), line.names, (transform,)
                )
            lines += _rewritten(
                current[old_start:old_end], old_start, known, new[start:end], transform
            )
        return replace(
            self,
            current_text=text,
            names=_union(self.names, (transform,)),
            _lines=tuple(lines),
            _touched=touched,
        )

    def original_line(self, line: int) -> int:
        """The original line that current ``line`` comes from (both 1-based); the nearest above for a new one."""
        if self._lines is None:
            return min(max(line, 1), max(len(self.current), 1))
        if not self._lines:
            return 1
        return self._lines[min(max(line, 1), len(self._lines)) - 1].origin + 1

    def names_at(self, line: int) -> Names:
        """The transforms that made or changed current ``line`` (1-based), in order."""
        lines = self._lines or ()
        return lines[line - 1].names if 0 < line <= len(lines) else ()

    def names_at_original(self, line: int) -> Names:
        """The transforms that changed or removed original ``line`` (1-based), in order."""
        return self._touched.get(line - 1, ())


def _rewritten(
    old: Sequence[str], at: int, known: Sequence[_Line], new: Sequence[str], transform: str
) -> Iterator[_Line]:
    """The lines of ``new``, which stand where the lines ``old`` stood, the first of them at index ``at`` of ``known``."""
    # Lines that are only indented keep their origin.
    stripped = [line.strip() for line in old]
    matcher = SequenceMatcher(None, stripped, [line.strip() for line in new], autojunk=False)
    for tag, first, last, start, end in matcher.get_opcodes():
        source = first - 1 if tag == "insert" else first
        for index in range(start, end):
            beside = first + (index - start)
            if tag == "equal":
                source = beside
            elif tag == "replace":
                source = _continued(stripped, source, last, new[index].strip())
            names = known[at + beside].names if beside < last else ()
            place = at + source
            origin = known[place].origin if 0 <= place < len(known) else 0
            yield _Line(origin, _union(names, (transform,)))


def _continued(old: list[str], current: int, last: int, new: str) -> int:
    """Which of the ``old`` lines from ``current`` to ``last`` the line ``new`` belongs to.

    A statement that was broken over several lines keeps its beginning: the line that begins like ``new`` is its
    origin, and that of the lines that follow.
    """
    for index in range(current, last):
        shared = sum(
            1
            for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old[index], new, strict=False))
        )
        if 2 * shared > len(new) and shared > 3:
            return index
    return current


def unified_diff(path_label: str, provenance: Provenance, bom: bool = False) -> str:
    """The change from the original to the current text, every hunk headed by the transforms behind it.

    ``git apply`` and ``patch -p1`` take it, once it is encoded as the file is. ``bom`` says that the file begins
    with a byte order mark, which its text leaves out. Empty when nothing has changed.
    """
    old, new = _marked(provenance.original, bom), _marked(provenance.current, bom)
    groups = _grouped(_opcodes(old, new))
    parts: list[str] = []
    for group in groups:
        heading = ", ".join(_responsible(provenance, group))
        _, old_start, _, start, _ = group[0]
        _, _, old_end, _, end = group[-1]
        ranges = f"-{_range(old_start, old_end)} +{_range(start, end)}"
        parts.append(f"@@ {ranges} @@ {heading}\n")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                parts += _prefixed(" ", old[i1:i2])
                continue
            parts += _prefixed("-", old[i1:i2])
            parts += _prefixed("+", new[j1:j2])
    if not parts:
        return ""
    return f"--- {_label('a/' + path_label)}\n+++ {_label('b/' + path_label)}\n" + "".join(parts)


def _responsible(provenance: Provenance, group: Iterable[_Opcode]) -> Names:
    found: set[str] = set()
    for tag, old_start, old_end, start, end in group:
        if tag != "equal":
            for index in range(old_start, old_end):
                found.update(provenance.names_at_original(index + 1))
            for index in range(start, end):
                found.update(provenance.names_at(index + 1))
    # Where equal lines (blank ones) could be matched in more than one way, all that is known is who took part.
    return tuple(name for name in provenance.names if name in found) or provenance.names


def _split(text: str) -> tuple[str, ...]:
    lines = text.split("\n")
    last = lines.pop()
    return (*(line + "\n" for line in lines), *([last] if last else []))


def _union(*names: Names) -> Names:
    return tuple(dict.fromkeys(name for some in names for name in some))


def _opcodes(old: tuple[str, ...], new: tuple[str, ...]) -> list[_Opcode]:
    """What makes ``new`` of ``old``, as ``difflib`` tells it."""
    opcodes: list[_Opcode] = []
    at, there = 0, 0
    for start, begin, size in [*same_runs(old, new), (len(old), len(new), 0)]:
        if at < start or there < begin:
            tag = (
                "replace" if at < start and there < begin else "delete" if at < start else "insert"
            )
            opcodes.append((tag, at, start, there, begin))
        at, there = start + size, begin + size
        if size:
            opcodes.append(("equal", start, at, begin, there))
    return opcodes


def _grouped(opcodes: Iterable[_Opcode]) -> list[list[_Opcode]]:
    """The hunks: changes with the unchanged lines around them, together where those would meet."""
    groups: list[list[_Opcode]] = []
    lead: _Opcode | None = None
    open_group = False
    for opcode in opcodes:
        tag, i1, i2, j1, j2 = opcode
        if tag != "equal":
            if not open_group:
                groups.append([lead] if lead else [])
            groups[-1].append(opcode)
            open_group, lead = True, None
            continue
        if open_group and i2 - i1 <= 2 * _CONTEXT:
            groups[-1].append(opcode)
            continue
        if open_group:
            groups[-1].append((tag, i1, i1 + _CONTEXT, j1, j1 + _CONTEXT))
        open_group = False
        size = min(_CONTEXT, i2 - i1)
        lead = (tag, i2 - size, i2, j2 - size, j2)
    for group in groups[-1:]:
        tag, i1, i2, j1, j2 = group[-1]
        if tag == "equal":
            size = min(_CONTEXT, i2 - i1)
            group[-1] = (tag, i1, i1 + size, j1, j1 + size)
    return groups


def _marked(lines: tuple[str, ...], bom: bool) -> tuple[str, ...]:
    return (_BOM + lines[0], *lines[1:]) if bom and lines else lines


def _prefixed(sign: str, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield (
            sign + line if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"
        )


def _range(start: int, end: int) -> str:
    """Lines as a hunk header counts them: from 1, an empty range after the line before it."""
    length = end - start
    return f"{start + 1}" if length == 1 else f"{start + 1 if length else start},{length}"


def _label(path: str) -> str:
    """A file name as ``git`` writes it behind ``---`` and ``+++``: ended by a tab where it has a space."""
    quoted = quoted_path(path)
    return quoted + "\t" if " " in path and quoted == path else quoted


def quoted_path(path: str) -> str:
    """A file name as ``git`` writes it: quoted where it needs to be."""
    if any(character in '"\\' or ord(character) < 32 or ord(character) > 126 for character in path):
        escaped = "".join(_escaped(byte) for byte in path.encode())
        return f'"{escaped}"'
    return path


def _escaped(byte: int) -> str:
    if byte in b'"\\':
        return "\\" + chr(byte)
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"
