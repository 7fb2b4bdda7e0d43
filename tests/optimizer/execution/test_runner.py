"""Whole runs: a process of its own, the user's files untouched, the end in hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchopt_cli.optimizer.errors import ExitCode, TorchoptError
from torchopt_cli.optimizer.execution.observations import Status
from torchopt_cli.optimizer.execution.runner import (
    Mode,
    RunSettings,
    ScriptVersion,
    run,
)

pytestmark = pytest.mark.torch

# Augments, drops out, evaluates, logs, saves: with a module of its own and worker processes on request.
TRAIN = """
    import argparse, multiprocessing, os, random, sys
    from pathlib import Path
    import numpy as np
    import torch
    from torch import nn
    from torch.utils.data import DataLoader
    from data import Images

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
            self.head = nn.Linear(144, 4)

        def forward(self, x):
            return self.head(self.body(x).flatten(1))

    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--workers", type=int, default=0)
        parser.add_argument("--start", default="fork")
        parser.add_argument("--epochs", type=int, default=2)
        args = parser.parse_args()
        context = multiprocessing.get_context(args.start) if args.workers else None
        torch.manual_seed(3)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        loader = DataLoader(Images(), 8, shuffle=True, num_workers=args.workers, multiprocessing_context=context)
        for epoch in range(args.epochs):
            net.train()
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(x + 0.1 * torch.randn_like(x)), y)
                loss.backward()
                optimizer.step()
                print(f"loss {loss.item():.6f}", flush=True)
            net.eval()
            with torch.no_grad():
                print(sum((net(x).argmax(1) == y).sum().item() for x, y in loader))
            torch.save({"model": net.state_dict(), "epoch": epoch}, "checkpoint.pt")
            torch.save(net.state_dict(), Path(__file__).resolve().parent / "runs" / "last.pt")
            with open("log.txt", "a") as log:
                log.write(f"epoch {epoch}\\n")
        if os.path.exists("stale.txt"):
            os.remove("stale.txt")
        print(open("log.txt").read().count("epoch"), os.path.exists("stale.txt"), os.getcwd())

    if __name__ == "__main__":
        main()
"""
DATA = """
    import random
    import numpy as np
    import torch

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, i):
            image = torch.full((3, 8, 8), float(i)) + torch.randn(3, 8, 8) + np.random.rand() + random.random()
            return image, i % 4
