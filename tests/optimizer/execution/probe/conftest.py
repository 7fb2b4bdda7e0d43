"""Training under the hooks in this process."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution.observations import Observations
from torchopt_cli.optimizer.execution.probe.start import RECORD
from torchopt_cli.optimizer.execution.record import load


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[..., Observations]:
    """Call a function under the hooks as a run would the script; keywords are those of the run's specification."""
    torch = pytest.importorskip("torch")
    from torchopt_cli.optimizer.execution.probe.clock import Clock
    from torchopt_cli.optimizer.execution.probe.hooks import Hooks
    from torchopt_cli.optimizer.execution.probe.loading import AlignedLoading
    from torchopt_cli.optimizer.execution.probe.patches import Patches
    from torchopt_cli.optimizer.execution.probe.randomness import seed_everything
    from torchopt_cli.optimizer.execution.probe.rounds import StopRun
    from torchopt_cli.optimizer.execution.probe.session import Session

    runs = iter(range(100))

    def go(function: Callable[[], object], **chosen: object) -> Observations:
        folder = tmp_path / f"record{next(runs)}"
        folder.mkdir()
        spec = {
            "output": str(folder),
            "mode": "observe",
            "seed": 0,
            "steps": 1000,
            "epoch_seconds": 0.0,
            "snapshot_bytes": 1 << 30,
            "perturb": None,
            "keep_evaluated": False,
            "evaluated_with": None,
            "keep_steps": False,
            "stepped_with": None,
            "shuffled": (),
            "until_next": False,
            "block_steps": 10,
            "device_block_steps": 10,
            "full_precision": False,
            "unrounded": False,
            "training_draws": False,
            "more_digits": False,
            "emulated_gpus": 0,
            **chosen,
        }

        def give_up() -> None:
            raise AssertionError("gave up")

        clock = Clock(time.perf_counter(), spec["block_steps"], spec["device_block_steps"])
        session = Session(spec, clock, give_up)
        patches = Patches()
        hooks = Hooks(session, patches)
        if session.observing:
            AlignedLoading(spec["seed"], folder).install(patches)
        seed_everything(spec["seed"])
        hooks.install()
        try:
            function()
        except StopRun:
            assert session.stopped
        finally:
            hooks.shut_down_workers()
            patches.undo()
        status = "stopped" if session.stopped else "completed"
        ending = {
            "status": status,
            "exit_code": 0,
            "traceback": None,
            "memory": {},
            "versions": None,
        }
        (folder / RECORD).write_text(json.dumps(session.finish() | ending))
        texts = {"stdout": "", "stderr": "", "stdout_cut": False, "stderr_cut": False}
        return Observations(folder=folder, **texts, **load(folder))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()  # it compiles a function only so often, in all tests together
    # What is there before a test is left out where live objects are looked for, as a run does before its script.
    gc.collect()
    gc.freeze()
    yield go
    torch.set_num_threads(threads)
