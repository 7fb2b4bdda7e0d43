"""The edits of expressions: what becomes of a call, a dict display or any other expression."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from .comma_list import CommaList
from .edits import (
    ExpressionEdit,
    InsertArgument,
    RemoveArgument,
    ReplaceArguments,
    ReplaceExpression,
    SetArgument,
    SetDictEntry,
    Span,
)
from .lines import line_starts, tokens, with_newlines
from .rewrites import EditError, Rank, Rewrite
from .source_tree import SourceTree
from .style import Style

_KEYWORD = re.compile(r"([^\W\d]\w*)(\s*=\s*)(?!=)")
_ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.List)


def expression_rewrite(source: SourceTree, edit: ExpressionEdit, style: Style) -> Rewrite:
    """What ``edit`` does to the text. Raises EditError when there is no such expression at its target."""
    match written := _with_newlines(edit, style.newline):
        case SetArgument():
            node = _find(source, ast.Call, written.call, edit)
            function: Callable[[str], str] = partial(_set_argument, edit=written, style=style)
        case InsertArgument():
            node = _find(source, ast.Call, written.call, edit)
            function = partial(_insert_argument, edit=written, style=style)
        case RemoveArgument():
            node = _find(source, ast.Call, written.call, edit)
            function = partial(_remove_argument, edit=written)
        case ReplaceArguments():
            node = _find(source, ast.Call, written.call, edit)
            function = partial(_replace_arguments, edit=written, style=style)
        case SetDictEntry():
            node = _find(source, ast.Dict, written.target, edit)
            function = partial(_set_dict_entry, edit=written, style=style)
        case ReplaceExpression():
            node = _find(source, ast.expr, written.target, edit)
            code = _parenthesized(source, node, written)
            return Rewrite(
                *source.range(node), lambda _: code, edit, Rank.EXPRESSION, replaces=True
            )
    return Rewrite(*source.range(node), function, edit, Rank.EXPRESSION)


def _with_newlines(edit: ExpressionEdit, newline: str) -> ExpressionEdit:
    """``edit`` with the line ends of the file in what it writes."""
    match edit:
        case ReplaceExpression(code=code):
            return replace(edit, code=with_newlines(code, newline))
        case SetArgument(value=value) | InsertArgument(value=value) | SetDictEntry(value=value):
            return replace(edit, value=with_newlines(value, newline))
        case ReplaceArguments(new=new):
            return replace(edit, new=tuple((k, with_newlines(v, newline)) for k, v in new))
        case RemoveArgument():
            return edit


def _find(source: SourceTree, kind: type[ast.expr], span: Span, edit: ExpressionEdit) -> ast.expr:
    found = source.find(kind, span)
    if found is None:
        raise EditError(edit, f"no {kind.__name__} there")
    if found in source.inside_format_strings:
        new = edit.code if isinstance(edit, ReplaceExpression) else getattr(edit, "value", "")
        if re.search(r"[\"'\\#\n]", new):
            raise EditError(edit, "quotes, backslashes and comments cannot go into an f-string")
        if not _is_written_as(source, found):  # positions in f-strings are wrong before Python 3.12
            raise EditError(edit, "its place in the f-string is not known")
    return found


def _is_written_as(source: SourceTree, node: ast.expr) -> bool:
    written = _parse_expression(source.code(node))
    return written is not None and ast.dump(written) == ast.dump(node)


def _parse_expression(code: str) -> ast.expr | None:
    try:
        return ast.parse(f"(\n{code}\n)", mode="eval").body
    except SyntaxError:
        return None


# Calls


def _set_argument(text: str, edit: SetArgument, style: Style) -> str:
    function, arguments = _arguments(text)
    items = [_keyword(item) for item in arguments.items]
    value = _as_element("f(k={})", edit.value, edit)
    if edit.keyword in items:
        index = items.index(edit.keyword)
        head = _KEYWORD.match(arguments.items[index])
        assert head is not None
        return function + arguments.replace(index, head[0] + value).text
    starred = next((i for i, item in enumerate(items) if item in ("*", "**")), len(items))
    if edit.position is not None:
        if edit.position < starred and items[edit.position] == "":
            positional = _as_element("f({}, 0)", edit.value, edit)
            return function + arguments.replace(edit.position, positional).text
        if "*" in items:
            raise EditError(edit, "the argument may be among those passed by `*`")
    named = [i for i, item in enumerate(items) if item not in ("", "*", "**")]
    unpacked = items.index("**") if "**" in items else len(items)
    index = named[-1] + 1 if named else unpacked
    head = _KEYWORD.match(arguments.items[named[-1]]) if named else None
    equals = " = " if head and head[2] == " = " else "="
    item = edit.keyword + equals + value
    inserted = arguments.insert(index, item, style.newline, style.indent, style.line_length)
    return function + inserted.text


def _insert_argument(text: str, edit: InsertArgument, style: Style) -> str:
    function, arguments = _arguments(text)
    if edit.position > len(arguments.items):
        raise EditError(edit, "the call has fewer arguments")
    value = _as_element("f({}, k=0)", edit.value, edit)
    return function + arguments.insert(edit.position, value, style.newline, style.indent).text


def _remove_argument(text: str, edit: RemoveArgument) -> str:
    function, arguments = _arguments(text)
    items = [_keyword(item) for item in arguments.items]
    if edit.keyword not in items:
        raise EditError(edit, f"no argument {edit.keyword}= there")
    return function + arguments.remove(items.index(edit.keyword)).text


def _replace_arguments(text: str, edit: ReplaceArguments, style: Style) -> str:
    function, arguments = _arguments(text)
    items = [_keyword(item) for item in arguments.items]
    missing = [keyword for keyword in edit.old if keyword not in items]
    if missing:
        raise EditError(edit, f"no argument {missing[0]}= there")
    first, *others = sorted(items.index(keyword) for keyword in edit.old)
    comments = [arguments.comment(index) for index in (first, *others)]
    for index in reversed(others):
        arguments = arguments.remove(index)
    head = _KEYWORD.match(arguments.items[first])
    assert head is not None
    *before, last = [
        keyword + head[2] + _as_element("f(k={})", value, edit) for keyword, value in edit.new
    ]
    arguments = arguments.replace(first, last)
    if any(comments):
        comment = "; ".join(filter(None, comments))
        arguments = arguments.with_comment(first, comment, style.newline)
    for item in reversed(before):
        arguments = arguments.insert(first, item, style.newline, style.indent)
    return function + arguments.text


def _arguments(text: str) -> tuple[str, CommaList]:
    """The text of a call, divided into what is called and its arguments."""
    opening = _matching_bracket(text)
    function, arguments = text[:opening], text[opening:]
    match _parse_expression(text):
        # A generator may share the brackets of the call only as long as it is the one argument.
        case ast.Call(args=[ast.GeneratorExp()], keywords=[]):
            try:
                ast.parse(arguments[1:-1].strip(), mode="eval")
            except SyntaxError:
                return function, CommaList("(", "", (arguments,), (), "", ")")
        case _:
            pass
    return function, CommaList.parse(arguments)


def _matching_bracket(text: str) -> int:
    """The offset of the bracket that the last character of ``text`` closes."""
    wrapped = f"({text})"  # line breaks are only free inside brackets
    starts = line_starts(wrapped)
    opened: list[int] = []
    matching = 0
    for token in tokens(wrapped):
        if token.type == tokenize.OP and token.string in "([{":
            opened.append(starts[token.start[0] - 1] + token.start[1])
        elif token.type == tokenize.OP and token.string in ")]}":
            last = opened.pop()
            matching = last if opened else matching
    return matching - len("(")


def _keyword(item: str) -> str:
    """The keyword of an argument; ``*`` or ``**`` for unpacked ones, nothing for a positional one."""
    if item.startswith("*"):
        return "**" if item.startswith("**") else "*"
    match = _KEYWORD.match(item)
    return match[1] if match else ""


def _as_element(pattern: str, code: str, edit: ExpressionEdit) -> str:
    """``code`` such that it is one element in ``pattern``: in parentheses where that makes a difference."""
    inside = pattern.format(f"(\n{code}\n)")
    try:
        meant = ast.dump(ast.parse(inside))
    except SyntaxError:
        raise EditError(edit, "its value is not an expression") from None
    return code if _dump(pattern.format(code)) == meant else f"({code})"


def _dump(text: str) -> str | None:
    try:
        return ast.dump(ast.parse(text))
    except SyntaxError:
        return None


# Dict displays


def _set_dict_entry(text: str, edit: SetDictEntry, style: Style) -> str:
    entries = CommaList.parse(text)
    value = _as_element("{{0: {}}}", edit.value, edit)
    for index, item in enumerate(entries.items):
        if (head := _key(item)) is not None and ast.literal_eval(head[0].strip()) == edit.key:
            return entries.replace(index, head[0] + head[1] + value).text
    heads = [head for item in entries.items if (head := _key(item)) is not None]
    separator = heads[-1][1] if heads and heads[-1][1] in (":", " : ") else ": "
    quoted = repr(edit.key) if heads and heads[-1][0].startswith("'") else _double_quoted(edit.key)
    item = quoted + separator + value
    return entries.insert(len(entries.items), item, style.newline, style.indent).text


def _double_quoted(key: str) -> str:
    literal = repr(key)
    return f'"{literal[1:-1]}"' if literal[0] == "'" and '"' not in literal else literal


def _key(item: str) -> tuple[str, str] | None:
    """The string key of a dict entry, and the colon between it and its value with the space around it."""
    match = re.match(r"([rRuU]?(?:\"[^\"\\\n]*\"|'[^'\\\n]*'))(\s*:\s*)", item)
    return (match[1], match[2]) if match else None


# Any expression


def _parenthesized(source: SourceTree, node: ast.expr, edit: ReplaceExpression) -> str:
    """The new code; in parentheses unless it means the same without."""
    code = edit.code.strip()
    start, end = source.range(node)
    before, after = source.text[:start], source.text[end:]
    # `(x)if y` may stand without a space, `x` may not.
    glued = (before[-1:] + code[:1]).isidentifier() or (code[-1:] + after[:1]).isidentifier()
    new = _parse_expression(code)
    if new is None and not code.startswith("*"):
        raise EditError(edit, "its code is not an expression")
    atomic = isinstance(new, _ATOMS) and "\n" not in code
    if atomic and not glued and node not in source.inside_format_strings:
        return code
    bare, wrapped = _dump(before + code + after), _dump(f"{before}({code}){after}")
    if wrapped is None and bare is None:
        raise EditError(edit, "its code does not fit there")
    return code if wrapped in (None, bare) else f"({code})"
