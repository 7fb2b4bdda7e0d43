"""Datasets of Hugging Face's library."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.loading.datasets import DatasetKind
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
import datasets
from datasets import Dataset, load_dataset, load_from_disk
from torch.utils.data import DataLoader, Subset
raw = load_dataset("glue")
train = raw["train"]
mapped = raw.map(len).remove_columns(["a"])
"""


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("raw", DatasetKind.LIBRARY),
        ("train", DatasetKind.LIBRARY),
        ("mapped['train']", DatasetKind.LIBRARY),
        ("mapped['train'].with_format('torch').select(range(3))", DatasetKind.LIBRARY),
        ("train.shuffle(seed=1)", DatasetKind.LIBRARY),
        ("load_dataset('x', split='train').map(len)", DatasetKind.LIBRARY),
        ("train.train_test_split(0.1)['test']", DatasetKind.LIBRARY),
        ("load_from_disk('x')", DatasetKind.LIBRARY),
        ("datasets.concatenate_datasets([train, train])", DatasetKind.LIBRARY),
        ("Dataset.from_pandas(open('x'))", DatasetKind.LIBRARY),
        ("Subset(train, [1, 2])", DatasetKind.LIBRARY),
        ("load_dataset('x', streaming=True)", DatasetKind.FOREIGN),
        ("load_dataset('x', streaming=True).map(len)", DatasetKind.FOREIGN),
        ("load_dataset('x', streaming=flag())", DatasetKind.FOREIGN),
        ("train.to_iterable_dataset()", DatasetKind.UNKNOWN),
        ("datasets.something()", DatasetKind.FOREIGN),
    ],
)
def test_kinds(script: Script, expression: str, kind: DatasetKind) -> None:
    understood = script(f"{HEAD}loader = DataLoader({expression})\n")
    assert {d.kind for found in understood.datasets.values() for d in found} == {kind}


def test_transforms_run_for_every_item(script: Script) -> None:
    code = "def flip(x):\n    return x.flipped()\ntrain.set_transform(flip)\nloader = DataLoader(train)\n"
    ((dataset,),) = script(HEAD + code).datasets.values()
    reached = [r.module.code(r.node) for r in dataset.item_code if hasattr(r.node, "lineno")]
    assert "x.flipped()" in reached
