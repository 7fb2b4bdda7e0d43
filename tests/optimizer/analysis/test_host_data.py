"""What is surely a size, and what is surely data."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.devices.host_data import HostData
from torchopt_cli.optimizer.analysis.devices.legacy_tensors import legacy_dtype, takes_sizes
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """
import argparse
import numpy as np
import torch
from elsewhere import x, unknown
p = argparse.ArgumentParser()
p.add_argument("--n", type=int, default=3)
p.add_argument("--text", default=3)
args = p.parse_args()
batch = x.size(0)
values = [1, 2]
"""


@pytest.mark.parametrize(
    ("change", "sizes"),
    [
        ("count += 1", True),
        ("count -= len(values)", True),
        ("count /= 2", None),
        ("count += unknown", None),
    ],
)
def test_counters(script: Script, change: str, sizes: bool | None) -> None:
    found = script(f"{HEAD}\ncount = 0\nwhile x:\n    {change}\n    MAKE(count)\n")
    (call,) = [c for c in found.entry.calls if getattr(c.func, "id", "") == "MAKE"]
    assert takes_sizes(HostData(found.resolver), call, found.entry) is sizes


@pytest.mark.parametrize(
    ("loop", "sizes"),
    [
        ("for n, _ in enumerate(x):", True),
        ("for n, (a, b) in enumerate(x, 1):", True),
        ("for n, a in tqdm(enumerate(x), total=3):", True),
        ("bar = tqdm(enumerate(x))\nfor n, a in bar:", True),
        ("bar = enumerate(x)\nfor _ in range(3):\n    bar = tqdm(bar)\nfor n, a in bar:", True),
        ("for a, n in enumerate(x):", None),
        ("for n, a in zip(x, x):", None),
        ("for n, a in tqdm(x):", None),
        ("for n, a in elsewhere.bar(enumerate(x)):", None),
    ],
)
def test_the_numbers_of_an_enumeration(script: Script, loop: str, sizes: bool | None) -> None:
    found = script(f"from tqdm import tqdm\nimport elsewhere\n{HEAD}\n{loop}\n    MAKE(n)\n")
    (call,) = [c for c in found.entry.calls if getattr(c.func, "id", "") == "MAKE"]
    assert takes_sizes(HostData(found.resolver), call, found.entry) is sizes


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ("3", True),
        ("2, unknown", True),
        ("*x.shape", True),
        ("x.size()", True),
        ("x.size() + (batch,)", True),
        ("x.size() + x.size()", True),
        ("x.shape[0] * 2", True),
        ("batch", True),
        ("len(values)", True),
        ("args.n", True),
        ("", True),
        ("values", False),
        ("[[1, 2]]", False),
        ("(2, 3)", False),
        ("(2, 3) + (4,)", False),
        ("(2,) * batch", False),
        ("[2] + values", False),
        ("unknown + (batch,)", None),
        ("(batch,) + x.size()", None),
        ("np.ones((2, 3))", False),
        ("0.5 * np.random.normal(0, 1, (3,))", False),
        ("np.random.randint(0, 5, batch)", False),
        ("np.random.randint(0, 5)", None),
        ("np.prod([2, 3])", None),
        ("unknown", None),
        ("*unknown", None),
        ("args.text", None),
    ],
)
def test_arguments_of_a_typed_constructor(
    script: Script, arguments: str, sizes: bool | None
) -> None:
    found = script(f"{HEAD}\nMAKE({arguments})\n")
    (call,) = [c for c in found.entry.calls if getattr(c.func, "id", "") == "MAKE"]
    assert takes_sizes(HostData(found.resolver), call, found.entry) is sizes


@pytest.mark.parametrize(
    ("names", "dtype"),
    [
        ({"torch.cuda.FloatTensor", "torch.Tensor"}, "float32"),
        ({"torch.LongTensor"}, "long"),
        ({"torch.cuda.HalfTensor", "torch.FloatTensor"}, None),
        ({"torch.tensor"}, None),
    ],
)
def test_dtype_of_tensor_types(names: set[str], dtype: str | None) -> None:
    assert legacy_dtype(frozenset(names)) == dtype


@pytest.mark.parametrize(
    ("columns", "is_data"),
    [
        ("zip(*batch)", True),
        ("list(zip(*batch))", True),
        ("map(list, zip(*batch))", True),
        ("map(np.stack, zip(*batch))", True),
        ("map(torch.stack, zip(*batch))", False),
        ("batch", False),
    ],
)
def test_the_columns_of_rows(script: Script, columns: str, is_data: bool) -> None:
    found = script(f"import torch\n{HEAD}\nstates, actions = {columns}\nMAKE(actions)\n")
    (call,) = [c for c in found.entry.calls if getattr(c.func, "id", "") == "MAKE"]
    host = HostData(found.resolver)
    assert host.is_data(call.args[0], found.entry) is is_data
    assert host.is_no_tensor(call.args[0], found.entry) is is_data
    assert not host.is_int(call.args[0], found.entry)
