"""Where networks are put, and how code elsewhere can ask for it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.devices.network_device import (
    cuda_test,
    network_device,
    uses_cuda,
)
from torchopt_cli.optimizer.analysis.facts import DeviceKind
from torchopt_cli.optimizer.analysis.networks.trained import trained_networks
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


def kind(understood: TrainingScript) -> DeviceKind:
    return network_device(understood.resolver, understood.models).kind


def condition(understood: TrainingScript) -> str | None:
    """What ``uses_cuda`` says at the call of ``HERE``."""
    where = network_device(understood.resolver, understood.models)
    for module in understood.modules:
        for call in module.calls:
            if isinstance(call.func, ast.Name) and call.func.id == "HERE":
                return uses_cuda(understood.resolver, where, module.statement(call), module)
    raise AssertionError("no HERE")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("model = nn.Linear(2, 2)", DeviceKind.CPU),
        ("model = nn.Linear(2, 2).cpu()", DeviceKind.CPU),
        ("model = nn.Linear(2, 2).to(torch.float32)", DeviceKind.CPU),
        ("model = nn.Linear(2, 2).to('mps' if flag else 'cpu')", DeviceKind.CPU),
        ("model = nn.Linear(2, 2).cuda()", DeviceKind.CUDA),
        ("model = nn.Linear(2, 2)\nmodel.to('cuda:1')", DeviceKind.CUDA),
        ("model = nn.Linear(2, 2)\nif flag_for_cuda:\n    model.cuda()", DeviceKind.CHOSEN),
        (
            "model = nn.Linear(2, 2)\nif several:\n    model = nn.DataParallel(model).cuda()\nmodel.cuda()",
            DeviceKind.CUDA,
        ),
        (
            "def show(model):\n    model.cuda()\nmodel = nn.Linear(2, 2)\nif cuda:\n    model.cuda()\nshow(model)",
            DeviceKind.CHOSEN,
        ),
        ("torch.set_default_device('cuda')\nmodel = nn.Linear(2, 2)", DeviceKind.CHOSEN),
        ("other = torch.zeros(2).cuda()\nmodel = nn.Linear(2, 2)", DeviceKind.CPU),
    ],
)
def test_kind(script: Script, code: str, expected: DeviceKind) -> None:
    assert kind(script(f"import torch\nfrom torch import nn\n{code}\n")) is expected


OPTIONS = """\
import argparse
p = argparse.ArgumentParser()
p.add_argument('--cuda', action='store_true')
def train(net):
    HERE()
def main():
    global opt
    opt = p.parse_args()
"""
MOVED = """\
    model = nn.Linear(2, 2)
    if cuda:
        model = model.cuda()
    train(model)
main()
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("model = nn.Linear(2, 2).cuda()\nHERE()", None),
        (
            "use = torch.cuda.is_available()\nmodel = nn.Linear(2, 2)\nif use:\n    model.cuda()\nHERE()",
            "torch.cuda.is_available()",
        ),
        (
            "gpu = torch.cuda.is_available()\nmodel = nn.Linear(2, 2)\nif gpu:\n    model.cuda()\nHERE()",
            "gpu",
        ),
        (
            "args = read()\nargs.gpu = torch.cuda.is_available()\nmodel = nn.Linear(2, 2)\nHERE()\n"
            "if args.gpu:\n    model.cuda()",
            "args.gpu",
        ),
        (
            "args = read()\nmodel = nn.Linear(2, 2)\nHERE()\nargs.gpu = torch.cuda.is_available()\n"
            "if args.gpu:\n    model.cuda()",
            "torch.cuda.is_available()",
        ),
        (
            "class T:\n    def __init__(self):\n        self.model = nn.Linear(2, 2)\n"
            "        self.gpu = torch.cuda.is_available()\n        HERE()\n"
            "        if self.gpu:\n            self.model.cuda()\nT()",
            "self.gpu",
        ),
        (
            "class T:\n    def __init__(self):\n        self.model = nn.Linear(2, 2)\n        HERE()\n"
            "        self.gpu = torch.cuda.is_available()\n"
            "        if self.gpu:\n            self.model.cuda()\nT()",
            "torch.cuda.is_available()",
        ),
        (
            "device = torch.device('cuda' if ok else 'cpu')\nmodel = nn.Linear(2, 2).to(device)\n"
            "def f():\n    HERE()\nf()",
            "device.type == 'cuda'",
        ),
        (
            "def f():\n    HERE()\ndef g():\n    f()\ng()\n"
            "device = torch.device('cuda' if ok else 'cpu')\nmodel = nn.Linear(2, 2).to(device)",
            "torch.cuda.is_available()",
        ),
        (
            "def f(net, where):\n    HERE()\n"
            "device = torch.device('cuda' if ok else 'cpu')\nmodel = nn.Linear(2, 2).to(device)\n"
            "def main():\n    f(model, device)\nmain()",
            "device.type == 'cuda'",
        ),
        (
            "def f(net, where):\n    HERE()\n"
            "def main():\n    device = torch.device('cuda' if ok else 'cpu')\n"
            "    model = nn.Linear(2, 2).to(device)\n    f(model, device)\nmain()",
            "where.type == 'cuda'",
        ),
        (
            "def f(net):\n    HERE()\n"
            "def main():\n    device = torch.device('cuda' if ok else 'cpu')\n"
            "    model = nn.Linear(2, 2).to(device)\n    f(model)\nmain()",
            "torch.cuda.is_available()",
        ),
        (f"{OPTIONS}    cuda = opt.cuda\n{MOVED}", "opt.cuda"),
        (f"{OPTIONS}    cuda = opt.cuda and ok\n{MOVED}", "torch.cuda.is_available()"),
        (
            f"{OPTIONS}    cuda = opt.cuda\n    opt.cuda = False\n{MOVED}",
            "torch.cuda.is_available()",
        ),
        (
            "model = nn.Linear(2, 2).to('cuda' if torch.cuda.is_available() else 'cpu')\nHERE()",
            "torch.cuda.is_available()",
        ),
        (
            "gpu = read()\nmodel = nn.Linear(2, 2).to(torch.device('cuda:1' if gpu else 'cpu'))\nHERE()",
            "bool(gpu)",
        ),
        (
            "gpu = read()\nmodel = nn.Linear(2, 2).to('cpu' if not gpu else 'cuda')\nHERE()",
            "('cpu' if not gpu else 'cuda') == 'cuda'",
        ),
        (
            "def HERE_early():\n    pass\nmodel = nn.Linear(2, 2)\nHERE()\n"
            "device = torch.device('cuda' if ok else 'cpu')\nmodel.to(device)",
            "torch.cuda.is_available()",
        ),
    ],
)
def test_condition(script: Script, body: str, expected: str | None) -> None:
    assert condition(script(f"import torch\nfrom torch import nn\n{dedent(body)}\n")) == expected


