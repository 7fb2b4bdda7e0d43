"""When a device is CUDA, and how it is called."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.devices.device_choices import (
    IS_AVAILABLE,
    DeviceChoice,
    condition,
    device_choice,
    visible_devices,
)
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = "import torch\n"


def asked(script: TrainingScript) -> DeviceChoice | None:
    (call,) = [c for c in script.entry.calls if getattr(c.func, "id", "") == "ASK"]
    return device_choice(script.resolver, call.args[0], script.entry)


@pytest.mark.parametrize(
    ("code", "choice"),
    [
        ("ASK('cuda:1')", DeviceChoice("cuda:1", None)),
        ("ASK('cpu')", None),
        ("ASK(torch.device('cuda'))", DeviceChoice("cuda", None)),
        (
            "ASK(torch.device('cuda' if torch.cuda.is_available() else 'cpu'))",
            DeviceChoice("cuda", IS_AVAILABLE),
        ),
        (
            "c = True if torch.cuda.is_available() else False\nd = 'cuda:0' if c else 'cpu'\nASK(d)",
            DeviceChoice("cuda:0", IS_AVAILABLE),
        ),
        (
            "d = torch.device('cpu') if not torch.cuda.is_available() else torch.device('cuda')\nASK(d)",
            DeviceChoice("cuda", IS_AVAILABLE),
        ),
        ("from elsewhere import d\nASK(d)", None),
        ("d = torch.device('cuda', 1)\nASK(d)", None),
    ],
)
def test_choice(script: Script, code: str, choice: DeviceChoice | None) -> None:
    assert asked(script(HEAD + code)) == choice


def test_option_and_combination(script: Script) -> None:
    found = script("""
        import argparse
        import torch
        p = argparse.ArgumentParser()
        p.add_argument("--gpu", action="store_true")
        args = p.parse_args()
        use = args.gpu and torch.cuda.is_available()
        ASK(torch.device("cuda" if use else "cpu"))
        ASK_TEST(not use)
    """)
    choice = asked(found)
    assert choice == DeviceChoice("cuda", f"option gpu and {IS_AVAILABLE}")
    (call,) = [c for c in found.entry.calls if getattr(c.func, "id", "") == "ASK_TEST"]
    assert condition(found.resolver, call.args[0], found.entry) == f"not {choice.condition}"


def test_names_in_sight(script: Script) -> None:
    found = script("""
        import torch
        dev = torch.device("cuda" if torch.cuda.is_available() else "cpu")

        class Trainer:
            def __init__(self):
                self.device = "cuda"

            def step(self, where):
                HERE()

        Trainer().step(dev)
        late = torch.device("cuda")
    """)
    (call,) = [c for c in found.entry.calls if getattr(c.func, "id", "") == "HERE"]
    names = dict(visible_devices(found.resolver, call, found.entry))
    chosen = DeviceChoice("cuda", IS_AVAILABLE)
    assert names == {"self.device": DeviceChoice("cuda", None), "where": chosen, "dev": chosen}
