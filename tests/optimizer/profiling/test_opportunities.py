from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from torchopt_cli.optimizer.execution.observations import Versions
from torchopt_cli.optimizer.execution.profile_record import LoaderAlone, Operator, Phase
from torchopt_cli.optimizer.options import Target, Tier
from torchopt_cli.optimizer.pipeline.result import AppliedChange
from torchopt_cli.optimizer.profiling import opportunities as module
from torchopt_cli.optimizer.profiling.opportunities import (
    NOTHING_ON_A_CPU,
    Bottleneck,
    bottleneck,
    opportunities,
    workers_needed,
    workers_save,
)
from torchopt_cli.optimizer.profiling.profile import PhaseTime, StepProfile
from torchopt_cli.transforms.registry import all_transforms

CPU, GPU = Versions("3.11", "2.9.0", "cpu"), Versions("3.11", "2.9.0", "NVIDIA H100")


def step(
    device: Versions = GPU, loader: LoaderAlone | None = None, **seconds: float
) -> StepProfile:
    total = sum(seconds.values())
    phases = [
        PhaseTime(Phase(name), value, value / total, value, None) for name, value in seconds.items()
    ]
    return StepProfile(
        device, 50, total, 8.0, tuple(phases), (), (), loader, None, None, None, None
    )


def loader(seconds: float, workers: int = 0) -> LoaderAlone:
    return LoaderAlone(workers, 8.0, seconds, seconds)


def change(name: str, line: int = 3) -> AppliedChange:
    return AppliedChange(name, Tier.EXACT, Path("/p/train.py"), line, line, "does it", "it is safe")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"data": 6.0, "forward": 3.0, "backward": 2.0}, Bottleneck.DATA),
        ({"data": 4.0, "forward": 3.0, "backward": 2.0}, Bottleneck.COMPUTE),
        ({"optimizer": 2.0, "clear": 2.0, "forward": 3.0}, Bottleneck.OPTIMIZER),
        ({"sync": 5.0, "copy": 1.0}, Bottleneck.SYNC),
        ({"copy": 5.0, "sync": 1.0}, Bottleneck.COPY),
        ({"evaluation": 5.0, "other": 1.0}, Bottleneck.EVALUATION),
        ({"other": 5.0, "forward": 1.0}, Bottleneck.OTHER),
    ],
)
def test_the_bottleneck_is_the_largest_part(
    seconds: dict[str, float], expected: Bottleneck
) -> None:
    assert bottleneck(step(**seconds)) is expected


def test_a_device_that_idles_during_the_computation_waits_for_the_host() -> None:
    computing = step(forward=5.0, data=1.0)
    assert bottleneck(replace(computing, device_busy_share=0.3)) is Bottleneck.LAUNCH
    assert bottleneck(replace(computing, device_busy_share=0.9)) is Bottleneck.COMPUTE
    waiting = replace(step(forward=1.0, data=5.0), device_busy_share=0.1)
    assert bottleneck(waiting) is Bottleneck.DATA


def test_workers_save_no_more_than_keeps_the_device_busy() -> None:
    profile = step(GPU, loader(8.0), data=8.0, forward=2.0)
    assert workers_save(profile, cores=8) == pytest.approx(8.0)  # batches every second
    assert workers_save(profile, cores=2) == pytest.approx(6.0)  # batches every four
    assert workers_needed(profile, cores=8) == 4
    assert workers_needed(profile, cores=2) == 2
    slow = step(GPU, loader(64.0), data=64.0, forward=2.0)
    assert workers_needed(slow, cores=64) == 16
    assert workers_save(slow, cores=64) == pytest.approx(62.0)  # batches every four seconds


def test_on_a_cpu_workers_share_the_cores_with_the_computation() -> None:
    profile = step(CPU, loader(5.0), data=5.0, forward=5.0)
    assert workers_save(profile, cores=2) == pytest.approx(5.0)
    assert workers_save(profile, cores=1) == 0.0
    assert workers_needed(profile, cores=1) == 0


