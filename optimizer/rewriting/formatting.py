"""Breaks statements that have become too long, and nothing else: as black does and with black, or as the file does."""

from __future__ import annotations

import ast
import re
import tokenize
from functools import lru_cache

from .calls import aligned_call, exploded_call
from .lines import NOT_CODE, reindent, split_lines, tokens, width, with_newlines
from .spacing import with_spaces_of
from .style import Style

# What makes a lone header or decorator a statement that can be parsed: lines before and after it.
_SETTINGS = (
    ("", ""),
    ("", "\n    pass"),
    ("", "\ndef f():\n    pass"),
    ("if x:\n    pass\n", "\n    pass"),
    ("try:\n    pass\n", "\n    pass"),
)
_OPTIONAL = frozenset("(),;")
_ELEMENT = re.compile(r"\s+([^\s,()\[\]{}]+\s*[:=]\s*)?")
"""What may stand on a line ahead of the value of an element: its key, or the name of an argument."""


def fit(code: str, prefix: str, style: Style, extra: int) -> str:
    """A statement or header as it stands in a file, broken into lines short enough.

    ``code`` begins behind the indentation ``prefix``, which its other lines include; it will be indented by
    ``extra`` columns more. Given back as it is where it fits, and where black cannot make it shorter with every
    comment kept in its place.
    """
    longest = longest_line(code, prefix)
    if longest + extra <= style.line_length:
        return code
    if (alone := _long_elements_broken(code, prefix, style, extra)) is not None:
        return alone
    if (aligned := _aligned(code, prefix, style, extra)) is not None:
        return aligned
    formatted = _black(code, style.line_length - width(prefix) - extra)
    if formatted is None:
        return code
    result = reindent(formatted, prefix, style.indent).removeprefix(prefix)
    return code if longest_line(result, prefix) >= longest else with_newlines(result, style.newline)


def _aligned(code: str, prefix: str, style: Style, extra: int) -> str | None:
    """``code`` with the arguments of its call under each other; None where the file does not have them so, or it cannot be done."""
    if not style.aligns or split_lines(code)[0].rstrip().endswith("("):
        return None
    broken = aligned_call(code, style.line_length - width(prefix) - extra)
    return broken and broken.replace("\n", style.newline + prefix)


def _long_elements_broken(code: str, prefix: str, style: Style, extra: int) -> str | None:
    """``code`` whose author gave elements lines of their own: the calls that made some too long are broken, nothing else is.

    None where something else is too long, or a call cannot be broken so.
    """
    lines = split_lines(code)
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except SyntaxError:
        return None
    calls = [
        node for node in nodes if isinstance(node, ast.Call) and node.lineno == node.end_lineno
    ]
    for index, line in enumerate(lines):
        if width((line if index else prefix + line).rstrip()) + extra <= style.line_length:
            continue
        if index == 0 or not line.isascii():
            return None
        found = [call for call in calls if call.lineno == index + 1]
        call = min(found, key=lambda call: call.col_offset, default=None)
        if call is None or not _ELEMENT.fullmatch(line[: call.col_offset]):
            return None
        behind = line[call.end_col_offset :]
        unit = line[: len(line) - len(line.lstrip())]
        inner = line[call.col_offset : call.end_col_offset]
        broken = exploded_call(inner, style.line_length - width(unit) - extra)
        if behind.strip() not in {"", ","} or broken is None:
            return None
        rest = reindent(broken, unit, style.indent).removeprefix(unit)
        lines[index] = line[: call.col_offset] + with_newlines(rest, style.newline) + behind
    result = "".join(lines)
    return result if longest_line(result, prefix) + extra <= style.line_length else None


def lay_out(code: str, prefix: str, style: Style, extra: int) -> str:
    """New statements as they go into a file: behind ``prefix``, no final line end; see :func:`fit`."""
    result = reindent(code, prefix, style.indent)
    if longest_line(result, "") + extra > style.line_length:
        if (aligned := _aligned(result.removeprefix(prefix), prefix, style, extra)) is not None:
            return prefix + aligned
        formatted = _black(reindent(code, "", " " * 4), style.line_length - width(prefix) - extra)
        result = reindent(formatted or code, prefix, style.indent)
    return with_newlines(result, style.newline)


def without_comment(code: str) -> tuple[str, str]:
    """A statement of one line and the comment behind it, with the blanks before that; both together are ``code``."""
    if len(split_lines(code)) == 1:
        for token in tokens(code):
            if token.type == tokenize.COMMENT:
                end = len(code[: token.start[1]].rstrip())
                return code[:end], code[end:]
    return code, ""


def longest_line(code: str, prefix: str) -> int:
    """The columns that the longest line of ``code`` takes, its first one placed behind ``prefix``."""
    return max((width(line.rstrip()) for line in split_lines(prefix + code)), default=0)


@lru_cache(maxsize=256)
def _black(code: str, line_length: int) -> str | None:
    """``code`` in black's layout, the spaces as they are; None where that would change more than the layout."""
    code = "\n".join(line.rstrip("\r\n") for line in split_lines(code))
    if (exploded := exploded_call(code, line_length)) is not None:
        return exploded
    tree = None
    for before, after in _SETTINGS:
        if tree := _dump(before + code + after):
            break
    else:
        return None
    # A tenth of a second to import, and few rewrites need it: not those that only make a call long.
    import black
    from black.parsing import InvalidInput

    mode = black.Mode(line_length=max(line_length, 1), string_normalization=False)
    try:
        bare = _parenthesized(_without_target_comma(code))
        formatted = black.format_str(before + bare + after, mode=mode)
    except InvalidInput:
        return None
    lines = formatted.rstrip("\n").split("\n")
    result = "\n".join(lines[before.count("\n") : len(lines) - after.count("\n")])
    if _dump(formatted) != tree or _significant(result) != _significant(code):
        return None
    spaced = with_spaces_of(code, result)
    fits = longest_line(spaced, "") <= max(longest_line(result, ""), line_length)
    return spaced if fits and _dump(before + spaced + after) == tree else result


def _parenthesized(code: str) -> str:
    """``a, b = f(), g()`` with brackets around the values: else black breaks inside one of them."""
    try:
        body = ast.parse(code).body
    except SyntaxError:
        return code
    value = body[0].value if len(body) == 1 and isinstance(body[0], ast.Assign) else None
    if "\n" in code or not isinstance(value, ast.Tuple) or len(value.elts) < 2:
        return code
    line, start, end = code.encode(), value.col_offset, value.end_col_offset
    if start != value.elts[0].col_offset:
        return code  # In brackets already.
    return b"".join((line[:start], b"(", line[start:end], b")", line[end:])).decode()


def _without_target_comma(code: str) -> str:
    """``a, b, = f()`` without the comma behind the names: it would make black give each of them a line."""
    try:
        body = ast.parse(code).body
    except SyntaxError:
        return code
    match body:
        case [ast.Assign(targets=[ast.Tuple(elts=[_, *_, last])])] if "\n" not in code:
            line, end = code.encode(), last.end_col_offset
            assert end is not None
            return (line[:end] + re.sub(rb"^\s*,(?=\s*=)", b"", line[end:])).decode()
        case _:
            return code


def _dump(code: str) -> str | None:
    try:
        return ast.dump(ast.parse(code))
    except SyntaxError:
        return None


def _significant(code: str) -> list[str]:
    """The tokens and comments that formatting may not change, in order."""
    return [
        token.string.strip()
        for token in tokens(code)
        if (token.type not in NOT_CODE or token.type == tokenize.COMMENT)
        and token.string not in _OPTIONAL
    ]
