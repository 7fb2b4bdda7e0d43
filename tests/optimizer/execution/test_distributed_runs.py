"""Scripts under torchrun against one process: a careful rewrite passes, each usual mistake is caught and named."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from torchopt_cli.optimizer.comparison.files import compare_files
from torchopt_cli.optimizer.comparison.findings import Finding, Kind
from torchopt_cli.optimizer.comparison.structure import compare_structure
from torchopt_cli.optimizer.comparison.verdict import Outcome
from torchopt_cli.optimizer.execution.observations import Observations, Status
from torchopt_cli.optimizer.execution.runner import RunSettings, ScriptVersion, run
from torchopt_cli.optimizer.verifying.settings import VerifySettings
from torchopt_cli.optimizer.verifying.verification import verify

pytestmark = [pytest.mark.torch, pytest.mark.slow]

STEPS = 14
"""Two epochs of six steps, and the beginning of a third one."""

ONE = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def samples(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=generator)
    points = torch.randn(count, 8, generator=generator) + labels[:, None]
    return TensorDataset(points, labels)


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    train = DataLoader(samples(48, 1), batch_size=8, shuffle=True)
    test = DataLoader(samples(16, 2), batch_size=8)
    for epoch in range(3):
        net.train()
        for points, labels in train:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(points), labels)
            loss.backward()
            optimizer.step()
        net.eval()
        correct = torch.zeros(())
        with torch.no_grad():
            for points, labels in test:
                correct += (net(points).argmax(1) == labels).sum()
        print(f"epoch {epoch}: accuracy {correct.item() / 16:.4f}")
        with open("accuracy.txt", "a") as file:
            print(correct.item() / 16, file=file)
        torch.save(net.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
"""

