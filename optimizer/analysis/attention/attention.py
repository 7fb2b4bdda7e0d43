"""Attention that is written out operation by operation, and what ``scaled_dot_product_attention`` would be given instead."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..facts import Fact, excerpt
from ..program.name_uses import NameUses
from ..program.reaching import bindings_of, is_read, only_value, reaching_bindings
from ..program.syntax import Module
from ..program.trees import walk
from ..tensors.tensor_ranks import TensorRanks
from ..values.changed_objects import changes_receiver
from ..values.outside_writes import outside_values
from ..values.resolver import Resolver
from .attention_chains import Chain, Mask, Scale, find_chains
from .attention_dropout import AttentionDropout
from .attention_fallbacks import fused_in_place_of
from .attention_masks import (
    UntoldMaskError,
    adds_large,
    hides_when_scaled,
    hides_wholly,
    is_float,
    mask_code,
)
from .attention_products import cast_of, is_batched_by_hand
from .attention_results import changed_in_place, layout_objection
from .attention_scales import Scales, is_size
from .attention_triangles import is_causal

_NOT_ONCE = (
    ast.IfExp,
    ast.BoolOp,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


@dataclass(frozen=True, eq=False)
class Attention(Fact):
    """Attention written out; ``node`` is its softmax.

    ``arguments`` are those of the fused operation. The statements of ``removed`` go, and ``chain.sum.product`` becomes its result.
    ``drops`` where weights are dropped in training. ``zeroes`` where a query that sees no key gets zeros, and before the mean of
    all values: the script hides keys by a large number, not by infinity. ``adds_large`` where it adds such a number. ``obstacle`` says why it has to stay as it is, None when it can be fused.
    """

    node: ast.Call
    chain: Chain
    arguments: tuple[str, ...]
    removed: tuple[ast.stmt, ...]
    drops: bool
    zeroes: bool
    adds_large: bool
    obstacle: str | None


class _ObstacleError(Exception):
    """Why attention is not fused."""


def find_attention(resolver: Resolver) -> tuple[Attention, ...]:
    """The attention of the project's own code, in source order per module."""
    modules = [m for m in resolver.project.modules if "softmax" in m.source.text.lower()]
    chains = [(module, chain) for module in modules for chain in find_chains(resolver, module)]
    if not chains:
        return ()
    finder = _Finder(resolver)
    return tuple(finder.fact(chain, module) for module, chain in chains)


