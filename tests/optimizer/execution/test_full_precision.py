from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution.observations import Observations
from torchopt_cli.optimizer.execution.runner import Perturbation

pytestmark = pytest.mark.torch

PLAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    loss = model(torch.ones(4, 8)).mean()
    loss.backward()
    optimizer.step()
"""
HALF = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
torch.set_float32_matmul_precision("medium")
step = torch.compile(lambda x: model(x))
for _ in range(2):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = step(torch.ones(4, 8)).mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(torch.get_float32_matmul_precision(), torch.compiler.is_compiling())
"""

Project = Callable[[Mapping[str, str]], Path]
Observe = Callable[..., Observations]


@dataclass(frozen=True)
class Bits:
    checksums: tuple[int, ...]

    @classmethod
    def of(cls, run: Observations) -> "Bits":
        return cls(tuple(u.checksum for step in run.steps for u in step.parameters.values()))


def test_reduced_precision_and_compilation_are_switched_off(
    project: Project, observe: Observe
) -> None:
    folder = project({"train.py": PLAIN})
    plain = observe(folder)
    script = folder / "train.py"
    full = observe(folder, overrides={script: HALF}, full_precision=True)
    assert full.stdout.split()[0] == "highest"
    assert full.compute_dtypes == ()
    assert Bits.of(full) == Bits.of(plain)


def test_without_it_the_script_computes_as_it_says(project: Project, observe: Observe) -> None:
    folder = project({"train.py": HALF.replace("torch.compile(lambda x: model(x))", "model")})
    half = observe(folder)
    assert half.compute_dtypes == ("bfloat16",)
    assert half.stdout.split()[0] == "medium"


CASTS = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
held = torch.nn.Linear(8, 1).bfloat16()
ones = torch.ones(4, 8)
for _ in range(2):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(ones.to("cpu", torch.bfloat16)).mean()
    loss.backward()
    optimizer.step()
half, likewise = ones.half(), ones.to(torch.float16)
half += 1
likewise.add_(1)
made = [
    torch.zeros(2, dtype=torch.half),
    torch.rand_like(ones, dtype=torch.bfloat16),
    ones.new_full((2,), 1.0, dtype=torch.half),
    ones.type(torch.float16),
    ones.type("torch.HalfTensor"),
    held.weight,
    half,
]
print({str(one.dtype) for one in made}, ones.sum().item(), ones.double().dtype, torch.zeros(2).view(torch.half).dtype)
print(torch.full((), 1.001, dtype=torch.bfloat16).item() == 1.0, torch.tensor(1.001).bfloat16().item() == 1.0)
print(torch.ones(2, dtype=torch.half, requires_grad=True).is_leaf)
"""


@pytest.mark.parametrize("unrounded", [False, True])
def test_what_the_script_rounds_by_itself_is_kept_in_float32(
    project: Project, observe: Observe, unrounded: bool
) -> None:
    folder = project({"train.py": PLAIN})
    plain = observe(folder)
    rewritten = {folder / "train.py": CASTS}
    full = observe(folder, overrides=rewritten, full_precision=True, unrounded=unrounded)
    types, values, leaf = full.stdout.splitlines()
    assert types == "{'torch.float32'} 32.0 torch.float64 torch.float16"
    assert values == f"{not unrounded} {not unrounded}"
    assert leaf == "True"
    assert full.compute_dtypes == ()
    assert (full.rounds_by_itself, plain.rounds_by_itself) == (True, False)
    assert Bits.of(full) == Bits.of(plain)


@pytest.mark.slow
def test_the_perturbation_is_so_many_epsilons(project: Project, observe: Observe) -> None:
    folder = project({"train.py": PLAIN})
    starts = {}
    for scale in (0.0, 1.0, 3.0):
        run = observe(folder, perturb=Perturbation("tfloat32", 0, scale))
        snapshot = run.snapshot(0)
        assert snapshot is not None
        starts[scale] = run.tensors(snapshot)
    for scale in (1.0, 3.0):
        moved = starts[scale]["Linear.weight"] / starts[0.0]["Linear.weight"] - 1
        assert abs(moved) == pytest.approx(scale * 2**-10, rel=1e-3)
