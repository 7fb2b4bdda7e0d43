"""drop-last: `drop_last=True` on loaders that only train, asked for by name."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from torchopt_cli.optimizer.options import Options, Tier
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult, rewrite_script
from torchopt_cli.optimizer.source import Sources
from torchopt_cli.transforms.registry import all_transforms

from . import table

Check = Callable[..., None]

START = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

train_set = TensorDataset(torch.randn(50, 4), torch.randint(2, (50,)))
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
TRAIN = """
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
ASKED = ", drop_last=len(train_set) >= {})"


def script(made: str, steps: str = TRAIN) -> str:
    return f"{START}{made}\n{steps}"


@pytest.mark.parametrize("size", ["16", "size"])
def test_asks_where_there_may_be_less_than_a_batch(check_transformed: Check, size: str) -> None:
    made = f"size = 16\nloader = DataLoader(train_set, {size}, shuffle=True)"
    check_transformed(script(made), script(made[:-1] + ASKED.format(size)))


def test_a_dataset_of_known_length(check_transformed: Check) -> None:
    made = """\
from torchvision import datasets as ds
data = ds.CIFAR10("data", {})
loader = DataLoader(data, batch_size=128, shuffle=True{})"""
    for train in ("True", "train=True"):
        after = made.format(train, ", drop_last=True")
        check_transformed(script(made.format(train, "")), script(after))
    test = made.format("train=False", "")
    check_transformed(script(test), script(test[:-1] + ", drop_last=len(data) >= 128)"))


def test_a_loader_made_in_another_file(check_transformed: Check) -> None:
    data = """\
from torch.utils.data import DataLoader, TensorDataset
import torch as th


def loaders(size):
    train_set = TensorDataset(th.randn(50, 4), th.randint(2, (50,)))
    train = DataLoader(train_set, size, shuffle=True{})
    return train, DataLoader(train_set, size)
"""
    train = START + "from data import loaders\n\nloader, val_loader = loaders(16)\n" + TRAIN
    check_transformed(
        {"train.py": train, "data.py": data.format("")},
        {"data.py": data.format(", drop_last=len(train_set) >= size")},
    )


def test_one_batch_taken_beside_the_loop(check_transformed: Check) -> None:
    made = "loader = DataLoader(train_set, 16, shuffle=True)"
    steps = "sample = next(iter(loader))\n" + TRAIN
    check_transformed(script(made, steps), script(made[:-1] + ASKED.format("16"), steps))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("DataLoader(train_set, 16)", "may not shuffle"),
        ("DataLoader(train_set, 16, shuffle=False)", "may not shuffle"),
        ("DataLoader(train_set, 16, shuffle=args.shuffle)", "may not shuffle"),
        ("DataLoader(train_set, 16, sampler=sampler)", "its `sampler`"),
        ("DataLoader(train_set, batch_sampler=sampler)", "its `batch_sampler`"),
        ("DataLoader(train_set, 16, shuffle=True, drop_last=False)", "`drop_last=False`"),
        ("DataLoader(train_set, 16, shuffle=True, drop_last=last)", "`drop_last=last`"),
        ("DataLoader(train_set, 16, shuffle=True, **more)", "`more` cannot be resolved"),
        ("DataLoader(train_set, shuffle=True)", "every batch is one sample"),
        ("DataLoader(train_set, batch_size=1, shuffle=True)", "every batch is one sample"),
        ("DataLoader(train_set, batch_size=None, shuffle=True)", "may be None"),
        ("DataLoader(load(), 16, shuffle=True)", "length of its dataset is not known"),
        ("DataLoader(TensorDataset(torch.ones(9)), 16, shuffle=True)", "no variable holds"),
        ("DataLoader(train_set, 2 * size, shuffle=True)", "no variable holds"),
        ("[DataLoader(train_set, 16, shuffle=True) for _ in range(2)][0]", "several loaders"),
    ],
)
def test_left_alone(check_noop: Check, made: str, reason: str) -> None:
    check_noop(script(f"loader = {made}"), reason=reason)


def test_said_already(check_noop: Check) -> None:
    check_noop(script("loader = DataLoader(train_set, 16, shuffle=True, drop_last=True)"))


EVALUATE = """
with torch.no_grad():
    for x, y in loader:
        print(model(x))
"""
BOTH = """
for phase in ["train", "val"]:
    for x, y in loaders[phase]:
        loss = nn.functional.cross_entropy(model(x), y)
        if phase == "train":
            loss.backward()
            optimizer.step()
"""


def test_evaluation(check_noop: Check) -> None:
    made = "loader = DataLoader(train_set, 16, shuffle=True)"
    check_noop(script(made, EVALUATE), reason="no training loop")
    check_noop(script(made, TRAIN + EVALUATE), reason="not for training alone")
    check_noop(
        script(made, TRAIN + "outputs = [model(x) for x, _ in loader]\n"), reason="also gone over"
    )


def test_one_loop_for_training_and_evaluation(check_noop: Check) -> None:
    made = (
        "loaders = {'train': DataLoader(train_set, 16, shuffle=True),"
        " 'val': DataLoader(train_set, 8, shuffle=True)}"
    )
    check_noop(script(made, BOTH), reason="not for training alone")
    made = "loaders = {p: DataLoader(train_set, 16, shuffle=True) for p in ['train', 'val']}"
    check_noop(script(made, BOTH))


def test_a_function_that_makes_both(check_noop: Check) -> None:
    made = """\
def make(split):
    return DataLoader(split, 16, shuffle=True)


loader = make(train_set)
val_loader = make(train_set)
"""
    check_noop(script(made), reason="makes several loaders")


def test_a_dataset_that_is_only_iterated(check_noop: Check) -> None:
    made = """\
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield torch.zeros(4), torch.tensor(1)


stream = Stream()
loader = DataLoader(stream, 16, shuffle=True)"""
    check_noop(script(made), reason="only iterated")


@pytest.mark.parametrize("tier", [Tier.NUMERIC, Tier.SEMANTIC])
def test_never_unasked(tmp_path: Path, tier: Tier) -> None:
    path = tmp_path / "train.py"
    path.write_text(script("loader = DataLoader(train_set, 16, shuffle=True)"))
    for options in (Options(tier=tier), Options(select=frozenset({"drop-last"}))):
        if options.select and tier is Tier.SEMANTIC:
            continue
        result = rewrite_script(path, Sources(), all_transforms(), options)
        assert not any("drop_last=True" in file.text for file in result.files)
        assert not any(c.transform == "drop-last" for file in result.files for c in file.changes)


@pytest.mark.torch
@pytest.mark.parametrize(("size", "steps"), [(16, 3), (64, 1)])
def test_training_on_full_batches_is_the_same(
    rewrite: Callable[..., RewriteResult],
    count_case: Callable[[str, str], None],
    tmp_path: Path,
    size: int,
    steps: int,
    warm_python: Path,
) -> None:
    count_case("drop-last", table.VERIFIED)
    made = f"loader = DataLoader(train_set, {size}, shuffle=True)"
    body = TRAIN + "    print(len(x), model.weight.sum().item())\n"
    text = script(made, body).replace("train_set =", "torch.manual_seed(0)\ntrain_set =", 1)
    result = rewrite(text, ["drop-last"])
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(text)
    after.write_text(result.files[0].text)
    printed = [
        subprocess.run([warm_python, path], capture_output=True, text=True, check=True).stdout
        for path in (before, after)
    ]
    full, kept = (lines.splitlines() for lines in printed)
    assert len(kept) == steps
    assert kept == full[:steps]
    assert all(not line.startswith(f"{size} ") for line in full[steps:])