SEVERAL = """\
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def samples(count, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=generator)
    points = torch.randn(count, 8, generator=generator) + labels[:, None]
    return TensorDataset(points, labels)


def add_up(state, bucket):
    dist.all_reduce(bucket.buffer())
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    net = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    train_data, test_data = samples(48, 1), samples(16, 2)
    train_sampler = DistributedSampler(train_data)
    test_sampler = DistributedSampler(test_data, shuffle=False)
    train = DataLoader(train_data, batch_size=8 // world_size, sampler=train_sampler)
    test = DataLoader(test_data, batch_size=8 // world_size, sampler=test_sampler)
    for epoch in range(3):
        train_sampler.set_epoch(epoch)
        net.train()
        for points, labels in train:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(points), labels)
            loss.backward()
            optimizer.step()
        net.eval()
        correct = torch.zeros(())
        with torch.no_grad():
            for points, labels in test:
                correct += (net(points).argmax(1) == labels).sum()
        dist.all_reduce(correct)
        if rank == 0:
            print(f"epoch {epoch}: accuracy {correct.item() / 16:.4f}")
            with open("accuracy.txt", "a") as file:
                print(correct.item() / 16, file=file)
            torch.save(net.module.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""

WRONG_MEAN = """net = DistributedDataParallel(net)
    net.register_comm_hook(None, add_up)"""
"""Gradients that are added up, where their mean is meant."""

MISTAKES = {
    "no set_epoch": (
        [("        train_sampler.set_epoch(epoch)\n", "")],
        Kind.SAMPLE_ORDER,
        "sampler.set_epoch(epoch) is not called",
    ),
    "batch not divided": (
        [("batch_size=8 // world_size, sampler=train", "batch_size=8, sampler=train")],
        Kind.SAMPLES,
        "a step is of 16 samples, 8 on each of 2 ranks, not of 8: the batch is not divided",
    ),
    "no sampler": (
        [("sampler=train_sampler", "shuffle=True")],
        Kind.SAMPLES,
        "every rank trains on the same samples (no DistributedSampler?)",
    ),
    "evaluation drops samples": (
        [
            ("samples(16, 2)", "samples(17, 2)"),
            ("shuffle=False)", "shuffle=False, drop_last=True)"),
        ],
        Kind.EVALUATION,
        "evaluation of Sequential after round 6 sees 16 samples, not 17",
    ),
    "evaluation repeats samples": (
        [("samples(16, 2)", "samples(17, 2)")],
        Kind.EVALUATION,
        "evaluation of Sequential after round 6 sees 18 samples, not 17",
    ),
    "every rank saves": (
        [("            torch.save(net.module", "        torch.save(net.module")],
        Kind.CHECKPOINT_FILES,
        "ranks 0 and 1 save model.pt: they write over each other's file",
    ),
    "every rank prints": (
        [
            ("        if rank == 0:\n            print", "        if True:\n            print"),
            ("            torch.save", "            rank == 0 and torch.save"),
        ],
        Kind.STDOUT,
        "rank 1 prints what rank 0 prints, too: 'epoch 0: accuracy",
    ),
    "other weights at start": (
        [
            ("torch.manual_seed(0)", "torch.manual_seed(rank)"),
            ("    net = DistributedDataParallel(net)\n", ""),
            ("net.module.state_dict", "net.state_dict"),
            (
                "            optimizer.step()",
                "            for parameter in net.parameters():\n"
                "                dist.all_reduce(parameter.grad)\n"
                "                parameter.grad /= world_size\n"
                "            optimizer.step()",
            ),
        ],
        Kind.RANKS,
        "rank 1 starts from other values than rank 0",
    ),
    "gradients not reduced": (
        [
            ("    net = DistributedDataParallel(net)\n", ""),
            ("net.module.state_dict", "net.state_dict"),
        ],
        Kind.RANKS,
        "rank 1 has other values after the step than rank 0",
    ),
    "metrics not reduced": (
        [("        dist.all_reduce(correct)\n", "")],
        Kind.EVALUATION,
        "each rank evaluates its own share of the samples after round 6 and nothing is reduced",
    ),
}


def _changed(text: str, changes: list[tuple[str, str]]) -> str:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Observations]:
    """Run a text, as one process or under torchrun; what was run before is not run again."""
    known: dict[tuple[str, int | None], Observations] = {}

    def go(text: str, processes: int | None = None) -> Observations:
        if (text, processes) not in known:
            folder = tmp_path_factory.mktemp("project")
            (folder / "train.py").write_text(text)
            settings = RunSettings(
                Path(sys.executable), folder, STEPS, timeout_s=400.0, env={"OMP_NUM_THREADS": "1"}
            )
            version = ScriptVersion(folder / "train.py", processes=processes)
            known[text, processes] = run(version, settings, folder / "run")
            assert [p.name for p in folder.iterdir() if p.name != "run"] == ["train.py"]
        return known[text, processes]

    return go


def test_what_the_ranks_do_together_is_what_one_process_does(started):
    one, several = started(ONE), started(SEVERAL, 2)
    assert several.status is one.status is Status.STOPPED
    assert (several.rounds, len(several.ranks)) == (STEPS, 2)
    assert compare_structure(one, several) == []
    assert several.losses == pytest.approx(one.losses, rel=1e-5)
    assert several.step_samples == one.step_samples == (8,) * STEPS
    assert [call.samples for call in several.eval_calls] == [8] * 4
    assert several.stdout == one.stdout
    assert [c.path for c in several.checkpoints] == ["model.pt"] * 2
    assert [file.path for file in several.files] == ["accuracy.txt"]
    assert compare_files(one, several, (), (), None) == []


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(started, mistake):
    changes, kind, message = MISTAKES[mistake]
    both = [change for change in changes if change[0] in ONE and "samples(" in change[0]]
    findings: list[Finding] = compare_structure(
        started(_changed(ONE, both)), started(_changed(SEVERAL, changes), 2)
    )
    told = [(f.kind, f.message) for f in findings if f.fails]
    assert any(found is kind and message in text for found, text in told), told


def test_batch_norm_is_named(started):
    layers = ("nn.ReLU()", "nn.BatchNorm1d(16), nn.ReLU()")
    findings = compare_structure(
        started(_changed(ONE, [layers])), started(_changed(SEVERAL, [layers]), 2)
    )
    assert [f.kind for f in findings] == [Kind.LAYERS]
    assert "BatchNorm1d: each rank normalizes by the statistics of its share" in findings[0].message


def _evaluating(part: str) -> list[tuple[str, str]]:
    """The changes by which each rank reads this part of the test set by itself."""
    return [
        (
            "test_sampler = DistributedSampler(test_data, shuffle=False)",
            f"share = Subset(test_data, {part})",
        ),
        (
            "DataLoader(test_data, batch_size=8 // world_size, sampler=test_sampler)",
            "DataLoader(share, batch_size=8 // world_size)",
        ),
        ("import DataLoader, TensorDataset", "import DataLoader, Subset, TensorDataset"),
    ]


@pytest.mark.parametrize(
    "changes",
    [[], _evaluating("range(rank, 16, world_size)"), _evaluating("range(8 * rank, 8 * rank + 8)")],
    ids=["sampler", "every other sample", "halves"],
)
def test_a_careful_rewrite_is_equivalent(tmp_path, changes):
    (tmp_path / "train.py").write_text(ONE)
    (tmp_path / "train_ddp.py").write_text(_changed(SEVERAL, changes))
    settings = VerifySettings(
        Path(sys.executable),
        tmp_path,
        steps=STEPS,
        measure_speed=False,
        env={"OMP_NUM_THREADS": "1"},
    )
    rewritten = ScriptVersion(tmp_path / "train_ddp.py", processes=2)
    report = verify(ScriptVersion(tmp_path / "train.py"), rewritten, settings)
    assert report.verdict is not None
    assert report.verdict.outcome is Outcome.EQUIVALENT
    told = {finding.kind for finding in report.verdict.findings}
    assert told <= ({Kind.SAMPLE_ORDER} if changes else set())


LAYERS = [
    ("nn.ReLU()", "nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)"),
    ("cross_entropy(net(points), labels)", "cross_entropy(net(points), labels, weight=WEIGHTS)"),
    ("def main():\n", "WEIGHTS = torch.tensor([1.0, 2.0, 4.0])\n\n\ndef main():\n"),
]
"""What gives something else on every rank: statistics of its share, draws, a mean by its targets' weights."""


