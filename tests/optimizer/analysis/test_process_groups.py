from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.distributed.process_groups import joins_process_group
from torchopt_cli.optimizer.analysis.script import TrainingScript

Understand = Callable[..., TrainingScript]

JOINS = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
MODULE = (
    "from torch.distributed import init_process_group\ndef set_up():\n    init_process_group()\n"
)
SPAWNS = (
    "import torch.multiprocessing as mp\nimport torch.distributed as dist\n"
    "def main(rank):\n    dist.init_process_group('gloo', rank=rank, world_size=2)\n"
    "mp.spawn(main, nprocs=2)\n"
)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"train.py": JOINS}, True),
        ({"train.py": "import group\ngroup.set_up()\n", "group.py": MODULE}, True),
        ({"train.py": "from accelerate import Accelerator\nAccelerator()\n"}, True),
        ({"train.py": "def init_process_group(): ...\ninit_process_group()\n"}, False),
        ({"train.py": "import torch\nprint(torch.distributed.is_available())\n"}, False),
        ({"train.py": SPAWNS}, False),
    ],
    ids=["joins", "a module joins", "accelerate", "another function", "asks only", "spawns"],
)
def test_whether_torchrun_may_start_it(
    files: dict[str, str], expected: bool, script: Understand
) -> None:
    assert joins_process_group(script(files).resolver) is expected
