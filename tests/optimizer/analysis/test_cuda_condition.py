"""How a script says, at a place, whether it runs on CUDA."""

from __future__ import annotations

import ast
from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.devices.cuda_condition import cuda_condition
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
FLAG = "use_cuda = torch.cuda.is_available()\n"
DEVICE = 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n'


@pytest.mark.parametrize(
    ("code", "condition"),
    [
        ("ASK()\n", "True"),
        (FLAG + "ASK()\n", "use_cuda"),
        (DEVICE + "ASK()\n", 'device.type == "cuda"'),
        (DEVICE + FLAG + "ASK()\n", "use_cuda"),
        ("ASK()\n" + FLAG, "True"),
        ("args.cuda = not args.no_cuda and torch.cuda.is_available()\nASK()\n", "True"),
        (
            "args = parse()\nargs.cuda = not args.no_cuda and torch.cuda.is_available()\nASK()\n",
            "args.cuda",
        ),
        (
            'device = "cuda" if torch.cuda.is_available() else "cpu"\nASK()\n',
            'device == "cuda"',
        ),
        (
            "device = 'cuda:1' if torch.cuda.is_available() else 'cpu'\nASK()\n",
            "device.startswith('cuda')",
        ),
        (
            "import os\ndevice = 'cuda' if torch.cuda.is_available() else os.environ['DEVICE']\nASK()\n",
            "True",
        ),
        ('device = torch.device("cuda")\nASK()\n', "True"),
        (FLAG + "use_cuda = False\nASK()\n", "True"),
        ("if x:\n    use_cuda = torch.cuda.is_available()\nASK()\n", "True"),
        ("if x:\n    use_cuda = torch.cuda.is_available()\n    ASK()\n", "use_cuda"),
        ("for i in x:\n    use_cuda = torch.cuda.is_available()\n    ASK()\n", "use_cuda"),
        (FLAG + "if use_cuda:\n    ASK()\n", "True"),
        (FLAG + "if use_cuda:\n    pass\nelse:\n    ASK()\n", "use_cuda"),
        (FLAG + "y = ASK() if use_cuda else None\n", "True"),
        (FLAG + "y = None if use_cuda else ASK()\n", "use_cuda"),
        (FLAG + "def f():\n    ASK()\nf()\n", "use_cuda"),
        ("def f():\n    ASK()\n" + FLAG + "f()\n", "use_cuda"),
        ("def f():\n    ASK()\nf()\n" + FLAG, "True"),
        (FLAG + "def f():\n    ASK()\n", "True"),
        (
            "def f():\n    ASK()\nif __name__ == '__main__':\n    use_cuda = torch.cuda.is_available()\n    f()\n",
            "use_cuda",
        ),
        ("def f():\n    use_cuda = torch.cuda.is_available()\ndef g():\n    ASK()\ng()\n", "True"),
        (
            "def f():\n    use_cuda = torch.cuda.is_available()\n    def g():\n        ASK()\n    g()\nf()\n",
            "True",
        ),
        ("def f(device):\n    ASK()\n" + DEVICE + "f(device)\n", 'device.type == "cuda"'),
        (
            "def f(where):\n    ASK()\nf(torch.device('cuda' if x else 'cpu'))\n",
            "where.type == 'cuda'",
        ),
        ("def f(where):\n    ASK()\nf('cuda')\n", "True"),
        ("def f(where):\n    ASK()\nf(torch.device('cpu'))\n", "True"),
        (
            "def f(where):\n    where = None\n    ASK()\nf(torch.device('cuda' if x else 'cpu'))\n",
            "True",
        ),
    ],
)
def test_condition(script: Script, code: str, condition: str) -> None:
    understood = script("import torch\nx = open('x')\n" + code)
    entry = understood.entry
    (call,) = [c for c in entry.calls if entry.code(c.func) == "ASK"]
    assert cuda_condition(understood, entry, call) == condition


@pytest.mark.parametrize(
    ("test", "condition"),
    [
        ("args.gpu", "torch.cuda.is_available()"),
        ("not args.use_cpu", "torch.cuda.is_available()"),
        ("args.verbose", "True"),
    ],
)
def test_batches_that_an_option_moves(script: Script, test: str, condition: str) -> None:
    code = f"""
        import torch, argparse
        from data import data
        args = argparse.ArgumentParser().parse_args()
        loader = torch.utils.data.DataLoader(data)
        net = torch.load("net.pt")
        for x in loader:
            if {test}:
                x = x.cuda()
            net(x)
    """
    understood = script(code)
    (call,) = understood.entry.calls_named("DataLoader")
    assert cuda_condition(understood, understood.entry, call) == condition


def test_a_name_of_another_file_is_not_used(script: Script) -> None:
    files = {
        "train.py": "import torch\nfrom data import make\n" + FLAG + "make()\n",
        "data.py": dedent("def make():\n    ASK()\n"),
    }
    understood = script(files)
    module = understood.modules[1]
    (call,) = module.calls
    assert isinstance(call, ast.Call)
    assert cuda_condition(understood, module, call) == "True"
