"""torchopt's own rewrites for several GPUs: two gloo processes under torchrun train as one process does."""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchopt_cli.optimizer.comparison.findings import Kind
from torchopt_cli.optimizer.comparison.structure import compare_structure
from torchopt_cli.optimizer.comparison.verdict import Outcome
from torchopt_cli.optimizer.execution.observations import Status
from torchopt_cli.optimizer.execution.ranks import batches_in_turn
from torchopt_cli.optimizer.execution.runner import RunSettings, ScriptVersion, run
from torchopt_cli.optimizer.options import Options
from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult, rewrite_script
from torchopt_cli.optimizer.source import Sources
from torchopt_cli.optimizer.verifying.result import VerificationReport
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.optimizer.verifying.verification import verify
from torchopt_cli.transforms.registry import all_transforms

pytestmark = [pytest.mark.torch, pytest.mark.slow]

tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
CORPUS = Path(__file__).parents[3] / "corpus"
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
SECONDS_TO_END = 60.0
"""From the death of a process to the end of all: twice what torchrun gives the others to end by themselves (30 s).

On two busy cores it took 1 to 3 seconds.
"""

BEGIN = """\
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def samples(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=generator)
    return TensorDataset(torch.randn(count, 8, generator=generator) + labels[:, None], labels)


torch.manual_seed(3)
loader = DataLoader(samples(24, 1), batch_size=8, shuffle=True)
test_loader = DataLoader(samples(11, 2), batch_size=4)
"""
NETWORK = """\
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
"""
EVALUATE = """\


def evaluate():
    model.eval()
    total, correct, seen = 0.0, 0, 0
    with torch.no_grad():
        for x, y in test_loader:
            out = model(x)
            total += nn.functional.cross_entropy(out, y).item()
            correct += (out.argmax(1) == y).sum().item()
            seen += len(x)
    return total / len(test_loader), correct / seen


"""
TRAIN = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(4):
    model.train()
    running, seen = 0.0, 0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        running += loss.item() * len(x)
        seen += len(x)
    print(f"epoch {epoch}: loss {running / seen:.5f}")