class _Finder:
    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._ranks = TensorRanks(resolver)
        self._scales = Scales(resolver)
        self._uses = NameUses()
        self._dropouts = AttentionDropout(resolver)

    def fact(self, chain: Chain, module: Module) -> Attention:
        chain = replace(chain, replaced=(*self._fills(chain, module), *chain.replaced))
        drops = any(not self._dropouts.is_zero(call, module) for call in chain.dropouts)
        masks = [m for m in chain.steps if isinstance(m, Mask) and m.fill is not None]
        zeroes = any(
            not hides_wholly(mask, module, self._resolver)
            and not is_causal(chain, mask, module, self._resolver)
            for mask in masks
        )
        adds = any(
            isinstance(step, Mask) and adds_large(step, module, self._resolver)
            for step in chain.steps
        )
        try:
            self._check(chain, module)
            arguments = tuple(self._arguments(chain, module))
        except (_ObstacleError, UntoldMaskError) as why:
            return Attention(module, chain.softmax, chain, (), (), drops, zeroes, adds, str(why))
        deletions = self._deletions(chain, module)
        removed = (*chain.replaced, *deletions, *self._orphans(chain, arguments, module))
        return Attention(
            module, chain.softmax, chain, arguments, removed, drops, zeroes, adds, None
        )

    # What has to hold

    def _check(self, chain: Chain, module: Module) -> None:
        if chain.obstacle is not None:
            raise _ObstacleError(chain.obstacle)
        if len(chain.dropouts) > 1:
            raise _ObstacleError("the weights are dropped twice")
        for call in chain.dropouts:
            unlike = self._dropouts.objection(call, module)
            if unlike is not None:
                raise _ObstacleError(unlike)
        self._check_softmax(chain, module)
        self._check_shapes(chain, module)
        self._check_types(chain, module)
        self._check_reads(chain, module)
        self._check_lines_between(chain, module)
        self._check_place(chain, module)
        self._check_operands(chain, module)
        product = chain.sum.product
        objection = layout_objection(self._resolver, product, module, self._uses)
        if objection is not None:
            raise _ObstacleError(objection)
        operands = [o.node for o in (chain.query, chain.key, chain.sum.value)]
        changed = changed_in_place(self._resolver, product, operands, module)
        if changed is not None:
            raise _ObstacleError(f"{changed} is changed in place, and the fused operation keeps it")

    def _check_softmax(self, chain: Chain, module: Module) -> None:
        function = chain.softmax.func
        if chain.softmax not in chain.layers or not isinstance(function, ast.Attribute):
            return
        if any(outside_values(self._resolver, function.attr)):
            code = module.code(function)
            raise _ObstacleError(f"another layer is put in the place of `{code}`")

    def _check_shapes(self, chain: Chain, module: Module) -> None:
        if is_batched_by_hand(self._resolver, chain.sum.product, module):
            raise _ObstacleError(
                "heads and samples share a dimension (`bmm`), and the fused kernels want one for each"
            )
        for operand, what in ((chain.query, "queries"), (chain.key, "keys")):
            rank = self._ranks.of(operand.node, module)
            code = module.code(operand.node)
            if rank is None:
                raise _ObstacleError(
                    f"whether the {what} `{code}` have a dimension for the heads cannot be told"
                )
            if rank != 4:
                raise _ObstacleError(
                    f"the {what} `{code}` have no dimension for the heads, which the fused kernels want"
                )
        if self._ranks.of(chain.sum.value.node, module) not in {None, 4}:
            code = module.code(chain.sum.value.node)
            raise _ObstacleError(f"the values `{code}` have no dimension for the heads")

    def _check_types(self, chain: Chain, module: Module) -> None:
        """The fused operation wants one type; products of their own may each have another."""
        operands = [o.node for o in (chain.query, chain.key, chain.sum.value)]
        casts = [cast_of(node, module) for node in operands]
        if len(set(casts)) > 1:
            code = next(module.code(n) for n, cast in zip(operands, casts, strict=True) if cast)
            raise _ObstacleError(
                f"`{code}` is cast to a type that not all of queries, keys and values are cast to"
            )

    def _check_reads(self, chain: Chain, module: Module) -> None:
        """Nothing else may read what is not computed any more."""
        last = module.statement(chain.sum.product)
        allowed = {*chain.replaced, last}
        for statement in chain.replaced:
            for name in _bound(statement):
                for use in self._reads(name, module):
                    if not allowed & {module.statement(use), *module.ancestors(use)}:
                        code = excerpt(module, module.statement(use))
                        raise _ObstacleError(f"`{name.id}` is read again (`{code}`)")
        names = {name.id for statement in chain.replaced for name in _bound(statement)}
        inside = set(walk(chain.sum.product))
        for node in walk(last):
            if not isinstance(node, ast.Name) or node in inside:
                continue
            if isinstance(node.ctx, ast.Load) and node.id in names:
                raise _ObstacleError(f"`{node.id}` is read again (`{module.code(last)}`)")

    def _reads(self, target: ast.Name, module: Module) -> list[ast.Name]:
        """Where the value is read that the variable gets at ``target``."""
        found = module.scope(target).lookup(target.id)
        bindings = [b for b in found[1] if b.node is target] if found is not None else []
        uses = [use for binding in bindings for use in self._uses.of(binding, module)]
        return [use for use in uses if is_read(use, module)]

    def _fills(self, chain: Chain, module: Module) -> list[ast.stmt]:
        """Statements for the number by which a mask hides: ``least = -torch.finfo(scores.dtype).max``."""
        block = module.block(module.statement(chain.sum.product))
        found: list[ast.stmt] = []
        for step in chain.steps:
            if not isinstance(step, Mask) or not isinstance(step.fill, ast.Name):
                continue
            assignment = _own_assignment(step.fill, module)
            if assignment is None or assignment[0] not in block:
                continue
            statement, target = assignment
            if self._reads(target, module) == [step.fill]:
                found.append(statement)
        return found

    def _deletions(self, chain: Chain, module: Module) -> list[ast.stmt]:
        """The statements that delete what is not computed any more: ``del scores, weights``."""
        names = {name.id for statement in chain.replaced for name in _bound(statement)}
        function = module.function(chain.sum.product)
        block = module.block(module.statement(chain.sum.product))
        found: dict[ast.stmt, None] = {}
        for name in sorted(names):
            for use in module.names_of(name):
                if isinstance(use.ctx, ast.Del) and module.function(use) is function:
                    found[module.statement(use)] = None
        for statement in found:
            deleted = {n.id for n in walk(statement) if isinstance(n, ast.Name)}
            if statement not in block or not deleted <= names:
                raise _ObstacleError(
                    f"`{module.code(statement)}` deletes more than it leaves unread"
                )
        return list(found)

    def _check_lines_between(self, chain: Chain, module: Module) -> None:
        """What stands between must not change anything that is read later now."""
        last = module.statement(chain.sum.product)
        block = module.block(last)
        whole = [*chain.replaced, last]
        if any(statement not in block for statement in whole):
            raise _ObstacleError("it is spread over several blocks")
        first = min(block.index(statement) for statement in whole)
        whole += self._deletions(chain, module)
        for statement in block[first : block.index(last)]:
            if statement not in whole and not _only_assigns(statement):
                code = excerpt(module, statement)
                raise _ObstacleError(f"`{code}` stands in between")

    def _check_place(self, chain: Chain, module: Module) -> None:
        """The product is moved to a line of its own where its statement does more: it must be computed once, whatever happens."""
        fused = fused_in_place_of(chain.sum.product, module)
        if fused is not None:
            raise _ObstacleError(f"`{module.code(fused)}` computes it already where there is one")
        last = module.statement(chain.sum.product)
        for around in module.ancestors(chain.sum.product):
            if around is last:
                break
            if isinstance(around, _NOT_ONCE):
                raise _ObstacleError("its line computes it under a condition, or several times")
        if isinstance(last, ast.While | ast.Assert):
            raise _ObstacleError("it is part of a condition")

    def _check_operands(self, chain: Chain, module: Module) -> None:
        """What is read later now must still be what it was."""
        moved = [chain.query.node, chain.key.node, chain.sum.value.node]
        for step in chain.steps:
            if isinstance(step, Scale):
                moved.append(step.factor)
            else:
                moved += [n for n in (step.value, step.condition) if n is not None]
        product = chain.sum.product
        for node in moved:
            for name in (n for n in walk(node) if isinstance(n, ast.Name)):
                scope = module.scope(name)
                found = scope.lookup(name.id)
                if found is None:
                    continue
                there = reaching_bindings(module, *found, module.scope(product), product)
                if set(there) != set(bindings_of(module, name)):
                    raise _ObstacleError(f"`{name.id}` is given another value in between")

    def _orphans(self, chain: Chain, arguments: tuple[str, ...], module: Module) -> list[ast.stmt]:
        """Statements whose variables nothing reads any more, and that do nothing else: ``d_k = k.size(-1)``."""
        product = chain.sum.product
        block = module.block(module.statement(product))
        gone = {node for part in (*chain.replaced, product) for node in walk(part)}
        passed = names_in(arguments)
        found: dict[ast.stmt, None] = {}
        for name in [n for n in gone if isinstance(n, ast.Name) and n.id not in passed]:
            assignment = _own_assignment(name, module)
            if assignment is None or assignment[0] not in block:
                continue
            statement, target = assignment
            reads = self._reads(target, module)
            if _is_idle(statement.value, module) and gone.issuperset(reads):
                found[statement] = None
        return sorted(found.keys() - gone, key=block.index)

    # What is passed

    def _arguments(self, chain: Chain, module: Module) -> Iterator[str]:
        query = chain.query.code(module)
        yield from (query, chain.key.code(module), chain.sum.value.code(module))
        scales = [step for step in chain.steps if isinstance(step, Scale)]
        masks = [step for step in chain.steps if isinstance(step, Mask)]
        self._check_steps(chain, scales, masks, module)
        causal = bool(masks) and is_causal(chain, masks[0], module, self._resolver)
        if masks and not causal:
            yield f"attn_mask={self._mask(masks[0], module)}"
        for call in chain.dropouts:
            code = self._dropouts.code(call, module)
            if code is not None:
                yield f"dropout_p={code}"
        if causal:
            yield "is_causal=True"
        if not scales:
            yield "scale=1.0"
        elif not self._scales.is_default(scales[0], chain, module):
            yield f"scale={self._scales.code(scales[0], module)}"

    def _check_steps(
        self, chain: Chain, scales: list[Scale], masks: list[Mask], module: Module
    ) -> None:
        if len(masks) > 1:
            raise _ObstacleError("the scores are masked twice")
        if len(scales) > 1:
            raise _ObstacleError("the scores are scaled twice")
        if scales and not self._scales.is_number(scales[0].factor, module):
            code = module.code(scales[0].factor)
            raise _ObstacleError(f"`{code}`, which scales the scores, is not seen to be a number")
        scaled_last = len(chain.steps) == 2 and isinstance(chain.steps[1], Scale)
        if scaled_last and not hides_when_scaled(masks[0], module, self._resolver):
            raise _ObstacleError("the mask is scaled, too")

    def _mask(self, mask: Mask, module: Module) -> str:
        if mask.fill is None and not is_float(self._resolver, mask.value, module):
            code = module.code(mask.value)
            raise _ObstacleError(
                f"the type of `{code}`, which is added to the scores, cannot be told"
            )
        return mask_code(mask, module, self._resolver)


