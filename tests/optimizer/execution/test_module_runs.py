from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution.module_runs import ModuleRun, module_run
from torchopt_cli.optimizer.execution.observations import Status


def files(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    ("there", "entry", "code", "cwd", "expected"),
    [
        ("pkg/__init__.py", "pkg/train.py", "import data", ".", None),
        ("pkg/__init__.py", "pkg/train.py", "from . import data", ".", ("pkg.train", ".")),
        ("pkg/__init__.py", "pkg/train.py", "from .data import load", "pkg", ("pkg.train", ".")),
        ("a/b/__init__.py", "a/b/train.py", "from . import data", ".", ("b.train", "a")),
        ("a/b/__init__.py", "a/b/train.py", "from ..data import load", ".", ("a.b.train", ".")),
        ("x", "a/train.py", "def main():\n    from . import data", ".", ("a.train", ".")),
        ("x", "train.py", "from . import data", ".", None),
        ("x", "a/train.py", "from . import (", ".", None),
    ],
)
def test_scripts_with_relative_imports_are_modules(
    tmp_path: Path,
    there: str,
    entry: str,
    code: str,
    cwd: str,
    expected: tuple[str, str] | None,
) -> None:
    folder = files(tmp_path, there, entry)
    wanted = ModuleRun(expected[0], folder / expected[1]) if expected else None
    assert module_run(folder / entry, code.encode(), folder / cwd) == wanted


TRAIN = """
    import sys
    from multiprocessing import get_context
    from . import data
    from .parts.net import make
    import torch

    def double(x):
        return 2 * x

    if __name__ == "__main__":
        net = make()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x in data.batches():
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()
        with get_context("spawn").Pool(1) as pool:
            print(pool.map(double, [21]), __package__, sys.argv[0].endswith("pkg/train.py"))
"""


@pytest.mark.torch
def test_such_a_script_runs_with_its_package_and_its_worker_processes(project, observe) -> None:
    folder = project(
        {
            "pkg/__init__.py": "",
            "pkg/train.py": TRAIN,
            "pkg/data.py": "import torch\ndef batches():\n    return torch.ones(3, 1, 2)\n",
            "pkg/parts/net.py": "import torch\ndef make():\n    return torch.nn.Linear(2, 1)\n",
        }
    )
    run = observe(folder, entry="pkg/train.py", python=Path(sys.executable))
    assert (run.status, run.rounds) == (Status.COMPLETED, 3)
    assert run.stdout == "[42] pkg True\n"
