"""Parses a text once, however many stages ask for its tree."""

from __future__ import annotations

import ast
from functools import lru_cache


@lru_cache(maxsize=32)
def syntax_tree(text: str, path: str = "<text>") -> ast.Module:
    """The tree of ``text``, shared between all who ask about that file: nobody may change it.

    Files of the same text have trees of their own, since a node also stands for its place.

    Raises what :func:`ast.parse` raises.
    """
    return ast.parse(text, path)
