"""Calls of PyTorch's transformers that are given a causal mask, and are not told that it is one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from ..calls.signatures import call_argument
from ..facts import Fact
from ..program.syntax import Module
from ..tensors.triangles import Triangles
from ..values.resolver import Resolver
from ..values.values import External, Made

_HINTS: dict[str, dict[str, tuple[int, str, int]]] = {
    "torch.nn.Transformer": {
        "src_mask": (2, "src_is_causal", 8),
        "tgt_mask": (3, "tgt_is_causal", 9),
    },
    "torch.nn.TransformerEncoder": {"mask": (1, "is_causal", 3)},
    "torch.nn.TransformerDecoder": {"tgt_mask": (2, "tgt_is_causal", 6)},
}
"""By class and mask: the place of the mask, and the argument, with its place, that says whether it is causal."""


@dataclass(frozen=True, eq=False)
class CausalHint(Fact):
    """At ``node`` it is not said that ``mask`` is causal, or that it hides nothing: ``keyword=is_causal``."""

    node: ast.Call
    mask: ast.expr
    keyword: str
    is_causal: bool


def find_causal_hints(resolver: Resolver) -> tuple[CausalHint, ...]:
    """Every such mask of the project, in source order per module."""
    triangles = Triangles(resolver)
    return tuple(
        hint
        for module in resolver.project.modules
        for call in module.calls
        for hint in _hints(resolver, triangles, call, module)
    )


def _hints(
    resolver: Resolver, triangles: Triangles, call: ast.Call, module: Module
) -> Iterator[CausalHint]:
    masks = _HINTS.get(_called(resolver, call, module), {})
    names = [keyword.arg for keyword in call.keywords]
    if None in names or any(isinstance(argument, ast.Starred) for argument in call.args):
        return
    for mask, (position, keyword, place) in masks.items():
        given = call_argument(call, mask, position)
        if given is None or keyword in names or len(call.args) > place:
            continue
        found = triangles.of(given, module)
        if found is not None and (found.hides_what_follows or found.is_zero):
            yield CausalHint(module, call, given, keyword, found.hides_what_follows)


def _called(resolver: Resolver, call: ast.Call, module: Module) -> str:
    """The class of the library that is called, nothing where it may be another."""
    if not call.keywords and len(call.args) < 2:
        return ""
    values = resolver.values(call.func, module)
    names = {v.maker.name for v in values if isinstance(v, Made) and isinstance(v.maker, External)}
    return names.pop() if len(names) == 1 and len(values) == 1 else ""