@pytest.mark.parametrize(("found", "saved"), [(None, 0.0), (loader(8.0, workers=4), 1.5)])
def test_where_there_is_nothing_to_start_workers_for(
    found: LoaderAlone | None, saved: float
) -> None:
    """Those that are there can be kept from epoch to epoch, or be more: no step waits for less than nothing."""
    profile = step(GPU, found, data=1.5, forward=2.0)
    assert workers_save(profile, cores=8) == saved
    assert workers_needed(profile, cores=8) == 0


def test_each_transform_once_and_the_largest_bound_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 4)
    operators = (
        Operator("aten::addmm", 4.0, 9.0, 1.5),
        Operator("aten::cudnn_convolution", 4.0, 9.0, 0.5),
        Operator("aten::relu", 4.0, 9.0, 4.0),
    )
    profile = replace(
        step(GPU, loader(6.0), data=6.0, forward=3.0, backward=1.0, sync=0.25),
        operators=operators,
    )
    names = [
        *("lightning-trainer", "defer-sync", "autocast", "channels-last", "dataloader-workers"),
        "compile",
    ]
    changes = [change(name, line) for line, name in enumerate(names, 1)]
    changes.append(change("autocast", 99))
    found = opportunities(profile, changes, all_transforms())
    assert [(one.transform, one.line, one.at_most) for one in found] == [
        ("dataloader-workers", 5, pytest.approx(6.0)),
        ("autocast", 3, pytest.approx(2.0)),
        ("compile", 6, pytest.approx(2.0)),
        ("channels-last", 4, pytest.approx(0.5)),
        ("defer-sync", 2, pytest.approx(0.25)),
        ("lightning-trainer", 1, None),
    ]
    assert found[-1].basis == "the profile says nothing about it"


def test_on_a_cpu_operators_count_by_their_time_there() -> None:
    profile = replace(step(CPU, forward=8.0), operators=(Operator("aten::mm", 1.0, 3.0, 0.0),))
    (found,) = opportunities(profile, [change("autocast")], all_transforms(), Target.CPU)
    assert found.at_most == 3.0


@pytest.mark.parametrize("name", ["compile", "fused-optimizer", "pin-memory"])
def test_what_is_for_cuda_wins_nothing_on_a_cpu(name: str) -> None:
    def at_most(device: Versions, target: Target) -> float | None:
        profile = step(device, forward=2.0, optimizer=1.0, copy=1.0)
        return opportunities(profile, [change(name)], all_transforms(), target)[0].at_most

    assert at_most(CPU, Target.AUTO) == at_most(CPU, Target.CUDA) == 0.0
    assert at_most(CPU, Target.CPU)
    assert at_most(GPU, Target.AUTO)


def test_a_change_that_works_on_a_cpu_may_win_there() -> None:
    profile = step(CPU, forward=2.0, optimizer=1.0)
    fused = replace(change("fused-optimizer"), on_cpu=True)
    (found,) = opportunities(profile, [fused], all_transforms())
    assert found.at_most


def test_what_is_not_for_cuda_alone_keeps_its_bound_on_a_cpu() -> None:
    profile = step(CPU, forward=2.0, evaluation=1.0)
    assert opportunities(profile, [change("no-grad")], all_transforms())[0].at_most == 1.0


def test_an_evaluation_that_was_not_seen_is_no_bound() -> None:
    (found,) = opportunities(step(CPU, forward=2.0), [change("no-grad")], all_transforms())
    assert (found.at_most, found.basis) == (None, "no evaluation was seen")


def test_emptying_the_cache_costs_nothing_where_there_is_no_gpu() -> None:
    profile = step(CPU, other=2.0)
    (found,) = opportunities(profile, [change("empty-cache")], all_transforms())
    assert (found.at_most, found.basis) == (0.0, NOTHING_ON_A_CPU)


def test_attention_takes_its_softmax_masks_and_products() -> None:
    operators = tuple(
        Operator(f"aten::{name}", 1.0, 9.0, 0.5)
        for name in (
            "_softmax",
            "_softmax_backward_data",
            "masked_fill_",
            "bmm",
            "baddbmm",
            "_log_softmax",
            "_log_softmax_backward_data",
            "addmm",
            "add",
        )
    )
    profile = replace(step(forward=8.0), operators=operators)
    (found,) = opportunities(profile, [change("fused-attention")], all_transforms())
    assert found.at_most == pytest.approx(5 * 0.5)
