"""Computes attention in one kernel: `F.scaled_dot_product_attention`.

Attention that is written out, `softmax(q @ k.transpose(-2, -1) * scale) @ v`, writes a matrix of positions by positions to memory
for each head and reads it again, once for each operation: scaled, masked, exponentiated, dropped. The fused operation works on
blocks of it that stay on the chip, keeps none of it for the backward pass, and sums in another order, so results differ by
rounding. On a GPU its kernels are FlashAttention and memory-efficient attention; on a CPU there is one without dropout.

The lines between the two matrix products become one call: the scale as the script has it (left out where it is the default, one
over the root of the size of the heads), a mask of minus infinities as a mask of booleans, or as `is_causal=True` where it is seen to
be a triangle over queries and keys of the same positions, a mask that is added as it is, dropout as long as the network trains.
Parameters and buffers stay, so that checkpoints load as before. Where a mask hides keys by a large number (`-1e9`), a query
that sees no key at all gets zeros and no longer the mean of all values, and where it adds such numbers, other gradients: that is only
written with `--tier semantic`.

Left alone: attention whose weights are read again (returned, plotted, kept), heads without a dimension of their own (`bmm`),
scores that are masked or scaled twice, code that takes a `.view` of the result or changes it in place, gradients of gradients, `vmap`, hooks on the layers
in between, and scripts that ask for determinism, since the backward pass of the fused kernels adds up in any order. For a CPU also
attention with dropout, which has no kernel there (`--select fused-attention` writes it all the same).

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html and
https://docs.pytorch.org/tutorials/intermediate/scaled_dot_product_attention_tutorial.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from ..optimizer.analysis.attention.attention import Attention, names_in
from ..optimizer.analysis.autograd.gradient_graphs import gradient_graphs
from ..optimizer.analysis.editing.imports import orphaned_imports
from ..optimizer.analysis.editing.references import reference
from ..optimizer.analysis.facts import Fact
from ..optimizer.analysis.networks.layer_access import hooking_call, mapping_call
from ..optimizer.analysis.precision.backend_settings import Topic
from ..optimizer.analysis.program.trees import walk
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import FileEdit, InsertBefore, RemoveStatement, ReplaceExpression
from .base import Change, Example, Skip, Stage, StepPart, Transform

_ZEROS_SINCE = (2, 5)
"""Since when what sees no key is zero (https://github.com/pytorch/pytorch/pull/133882); it was NaN."""

_IMPORTED = frozenset(
    {"math", "math.sqrt", "torch.einsum", "torch.bmm", "torch.matmul", "torch.softmax"}
)


class FusedAttention(Transform):
    name: ClassVar[str] = "fused-attention"
    tier: ClassVar[Tier] = Tier.NUMERIC
    stage: ClassVar[Stage] = Stage.PRECISION
    rank: ClassVar[int] = -1  # what it leaves of the masks is what autocast has to look at
    relieves: ClassVar[StepPart | None] = StepPart.ATTENTION
    example: ClassVar[Example] = Example(
        before="""
            import math

            import torch
            import torch.nn.functional as F
            from torch import nn


            class CausalSelfAttention(nn.Module):
                def __init__(self, width, heads, positions):
                    super().__init__()
                    self.heads = heads
                    self.qkv = nn.Linear(width, 3 * width)
                    self.proj = nn.Linear(width, width)
                    self.register_buffer("mask", torch.tril(torch.ones(positions, positions)))

                def forward(self, x):
                    B, T, C = x.shape
                    q, k, v = self.qkv(x).split(C, dim=2)
                    q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
                    k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
                    v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
                    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
                    scores = scores.masked_fill(self.mask[:T, :T] == 0, float("-inf"))
                    weights = F.softmax(scores, dim=-1)
                    y = weights @ v
                    return self.proj(y.transpose(1, 2).reshape(B, T, C))
        """,
        after="""
            import torch
            import torch.nn.functional as F
            from torch import nn


            class CausalSelfAttention(nn.Module):
                def __init__(self, width, heads, positions):
                    super().__init__()
                    self.heads = heads
                    self.qkv = nn.Linear(width, 3 * width)
                    self.proj = nn.Linear(width, width)
                    self.register_buffer("mask", torch.tril(torch.ones(positions, positions)))

                def forward(self, x):
                    B, T, C = x.shape
                    q, k, v = self.qkv(x).split(C, dim=2)
                    q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
                    k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
                    v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
                    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                    return self.proj(y.transpose(1, 2).reshape(B, T, C))
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        if not script.attention:
            return
        refused = _refused(script, options)
        for attention in script.attention:
            obstacle = attention.obstacle or refused or _layers_watched(script, attention)
            if obstacle is None and self._is_too_slow(script, attention, options):
                obstacle = "on a CPU there is no fused kernel with dropout"
            if obstacle is None and attention.zeroes and options.torch_version < _ZEROS_SINCE:
                obstacle = "before PyTorch 2.5 a query that sees no key gets no number"
            if obstacle is not None:
                message = f"attention is not fused: {obstacle}"
                yield self.skip(attention.path, attention.span, message)
                continue
            yield self._fuse(script, attention)

    def _is_too_slow(self, script: TrainingScript, attention: Attention, options: Options) -> bool:
        return attention.drops and script.is_for_cpu(options) and self.name not in options.select

    def _fuse(self, script: TrainingScript, attention: Attention) -> Change:
        module, product = attention.module, attention.chain.sum.product
        function = reference(module, "torch.nn.functional.scaled_dot_product_attention")
        code = f"{function.code}({', '.join(attention.arguments)})"
        if attention.chain.sum.swapped:
            code += ".transpose(1, 2)"
        last = module.statement(product)
        edits = [
            FileEdit(module.path, RemoveStatement(module.span(s), closes_up=True))
            for s in attention.removed
        ]
        edits += _idle_imports(script, attention)
        for place in _result_edits(attention, last, code):
            edits.append(FileEdit(module.path, place))
        kept = "; buffers and layers stay, for checkpoints" if _keeps_parts(attention) else ""
        message = "attention in one fused operation (`scaled_dot_product_attention`)"
        if attention.zeroes:
            message += ", where a query that sees no key gets zeros and not the mean of all values"
        elif attention.adds_large:
            message += ", where a query that sees no key gets other gradients"
        return replace(
            self.change(
                module.path,
                attention.span,
                message,
                f"nothing else reads scores or weights, and mask, scale and dropout are those of the script{kept}",
                (*function.edits, *edits),
            ),
            tier=Tier.SEMANTIC if attention.zeroes or attention.adds_large else self.tier,
        )


def _result_edits(
    attention: Attention, last: ast.stmt, code: str
) -> list[InsertBefore | ReplaceExpression]:
    """``code`` in place of the product: as it is where that is all of a statement's value, else in a line of its own."""
    module, product = attention.module, attention.chain.sum.product
    parent = module.parents[product]
    if parent is last:
        return [ReplaceExpression(module.span(product), code)]
    name = _result_name(attention, last)
    before = InsertBefore(module.span(last), f"{name} = {code}")
    if isinstance(parent, ast.Attribute):  # with the parentheses around the product
        return [before, ReplaceExpression(module.span(parent), f"{name}.{parent.attr}")]
    return [before, ReplaceExpression(module.span(product), name)]


def _result_name(attention: Attention, last: ast.stmt) -> str:
    """A name for the result: that of the statement's target, if nothing needs its value any more."""
    module, chain = attention.module, attention.chain
    inside = {id(node) for node in walk(chain.sum.product)}
    rest = {
        n.id
        for n in walk(last)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and id(n) not in inside
    }
    match last:
        case ast.Assign([ast.Name(name)]) if name not in rest:
            return name
        case _:
            pass
    function = module.function(last)
    taken = {n.id for n in walk(function or module.tree) if isinstance(n, ast.Name)}
    candidates = ("out", "context", "attended", "attention_output")
    return next(name for name in (*candidates, "attention_result") if name not in taken)


def _idle_imports(script: TrainingScript, attention: Attention) -> tuple[FileEdit, ...]:
    """The edits that drop what is imported for these lines alone: ``import math``."""
    passed = names_in(attention.arguments)
    gone = [
        node
        for part in (*attention.removed, attention.chain.sum.product)
        for node in walk(part)
        if isinstance(node, ast.Name) and node.id not in passed
    ]
    return orphaned_imports(script.resolver.project, attention.module, gone, _IMPORTED)


def _keeps_parts(attention: Attention) -> bool:
    """Whether a buffer or a layer has no use any more: the triangle, a softmax."""
    idle = set(attention.chain.layers) - set(attention.chain.dropouts)
    return "is_causal=True" in attention.arguments or bool(idle)


def _refused(script: TrainingScript, options: Options) -> str | None:
    """Why no attention of the script is fused."""
    on_cpu = script.is_for_cpu(options)  # whose kernel adds up in one order
    setting = (
        None
        if on_cpu
        else next((s for s in script.backend_settings if s.topic is Topic.DETERMINISM), None)
    )
    if setting is not None:
        return f"the script asks for determinism (`{setting.excerpt}`)"
    twice = next(gradient_graphs(script.resolver), None)
    if twice is not None:
        return f"the fused kernels are not differentiated twice (`{twice.excerpt}`)"
    mapped = mapping_call(script.resolver)
    return None if mapped is None else f"`{mapped.excerpt}` maps or differentiates functions"


def _layers_watched(script: TrainingScript, attention: Attention) -> str | None:
    hook: Fact | None = hooking_call(script.resolver) if attention.chain.layers else None
    return None if hook is None else f"`{hook.excerpt}` may look at its layers"
