"""Runs evaluation and inference without recording gradients.

A forward pass outside `torch.no_grad()` keeps every intermediate result for a backward pass that never comes: that costs memory
(often the larger part) and time. A function that only evaluates gets the decorator `@torch.no_grad()`; a loop or a few
statements get `with torch.no_grad():`; code that trains or evaluates by a flag gets
`with torch.set_grad_enabled(flag):`. The numbers do not change.

Networks that nothing trains run without gradients in training steps, too: the teacher of a distillation, the target network
of Q-learning, a frozen encoder. No optimizer has their parameters, nothing looks at their gradients, and what goes into them has none;
recorded all the same, they cost a backward pass whose result nobody reads.

Left alone: code that reaches `backward`, `autograd.grad` or anything that asks for gradients (gradient penalties,
adversarial examples, attributions); code whose tensors reach a backward pass elsewhere, are saved or printed with their
graph, are kept by a forward hook for either, or go where they cannot be followed; code already under `no_grad`, `inference_mode` or `set_grad_enabled`;
`forward` methods. With `nn.TransformerEncoder(batch_first=True)`, `nn.LSTM` or compiled code the change is numeric, not
exact: without gradients PyTorch takes kernels that round differently.

Sources: https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html and
https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
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
_ALL_FROZEN = "no optimizer has their parameters, nothing looks at their gradients, and what goes into them has none"
_UNREAD = "nothing reads a gradient that would pass through them"
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
        found: list[Inference | FrozenForward] = []
        for code in (*script.inference, *frozen):
            refusal = _refusal(fused, padded, options)
            if refusal is not None:
                yield self.skip(code.path, code.span, refusal)
            else:
                found.append(code)
        for block in _one_block_each(found):
            change = self._together(block)
            yield _rounded(change, fused[0]) if fused else change

    def _together(self, block: Sequence[Inference | FrozenForward]) -> Change:
        """The change of ``block``: of one piece of code, or of several that follow each other."""
        first, *others = (
            self._frozen(code) if isinstance(code, FrozenForward) else self._change(code)
            for code in block
        )
        change = first
        if others:
            *imports, begin = first.edits
            wrap, end = begin.edit, others[-1].edits[-1].edit
            assert isinstance(wrap, Wrap)
            assert isinstance(end, Wrap)
            here, there = first.span, others[-1].span
            change = replace(
                first,
                span=Span(here.line, here.column, there.end_line, there.end_column),
                message=f"{_subject(*block)} without gradients",
                reason=_reason(block),
                edits=(*imports, replace(begin, edit=replace(wrap, last=end.last))),
            )
        if any(isinstance(code, Inference) and _uses_volatile(code) for code in block):
            return replace(change, reason=change.reason + _VOLATILE)
        return change

    def _frozen(self, forward: FrozenForward) -> Change:
        module = forward.module
        mode = reference(module, "torch.no_grad", forward.node)
        first, last = module.span(forward.statements[0]), module.span(forward.statements[-1])
        return self.change(
            forward.path,
            forward.span,
            f"{_subject(forward)} without gradients",
            _reason([forward]),
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
            edit = Decorate(inference.span, code)
        else:
            first, last = inference.statements[0], inference.statements[-1]
            edit = Wrap(module.span(first), module.span(last), f"with {code}:")
        without = "without gradients" if guard is None else f"with gradients only if `{guard.code}`"
        edits = (*mode.edits, FileEdit(module.path, edit))
        message = f"{_subject(inference)} {without}"
        return self.change(inference.path, inference.span, message, reason, edits)


def _subject(*block: Inference | FrozenForward) -> str:
    """What of ``block`` runs, with the verb: ``the forward pass and `teacher` run``."""
    *first, last = dict.fromkeys(name for code in block for name in _names(code))
    return f"{', '.join(first)} and {last} run" if first else f"{last} runs"


def _names(code: Inference | FrozenForward) -> tuple[str, ...]:
    if isinstance(code, FrozenForward):
        return tuple(f"`{network}`" for network in code.networks)
    if code.is_function:
        return (f"`{_name(code)}`",)
    return ("the evaluation loop" if _is_loop(code) else "the forward pass",)


def _reason(block: Sequence[Inference | FrozenForward]) -> str:
    """Why none of ``block`` needs gradients."""
    if not any(isinstance(code, FrozenForward) for code in block):
        return _REASON
    if all(isinstance(code, FrozenForward) for code in block):
        return (
            _FROZEN if len({name for code in block for name in _names(code)}) == 1 else _ALL_FROZEN
        )
    return _UNREAD


def _one_block_each(
    found: Sequence[Inference | FrozenForward],
) -> Iterator[list[Inference | FrozenForward]]:
    """``found`` in the order of the files; together what makes one block, since it stands right behind each other."""
    begins: dict[ast.stmt | None, Inference | FrozenForward] = {
        code.statements[0]: code for code in found if _is_block(code)
    }
    joined: set[Inference | FrozenForward] = set()
    for code in sorted(found, key=lambda code: (code.path, code.span)):
        if code in joined:
            continue
        block = [code]
        while _is_block(block[-1]) and (following := begins.get(_behind(block[-1]))) is not None:
            joined.add(following)
            block.append(following)
        yield block


def _is_block(code: Inference | FrozenForward) -> bool:
    return bool(code.statements) and (isinstance(code, FrozenForward) or code.guard is None)


def _behind(code: Inference | FrozenForward) -> ast.stmt | None:
    """The statement right behind those of ``code``."""
    last = code.statements[-1]
    block = code.module.block(last)
    return next(iter(block[block.index(last) + 1 :]), None)


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
