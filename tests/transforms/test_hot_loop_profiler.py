"""Profilers in loops over steps."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.options import Tier

Check = Callable[..., None]

HEAD = """\
import torch
from torch import nn
from torch.profiler import profile, record_function, ProfilerActivity
from torch.utils.data import DataLoader
from data import train_set, test_set

model = nn.Linear(10, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(train_set, batch_size=32)
"""
STEP = """\
loss = model(x.cuda()).square().mean()
optimizer.zero_grad()
loss.backward()
optimizer.step()
"""


def script(body: str, head: str = HEAD) -> str:
    return head + dedent(body).lstrip("\n")


def step(level: int) -> str:
    return indent(STEP, "    " * level)


def scheduled(head: str = HEAD) -> str:
    return head.replace("ProfilerActivity\n", "ProfilerActivity, schedule\n")


def test_profiled_step_with_its_table(check_transformed: Check) -> None:
    before = (
        "for epoch in range(3):\n    for x, y in loader:\n        # the step\n"
        "        with profile(activities=[ProfilerActivity.CPU]) as prof:\n"
        "            # forward\n" + step(3) + "\n        print(prof.key_averages())\n"
        "    print(epoch)\n"
    )
    after = (
        "for epoch in range(3):\n"
        "    prof = profile(\n"
        "        activities=[ProfilerActivity.CPU],\n"
        "        schedule=schedule(wait=1, warmup=1, active=3, repeat=1),\n"
        "        on_trace_ready=lambda prof: print(prof.key_averages()),\n"
        "    )\n"
        "    prof.start()\n"
        "    for x, y in loader:\n        # the step\n        # forward\n"
        + step(2)
        + "\n        prof.step()\n    prof.stop()\n    print(epoch)\n"
    )
    check_transformed(script(before), script(after, scheduled()))


def test_forward_only_to_be_measured_stays(check_transformed: Check) -> None:
    before = """
        for i, (x, y) in enumerate(loader):
            loss = model(x.cuda()).square().mean()
            loss.backward()
            with profile(record_shapes=True) as prof:
                with record_function("inference"):
                    _ = model(x.cuda())
            print(prof.key_averages().table(row_limit=i))
            prof.export_chrome_trace(f"trace{i}.json")
    """
    after = """


        def report_profile(prof):
            print(prof.key_averages().table(row_limit=i))
            prof.export_chrome_trace(f"trace{i}.json")


        prof = profile(
            record_shapes=True,
            schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
            on_trace_ready=report_profile,
        )
        prof.start()
        for i, (x, y) in enumerate(loader):
            loss = model(x.cuda()).square().mean()
            loss.backward()
            with record_function("inference"):
                _ = model(x.cuda())
            prof.step()
        prof.stop()
    """
    expected = scheduled() + dedent(after)[1:]
    check_transformed(script(before), expected, tier=Tier.EXACT)


IDLE = """
    for x, y in loader:
        loss = model(x).square().mean()
        loss.backward()
        with profile() as prof:
            with record_function("inference"):
                _ = model(x)
        print(prof.key_averages())
"""


def test_forward_only_to_be_measured_goes_when_asked(check_transformed: Check) -> None:
    after = """
        for x, y in loader:
            loss = model(x).square().mean()
            loss.backward()
    """
    head = HEAD.replace(
        "from torch.profiler import profile, record_function, ProfilerActivity\n", ""
    )
    used = HEAD.replace("profile, record_function, ProfilerActivity", "profile, record_function")
    check_transformed(script(IDLE, used), script(after, head), tier=Tier.SEMANTIC)


def test_says_what_the_forward_costs(rewrite: Callable[..., object]) -> None:
    result = rewrite(script(IDLE), ["hot-loop-profiler"], tier=Tier.EXACT)
    (change,) = result.files[0].changes  # type: ignore[attr-defined]
    assert "--tier semantic" in change.message


def test_result_that_is_read_later_is_no_idle_forward(check_transformed: Check) -> None:
    before = """
        for x, y in loader:
            with profile():
                out = model(x)
            out.sum().backward()
    """
    after = """
        prof = profile(schedule=schedule(wait=1, warmup=1, active=3, repeat=1))
        prof.start()
        for x, y in loader:
            out = model(x)
            prof.step()
            out.sum().backward()
        prof.stop()
    """
    check_transformed(script(before), script(after, scheduled()), tier=Tier.SEMANTIC)


def test_other_alias_and_other_contexts(check_transformed: Check) -> None:
    before = """
        import torch as th
        import torch.nn as nn
        from data import loader

        prof = None
        net = nn.Linear(2, 2)

        def train():
            for x in loader:
                with th.profiler.profile(on_trace_ready=th.profiler.tensorboard_trace_handler("log")), th.amp.autocast("cuda"):
                    loss = net(x).sum()
                loss.backward()

        train()
    """
    after = """
        import torch as th
        import torch.nn as nn
        from data import loader

        prof = None
        net = nn.Linear(2, 2)

        def train():
            profiler = th.profiler.profile(
                on_trace_ready=th.profiler.tensorboard_trace_handler("log"),
                schedule=th.profiler.schedule(wait=1, warmup=1, active=3, repeat=1),
            )
            profiler.start()
            for x in loader:
                with th.amp.autocast("cuda"):
                    loss = net(x).sum()
                profiler.step()
                loss.backward()
            profiler.stop()

        train()
    """
    check_transformed(before, after)


def test_autograd_profiler(check_transformed: Check) -> None:
    before = """
        for x, y in loader:
            with torch.autograd.profiler.profile(use_cuda=True, record_shapes=True) as prof:
                loss = model(x).sum()
                loss.backward()
            print(prof.key_averages().table())
    """
    after = """
        prof = torch.profiler.profile(
            activities=[
                torch.profiler.ProfilerActivity.CPU,
                torch.profiler.ProfilerActivity.CUDA,
            ],
            record_shapes=True,
            schedule=torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1),
            on_trace_ready=lambda prof: print(prof.key_averages().table()),
        )
        prof.start()
        for x, y in loader:
            loss = model(x).sum()
            loss.backward()
            prof.step()
        prof.stop()
    """
    head = HEAD.replace(
        "from torch.profiler import profile, record_function, ProfilerActivity\n", ""
    )
    check_transformed(script(before, head), script(after, head))
    aliased = script(before, head + "import torch.autograd.profiler as tap\n")
    check_transformed(
        aliased.replace("torch.autograd.profiler.profile(", "tap.profile("), script(after, head)
    )


def test_other_file(check_transformed: Check) -> None:
    entry = script("from engine import train\ntrain(model, loader)\n")
    before = """
        from torch.profiler import profile

        def train(model, loader):
            for x, y in loader:
                with profile() as p:
                    model(x).sum().backward()
                p.export_chrome_trace("trace.json")
    """
    after = """
        from torch.profiler import profile, schedule

        def train(model, loader):
            p = profile(
                schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
                on_trace_ready=lambda p: p.export_chrome_trace("trace.json"),
            )
            p.start()
            for x, y in loader:
                model(x).sum().backward()
                p.step()
            p.stop()
    """
    check_transformed(
        {"train.py": entry, "engine.py": before}, {"train.py": entry, "engine.py": after}
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "if i == 10:\n    with profile() as prof:\n        model(x).sum().backward()",
            "every step",
        ),
        (
            "with profile() as prof:\n    model(x).sum().backward()\ntotal += prof.profiler.self_cpu_time_total",
            "could not be followed (`total += prof",
        ),
        ("with profile() as prof:\n    model(x).sum().backward()\nprint(prof)", "`print(prof)`"),
        (
            "with profile() as prof:\n    model(x).sum().backward()\nif i % 10 == 0:\n    print(prof.key_averages())",
            "could not be followed",
        ),
        (
            "with profile() as prof:\n    if i > 3:\n        break\n    model(x).sum().backward()",
            "leaves the step early",
        ),
        ("with profile(record_shapes=i > 3):\n    model(x).sum().backward()", "depend on `i`"),
        ("with profile(**options):\n    model(x).sum().backward()", "come through `**`"),
        (
            "with profile(schedule=plan):\n    model(x).sum().backward()",
            "schedule of its own",
        ),
        ("with profile() as self.prof:\n    model(x).sum().backward()", "`self.prof`"),
        (
            "with profile():\n    model(x).sum().backward()\n    print('''two\nlines''')",
            "string of several lines",
        ),
        (
            "try:\n    with profile():\n        model(x).sum().backward()\nexcept RuntimeError:\n    pass",
            "every step",
        ),
        (
            "with profile() as prof:\n    model(x).sum().backward()\nprof = None",
            "bound elsewhere",
        ),
        (
            "with torch.autograd.profiler.profile(enabled=flag):\n    model(x).sum().backward()",
            "no counterpart",
        ),
        (
            "with torch.autograd.profiler.profile(use_device='xpu'):\n    model(x).sum().backward()",
            "no counterpart",
        ),
        (
            "with profile(on_trace_ready=save) as prof:\n    model(x).sum().backward()\nprint(prof.key_averages())",
            "two ways",
        ),
    ],
)
def test_left_where_it_is(check_noop: Check, body: str, reason: str) -> None:
    loop = "for i, (x, y) in enumerate(loader):\n" + indent(body, "    ") + "\n"
    check_noop(HEAD + loop.replace("'''two\n    lines'''", "'''two\nlines'''"), reason)


def test_loop_that_returns(check_noop: Check) -> None:
    body = """
        def train():
            for x, y in loader:
                with profile():
                    model(x).sum().backward()
                if x.sum() > 3:
                    return x

        train()
    """
    check_noop(script(body), "returns, or yields")


def test_measurement_read_after_the_loop(check_noop: Check) -> None:
    body = """
        for x, y in loader:
            with profile() as prof:
                model(x).sum().backward()
        prof.export_chrome_trace("last.json")
    """
    check_noop(script(body), "could not be followed")


@pytest.mark.parametrize(
    "body",
    [
        # once, around everything
        "with profile() as prof:\n    for x, y in loader:\n        model(x).sum().backward()\n",
        # a benchmark is no training loop
        "for i in range(10):\n    with profile() as prof:\n        model(torch.randn(3, 10))\n",
        # scheduled already
        "with profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=3)) as prof:\n"
        "    for x, y in loader:\n        model(x).sum().backward()\n        prof.step()\n",
        # something else of that name
        "from tools import profile\nfor x, y in loader:\n    with profile():\n        model(x).sum().backward()\n",
        # marks alone cost little
        "for x, y in loader:\n    with record_function('step'):\n        model(x).sum().backward()\n",
    ],
)
def test_no_profiler_in_a_hot_loop(check_noop: Check, body: str) -> None:
    check_noop(HEAD + body)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("torch.autograd.set_detect_anomaly(True)", "checks every gradient for NaN"),
        ("torch.autograd.set_detect_anomaly(mode=True)", "checks every gradient for NaN"),
        ("with torch.autograd.detect_anomaly():\n    pass", "remove it when"),
        ("with torch.autograd.profiler.emit_nvtx():\n    pass", "marks every operation"),
    ],
)
def test_debugging_aids_are_reported(check_noop: Check, line: str, reason: str) -> None:
    check_noop(script(line), reason)


@pytest.mark.parametrize("mode", ["False", "args.debug"])
def test_aid_that_is_off_is_not_reported(rewrite: Callable[..., object], mode: str) -> None:
    result = rewrite(script(f"torch.autograd.set_detect_anomaly({mode})\n"), ["hot-loop-profiler"])
    assert not result.files[0].skips  # type: ignore[attr-defined]


TRAINING = """
    import torch
    from torch import nn
    from torch.profiler import profile
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(24, 4), torch.randn(24, 1))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with profile() as prof:
            _ = model(x)
        print(prof.key_averages().table(row_limit=1))
    torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.slow
@pytest.mark.torch
def test_trains_the_same(check_verified: Check) -> None:
    check_verified(TRAINING, tier=Tier.EXACT)
