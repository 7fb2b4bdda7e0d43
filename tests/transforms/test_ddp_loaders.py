"""``ddp`` and the loaders of a training: one that a test chooses, batches of any size, what else knows their size."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

from .test_ddp import FLAT, code

GPUS = {"gpus": 2}
SCRIPT = """\
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--large", action="store_true")
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()
data = TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""
LOADER = "loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)\n"
CHOSEN = """\
if args.large:
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
else:
    loader = DataLoader(data, batch_size=8)
"""


def text(result: RewriteResult) -> str:
    assert [error for file in result.files for error in file.errors] == []
    return result.files[0].text


def left_alone(result: RewriteResult, why: str) -> bool:
    told = [skip.message for file in result.files for skip in file.skips]
    return not any(file.changed for file in result.files) and any(why in each for each in told)


def test_a_loader_that_a_test_chooses(rewrite: Callable[..., RewriteResult]) -> None:
    after = text(rewrite(SCRIPT.replace(LOADER, CHOSEN), ["ddp"], **GPUS))
    assert "\n    train_sampler = DistributedSampler(data) if WORLD_SIZE > 1 else None\n" in after
    assert "train_sampler = DistributedSampler(data, shuffle=False) if WORLD_SIZE" in after
    assert after.count("sampler=train_sampler") == 2
    assert after.count("loader.sampler.set_epoch(epoch)") == 1


@pytest.mark.parametrize("main", [True, False])
def test_a_loader_made_by_a_function_of_another_script(
    rewrite: Callable[..., RewriteResult], main: bool
) -> None:
    """What only runs when that script is started makes no loader of this one."""
    other = """\
from torch.utils.data import DataLoader


def make_loader(data):
    return DataLoader(data, batch_size=16, shuffle=True)


def main():
    print(len(make_loader([1, 2])))


"""
    other += 'if __name__ == "__main__":\n    main()\n' if main else "main()\n"
    made = "DataLoader(data, batch_size=16, shuffle=True)"
    train = "from other import make_loader\n" + FLAT.replace(made, "make_loader(data)")
    result = rewrite({"train.py": train, "other.py": other}, ["ddp"], **GPUS)
    if main:
        assert any("sampler=train_sampler" in file.text for file in result.files)
    else:
        assert left_alone(result, "`make_loader` makes several loaders")


def test_two_loaders_that_take_turns(rewrite: Callable[..., RewriteResult]) -> None:
    turns = LOADER + CHOSEN.replace("\nelse:\n", "\nif args.batch_size:\n")
    assert left_alone(
        rewrite(SCRIPT.replace(LOADER, turns), ["ddp"], **GPUS), "does not go over one DataLoader"
    )


@pytest.mark.parametrize(
    "use",
    [
        "name = 'size_{}'.format(args.batch_size)",
        "name = f'size_{args.batch_size:03d}'",
        "name = 'size_%d_%s' % (args.batch_size, 'a')",
        "name = 'size_' + str(2 * args.batch_size)",
        "test = DataLoader(data, batch_size=args.batch_size * 2)",
    ],
)
def test_texts_and_other_loaders_may_know_the_batch_size(
    rewrite: Callable[..., RewriteResult], use: str
) -> None:
    after = text(rewrite(SCRIPT.replace("model = ", f"{use}\nmodel = "), ["ddp"], **GPUS))
    assert use in after
    assert "batch_size=args.batch_size // WORLD_SIZE" in after


def test_a_learning_rate_that_is_scaled_by_the_size_of_a_batch(
    rewrite: Callable[..., RewriteResult],
) -> None:
    """The number stays that of the whole batch."""
    adjust = """\
def adjust(optimizer, epoch):
    scale = args.batch_size / 256.0
    rate = 0.1 * scale * 0.5 ** (epoch // 30)
    for group in optimizer.param_groups:
        group["{key}"] = rate


"""
    source = SCRIPT.replace("for epoch", f"{adjust}for epoch", 1)
    source = source.replace("    for x, y", "    adjust(optimizer, epoch)\n    for x, y", 1)
    after = text(rewrite(source.replace("{key}", "lr"), ["ddp"], **GPUS))
    assert "batch_size=args.batch_size // WORLD_SIZE" in after
    assert left_alone(rewrite(source.replace("{key}", "x"), ["ddp"], **GPUS), "has other uses")


@pytest.mark.parametrize(
    "use",
    [
        "x = torch.zeros(args.batch_size, 3)",
        "x = args.batch_size % 3",
        "x = '{}'.format([0])[args.batch_size]",
    ],
)
def test_what_else_knows_the_batch_size(rewrite: Callable[..., RewriteResult], use: str) -> None:
    assert left_alone(
        rewrite(SCRIPT.replace("model = ", f"{use}\nmodel = "), ["ddp"], **GPUS), "has other uses"
    )


