"""Jobs over the devices there are, and what an interrupt does to them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution.runner import ScriptVersion
from torchopt_cli.optimizer.gate import jobs
from torchopt_cli.optimizer.gate.judge import Gated, Job, Judgement, Limits

VERSION = ScriptVersion(Path("train.py"))
SEVERAL = [Job(f"job {n}", VERSION, VERSION, None, 1.0, None, 1) for n in range(3)]
LIMITS = Limits(Path("python"), Path("/"))


def judge_all(gpus: list[str]) -> list[Judgement]:
    return jobs.judge_all(SEVERAL, LIMITS, gpus, lambda done, what: None)


def interrupt_main_thread() -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


@pytest.mark.parametrize("gpus", [[], ["0"], ["0", "1"]])
def test_judgements_come_in_the_order_of_the_jobs(
    monkeypatch: pytest.MonkeyPatch, gpus: list[str]
) -> None:
    first_waits = threading.Event()

    def judge(job: Job, limits: Limits, progress: Callable[[str], None]) -> Judgement:
        if job.name != "job 0":
            first_waits.set()
        elif len(gpus) > 1:
            assert first_waits.wait(30)
        return Judgement(job, Gated.PASSED, "")

    monkeypatch.setattr(jobs, "judge", judge)
    assert [one.job.name for one in judge_all(gpus)] == [job.name for job in SEVERAL]


@pytest.mark.parametrize("gpus", [[], ["0"], ["0", "1"]])
def test_an_interrupt_does_not_wait_for_the_runs(
    monkeypatch: pytest.MonkeyPatch, gpus: list[str]
) -> None:
    """On one device a run ends by the exception itself, on several with the threads that wait for it."""
    over, waited = threading.Event(), []

    def judge(job: Job, limits: Limits, progress: Callable[[str], None]) -> Judgement:
        if job.name == "job 0":
            time.sleep(0.3)  # until all are started, and waited for
            interrupt_main_thread()
        waited.append(over.wait(10))
        return Judgement(job, Gated.PASSED, "")

    monkeypatch.setattr(jobs, "judge", judge)
    with pytest.raises(KeyboardInterrupt):
        judge_all(gpus)
    assert waited == []
    over.set()


def test_what_goes_wrong_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(job: Job, limits: Limits, progress: Callable[[str], None]) -> Judgement:
        raise RuntimeError(job.name)

    monkeypatch.setattr(jobs, "judge", judge)
    with pytest.raises(RuntimeError, match="job 0"):
        judge_all(["0", "1"])