"""
TRANSFORMER = """\
class Network(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.embed, self.layers = nn.Linear(1, 16), nn.TransformerEncoder(layer, 2)
        self.decide = nn.Linear(16, 3)

    def forward(self, x):
        return self.decide(self.layers(self.embed(x[..., None])).mean(1))


model = Network()
"""
STOPS = """\
    value, accuracy = evaluate()
    print(f"value {value:.5f} accuracy {accuracy:.5f}")
    scheduler.step(value)
    if value < best:
        best, waited = value, 0
        torch.save(model.state_dict(), "best.pt")
    else:
        waited += 1
        if waited > 0:
            break
"""
SCRIPTS = {
    "evaluation with metrics": BEGIN
    + NETWORK
    + EVALUATE
    + TRAIN
    + "    print('%.5f %.5f' % evaluate())\n    torch.save(model.state_dict(), 'model.pt')\n",
    "early stopping and ReduceLROnPlateau": BEGIN
    + NETWORK
    + EVALUATE
    + "best, waited = 1e9, 0\n"
    + TRAIN.replace("lr=0.1", "lr=1.0").replace(
        "for epoch",
        "scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)\nfor epoch",
        1,
    )
    + STOPS,
    "the first process decides": BEGIN
    + NETWORK
    + TRAIN
    + "    if loss.item() < 9:\n        torch.save(model.state_dict(), 'model.pt')\n        break\n",
    "a transformer": BEGIN + TRANSFORMER + TRAIN,
    "a sum as loss": BEGIN
    + NETWORK
    + TRAIN.replace("(model(x), y)", "(model(x), y, reduction='sum')")
    .replace("lr=0.1", "lr=0.01")
    .replace("loss.item() * len(x)", "loss.item()"),
    "gradients of two batches": BEGIN
    + NETWORK
    + TRAIN.replace("        optimizer.zero_grad()\n", "")
    .replace("for x, y in loader", "for i, (x, y) in enumerate(loader)")
    .replace("loss.backward()", "(loss / 2).backward()")
    .replace(
        "        optimizer.step()\n",
        "        if (i + 1) % 2 == 0 or i + 1 == len(loader):\n"
        "            optimizer.step()\n            optimizer.zero_grad()\n",
    ),
    "figures told on the way": BEGIN
    + NETWORK
    + TRAIN.replace("for x, y in loader", "for i, (x, y) in enumerate(loader)").replace(
        "        seen += len(x)\n",
        "        seen += len(x)\n        print(f'{i * len(x)} samples: {loss.item():.4f}')\n"
        "        if i % 2 == 1:\n            mean = running / seen\n"
        "            print(f'{mean:.4f} over {seen}')\n            running, seen = 0.0, 0\n",
    )
    + "    print(f'last loss {loss.item():.4f}')\n",
    "resumed": BEGIN
    + NETWORK
    + TRAIN.replace(
        "for epoch",
        "state = torch.load('old.pt')\nmodel.load_state_dict(state['model'])\n"
        "optimizer.load_state_dict(state['optimizer'])\nfor epoch",
        1,
    )
    + "    torch.save({'model': model.state_dict(), 'epoch': epoch}, 'new.pt')\n",
    "a dict of arguments": BEGIN.replace("batch_size=8, shuffle=True", "**options").replace(
        "loader = ", "options = dict(batch_size=8, shuffle=True)\nloader = ", 1
    )
    + NETWORK
    + TRAIN,
}


def rewritten(folder: Path, entry: str = "train.py") -> RewriteResult:
    """The script in ``folder`` made for two GPUs, beside the original: ``ddp_train.py``, other files in place."""
    transforms = [t for t in all_transforms() if t.name == "ddp"]
    options = Options(gpus=2, select=frozenset({"ddp"}), platform="linux")
    return rewrite_script(folder / entry, Sources(), transforms, options)


def write_beside(result: RewriteResult, folder: Path) -> Path:
    other = folder.with_name(folder.name + "_ddp")
    shutil.copytree(folder, other)
    for file in result.files:
        assert not file.errors
        (other / file.path.relative_to(folder)).write_text(file.text)
    return other


def verified(folder: Path, steps: int, *arguments: str) -> VerificationReport:
    result = rewritten(folder)
    assert any(file.changes for file in result.files), [s for f in result.files for s in f.skips]
    other = write_beside(result, folder)
    return verify(
        ScriptVersion(folder / "train.py", args=arguments),
        ScriptVersion(other / "train.py", args=arguments, processes=2),
        VerifySettings(
            Path(sys.executable), folder, steps=steps, measure_speed=False, env=ENVIRONMENT
        ),
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_two_processes_train_as_one(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPTS[name])
    if name == "resumed":
        saves = "torch.save({'model': model.state_dict(), 'optimizer': optimizer.state_dict()}, 'old.pt')\n"
        start(folder, BEGIN + NETWORK + TRAIN + saves)
    result = rewritten(folder)
    assert any(file.changes for file in result.files), [s for f in result.files for s in f.skips]
    other = write_beside(result, folder)
    settings = RunSettings(Path(sys.executable), folder, 10, timeout_s=300.0, env=ENVIRONMENT)
    one = run(ScriptVersion(folder / "train.py"), settings, tmp_path / "one")
    assert one.status in {Status.STOPPED, Status.COMPLETED}
    assert one.rounds >= 3
    two = run(ScriptVersion(other / "train.py", processes=2), settings, tmp_path / "two")
    two = batches_in_turn(two, one)
    found = compare_structure(one, two)
    assert [finding for finding in found if finding.fails] == [], two.traceback
    assert two.losses == pytest.approx(one.losses, rel=1e-4)
    assert two.rounds == one.rounds
    assert two.stdout == one.stdout != ""
    outputs = two.eval_outputs()
    for key, ours in one.eval_outputs().items():
        np.testing.assert_allclose(outputs[key], ours, rtol=1e-3, atol=1e-4)


def start(folder: Path, script: str) -> None:
    command = [sys.executable, "-c", script]
    env = os.environ | ENVIRONMENT
    subprocess.run(command, cwd=folder, env=env, check=True, timeout=120)


def corpus(name: str, tmp_path: Path) -> tuple[Path, list[str]]:
    folder = tmp_path / "project"
    shutil.copytree(CORPUS / name, folder)
    manifest: dict[str, Any] = tomllib.loads((folder / "manifest.toml").read_text())
    return folder, manifest["cpu"]["args"]


def test_the_loss_inside_a_network_in_data_parallel(tmp_path: Path) -> None:
    folder, arguments = corpus("instruments", tmp_path)
    report = verified(folder, 6, *arguments)
    assert report.verdict is not None, report.original_failure
    assert report.verdict.outcome is Outcome.EQUIVALENT, report.verdict.findings


@pytest.mark.parametrize(
    ("name", "steps", "layers"),
    [
        ("segmentation", 10, ["BatchNorm2d"]),
        ("multi_file", 8, ["BatchNorm2d"]),  # behind the first evaluation
        ("vae", 10, ["BatchNorm2d", "noise drawn for each sample"]),
        ("gan_flat", 6, ["BatchNorm2d", "dropout2d", "noise drawn for each sample"]),
        (
            "transformer_translation",
            10,
            [
                "dropout, scaled_dot_product_attention",
                "cross entropy with weighted or ignored targets",
            ],
        ),
    ],
)
def test_only_what_layers_of_each_rank_see_differs(
    tmp_path: Path, name: str, steps: int, layers: list[str]
) -> None:
    folder, arguments = corpus(name, tmp_path)
    report = verified(folder, steps, *arguments)
    assert report.verdict is not None, report.original_failure
    findings = report.verdict.findings
    assert report.verdict.outcome is Outcome.EQUIVALENT, findings
    assert "aligned over all ranks; as it runs, each rank has its own" in report.verdict.reason
    assert [f.message.split(":")[0] for f in findings if f.kind is Kind.LAYERS] == layers
    in_eval_mode = name not in {"gan_flat", "vae"}
    assert report.seen.evaluated > 0 or not in_eval_mode


GAN = (
    BEGIN
    + """\
netG = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
netD = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.SiLU(), nn.Linear(16, 1))
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.01)
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.01)
for epoch in range(3):
    for x, _ in loader:
        size = x.size(0)
        netD.requires_grad_(True)
        optimizerD.zero_grad()
        criterion(netD(x), torch.ones(size, 1)).backward()
        fake = netG(torch.randn(size, 4))
        criterion(netD(fake.detach()), torch.zeros(size, 1)).backward()
        optimizerD.step()
        netD.requires_grad_(False)
        optimizerG.zero_grad()
        loss = criterion(netD(fake), torch.ones(size, 1))
        loss.backward()
        optimizerG.step()
    torch.save({"G": netG.state_dict(), "D": netD.state_dict()}, "networks.pt")