def names_in(arguments: tuple[str, ...]) -> frozenset[str]:
    """The variables that ``arguments`` are made of."""
    call = ast.parse(f"_({', '.join(arguments)})")
    return frozenset(node.id for node in walk(call) if isinstance(node, ast.Name))


def _own_assignment(name: ast.Name, module: Module) -> tuple[ast.Assign, ast.Name] | None:
    """The statement that alone gives ``name`` its value, and does nothing else, with the name as it stands there."""
    value = only_value(module, name)
    match module.parents[value] if value is not None else None:
        case ast.Assign([ast.Name() as target]) as statement:
            return statement, target
        case _:
            return None


def _bound(statement: ast.stmt) -> Iterator[ast.Name]:
    """The variables that ``statement`` binds or changes."""
    for node in walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node


def _is_idle(value: ast.expr, module: Module) -> bool:
    """Whether ``value`` is a size or part of a buffer: working it out changes nothing."""
    while isinstance(value, ast.Subscript | ast.Attribute):
        if isinstance(value, ast.Subscript) and any(
            isinstance(n, ast.Call) for n in walk(value.slice)
        ):
            return False
        value = value.value
    match value:
        case ast.Name():
            return True
        case ast.Call(ast.Attribute(inner, "bool"), [], []):
            return _is_idle(inner, module)
        case _:
            return is_size(value, module)


def _only_assigns(statement: ast.stmt) -> bool:
    """Whether ``statement`` changes nothing but the variables it assigns to."""
    if isinstance(statement, ast.Assert):
        return True
    if not isinstance(statement, ast.Assign):
        return False
    targets = [e for t in statement.targets for e in (t.elts if isinstance(t, ast.Tuple) else [t])]
    changes = any(
        isinstance(node, ast.Attribute) and changes_receiver(node.attr)
        for node in walk(statement.value)
    )
    return not changes and all(isinstance(target, ast.Name) for target in targets)
