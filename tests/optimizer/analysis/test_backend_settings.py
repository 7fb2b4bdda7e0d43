"""What counts as a decision about the backends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.precision.backend_settings import Topic
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
PRECISION, BENCHMARK, DETERMINISM = (
    Topic.MATMUL_PRECISION,
    Topic.CUDNN_BENCHMARK,
    Topic.DETERMINISM,
)


@pytest.mark.parametrize(
    ("code", "topics"),
    [
        ("import torch\ntorch.backends.cudnn.allow_tf32 = True", [PRECISION]),
        ("from torch.backends import cuda\ncuda.matmul.allow_tf32 = x", [PRECISION]),
        ("import torch as th\nth.set_float32_matmul_precision('high')", [PRECISION]),
        ("import torch\ntorch.backends.cudnn.benchmark = True", [BENCHMARK]),
        ("import torch\ntorch.backends.cudnn.benchmark = False", [BENCHMARK, DETERMINISM]),
        ("import torch\ntorch.backends.cudnn.enabled = False", [BENCHMARK]),
        (
            "import torch.backends.cudnn as c\nc.deterministic = c.benchmark = True",
            [DETERMINISM, BENCHMARK],
        ),
        ("import torch\ntorch.use_deterministic_algorithms(True)", [DETERMINISM]),
        ("import torch\ntorch.use_deterministic_algorithms(False)", []),
        ("import torch\ntorch.backends.cudnn.deterministic = False", []),
        ("args.benchmark = True\nargs.deterministic = True\nself.enabled = True", []),
        ("import torch\nprint(torch.backends.cudnn.benchmark)", []),
        ("import os\nos.environ['CUBLAS_WORKSPACE_CONFIG'] = ':16:8'", [DETERMINISM]),
    ],
)
def test_topics(script: Script, code: str, topics: list[Topic]) -> None:
    assert [setting.topic for setting in script(code).backend_settings] == topics


def test_what_is_off_only_for_a_part_of_the_script_is_no_wish_for_determinism(
    script: Script,
) -> None:
    switched = """\
        import torch
        def train():
            torch.backends.cudnn.benchmark = True
        def valid():
            torch.backends.cudnn.benchmark = False
        """
    assert {s.topic for s in script(switched).backend_settings} == {BENCHMARK}
    chosen = """\
        import torch
        if seed is None:
            torch.backends.cudnn.benchmark = True
        else:
            torch.backends.cudnn.benchmark = False
        """
    assert DETERMINISM in {s.topic for s in script(chosen).backend_settings}


def test_settings_of_other_modules_count(script: Script) -> None:
    files = {
        "train.py": "import seeds\nseeds.fix()",
        "seeds.py": "import torch\ndef fix():\n    torch.backends.cudnn.deterministic = True",
    }
    assert [s.path.name for s in script(files).backend_settings] == ["seeds.py"]


def test_settings_of_a_leftover_of_an_imported_file_do_not(script: Script) -> None:
    leftover = "import torch\ndef fix():\n    torch.backends.cudnn.deterministic = True"
    assert not script({"train.py": "import seeds", "seeds.py": leftover}).backend_settings
    assert script(
        {"train.py": "from seeds import fix\nrun(fix)", "seeds.py": leftover}
    ).backend_settings


def test_settings_below_the_main_guard_of_an_imported_file_do_not(script: Script) -> None:
    guarded = (
        "import torch\nif __name__ == '__main__':\n    torch.backends.cudnn.deterministic = True"
    )
    assert not script({"train.py": "import net", "net.py": guarded}).backend_settings
    assert script(guarded).backend_settings