"""
)
WASSERSTEIN = (
    BEGIN
    + """\
import numpy as np


def penalty(D, real, fake):
    share = torch.tensor(np.random.uniform(size=(len(real), 1)), dtype=torch.float32)
    between = (share * real + (1 - share) * fake).requires_grad_(True)
    judged = D(between)
    (gradients,) = torch.autograd.grad(
        judged, between, grad_outputs=torch.ones_like(judged), create_graph=True
    )
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


np.random.seed(1)
netG = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 8))
netD = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 1))
optimizerD = torch.optim.Adam(netD.parameters(), lr=0.01)
optimizerG = torch.optim.Adam(netG.parameters(), lr=0.01)
for epoch in range(3):
    for i, (x, _) in enumerate(loader):
        optimizerD.zero_grad()
        fake = netG(torch.randn(x.size(0), 4))
        loss = netD(fake).mean() - netD(x).mean() + 10 * penalty(netD, x, fake.data)
        loss.backward()
        optimizerD.step()
        if i % 2 == 0:
            optimizerG.zero_grad()
            (-netD(netG(torch.randn(x.size(0), 4))).mean()).backward()
            optimizerG.step()
"""
)


@pytest.mark.parametrize(
    ("script", "layers"),
    [(GAN, "BatchNorm1d, noise"), (WASSERSTEIN, "noise")],
    ids=["frozen in turns", "gradient penalty"],
)
def test_networks_that_learn_from_each_other(tmp_path: Path, script: str, layers: str) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(script)
    report = verified(folder, 9)
    assert report.verdict is not None, report.original_failure
    assert report.verdict.outcome is Outcome.EQUIVALENT, report.verdict.findings
    assert f"with {layers} aligned over all ranks" in report.verdict.reason


def test_a_network_that_exchanges_no_gradients(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(GAN)
    other = write_beside(rewritten(folder), folder) / "train.py"
    wrong = other.read_text().replace("ddp_netG(", "netG(")
    assert wrong != other.read_text()
    other.write_text(wrong)
    report = verify(
        ScriptVersion(folder / "train.py"),
        ScriptVersion(other, processes=2),
        VerifySettings(Path(sys.executable), folder, steps=9, measure_speed=False, env=ENVIRONMENT),
    )
    assert report.verdict is not None, report.original_failure
    assert report.verdict.outcome is Outcome.NOT_EQUIVALENT
    assert Kind.RANKS in {finding.kind for finding in report.verdict.findings}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("contrastive", "the loss may compare the samples of a batch"),
        ("rnn_lm", "does not go over one DataLoader"),
    ],
)
def test_left_alone(tmp_path: Path, name: str, why: str) -> None:
    folder, _ = corpus(name, tmp_path)
    result = rewritten(folder)
    assert not any(file.changes for file in result.files)
    assert any(why in skip.message for file in result.files for skip in file.skips)


def launch(folder: Path, **environment: str) -> subprocess.Popen[str]:
    """``launch_train.sh`` in ``folder``, with this interpreter's torchrun and no GPU."""
    torchrun = folder / "bin" / "torchrun"
    torchrun.parent.mkdir(exist_ok=True)
    torchrun.write_text(f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n')
    torchrun.chmod(0o755)
    no_gpu = {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    path = {"PATH": f"{torchrun.parent}:{os.environ['PATH']}"}
    return subprocess.Popen(
        ["bash", "launch_train.sh"],
        cwd=folder,
        env=os.environ | ENVIRONMENT | no_gpu | path | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(*launched: subprocess.Popen[str]) -> list[tuple[str, str]]:
    """What they print until they end; what has not ended by then is killed."""
    try:
        return [one.communicate(timeout=300) for one in launched]
    finally:
        for one in launched:
            if one.poll() is None:
                os.killpg(one.pid, signal.SIGKILL)


def unused_port() -> int:
    """A port that is free and stays so: below those that the system gives to connections that name none."""
    for port in random.sample(range(20000, 30000), 100):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


def test_two_nodes_meet_by_the_launcher(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPTS["evaluation with metrics"])
    other = write_beside(rewritten(folder), folder)
    two = {"NNODES": "2", "GPUS": "1", "RDZV_ENDPOINT": f"127.0.0.1:{unused_port()}"}
    nodes = [launch(other, **two) for _ in range(2)]
    told = ended(*nodes)
    assert [node.returncode for node in nodes] == [0, 0], told
    lines = [re.findall(r"epoch \d: loss", out) for out, _ in told]
    assert sorted(map(len, lines)) == [0, 4], told  # the first process of all tells


def test_a_process_that_dies_ends_them_all(tmp_path: Path) -> None:
    import torch

    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPTS["evaluation with metrics"])
    other = write_beside(rewritten(folder), folder)
    script = other / "train.py"
    dies = (
        "    if RANK == 1 and epoch == 2:\n        open('died', 'w').close()\n"
        "        os.kill(os.getpid(), 9)\n"
    )
    begin, loop, rest = script.read_text().partition("for epoch in range(4):\n")
    script.write_text(begin + loop + dies + rest)
    launched = launch(other, RUN_OF_THIS_TEST=str(tmp_path))
    ((out, err),) = ended(launched)
    assert time.time() - (other / "died").stat().st_mtime < SECONDS_TO_END
    assert launched.returncode not in {0, -signal.SIGKILL}, err
    assert len(re.findall(r"epoch \d: loss", out)) == 2
    assert re.search(r"rank\s*: 1 .*\n\s*exitcode\s*: -9", err), err
    assert torch.load(other / "model.pt")["0.weight"].shape == (16, 8)  # of the epoch before, whole
    mark = f"RUN_OF_THIS_TEST={tmp_path}".encode()
    assert not [one for one in Path("/proc").glob("[0-9]*/environ") if mark in environment(one)]


def environment(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
