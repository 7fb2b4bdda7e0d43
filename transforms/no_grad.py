"""Runs evaluation and inference without recording gradients.

A forward pass outside `torch.no_grad()` keeps every intermediate result for a backward pass that never comes: that costs memory
(often the larger part) and time. A function that only evaluates gets the decorator `@torch.no_grad()`; a loop or a few
statements get `with torch.no_grad():`; code that trains or evaluates by a flag gets
`with torch.set_grad_enabled(flag):`. The numbers do not change.

In training steps so do networks that nothing trains: the teacher of a distillation, the target network of Q-learning,
a frozen encoder. No optimizer has their parameters, nothing looks at their gradients, and what goes into them has none;
recorded all the same, they cost a backward pass whose result nobody reads.

Left alone: code that reaches `backward`, `autograd.grad` or anything that asks for gradients (gradient penalties,
adversarial examples, attributions); code whose tensors reach a backward pass elsewhere, are saved or printed with their
graph, or go where they cannot be followed; code already under `no_grad`, `inference_mode` or `set_grad_enabled`;
`forward` methods. With `nn.TransformerEncoder(batch_first=True)`, `nn.LSTM` or compiled code the change is numeric, not
exact: without gradients PyTorch takes kernels that round differently.

Sources: https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html and
https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from ..optimizer.analysis.autograd.frozen_networks import FrozenForward
from ..optimizer.analysis.autograd.fused_inference import fused_layers, zeroed_padding
from ..optimizer.analysis.editing.references import reference
from ..optimizer.analysis.evaluation.evaluation import Inference
from ..optimizer.analysis.facts import Fact
from ..optimizer.analysis.program.trees import walk
from ..optimizer.analysis.script import TrainingScript
from ..optimizer.options import Options, Tier
from ..optimizer.rewriting.edits import Decorate, Edit, FileEdit, Span, Wrap
from .base import Change, Example, Skip, Stage, StepPart, Transform

_REASON = "no backward pass runs in it, and no tensor computed in it reaches one"
_FROZEN = "no optimizer has its parameters, nothing looks at their gradients, and what goes into it has none"
_FLAG_REASON = "its backward pass runs only if `{0}`, and no tensor computed otherwise reaches one"
_VOLATILE = "; `volatile=True` has had no effect since PyTorch 0.4"
_FUSED = "; without gradients `{0}` ({1}) rounds differently"


class NoGrad(Transform):
    name = "no-grad"
    tier = Tier.EXACT
    stage = Stage.EVALUATION
    relieves = StepPart.EVALUATION
    example = Example(
        before="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from data import train_set, test_set

            model = nn.Linear(10, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


            def accuracy(loader):
                model.eval()
                correct = 0
                for x, y in loader:
                    correct += (model(x).argmax(1) == y).sum().item()
                return correct / len(loader.dataset)


            for x, y in DataLoader(train_set, batch_size=32):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            print(accuracy(DataLoader(test_set, batch_size=32)))
        """,
        after="""\
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from data import train_set, test_set

            model = nn.Linear(10, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


            @torch.no_grad()
            def accuracy(loader):
                model.eval()
                correct = 0
                for x, y in loader:
                    correct += (model(x).argmax(1) == y).sum().item()
                return correct / len(loader.dataset)


            for x, y in DataLoader(train_set, batch_size=32):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            print(accuracy(DataLoader(test_set, batch_size=32)))
        """,
    )

    def plan(self, script: TrainingScript, options: Options) -> Iterator[Change | Skip]:
        for unproven in script.unproven_evaluation:
            message = f"gradients stay on: the evaluation {unproven.escape}"
            yield self.skip(unproven.path, unproven.span, message)
        for kept in script.kept_gradients:
            said = f"gradients stay on: no optimizer has the network, but {kept.why}"
            yield self.skip(kept.path, kept.span, said)
        searched = script.inference or script.frozen_forwards
        fused = fused_layers(script.resolver) if searched else ()
        padded = zeroed_padding(script.resolver) if fused else None
        done = {node for inference in script.inference for node in _nodes(inference)}
        frozen = [forward for forward in script.frozen_forwards if forward.node not in done]
        changes: dict[Inference | FrozenForward, Change] = {}
        for code in (*script.inference, *frozen):
            refusal = _refusal(fused, padded, options)
            if refusal is not None:
                yield self.skip(code.path, code.span, refusal)
                continue
            change = self._frozen(code) if isinstance(code, FrozenForward) else self._change(code)
            changes[code] = _rounded(change, fused[0]) if fused else change
        yield from _one_block_each(changes)

    def _frozen(self, forward: FrozenForward) -> Change:
        module = forward.module
        mode = reference(module, "torch.no_grad", forward.node)
        first, last = module.span(forward.statements[0]), module.span(forward.statements[-1])
        return self.change(
            forward.path,
            forward.span,
            f"`{forward.network}` runs without gradients",
            _FROZEN,
            (*mode.edits, FileEdit(module.path, Wrap(first, last, f"with {mode.code}():"))),
        )

    def _change(self, inference: Inference) -> Change:
        module, guard = inference.module, inference.guard
        at = None if inference.is_function else inference.node
        if guard is None:
            mode, reason = reference(module, "torch.no_grad", at), _REASON
            code = f"{mode.code}()"
        else:
            mode = reference(module, "torch.set_grad_enabled", at)
            code, reason = f"{mode.code}({guard.code})", _FLAG_REASON.format(guard.code)
        edit: Edit
        if inference.is_function:
            edit, what = Decorate(inference.span, code), f"`{_name(inference)}` runs"
        else:
            first, last = inference.statements[0], inference.statements[-1]
            edit = Wrap(module.span(first), module.span(last), f"with {code}:")
            what = "the evaluation loop runs" if _is_loop(inference) else "the forward pass runs"
        if _uses_volatile(inference):
            reason += _VOLATILE
        without = "without gradients" if guard is None else f"with gradients only if `{guard.code}`"
        edits = (*mode.edits, FileEdit(module.path, edit))
        return self.change(inference.path, inference.span, f"{what} {without}", reason, edits)


