"""The ways scripts name the device they run on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.devices.devices import mentions_cuda
from torchopt_cli.optimizer.analysis.facts import DeviceKind
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("d = torch.device('cuda')", DeviceKind.CUDA),
        ("d = 'cuda:1'", DeviceKind.CUDA),
        ("d = 0", DeviceKind.CUDA),
        ("d = torch.device('cpu')", DeviceKind.CPU),
        ("d = torch.device('cuda' if torch.cuda.is_available() else 'cpu')", DeviceKind.CHOSEN),
        ("d = 'cuda' if torch.cuda.is_available() else 'cpu'", DeviceKind.CHOSEN),
        (
            "c = torch.cuda.is_available()\nd = torch.device('cuda' if c else 'cpu')",
            DeviceKind.CHOSEN,
        ),
        (
            "if torch.cuda.is_available():\n    d = torch.device('cuda')\nelse:\n    d = torch.device('cpu')",
            DeviceKind.CHOSEN,
        ),
        ("d = torch.device(f'cuda:{i}')", DeviceKind.CUDA),
        ("d = 'cuda:' + str(i)", DeviceKind.CUDA),
        ("d = 'cuda:%d' % i", DeviceKind.CUDA),
        ("d = somewhere() % torch.cuda.device_count()", DeviceKind.CUDA),
        ("d = somewhere() % 8", DeviceKind.UNKNOWN),
        ("d = torch.device('cuda:{}'.format(i))", DeviceKind.CUDA),
        ("d = '{}:{}'.format(somewhere(), i)", DeviceKind.UNKNOWN),
        ("d = 'cuda:{}'.format(i) if i >= 0 else 'cpu'", DeviceKind.CHOSEN),
        (
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--device')\nd = p.parse_args().device",
            DeviceKind.CHOSEN,
        ),
        (
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--gpu', type=int)\nd = p.parse_args().gpu",
            DeviceKind.CUDA,
        ),
        (
            "if torch.cuda.is_available():\n    d = 'cuda'\nelif torch.backends.mps.is_available():\n"
            "    d = 'mps'\nelse:\n    d = 'cpu'",
            DeviceKind.CHOSEN,
        ),
        ("d = 'mps' if torch.backends.mps.is_available() else 'cpu'", DeviceKind.OTHER),
        (
            "d = torch.device('mps:0' if torch.backends.mps.is_available() else 'cpu')",
            DeviceKind.OTHER,
        ),
        ("d = 'xpu'", DeviceKind.OTHER),
        ("d = 'meta'", DeviceKind.UNKNOWN),
        (
            "a = torch.accelerator\nd = a.current_accelerator().type if a.is_available() else 'cpu'",
            DeviceKind.CHOSEN,
        ),
        ("d = torch.device('cuda').type", DeviceKind.CUDA),
        ("import os\nd = os.environ.get('DEVICE', 'cuda')", DeviceKind.CHOSEN),
        ("d = next(model.parameters()).device", DeviceKind.CHOSEN),
        ("d = somewhere()", DeviceKind.UNKNOWN),
        ("for i in range(3):\n    d = torch.device(d)", DeviceKind.CHOSEN),
        ("d = None", DeviceKind.UNKNOWN),
        ("d = None\nif d is None:\n    d = 'cuda'", DeviceKind.CUDA),
    ],
)
def test_device_kinds(script: Script, source: str, kind: DeviceKind) -> None:
    found = script(f"import torch\nfrom elsewhere import somewhere, model\n{source}\nuse(d)")
    (call,) = [c for c in found.entry.calls if getattr(c.func, "id", "") == "use"]
    assert found.device_of(call.args[0], found.entry) is kind


def test_named_devices_and_flags(script: Script) -> None:
    found = script("""
        import torch
        use_cuda = torch.cuda.is_available() and not args.no_cuda
        device = torch.device("cuda" if use_cuda else "cpu")
        size = 3
    """)
    assert [(d.name, d.is_flag) for d in found.devices] == [("use_cuda", True), ("device", False)]


@pytest.mark.parametrize(
    "device",
    [
        "'cuda' if torch.cuda.is_available() else 'mps' if torch.backends.mps.is_available() else 'cpu'",
        "torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else 'cpu'",
    ],
)
def test_a_device_that_is_a_text_has_a_name(script: Script, device: str) -> None:
    (found,) = script(f"import torch\ndevice = {device}\n").devices
    assert (found.name, found.kind, found.is_flag) == ("device", DeviceKind.CHOSEN, False)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from accelerate import Accelerator\nd = Accelerator().device", True),
        ("d = torch.accelerator.current_accelerator()", True),
        ("import lightning as L\nfabric = L.Fabric()", True),
        ("d = 'cpu'", False),
        ("accelerated = True", False),
    ],
)
def test_script_for_a_gpu(script: Script, code: str, expected: bool) -> None:
    assert mentions_cuda(script(f"import torch\n{code}\n").entry) is expected