"""


COLD = Path(sys.executable)
"""Where what a script starts in its turn is to find things as they usually are."""


@pytest.fixture
def training(project) -> Path:
    return project(
        {
            "train.py": TRAIN,
            "data.py": DATA,
            "checkpoint.pt": "the user's weights",
            "runs/last.pt": "the user's last weights",
            "log.txt": "epoch -1\n",
            "stale.txt": "stale",
        }
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--workers", "2"),
        pytest.param(
            ("--workers", "1", "--start", "spawn", "--epochs", "1"), marks=pytest.mark.slow
        ),
    ],
    ids=["forked", "spawned"],
)
def test_workers_make_no_difference_and_files_stay(training, observe, tree, arguments):
    before = tree(training)
    alone = observe(training, python=COLD, steps=100)
    other = observe(training, python=COLD, args=arguments, steps=100)
    assert tree(training) == before

    assert (alone.status, alone.exit_code, alone.traceback, alone.rounds) == (
        Status.COMPLETED,
        0,
        None,
        6,
    )
    assert alone.stdout.splitlines()[-1] == f"3 False {training}"
    assert other.stderr == ""
    assert other.status is Status.COMPLETED
    count = 3 if "--epochs" in arguments else 6
    assert len(other.steps) == count
    assert other.steps == alone.steps[:count]
    assert other.snapshots[:3] == alone.snapshots[:3]
    assert other.eval_calls == alone.eval_calls[: len(other.eval_calls)]
    assert other.checkpoints == alone.checkpoints[: len(other.checkpoints)]
    assert (other.stdout == alone.stdout) is (count == 6)
    assert alone.eval_samples == 48
    assert [c.path for c in alone.checkpoints] == ["checkpoint.pt", "runs/last.pt"] * 2
    assert alone.memory.host > 1 << 20
    assert alone.versions.device == "cpu" or alone.memory.device is not None
    assert alone.timing.startup_seconds < alone.timing.total_seconds


def test_seeds_and_texts_make_a_difference(training, observe):
    def first(**options):
        return observe(training, steps=2, **options)

    plain, seeded = first(), first(seed=1)
    doubled = DATA.replace("return image,", "return 2 * image,")
    rewritten = first(overrides={training / "data.py": doubled.replace("\n    ", "\n")})
    assert (plain.status, plain.rounds, len(plain.steps)) == (Status.STOPPED, 2, 2)
    assert plain.exit_code is None
    assert plain.losses != seeded.losses
    assert plain.losses != rewritten.losses
    assert rewritten.snapshot(0).hashes == plain.snapshot(0).hashes


def test_timing_leaves_randomness_and_records_alone(training, observe):
    timed = observe(training, python=COLD, steps=5, mode=Mode.TIME, block_steps=2)
    assert (timed.status, timed.rounds) == (Status.STOPPED, 5)
    assert len(timed.timing.round_seconds) == 4
    assert timed.timing.synchronised == (0, 2, 4)
    assert timed.steps == timed.checkpoints == ()
    assert sorted(p.name for p in timed.folder.iterdir()) == ["record.json", "rounds"]


def test_a_failing_script_shows_its_own_traceback(project, observe):
    folder = project(
        {
            "net.py": "def build():\n    raise RuntimeError('no such layer')\n",
            "train.py": "import torch\nfrom net import build\nbuild()\n",
        }
    )
    failed = observe(folder)
    assert (failed.status, failed.exit_code) == (Status.FAILED, 1)
    assert failed.traceback == (
        "Traceback (most recent call last):\n"
        f'  File "{folder}/train.py", line 3, in <module>\n'
        "    build()\n"
        f'  File "{folder}/net.py", line 2, in build\n'
        "    raise RuntimeError('no such layer')\n"
        "RuntimeError: no such layer\n"
    )
    assert failed.stderr == failed.traceback
    left = sorted(path.name for path in failed.folder.iterdir())
    assert left == ["record.json", "rounds"]  # and no scratch


def test_an_endless_script_that_swallows_everything_is_ended(project, observe):
    folder = project(
        {
            "train.py": """
                import torch
                torch.backends.cudnn.benchmark = True
                print(torch.backends.cudnn.benchmark, torch.are_deterministic_algorithms_enabled())
                net = torch.nn.Linear(2, 1)
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                while True:
                    try:
                        net(torch.ones(1, 2)).sum().backward()
                        optimizer.step()
                    except:
                        print("caught")
            """
        }
    )
    swallowed = observe(folder, steps=3)
    assert (swallowed.status, swallowed.rounds, len(swallowed.steps)) == (Status.STOPPED, 3, 3)
    assert swallowed.stdout.startswith("False True\ncaught\n")


def test_a_time_limit_holds_from_the_start(project, observe):
    late = observe(project({"train.py": "import time; time.sleep(600)"}), timeout_s=0.5)
    assert (late.status, late.exit_code, late.rounds) == (Status.TIMED_OUT, None, 0)
    assert 0.5 <= late.timing.total_seconds < 60
    assert "scratch" not in [path.name for path in late.folder.iterdir()]


@pytest.mark.slow
def test_a_time_limit_ends_the_run_and_its_workers(project, observe, alive):
    folder = project(
        {
            "train.py": """
                import os, time, torch
                class Slow(torch.utils.data.Dataset):
                    def __len__(self): return 4
                    def __getitem__(self, i):
                        print(os.getpid(), flush=True)
                        time.sleep(600)
                next(iter(torch.utils.data.DataLoader(Slow(), num_workers=2)))
            """
        }
    )
    late = observe(folder, timeout_s=60.0)
    assert (late.status, late.exit_code) == (Status.TIMED_OUT, None)
    pids = [int(pid) for pid in late.stdout.split()]
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


def test_a_process_that_dies_is_killed_and_one_that_exits_has_failed(project, observe):
    died = observe(
        project({"train.py": "import os; print('x', flush=True); os.kill(os.getpid(), 11)"})
    )
    assert (died.status, died.exit_code, died.stdout) == (Status.KILLED, -11, "x\n")
    left = observe(project({"train.py": "import sys; sys.exit('no data')"}))
    assert (left.status, left.exit_code, left.stderr) == (Status.FAILED, 1, "no data\n")
    parsed = "import argparse\nargparse.ArgumentParser('train').error('no such option')\n"
    refused = observe(project({"train.py": parsed}))
    said = "usage: train [-h]\ntrain: error: no such option (exit status 2)"
    assert refused.failure_details == said
    assert left.optimizer_seen is False


def test_an_ending_names_the_line_of_the_script_and_what_the_exception_is_about(project, observe):
    text = """
        import json
        try:
            json.loads("{")
        except ValueError as error:
            raise RuntimeError("the reader raised:\\nValueError: no value\\n\\nAsk for help.") from None
    """
    failed = observe(project({"train.py": text}))
    assert failed.ending == (
        "RuntimeError: the reader raised: ValueError: no value, in train.py line 6"
    )
    failed = observe(project({"train.py": "import json\njson.loads('{')\n"}))
    assert failed.ending.startswith("json.decoder.JSONDecodeError: Expecting property name")
    assert failed.ending.endswith(", in train.py line 2")


@pytest.mark.slow
def test_a_compiled_model_is_observed_without_breaking_its_graph(project, observe, tmp_path):
    text = """
        import sys, torch
        from torch import nn
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.drop, self.b = nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4)
            def forward(self, x):
                return self.b(self.drop(torch.relu(self.a(x))))
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        if "method" in sys.argv:
            net.compile()
        model = torch.compile(net) if "function" in sys.argv else net
        for i in range(4):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            model(torch.ones(2, 8))
        from torch._dynamo.utils import counters
        print(dict(counters["graph_break"]), dict(counters["recompiles"]), counters["stats"]["unique_graphs"])
    """
    folder = project({"train.py": text})
    eager, *compiled = (
        observe(folder, args=(how,), steps=100, cache=tmp_path / "cache", timeout_s=300.0)
        for how in ("eager", "method", "function")
    )
    if pytest.importorskip("torch").__version__ < (
        2,
        5,
    ):  # which does not show evaluations of torch.compile(net)
        compiled.pop()
    for run_ in compiled:
        assert run_.stdout == "{} {} 2\n"  # one graph for training, one for evaluation
        assert list(run_.parameters) == list(eager.parameters)
        assert run_.losses == pytest.approx(eager.losses, rel=1e-5)
        assert [(c.module, c.samples) for c in run_.eval_calls] == [("Net", 2)]
        assert run_.timing.first_round_seconds > 5 * max(run_.timing.round_seconds)


def test_an_interpreter_without_torch_is_told_in_one_line(project, tmp_path):
    folder = project({"train.py": "print('never')"})
    bare = tmp_path / "bare"
    # -S: without the site-packages that have torch.
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(TorchoptError) as caught:
        run(
            ScriptVersion(folder / "train.py"),
            RunSettings(python=bare, cwd=folder),
            tmp_path / "run",
        )
    message = str(caught.value)
    assert message.startswith(f"{bare}: torch cannot be imported")
    assert "--python" in message
    assert "\n" not in message
    assert caught.value.exit_code is ExitCode.USAGE


def test_the_driver_is_left_to_the_script(project, observe) -> None:
    """Which devices it sees, and that what it forks may use them, is settled when the driver is first asked."""
    by_nvml = """
        import torch

        torch.cuda._device_count_nvml = lambda: 1
    """
    script = """
        import os
        import torch

        child = os.fork()
        if not child:
            os._exit(int(torch.cuda._is_in_bad_fork()))
        print("forbidden", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            weight.sum().backward()
            optimizer.step()
    """
    folder = project({"train.py": script, "site/sitecustomize.py": by_nvml})
    for mode in Mode:
        seen = observe(folder, mode=mode, env={"PYTHONPATH": str(folder / "site")})
        assert seen.status is Status.COMPLETED, seen.failure_details
        assert seen.stdout == "forbidden 0\n"


@pytest.mark.parametrize("seed", [0, 1])
def test_a_script_that_seeds_by_the_number_of_the_run_is_told_from_one_that_does_not(
    project, observe, seed
):
    script = """
        import torch

        {}
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        """
    folder = project(
        {"seeded.py": script.format(f"torch.manual_seed({seed})"), "unseeded.py": script.format("")}
    )
    seeded, unseeded = (
        observe(folder, entry=f"{name}.py", seed=seed).snapshot(0)
        for name in ("seeded", "unseeded")
    )
    assert seeded.hashes != unseeded.hashes