def _one_block_each(changes: dict[Inference | FrozenForward, Change]) -> Iterator[Change]:
    """The ``changes``, as one where a block would begin right behind another."""
    first: dict[ast.stmt | None, Inference | FrozenForward] = {
        code.statements[0]: code for code in changes if _is_block(code)
    }
    joined: set[Inference | FrozenForward] = set()
    for code in sorted(changes, key=lambda code: (code.path, code.span)):
        if code in joined:
            continue
        change, last = changes[code], code
        while _is_block(last) and (following := first.get(_behind(last))) is not None:
            change = _together(change, changes[following])
            joined.add(following)
            last = following
        yield change


def _is_block(code: Inference | FrozenForward) -> bool:
    return bool(code.statements) and (isinstance(code, FrozenForward) or code.guard is None)


def _behind(code: Inference | FrozenForward) -> ast.stmt | None:
    """The statement right behind those of ``code``."""
    last = code.statements[-1]
    block = code.module.block(last)
    return next(iter(block[block.index(last) + 1 :]), None)


def _together(one: Change, other: Change) -> Change:
    *imports, first = one.edits
    wrap, behind = first.edit, other.edits[-1].edit
    assert isinstance(wrap, Wrap)
    assert isinstance(behind, Wrap)
    here, there = one.span, other.span
    edits = (*imports, replace(first, edit=replace(wrap, last=behind.last)))
    return replace(
        one,
        tier=max(one.tier, other.tier),
        span=Span(here.line, here.column, there.end_line, there.end_column),
        message=one.message if one.message == other.message else f"{one.message}; {other.message}",
        reason=one.reason if one.reason == other.reason else f"{one.reason}; {other.reason}",
        edits=edits,
    )


def _rounded(change: Change, layer: Fact) -> Change:
    """``change`` as one that is not exact, because the call ``layer`` rounds differently without gradients."""
    function = ast.unparse(layer.node.func)  # type: ignore[attr-defined]
    reason = change.reason + _FUSED.format(function, layer.place)
    return replace(change, reason=reason, tier=Tier.NUMERIC)


def _nodes(inference: Inference) -> Iterator[ast.AST]:
    for root in inference.statements or (inference.node,):
        yield from walk(root)


def _refusal(fused: tuple[Fact, ...], padded: Fact | None, options: Options) -> str | None:
    if not fused:
        return None
    if padded is not None:
        return (
            f"gradients stay on: without them, the encoder called at {padded.place} "
            "writes zeros at padded positions"
        )
    if options.tier < Tier.NUMERIC:
        return f"gradients stay on: without them, the layer of {fused[0].place} rounds differently"
    return None


def _name(inference: Inference) -> str:
    return getattr(inference.node, "name", "")


def _is_loop(inference: Inference) -> bool:
    return any(isinstance(s, ast.For | ast.AsyncFor | ast.While) for s in inference.statements)


def _uses_volatile(inference: Inference) -> bool:
    return any(isinstance(n, ast.keyword) and n.arg == "volatile" for n in _nodes(inference))
