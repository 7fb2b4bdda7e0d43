"""What a profile reads like."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from torchopt_cli.optimizer.execution.observations import Versions
from torchopt_cli.optimizer.execution.profile_record import LoaderAlone, Operator, Phase
from torchopt_cli.optimizer.profiling.opportunities import NOTHING_ON_A_CPU, Opportunity
from torchopt_cli.optimizer.profiling.profile import PhaseTime, StepProfile
from torchopt_cli.optimizer.profiling.report import render_text


@pytest.fixture
def profile() -> StepProfile:
    return StepProfile(
        steps=20,
        versions=Versions("3.11.4", "2.9.0", "cpu"),
        step_seconds=0.001,
        batch_samples=32.0,
        phases=(PhaseTime(Phase.FORWARD, 0.001, 1.0, 0.001, None),),
        operators=(Operator("aten::addmm", 2, 0.0004, 0.0),),
        syncs=(),
        device_busy_share=None,
        loader=LoaderAlone(0, 8.0, 0.00025, 0.00025),
        resident_step_seconds=None,
        device_memory=None,
        host_memory=None,
    )


def told(profile: StepProfile, *found: Opportunity) -> str:
    console = Console(file=StringIO(), width=120)
    render_text(profile, found, console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_rates_have_no_exponents(profile: StepProfile) -> None:
    text = told(profile)
    assert "32,000 samples/s on cpu" in text
    assert "0.25 ms per batch, 32,000 samples/s" in text
    assert "e+" not in text
    assert "12 samples/s" in told(replace(profile, batch_samples=0.012))


def test_a_profile_of_a_cpu_says_how_to_rewrite_for_one(profile: StepProfile) -> None:
    for_cuda = Opportunity("fused-optimizer", Path("train.py"), 3, "fused", 0.0, NOTHING_ON_A_CPU)
    assert "--target cpu" in told(profile, for_cuda)
    assert "--target cpu" not in told(profile, replace(for_cuda, basis="waiting for data"))


def test_a_cpu_has_no_column_for_a_device(profile: StepProfile) -> None:
    assert "device per step" not in told(profile)
    on_gpu = replace(profile, versions=Versions("3.11.4", "2.9.0", "NVIDIA H200"))
    assert "device per step" in told(on_gpu)
