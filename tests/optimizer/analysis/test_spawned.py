"""Parameters of functions that processes and threads run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Ask = Callable[..., set[object]]
HEAD = """\
import threading
import torch
import torch.multiprocessing as mp
from torch.multiprocessing import Process, spawn


def main(rank, size, name="default"):
    ASK({})


"""


@pytest.mark.parametrize(
    ("start", "values"),
    [
        ("mp.spawn(main, args=(2, 'x'), nprocs=2)", ["torch.multiprocessing.spawn.rank()", 2, "x"]),
        ("spawn(fn=main, args=[2, 'x'])", ["torch.multiprocessing.spawn.rank()", 2, "x"]),
        ("mp.spawn(main, (2, 'x'))", ["torch.multiprocessing.spawn.rank()", 2, "x"]),
        ("mp.Process(target=main, args=(0, 2, 'x')).start()", [0, 2, "x"]),
        ("Process(None, main, None, (0, 2, 'x'))", [0, 2, "x"]),
        ("threading.Thread(target=main, args=(0, 2, 'x'))", [0, 2, "x"]),
        (
            "mp.spawn(main, args=arguments)",
            ["torch.multiprocessing.spawn.rank()", "Unknown", "Unknown"],
        ),
        ("mp.spawn(other, args=(2, 'x'))", ["Unknown", "Unknown", "Unknown"]),
        ("mp.spawn()", ["Unknown", "Unknown", "Unknown"]),
        ("main(0, 2, 'x')", [0, 2, "x"]),
    ],
)
def test_parameters(ask: Ask, start: str, values: list[object]) -> None:
    for name, value in zip(["rank", "size", "name"], values, strict=True):
        assert ask(f"{HEAD.format(name)}{start}\n") == {value}


def test_parameter_that_is_never_passed(ask: Ask) -> None:
    assert ask("def main(rank, *, flag=None):\n    ASK(flag)\nspawn(main)\n") == {"Unknown"}
