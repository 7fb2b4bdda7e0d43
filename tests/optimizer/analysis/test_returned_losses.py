"""Losses that a network computes itself and returns, alone or among other results, as it is or gathered by DataParallel."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.distributed.distributed_obstacles import loss_reduction
from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.training.reductions import Reduction

SCRIPT = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from dataclasses import dataclass
from transformers.modeling_outputs import SequenceClassifierOutput

@dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)

    def forward(self, x, mask=None, labels=None):
        logits = self.body(x)
{forward}

model = {model}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in loader:
    batch = tuple(t.to("cuda") for t in batch)
{step}
    loss.backward()
    optimizer.step()
"""
TUPLE = """\
        outputs = (logits,)
        if labels is not None:
            loss = F.cross_entropy(logits.view(-1, 6), labels.view(-1))
            outputs = (loss,) + outputs
        return outputs
"""
CHOSEN = """\
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits, labels)
        output = (logits, self.body.weight)
        return ((loss,) + output) if labels is not None else output
"""
EARLY = """\
        if labels is None:
            return logits
        return F.cross_entropy(logits, labels), logits
"""
DICT = "        return {'loss': F.cross_entropy(logits, labels), 'logits': logits}"
OBJECT = "        return Output(loss=F.cross_entropy(logits, labels), logits=logits)"
LIBRARY = (
    "        return SequenceClassifierOutput(loss=F.cross_entropy(logits, labels), logits=logits)"
)
SUM = "        return F.cross_entropy(logits, labels, reduction='sum'), logits"
EACH = "        return F.cross_entropy(logits, labels, reduction='none'), logits"
COMPARED = "        return (logits @ logits.T).mean(), logits"
WRITTEN_OVER = """\
        outputs = {'loss': F.cross_entropy(logits, labels)}
        outputs['loss'] = outputs['loss'] ** 2
        return outputs
"""
CALLED = "    loss = model(batch[0], labels=batch[1])"
FIRST = f"{CALLED}[0]"
MEAN_OF_FIRST = """\
    outputs = model(batch[0], labels=batch[1])
    loss = outputs[0]
    if torch.cuda.device_count() > 1:
        loss = loss.mean()
    loss = loss / 4
"""
UNPACKED = f"{CALLED.replace('loss =', 'loss, logits =')}\n    loss = loss.mean()"
ENTRIES = """\
    inputs = {"x": batch[0], "labels": batch[1]}
    loss = model(**inputs)[0].mean()
"""
NAMED = f"{CALLED}.loss"
PLAIN, PARALLEL = "Net()", "nn.DataParallel(Net())"
CASES: dict[str, tuple[str, str, str, Reduction | None]] = {
    "tuple": (TUPLE, PLAIN, FIRST, Reduction.MEAN),
    "tuple, no labels": (TUPLE, PLAIN, "    loss = model(batch[0])[0].mean()", Reduction.MEAN),
    "tuple, no labels, unreduced": (
        TUPLE,
        PLAIN,
        "    loss = model(batch[0])[0]",
        Reduction.SAMPLES,
    ),
    "tuple, replicas": (TUPLE, PARALLEL, MEAN_OF_FIRST, Reduction.REPLICAS),
    "tuple, replicas, mean": (TUPLE, PARALLEL, UNPACKED, Reduction.MEAN),
    "tuple, replicas, sum": (TUPLE, PARALLEL, f"{FIRST}.sum()", None),
    "tuple, either": (
        TUPLE,
        f"{PARALLEL} if torch.cuda.device_count() > 1 else {PLAIN}",
        MEAN_OF_FIRST,
        Reduction.REPLICAS,
    ),
    "entries": (TUPLE, PARALLEL, ENTRIES, Reduction.MEAN),
    "entries, plain": (TUPLE, PLAIN, ENTRIES, Reduction.MEAN),
    "chosen": (CHOSEN, PARALLEL, UNPACKED.replace("logits", "*_"), Reduction.MEAN),
    "early": (EARLY, PARALLEL, UNPACKED, Reduction.MEAN),
    "dict": (DICT, PARALLEL, f"{CALLED}['loss'].mean()", Reduction.MEAN),
    "dict, plain": (DICT, PLAIN, f"{CALLED}['loss']", Reduction.MEAN),
    "object": (OBJECT, PLAIN, NAMED, Reduction.MEAN),
    "library's object": (LIBRARY, PLAIN, NAMED, Reduction.MEAN),
    "library's object, by its place": (LIBRARY, PARALLEL, f"{FIRST}.mean()", Reduction.MEAN),
    "sum": (SUM, PLAIN, FIRST, Reduction.SUM),
    "sum, replicas": (SUM, PARALLEL, f"{FIRST}.sum()", Reduction.WHOLE),
    "each": (EACH, PARALLEL, f"{FIRST}.mean()", Reduction.MEAN),
    "compared": (COMPARED, PLAIN, FIRST, Reduction.RESULT),
    "compared, replicas": (COMPARED, PARALLEL, f"{FIRST}.mean()", Reduction.WHOLE),
    "written over": (WRITTEN_OVER, PLAIN, f"{CALLED}['loss']", Reduction.RESULT),
    "sample of the logits": (TUPLE, PLAIN, "    loss = model(batch[0])[0][0].mean()", None),
}


@pytest.mark.parametrize("case", CASES)
def test_reduction(script: Callable[..., TrainingScript], case: str) -> None:
    forward, model, step, expected = CASES[case]
    text = SCRIPT.replace("{forward}", forward).replace("{model}", model).replace("{step}", step)
    understood = script(text)
    (step,) = understood.step_code
    found = loss_reduction(understood.resolver, step, step.backwards[0])
    assert found is expected
