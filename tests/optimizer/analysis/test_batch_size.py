"""Where a script says of how many samples its training batches are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.loading.batch_size import BatchSize, find_batch_size
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
import argparse
import torch
from torch.utils.data import DataLoader
parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", type=int, default=32)
parser.add_argument("--required", type=int)
args = parser.parse_args()
BATCH = 48
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("loader", "number", "flags"),
    [
        ("DataLoader(data, batch_size=64)", 64, ()),
        ("DataLoader(data, 64, True)", 64, ()),
        ("DataLoader(data, batch_size=BATCH)", 48, ()),
        ("DataLoader(data, batch_size=args.batch_size)", 32, ("-b", "--batch-size")),
        ("DataLoader(data, **dict(batch_size=64))", 64, ()),
    ],
)
def test_the_size(script: Script, loader: str, number: int, flags: tuple[str, ...]) -> None:
    found = find_batch_size(script(f"{HEAD}loader = {loader}\n{LOOP}"))
    assert isinstance(found, BatchSize)
    assert (found.number, found.flags) == (number, flags)
    assert found.excerpt == str(number)


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        ("DataLoader(data)", "given no batch size"),
        ("DataLoader(data, batch_size=args.required)", "is not one number"),
        ("DataLoader(data, batch_size=unknown())", "is not one number"),
        ("DataLoader(data, batch_size=64 if args else 32)", "is not one number"),
        ("DataLoader(data, batch_size=None)", "is not one number"),
        ("DataLoader(data, batch_size=64, batch_sampler=buckets)", "`batch_sampler`"),
        ("data", "no DataLoader that the script trains on is seen"),
    ],
)
def test_no_size(script: Script, loader: str, reason: str) -> None:
    found = find_batch_size(script(f"{HEAD}loader = {loader}\n{LOOP}"))
    assert not isinstance(found, BatchSize)
    assert reason in found.message


def test_no_size_of_several_loaders(script: Script) -> None:
    loaders = "loader = DataLoader(data, 8)\nother = DataLoader(data, 8)\n"
    found = find_batch_size(script(HEAD + loaders + LOOP + LOOP.replace("loader", "other")))
    assert not isinstance(found, BatchSize)
    first = (HEAD + loaders).count("\n") - 1
    several = "2 DataLoaders that the script trains on are seen, not one"
    assert found.message == f"{several} (lines {first} and {first + 1})"


def test_no_size_that_is_also_a_shape(script: Script) -> None:
    text = f"{HEAD}hidden = torch.zeros(64, 8)\nloader = DataLoader(data, batch_size=64)\n{LOOP}"
    found = find_batch_size(script(text))
    assert not isinstance(found, BatchSize)
    assert "in the shape of a tensor" in found.message


def test_what_an_imported_file_tries_out_as_a_script_is_no_use(script: Script) -> None:
    tried = "if __name__ == '__main__':\n    print(torch.rand(64, 8).shape)\n"
    entry = f"import net\n{HEAD}loader = DataLoader(data, batch_size=64)\n{LOOP}"
    found = find_batch_size(script({"train.py": entry, "net.py": f"import torch\n{tried}"}))
    assert isinstance(found, BatchSize)
