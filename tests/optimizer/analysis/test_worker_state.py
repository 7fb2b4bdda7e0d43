"""What does not survive in a worker process."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import indent

import pytest

from torchopt_cli.optimizer.analysis.loading.worker_state import Hazard, dataset_obstacles
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
import random
import h5py
import things
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
LINES = open("x")
RNG = random.Random(0)
limit = 3
for step in range(3):
    pass
def set_limit(n):
    global limit
    limit = n
set_limit(4)
class Items{base}:
    def __init__(self, given=None, **rest):
        self.file, self.reader = h5py.File("x"), things.Reader()
        self.group = h5py.File("x")["g"]
        self.array = h5py.File("x")["g"][:]
        self.text = open("x").read()
        self.given = given
        self.traced = rest
    def {method}(self{parameter}):
"""


def obstacles(script: TrainingScript) -> list[tuple[Hazard, str]]:
    ((dataset,),) = script.datasets.values()
    return [(o.hazard, o.message) for o in dataset_obstacles(script.resolver, dataset)]


def items(body: str, made_with: str = "Items()") -> str:
    head = HEAD.format(base="", method="__getitem__", parameter=", i")
    return f"{head}{indent(body, ' ' * 8)}\nloader = DataLoader({made_with})\n"


@pytest.mark.parametrize(
    ("body", "hazard", "said"),
    [
        ("return self.file[i]", Hazard.HELD, "`self.file` is opened before"),
        ("return self.group[i]", Hazard.HELD, "`self.group` is opened before"),
        ("return LINES.readline()", Hazard.HELD, "`LINES` is opened before"),
        ("return RNG.random()", Hazard.HELD, "`RNG` is a random generator"),
        ("return self.reader.read(i)", Hazard.UNSEEN, "`self.reader` comes from `things.Reader`"),
        ("return self.traced[i]", Hazard.UNSEEN, "what `self.traced` is cannot be traced"),
        ("return i + step", Hazard.STATE, "it reads the global `step`"),
        ("return i + limit", Hazard.STATE, "it reads the global `limit`"),
        ("return torch.ones(i).cuda()", Hazard.CUDA, "`torch.ones(i).cuda()` uses the GPU"),
        ("return torch.ones(i, device='cuda')", Hazard.CUDA, "uses the GPU"),
        (
            "kept = torch.ones(i).cuda()\nreturn torch.ones(i, device=kept.device)",
            Hazard.CUDA,
            "cuda()",
        ),
        ("return torch.ones(i, device=self.given.device)", Hazard.CUDA, "uses the GPU"),
        ("self.n = i", Hazard.STATE, "`self.n = i` changes"),
    ],
)
def test_obstacles(script: Script, body: str, hazard: Hazard, said: str) -> None:
    ((found, message),) = obstacles(script(items(body)))
    assert found is hazard
    assert message.startswith(said) or said in message


@pytest.mark.parametrize(
    "body",
    [
        "return self.array[i], self.text",
        "return self.given",
        "step = 3\nreturn step",
        "return [step for step in range(i)]",
        "return (lambda step: step)(i)",
        "rng = random.Random(i)\nreturn rng.random()",
        "with h5py.File(i) as file:\n    return file['x']",
        "return torch.ones(i).to('cpu')",
        "kept = torch.ones(i)\nreturn torch.arange(i, device=kept.device), torch.ones(1).to(kept.device)",
    ],
)
def test_no_obstacles(script: Script, body: str) -> None:
    assert obstacles(script(items(body))) == []


def test_tensors_given_on_the_gpu(script: Script) -> None:
    ((hazard, _),) = obstacles(script(items("return self.given[i]", "Items(torch.ones(3).cuda())")))
    assert hazard is Hazard.CUDA


def test_tensors_kept_on_the_gpu(script: Script) -> None:
    kept = items("return self.kept[i]").replace(
        "        self.given = given",
        "        self.given = given\n        self.kept = torch.ones(3, device='cuda')",
    )
    ((hazard, message),) = obstacles(script(kept))
    assert hazard is Hazard.CUDA
    assert message == "`self.kept` uses the GPU, which a worker process must not"


@pytest.mark.parametrize(
    ("body", "hazards"),
    [
        ("yield 1", [Hazard.STREAM]),
        ("info = get_worker_info()\nyield 1", [Hazard.STREAM]),
        ("info = get_worker_info()\nyield info.id", []),
        ("info = torch.utils.data.get_worker_info()\nyield info.id", []),
    ],
)
def test_streams(script: Script, body: str, hazards: list[Hazard]) -> None:
    head = HEAD.format(base="(IterableDataset)", method="__iter__", parameter="")
    understood = script(f"{head}{indent(body, ' ' * 8)}\nloader = DataLoader(Items())\n")
    assert [hazard for hazard, _ in obstacles(understood)] == hazards


def test_a_long_expression_is_shortened(script: Script) -> None:
    body = f"return torch.ones({', '.join(['i'] * 40)}).cuda()"
    ((_, message),) = obstacles(script(items(body)))
    assert len(message) < 120
