"""Finds tensors that are made on the host, joined, and moved at once: ``torch.cat([torch.ones(n), torch.zeros(n)]).to(device)``."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..calls.signatures import call_argument
from ..facts import Fact
from ..program.syntax import Module
from ..values.resolver import Resolver
from .construction import Construction, ConstructionFinder

JOINS = frozenset(
    f"torch.{name}" for name in "cat concat concatenate stack hstack vstack dstack".split()
)
"""Functions that put tensors together as they are: the same bits come out on every device."""


@dataclass(frozen=True, eq=False)
class JoinedConstruction(Fact):
    """``node`` is the call that moves what ``parts`` are joined to; each of them says what speaks against making it there."""

    node: ast.Call
    parts: tuple[Construction, ...]

    @property
    def refusal(self) -> str | None:
        return next((part.refusal for part in self.parts if part.refusal is not None), None)


def find_joined_constructions(resolver: Resolver) -> tuple[JoinedConstruction, ...]:
    """Every tensor joined of tensors that are made in the same expression, in source order per module."""
    finder = ConstructionFinder(resolver)
    return tuple(
        found
        for module in resolver.project.modules
        for move in module.calls
        if (found := _joined(resolver, finder, move, module)) is not None
    )


def _joined(
    resolver: Resolver, finder: ConstructionFinder, move: ast.Call, module: Module
) -> JoinedConstruction | None:
    match move.func:
        case ast.Attribute(value=ast.Call() as joining, attr="to" | "cuda"):
            pass
        case _:
            return None
    names = resolver.names(joining.func, module)
    given = call_argument(joining, "tensors", 0)
    if not names or not names <= JOINS or not isinstance(given, ast.List | ast.Tuple):
        return None
    target = finder.target(move, module)
    if target is None or target[1] is not None or call_argument(joining, "out") is not None:
        return None
    device, _, refusal = target
    made = [_part(finder, move, part, device, module) for part in given.elts]
    parts = tuple(part for part in made if part is not None)
    # A device that is computed is written once, behind them all.
    if refusal is not None or "(" in device or not parts or len(parts) < len(made):
        return None
    return JoinedConstruction(module, move, parts)


def _part(
    finder: ConstructionFinder, move: ast.Call, part: ast.expr, device: str, module: Module
) -> Construction | None:
    chain = finder.chain(part, module)
    if chain is None or not isinstance(part, ast.Call):
        return None
    factory, steps = chain
    if call_argument(factory, "device") is not None:
        return None
    draws = finder.draws(factory, steps, module)
    refusal = finder.refusal(factory, steps, device, module)
    if refusal is None and draws:
        refusal = finder.draw_refusal(move, module)
    return Construction(module, part, factory, steps, device, None, draws, refusal)