@pytest.mark.parametrize(
    ("device", "test"),
    [
        ("Accelerator().device", "Accelerator().device.type == 'cuda'"),
        ("torch.device('cuda')", "torch.device('cuda').type == 'cuda'"),
        ("Other().device", "torch.device(Other().device).type == 'cuda'"),
    ],
)
def test_devices_by_their_type(script: Script, device: str, test: str) -> None:
    head = "import torch\nfrom accelerate import Accelerator\nfrom other import Other\n"
    understood = script(f"{head}ASK({device})\nprint('x')\n")
    module = understood.entry
    (call,) = [c for c in module.calls if module.code(c.func) == "ASK"]
    assert cuda_test(device, understood.values(call.args[0], module), module) == test


@pytest.mark.parametrize(
    ("options", "test"),
    [
        ("", "args.device.type == 'cuda'"),
        (
            "parser.add_argument('--device', default='cuda')",
            "torch.device(args.device).type == 'cuda'",
        ),
    ],
)
def test_devices_added_to_the_parsed_arguments(script: Script, options: str, test: str) -> None:
    understood = script(
        "import argparse, torch\nfrom torch import nn\n"
        f"parser = argparse.ArgumentParser()\n{options}\nargs = parser.parse_args()\n"
        "args.device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')\n"
        "model = nn.Linear(2, 2).to(args.device)\nHERE()\n"
    )
    assert condition(understood) == test


@pytest.mark.parametrize(
    ("moved", "expected"), [("model", DeviceKind.CUDA), ("other", DeviceKind.CPU)]
)
def test_a_part_is_where_the_whole_is(script: Script, moved: str, expected: DeviceKind) -> None:
    code = """
    import torch
    from torch import nn

    class ActorCritic(nn.Module):
        def __init__(self):
            super().__init__()
            self.actor = nn.Sequential(nn.Linear(2, 2), nn.Tanh())

    class Other(nn.Module):
        pass

    model, other = ActorCritic(), Other()
    {0}.cuda()
    optimizer = torch.optim.Adam(model.actor.parameters())
    """
    understood = script(dedent(code).format(moved))
    networks = trained_networks(understood.resolver, understood.optimizers)
    assert [ast.unparse(network.node.func) for network in networks] == ["nn.Sequential"]
    assert network_device(understood.resolver, networks).kind is expected


@pytest.mark.parametrize(
    "given", ["part", "nn.ModuleList([part])", "*parts", "nn.Sequential(*parts)"]
)
def test_a_part_that_is_handed_to_the_network_moves_with_it(script: Script, given: str) -> None:
    found = script(
        f"""
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self, first, *others):
                super().__init__()
                self.first = first

        parts = []
        part = nn.Linear(2, 2)
        parts.append(part)
        net = Net({given}).cuda()
        """
    )
    part = [model for model in found.models if model.library_name == "torch.nn.Linear"]
    assert network_device(found.resolver, part).kind is DeviceKind.CUDA


@pytest.mark.parametrize(
    ("kept", "made", "test"),
    [
        ("self.device = ", "agent = Agent(options)", "agent.device.type == 'cuda'"),
        ("self.device = ", "agent = Agent(options) if options else None", None),
        ("if options:\n            self.device = ", "agent = Agent(options)", None),
    ],
    ids=["always", "perhaps-none", "perhaps-unset"],
)
def test_the_device_that_an_object_keeps(
    script: Script, kept: str, made: str, test: str | None
) -> None:
    understood = script(
        f"""
        import torch
        from torch import nn
        from options import options

        class Agent:
            def __init__(self, options):
                {kept.replace("            ", "                    ")}torch.device('cuda' if options.cuda else 'cpu')
                self.critic = nn.Linear(2, 2).to(self.device)

        {made}
        HERE()
        """
    )
    assert condition(understood) == (test or "torch.cuda.is_available()")
