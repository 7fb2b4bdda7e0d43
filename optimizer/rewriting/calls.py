"""Breaks the one kind of statement that most often becomes too long: a call that got another argument."""

from __future__ import annotations

import ast
import re

_INDENT = " " * 4
_TRAILING_COMMA = re.compile(r",\s*[)\]}]")


def exploded_call(code: str, line_length: int) -> str | None:
    """A call, assigned, returned or alone, broken as black would break it; None for anything else.

    The arguments go on one indented line where they fit there, else on a line each
    (https://black.readthedocs.io/en/stable/the_black_code_style/current_style.html#how-black-wraps-lines). Only what
    black would do without a doubt is done here: black is asked about the rest.
    """
    call = _lone_call(code)
    parts = _parts(code, call) if call else None
    if parts is None:
        return None
    head, arguments = parts
    together = _INDENT + ", ".join(arguments)
    if len(head) > line_length or any(
        len(text) + len(_INDENT) + 1 > line_length or _TRAILING_COMMA.search(text)
        for text in arguments
    ):
        return None
    if len(together) <= line_length:
        return f"{head}\n{together}\n)"
    return "\n".join([head, *(f"{_INDENT}{text}," for text in arguments), ")"])


def aligned_call(code: str, line_length: int) -> str | None:
    """A call, assigned, returned or alone, with its arguments under each other behind the bracket, as many on a line as fit.

    That is PEP 8's other way to break a line (https://peps.python.org/pep-0008/#indentation). None for anything else, and
    where an argument is too long for what is left of a line.
    """
    call = _lone_call(code)
    parts = _parts(code, call) if call else None
    if parts is None:
        return None
    head, arguments = parts
    rows = [f"{head}{arguments[0]}"]
    for text in arguments[1:]:
        if len(rows[-1]) + len(f", {text},") <= line_length:
            rows[-1] += f", {text}"
        else:
            rows.append(" " * len(head) + text)
    return ",\n".join(rows) + ")" if max(map(len, rows)) < line_length else None


def _lone_call(code: str) -> ast.Call | None:
    """The call that ``code`` is, or whose value it assigns or returns."""
    if "#" in code or not code.isascii():
        return None
    try:
        body = ast.parse(code).body
    except SyntaxError:
        return None
    return _whole_value(body[0]) if len(body) == 1 else None


def _parts(code: str, call: ast.Call) -> tuple[str, list[str]] | None:
    """What stands before the arguments, bracket included, and each argument; None unless only commas part them."""
    lines = code.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    arguments: list[ast.expr | ast.keyword] = sorted(
        [*call.args, *call.keywords], key=lambda argument: (argument.lineno, argument.col_offset)
    )
    if any(a.lineno != a.end_lineno or isinstance(a, ast.GeneratorExp) for a in arguments):
        return None
    ends = [starts[a.lineno - 1] + (a.end_col_offset or 0) for a in arguments]
    begins = [starts[a.lineno - 1] + a.col_offset for a in arguments]
    if not arguments or call.func.end_lineno != 1:
        return None
    head = code[: call.func.end_col_offset]
    gaps = [code[len(head) : begins[0]]]
    gaps += [code[end:begin] for end, begin in zip(ends, begins[1:], strict=False)]
    gaps.append(code[ends[-1] :])
    wanted = ["(", *[","] * (len(arguments) - 1), ")"]
    if [gap.strip() for gap in gaps] != wanted:
        return None
    return head + "(", [code[begin:end] for begin, end in zip(begins, ends, strict=True)]


def _whole_value(statement: ast.stmt) -> ast.Call | None:
    """The call that is the whole right-hand side of a statement with one plain target, or the statement itself."""
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
        plain = len(statement.targets) == 1 and isinstance(target, ast.Name | ast.Attribute)
        value = statement.value if plain else None
    elif isinstance(statement, ast.Expr | ast.Return):
        value = statement.value
    else:
        return None
    if not isinstance(value, ast.Call) or not _is_dotted_name(value.func):
        return None
    return value


def _is_dotted_name(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)
