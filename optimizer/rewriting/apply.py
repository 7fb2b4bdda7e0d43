"""Carries out edits on a file's text, keeping every byte they do not name.

Targets are found in the tree :mod:`ast` gives, and every edit becomes a rewrite of the stretch of text its target
stands on (:mod:`.rewrites`); nothing is printed from a tree, so what is not edited cannot change.
"""

from __future__ import annotations

import tokenize
import warnings
from collections.abc import Iterable, Sequence

from ..source import SourceFile
from ..syntax_tree import syntax_tree
from .edits import (
    AddImport,
    AddParameter,
    Edit,
    ExpressionEdit,
    InsertAfter,
    InsertBefore,
    RemoveArgument,
    SetArgument,
    SetDictEntry,
    Span,
)
from .expressions import expression_rewrite
from .imports import add_import, partial_removals, whole_removals
from .own_lines import give_own_lines
from .parameters import parameter_rewrite
from .rewrites import EditError, carry_out
from .source_tree import SourceTree
from .statements import StatementEdits
from .style import Style

__all__ = ["EditError", "Style", "apply_edits"]


def apply_edits(source: SourceFile, edits: Sequence[Edit], style: Style | None = None) -> str:
    """The text of ``source`` after ``edits``, all of whose spans are those of the current text.

    Edits may lie inside each other; the same edit twice counts once, unless it inserts. ``style`` is by default that
    of the file. Raises EditError when a target is not there, when edits conflict, or when the result would not parse.
    """
    if not edits:
        return source.text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about string escapes in what is parsed on the way
            text = _apply(source, edits, style)
        syntax_tree(text, str(source.path))
    except (SyntaxError, tokenize.TokenError) as error:
        raise EditError(edits[0], f"the result does not parse: {error}") from error
    return text


def _apply(source: SourceFile, edits: Sequence[Edit], style: Style | None) -> str:
    tree = SourceTree.parse(source.text, str(source.path))
    style = style or Style.of(source.path, tree)
    in_place = _distinct(edit for edit in edits if not isinstance(edit, AddImport))
    tree, in_place = give_own_lines(tree, whole_removals(tree, in_place), style)
    rewrites = list(partial_removals(tree, in_place))
    for edit in in_place:
        if isinstance(edit, AddParameter):
            rewrites.append(parameter_rewrite(tree, edit, style))
        elif isinstance(edit, ExpressionEdit):
            rewrites.append(expression_rewrite(tree, edit, style))
    statements = StatementEdits(tree, in_place, style)
    layout = statements.layout({rewrite.start for rewrite in rewrites})
    text = carry_out(tree.text, [*rewrites, *layout, *statements.rewrites()])
    for edit in edits:
        if isinstance(edit, AddImport):
            text = add_import(text, edit, style)
    return text


def _distinct(edits: Iterable[Edit]) -> list[Edit]:
    """``edits`` without repetitions. Raises EditError where two of them give one argument two values."""
    kept: list[Edit] = []
    values: dict[tuple[Span, str], Edit] = {}
    for edit in edits:
        if not isinstance(edit, InsertBefore | InsertAfter) and edit in kept:
            continue
        if isinstance(edit, SetArgument | RemoveArgument):
            other = values.setdefault((edit.call, edit.keyword), edit)
            if other is not edit:
                raise EditError(edit, f"conflicts with {other}")
        if isinstance(edit, SetDictEntry):
            other = values.setdefault((edit.target, edit.key), edit)
            if other is not edit:
                raise EditError(edit, f"conflicts with {other}")
        kept.append(edit)
    return kept
