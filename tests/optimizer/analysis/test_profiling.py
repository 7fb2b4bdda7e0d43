"""Profilers in loops over steps, and debugging aids."""

from __future__ import annotations

from collections.abc import Callable

from torchopt_cli.optimizer.analysis.script import TrainingScript

Understand = Callable[[str], TrainingScript]

SCRIPT = """
    import torch
    from torch import nn
    from torch.profiler import profile, record_function

    model = nn.Linear(2, 2)
    torch.autograd.set_detect_anomaly(True)
    for x in data:
        model(x).sum().backward()
        with torch.no_grad(), profile() as prof:
            with record_function("forward"):
                out = model(x)
        print(prof.key_averages())
        prof.export_chrome_trace("trace.json")
    with profile() as whole:
        model(x)
"""


def test_profile_in_a_training_loop(script: Understand) -> None:
    (profile,) = script(SCRIPT).step_profiles
    assert (profile.name, profile.obstacle) == ("prof", None)
    assert [profile.module.code(r)[:10] for r in profile.reports] == ["print(prof", "prof.expor"]
    assert profile.idle_forward is not None
    assert profile.module.code(profile.idle_forward) == "model(x)"


def test_result_read_later_is_not_idle(script: Understand) -> None:
    (profile,) = script(SCRIPT + "    print(out)\n").step_profiles
    assert profile.idle_forward is None


def test_result_of_a_call_as_argument_is_not_idle(script: Understand) -> None:
    (profile,) = script(SCRIPT.replace("out = model(x)", "out = model(next(it))")).step_profiles
    assert profile.idle_forward is None


def test_another_use_is_an_obstacle(script: Understand) -> None:
    (profile,) = script(SCRIPT.replace("print(prof.key_averages())", "log(prof)")).step_profiles
    assert profile.obstacle is not None
    assert "`log(prof)`" in profile.obstacle


def test_debugging_aids(script: Understand) -> None:
    assert [aid.code for aid in script(SCRIPT).debugging_aids] == [
        "torch.autograd.set_detect_anomaly(True)"
    ]
    assert not script(SCRIPT.replace("(True)", "(False)")).debugging_aids