@pytest.mark.parametrize(
    ("mistake", "outcome"),
    [
        ([], Outcome.EQUIVALENT),
        ([("net = DistributedDataParallel(net)", WRONG_MEAN)], Outcome.NOT_EQUIVALENT),
    ],
    ids=["careful", "gradients added up"],
)
def test_layers_of_every_rank_are_aligned_to_judge_what_is_left(tmp_path, mistake, outcome):
    (tmp_path / "train.py").write_text(_changed(ONE, LAYERS))
    (tmp_path / "train_ddp.py").write_text(_changed(SEVERAL, [*LAYERS, *mistake]))
    settings = VerifySettings(
        Path(sys.executable),
        tmp_path,
        steps=7,
        measure_speed=False,
        env={"OMP_NUM_THREADS": "1"},
    )
    rewritten = ScriptVersion(tmp_path / "train_ddp.py", processes=2)
    report = verify(ScriptVersion(tmp_path / "train.py"), rewritten, settings)
    assert report.verdict is not None
    assert report.verdict.outcome is outcome, report.verdict
    assert "BatchNorm1d, dropout, cross entropy aligned over all ranks" in report.verdict.reason
    told = [f.message for f in report.verdict.findings if f.kind is Kind.LAYERS]
    assert [message.split(":")[0] for message in told] == [
        "BatchNorm1d",
        "dropout",
        "cross entropy with weighted or ignored targets",
    ]


ON_GPUS = [
    ("nn.ReLU()", "nn.BatchNorm1d(16), nn.ReLU()"),
    ("nn.Linear(16, 3))", "nn.Linear(16, 3)).cuda()"),
    ("net(points), labels)", "net(points.cuda()), labels.cuda())"),
    ("net(points).argmax(1) == labels)", "net(points.cuda()).argmax(1) == labels.cuda())"),
    ("torch.zeros(())", "torch.zeros((), device='cuda')"),
]
WHOLE_BATCH = [
    ('init_process_group("gloo")', 'init_process_group("nccl")'),
    (
        "net = DistributedDataParallel(net)",
        "torch.cuda.set_device(rank)\n    net = nn.SyncBatchNorm.convert_sync_batchnorm(net.cuda())\n"
        "    net = DistributedDataParallel(net, device_ids=[rank])",
    ),
]


@pytest.mark.parametrize(
    ("mistake", "outcome"),
    [
        ([], Outcome.EQUIVALENT),
        ([("dist.all_reduce(correct)", "pass")], Outcome.NOT_EQUIVALENT),
    ],
    ids=["careful", "evaluation not reduced"],
)
def test_sync_batch_norm_normalizes_by_the_whole_batch(tmp_path, mistake, outcome):
    (tmp_path / "train.py").write_text(_changed(ONE, ON_GPUS))
    (tmp_path / "train_ddp.py").write_text(_changed(SEVERAL, [*ON_GPUS, *WHOLE_BATCH, *mistake]))
    settings = VerifySettings(
        Path(sys.executable),
        tmp_path,
        steps=7,
        emulated_gpus=2,
        measure_speed=False,
        env={"OMP_NUM_THREADS": "1"},
    )
    rewritten = ScriptVersion(tmp_path / "train_ddp.py", processes=2)
    report = verify(ScriptVersion(tmp_path / "train.py"), rewritten, settings)
    assert report.verdict is not None, report.original_failure
    assert report.verdict.outcome is outcome, report.verdict
    assert "aligned" not in report.verdict.reason


def test_a_rank_that_dies_ends_the_run_at_once(started):
    dies = "            optimizer.step()\n            if rank == 1 and epoch == 1:\n                os.kill(os.getpid(), 9)"
    started_at = time.monotonic()
    died = started(_changed(SEVERAL, [("            optimizer.step()", dies)]), 2)
    assert (died.status, died.failed_rank, died.exit_code) == (Status.KILLED, 1, -9)
    assert died.ending.startswith("rank 1: the process is ended by SIGKILL")
    assert [checkpoint.rounds for checkpoint in died.checkpoints] == [6]  # of the epoch before
    assert died.rounds == 7
    assert time.monotonic() - started_at < 300
    assert not _in_environment(str(died.folder))


def test_a_rank_that_raises_is_named(started):
    raises = "            optimizer.step()\n            if rank == 1:\n                raise ValueError('no')"
    failed = started(_changed(SEVERAL, [("            optimizer.step()", raises)]), 2)
    assert (failed.status, failed.failed_rank) == (Status.FAILED, 1)
    assert failed.ending.startswith("rank 1: ValueError: no, in train.py line ")


def _in_environment(text: str) -> list[str]:
    """The processes whose environment has ``text``."""
    found: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(text) in (folder / "environ").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found
