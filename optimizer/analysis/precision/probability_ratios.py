"""Ratios of what a network gives for something now to what it gave before: ``torch.exp(new_log_prob - old_log_prob)``.

Policy gradients (PPO and its like) weigh samples by how much likelier they have become since they were drawn, and clip that
ratio to a few tenths around one. What was kept has float32's digits. Of logits in half precision a logarithm of a probability
is off by hundredths, since bfloat16 knows nothing between 4 and 4.03, and so is the ratio from the first step on, before
anything has been learned: by 0.05 to 0.2 where it was measured, with a clip at 0.2. See https://arxiv.org/abs/1707.06347.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from ..calls.reach import Reached
from ..calls.signatures import argument_for
from ..networks.forward_code import called_names
from ..obstacles import KeptRatio
from ..program.reaching import assigned_values, bindings_of
from ..program.scopes import Assigned, Binding, Parameter
from ..program.syntax import FunctionNode, Module, last_identifier
from ..program.trees import walk
from ..tensors.returned_values import returned_by
from ..values.host_numbers import is_number
from ..values.resolver import Resolver
from ..values.unpacking import unpacked_element

_LOG_PROBABILITIES = frozenset({"log_prob", "log_softmax", "LogSoftmax", "log_probs"})
_PROBABILITIES = frozenset({"softmax", "Softmax"})
_PICKS = frozenset({"gather", "take_along_dim"})
_SAME_RATIO = frozenset(
    "sum mean squeeze unsqueeze view reshape flatten clamp clip float exp nan_to_num".split()
)
_MOST_STEPS = 8
_RATIO = "the ratio of a probability to the one kept before is off by more in half precision than it is there to tell"


def probability_ratios(
    resolver: Resolver, nodes: Sequence[Reached], forwards: frozenset[ast.Call]
) -> Iterator[KeptRatio]:
    """Ratios in ``nodes``, which would run under autocast, of what ``forwards`` make to what is none of theirs."""
    origins = _Origins(resolver, nodes, forwards)
    for reached in nodes:
        if any(origins.is_ratio(*pair, reached.module) for pair in _pairs(resolver, reached)):
            yield KeptRatio(reached.module, reached.node, _RATIO)


def _pairs(resolver: Resolver, reached: Reached) -> Iterator[tuple[ast.expr, ast.expr, bool]]:
    """What may be new and what kept in the ratio that a node computes, and whether those are logarithms."""
    match reached.node:
        case ast.Call() as call if (power := _exponent(resolver, call, reached.module)) is not None:
            for left, right in _differences(power, reached.module, _MOST_STEPS):
                yield left, right, True
                yield right, left, True
        case ast.BinOp(left, ast.Div(), right) if not is_number(resolver, right, reached.module):
            yield left, right, False
        case _:
            pass


def _exponent(resolver: Resolver, call: ast.Call, module: Module) -> ast.expr | None:
    """``x`` in ``torch.exp(x)`` and ``x.exp()``."""
    if last_identifier(call.func) != "exp":
        return None
    if called_names(resolver, Reached(call, module, True)) & {"torch.exp"}:
        return call.args[0] if call.args else None
    return call.func.value if isinstance(call.func, ast.Attribute) and not call.args else None


def _differences(node: ast.expr, module: Module, steps: int) -> Iterator[tuple[ast.expr, ast.expr]]:
    if steps == 0:
        return
    match node:
        case ast.BinOp(left, ast.Sub(), right):
            yield left, right
        case ast.Name():
            for value in assigned_values(module, node):
                yield from _differences(value, module, steps - 1)
        case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in _SAME_RATIO:
            for inner in [value, *node.args[:1]]:
                yield from _differences(inner, module, steps - 1)
        case _:
            pass


class _Origins:
    """What the values of ``nodes`` are made of, as far as that is made in ``nodes`` too."""

    def __init__(
        self, resolver: Resolver, nodes: Sequence[Reached], forwards: frozenset[ast.Call]
    ) -> None:
        self._resolver = resolver
        self._nodes = frozenset(reached.node for reached in nodes)
        self._forwards = forwards

    def is_ratio(self, new: ast.expr, old: ast.expr, of_logs: bool, module: Module) -> bool:
        made = [*self._behind(new, module, set())]
        names = {last_identifier(call.func) for call in made}
        if of_logs:
            tells = bool(names & _LOG_PROBABILITIES)
        else:
            tells = bool(names & _PROBABILITIES and names & _PICKS) or (
                last_identifier(getattr(new, "func", new)) == "exp" and "log_prob" in names
            )
        if not tells or self._forwards.isdisjoint(made):
            return False
        return self._forwards.isdisjoint(self._behind(old, module, set()))

    def _behind(
        self,
        node: ast.expr,
        module: Module,
        seen: set[ast.AST],
        called: frozenset[FunctionNode | ast.Lambda] = frozenset(),
    ) -> Iterator[ast.Call]:
        """The calls that the value of ``node`` is made by, which stands in one of the functions ``called`` or around them.

        Parameters of those are what the call gives, which is looked at by itself.
        """
        for part in walk(node):
            if part in seen or not isinstance(part, ast.Call | ast.Name):
                continue
            seen.add(part)
            if isinstance(part, ast.Name):
                for binding in bindings_of(module, part):
                    yield from self._bound(binding, module, seen, called)
                continue
            yield part
            for function in self._resolver.callees(part, module):
                within = called | {function.node}
                for returned in returned_by(function):
                    if returned is not None and returned in self._nodes:
                        yield from self._behind(returned, function.module, seen, within)

    def _bound(
        self,
        binding: Binding,
        module: Module,
        seen: set[ast.AST],
        called: frozenset[FunctionNode | ast.Lambda],
    ) -> Iterator[ast.Call]:
        match binding.source:
            case Assigned(value, path) if value in self._nodes:
                yield from self._behind(unpacked_element(value, path), module, seen, called)
            case Parameter(ast.FunctionDef() | ast.AsyncFunctionDef() as function):
                for site in self._resolver.call_sites(function) if function not in called else ():
                    passed = argument_for(function, binding.name, site.call, site.bound)
                    if site.call in self._nodes and passed is not None and passed.given is not None:
                        yield from self._behind(passed.given, site.module, seen, called)
            case _:
                pass
