"""Whole scripts on an emulated CUDA device."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.verdict import Outcome, judge_exact
from torchopt_cli.optimizer.execution.observations import Observations, Status
from torchopt_cli.optimizer.execution.probe.start import OLDEST_EMULATING_TORCH
from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.verifying.report import exit_code
from torchopt_cli.optimizer.verifying.report_json import to_json
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.optimizer.verifying.verification import verify

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        torch.__version__ < OLDEST_EMULATING_TORCH, reason="too old to emulate a CUDA device"
    ),
]

TRAIN = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,)))
    loader = DataLoader(data, batch_size=8, shuffle=True, pin_memory=True)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3))
    model.to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        for x, y in loader:
            x, y = x.to("cuda", non_blocking=True), y.to("cuda")
            x = x + 0.1 * torch.randn(x.shape, device="cuda")
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            print(epoch, round(model(data.tensors[0].to("cuda")).mean().item(), 5))
        model.train()
    torch.save(model.state_dict(), "model.pt")
    print(torch.load("model.pt")["0.weight"].device)
"""

Make = Callable[[Mapping[str, str]], Path]
Observe = Callable[..., Observations]


def test_emulated_runs_compute_what_the_cpu_computes(project: Make, observe: Observe) -> None:
    folder = project({"train.py": TRAIN})
    emulated = observe(folder, steps=50, emulated_gpus=1)
    assert emulated.status is Status.COMPLETED, emulated.traceback
    assert emulated.stdout.splitlines()[-1] == "cuda:0"
    assert emulated.versions is not None
    assert emulated.versions.device == "emulated CUDA device"
    (folder / "train.py").write_text((folder / "train.py").read_text().replace('"cuda"', '"cpu"'))
    on_cpu = observe(folder, steps=50)
    shown = replace(emulated, stdout=emulated.stdout.replace("cuda:0", "cpu"))
    verdict = judge_exact(on_cpu, [on_cpu], shown)
    assert verdict.outcome is Outcome.EQUIVALENT, verdict.findings


def test_a_device_that_the_script_does_not_use_is_not_named(
    project: Make, observe: Observe
) -> None:
    text = TRAIN.replace('"cuda"', '"cpu"').replace(", pin_memory=True", "")
    run = observe(project({"train.py": text}), steps=5, emulated_gpus=1)
    assert run.status is not Status.FAILED, run.traceback
    assert run.versions is not None
    assert run.versions.device == "cpu"


WORKERS = """
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Data(Dataset):
        def __init__(self, move):
            self.move = move

        def __len__(self):
            return 4

        def __getitem__(self, index):
            sample = torch.ones(3) * index
            return sample.cuda() if self.move else sample

    if __name__ == "__main__":
        weight = torch.ones(3, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for batch in DataLoader(Data(False), num_workers=1, multiprocessing_context="fork", pin_memory=True):
            print(batch.device, batch.is_pinned())
            (weight * batch.cuda()).sum().backward()
            optimizer.step()
        try:
            next(iter(DataLoader(Data(True), num_workers=1, multiprocessing_context="fork")))
        except RuntimeError as error:
            print("Cannot re-initialize CUDA in forked subprocess" in str(error))
        moved = next(iter(DataLoader(Data(True), num_workers=0)))
        print(moved.device)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="workers are forked on Linux")
def test_forked_workers_make_host_tensors_and_may_not_use_cuda(
    project: Make, observe: Observe
) -> None:
    run = observe(project({"train.py": WORKERS}), emulated_gpus=1)
    assert run.status is Status.COMPLETED, run.traceback
    assert run.stdout.split() == ["cpu", "True"] * 4 + ["True", "cuda:0"]


GAN = """
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = nn.BCELoss()(model(torch.randn(8, 4).cuda()), torch.ones(8, 1).cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_a_rewrite_that_would_crash_on_cuda_is_not_equivalent(
    project: Make, warm_python: Path
) -> None:
    folder = project({"train.py": GAN})
    entry = folder / "train.py"
    text = entry.read_text().replace(
        "    loss = nn.BCELoss()", "    with torch.autocast('cuda'): loss = nn.BCELoss()"
    )
    settings = VerifySettings(
        warm_python, folder, steps=3, emulated_gpus=1, env={"OMP_NUM_THREADS": "1"}
    )
    report = verify(ScriptVersion(entry), ScriptVersion(entry, {entry: text}), settings)
    assert report.verdict is not None, report.original_failure
    assert report.verdict.outcome is Outcome.NOT_EQUIVALENT
    assert report.verdict.failures[0].kind is Kind.EXIT_STATUS
    assert report.rewritten_failure is not None
    assert "unsafe to autocast" in report.rewritten_failure.details
    assert exit_code(report) == 3
    shown = to_json(report)
    assert shown["run"]["emulated"] is True
    assert shown["speed"] is None