def test_a_batch_that_does_not_divide(rewrite: Callable[..., RewriteResult]) -> None:
    odd = SCRIPT.replace("batch_size=args.batch_size", "batch_size=15")
    assert left_alone(
        rewrite(odd, ["ddp"], **GPUS), "a batch of 15 samples does not divide into 2 equal parts"
    )
    assert "batch_size=15 // WORLD_SIZE" in text(rewrite(odd, ["ddp"], gpus=3))
    # an option may be another number when the script is started
    for default in (15, 1):
        option = SCRIPT.replace("default=16", f"default={default}")
        option = option.replace("model(x", "model(x.squeeze(1)")
        assert "args.batch_size // WORLD_SIZE" in text(rewrite(option, ["ddp"], **GPUS))


@pytest.mark.parametrize(
    ("asked", "after"),
    [
        ("n = len(data) / loader.batch_size", "n = len(data) / (loader.batch_size * WORLD_SIZE)"),
        ("n = 2 * loader.batch_size", "n = 2 * (loader.batch_size * WORLD_SIZE)"),
        ("n = loader.batch_size // 2", "n = loader.batch_size * WORLD_SIZE // 2"),
        ("n = f'{loader.batch_size}'", "n = f'{loader.batch_size * WORLD_SIZE}'"),
    ],
)
def test_the_size_of_a_batch_that_a_loader_is_asked_for_is_that_of_the_whole(
    rewrite: Callable[..., RewriteResult], asked: str, after: str
) -> None:
    source = SCRIPT.replace("model =", f"{asked}\nmodel =")
    assert f"\n{after}\nmodel" in text(rewrite(source, ["ddp"], **GPUS))


def test_the_size_of_a_batch_for_a_tensor(rewrite: Callable[..., RewriteResult]) -> None:
    source = SCRIPT.replace("model =", "h = torch.zeros(loader.batch_size, 3)\nmodel =")
    assert left_alone(rewrite(source, ["ddp"], **GPUS), "would be that of one process")


def test_the_size_of_a_batch_of_one_loader_or_another(
    rewrite: Callable[..., RewriteResult],
) -> None:
    source = SCRIPT.replace(
        "model =",
        "test = DataLoader(data, batch_size=4)\ndef count(any):\n    return 40 / any.batch_size\n"
        "print(count(loader), count(test))\nmodel =",
    )
    assert left_alone(rewrite(source, ["ddp"], **GPUS), "may be that of a loader that every")


SAMPLED = SCRIPT.replace(
    LOADER,
    "order = RandomSampler(data)\nloader = DataLoader(data, sampler=order, batch_size=args.batch_size)\n",
).replace("import DataLoader,", "import DataLoader, RandomSampler, SequentialSampler,")


@pytest.mark.parametrize(
    ("old", "new", "made"),
    [
        ("", "", "order = DistributedSampler(data) if WORLD_SIZE > 1 else RandomSampler(data)"),
        (
            "RandomSampler(data)",
            "SequentialSampler(data)",
            "DistributedSampler(data, shuffle=False) if WORLD_SIZE > 1 else SequentialSampler(data)",
        ),
        (
            "sampler=order,",
            "sampler=RandomSampler(data), drop_last=True,",
            "DistributedSampler(data, drop_last=True) if WORLD_SIZE > 1 else RandomSampler(data)",
        ),
    ],
)
def test_samplers_that_say_what_shuffle_would(
    rewrite: Callable[..., RewriteResult], old: str, new: str, made: str
) -> None:
    after = text(rewrite(SAMPLED.replace(old, new), ["ddp"], **GPUS))
    assert made in " ".join(after.split())
    assert "train_sampler" not in after
    assert "batch_size=args.batch_size // WORLD_SIZE" in after
    assert ("loader.sampler.set_epoch(epoch)" in after) is ("RandomSampler(data)" in made)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("RandomSampler(data)", "RandomSampler(data, replacement=True)"),
        ("RandomSampler(data)", "RandomSampler(other)"),
        ("RandomSampler(data)", "MySampler(data)"),
        ("model = ", "print(len(order))\nmodel = "),
        ("model = ", "test_loader = DataLoader(data, sampler=order)\nmodel = "),
        ("loader = ", "if args.large:\n    order = SequentialSampler(data)\nloader = "),
    ],
)
def test_samplers_of_the_scripts_own(
    rewrite: Callable[..., RewriteResult], old: str, new: str
) -> None:
    source = SAMPLED.replace("\ndata = ", "\nother = data = ").replace(old, new, 1)
    assert left_alone(rewrite(source, ["ddp"], **GPUS), "`sampler` of its own")


def test_names_that_the_script_uses_for_something_else(
    rewrite: Callable[..., RewriteResult],
) -> None:
    source = FLAT.replace(
        "loader = DataLoader(data,",
        "train_sampler = train_set = None\nloader = DataLoader(TensorDataset(*data.tensors),",
    )
    text = code(rewrite(source, ["ddp"], gpus=2))
    assert "training_set = TensorDataset(*data.tensors)\n" in text
    assert "distributed_sampler = DistributedSampler(training_set) if WORLD_SIZE > 1" in text
    assert "sampler=distributed_sampler" in text
