"""Functions and classes of first-party modules that are chosen by name when the script runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Ask = Callable[..., set[object]]

MODELS = {
    "models/__init__.py": "from .nets import *\nfrom .small import tiny\n",
    "models/nets.py": """
        from torch import nn
        __all__ = ["big", "wide"]
        def part(n):
            return nn.Linear(n, n)
        def big(n):
            return nn.Conv2d(n, n, 3)
        def wide(n):
            return nn.Conv3d(n, n, 3)
    """,
    "models/small.py": """
        from torch import nn
        class tiny(nn.Module):
            def __init__(self, n):
                self.n = n
        def _hidden(n):
            return None
    """,
}
ALL = {"torch.nn.Conv2d()", "torch.nn.Conv3d()", "tiny()"}
PARSER = """
    import argparse, models, sys
    parser = argparse.ArgumentParser()
    parser.add_argument("--arch"{})
    args = parser.parse_args()
"""


@pytest.mark.parametrize(
    "chosen",
    [
        "ASK(models.__dict__[args.arch](3))",
        "ASK(getattr(models, args.arch)(3))",
        "ASK(getattr(models, sys.argv[1])(3))",
        "make = models.__dict__[args.arch]\n    net = make(3)\n    ASK(net)",
    ],
)
def test_any_public_member(ask: Ask, chosen: str) -> None:
    assert ask({"train.py": f"{PARSER.format('')}    {chosen}\n", **MODELS}) == ALL


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ("['big', 'tiny']", {"torch.nn.Conv2d()", "tiny()"}),
        (
            "sorted(n for n in models.__dict__ if n.islower() and not n.startswith('t')"
            " and callable(models.__dict__[n]))",
            {"torch.nn.Conv2d()", "torch.nn.Conv3d()"},
        ),
        ("[n for n in models.__dict__ if n.startswith('b') or n.endswith('y')]", ALL - {"torch.nn.Conv3d()"}),
        ("[n for n in models.__dict__ if unknown(n)]", ALL),
        ("available()", ALL),
    ],
)  # fmt: skip
def test_those_that_the_option_allows(ask: Ask, choices: str, expected: set[object]) -> None:
    code = PARSER.format(f", choices={choices}") + "    ASK(models.__dict__[args.arch](3))\n"
    assert ask({"train.py": code, **MODELS}) == expected


def test_one_by_its_name(ask: Ask) -> None:
    code = "import models\nname = 'wide'\nASK(models.__dict__[name](3))\n"
    assert ask({"train.py": code, **MODELS}) == {"torch.nn.Conv3d()"}


@pytest.mark.parametrize("asked", ["models.nets.big(3)", "models.nets.__dict__['big'](3)"])
def test_a_file_that_its_package_takes_all_from(ask: Ask, asked: str) -> None:
    """It is an attribute of the package, though nothing there binds its name."""
    found = ask({"train.py": f"import models\nASK({asked})\n", **MODELS})
    assert found == {"torch.nn.Conv2d()"}


@pytest.mark.parametrize(
    "code",
    [
        "ASK(models.__dict__[args.arch])",
        "models.__dict__['more'] = print\n    ASK(models.__dict__[args.arch](3))",
        "ASK(sys.modules[args.arch].__dict__[args.arch](3))",
    ],
)
def test_what_may_be_anything(ask: Ask, code: str) -> None:
    found = ask({"train.py": f"{PARSER.format('')}    {code}\n", **MODELS})
    assert found.isdisjoint(ALL | {"<big>", "<wide>", "<tiny>"})


def test_parameters_get_what_the_choice_is_called_with(ask: Ask) -> None:
    models = {"models.py": "def big(n):\n    ASK(n)\n    return n\n"}
    code = "import models, sys\nmodels.__dict__[sys.argv[1]](3)\n"
    assert ask({"train.py": code, **models}) == {3}


FACTORY = {
    "config.py": """
        import losses
        class Config:
            def __init__(self, entries):
                self.entries = entries
            def init(self, name, module, *args, **kwargs):
                kwargs.update(self.entries[name])
                return getattr(module, self.entries[name]["type"])(*args, **kwargs)
            def init_later(self, name, module=losses):
                make = getattr(module, self.entries[name]["type"])
                made = make(3)
                return made
        def build(make, *args):
            return make(*args)
    """,
    "losses.py": "import torch\nRATE = 1\nclass Own(torch.nn.Module):\n    pass\n",
    "models.py": "from bases import BaseNet\nclass Net(BaseNet):\n    pass\ndef big(n):\n    return Net(n)\n",
    "bases.py": "from torch import nn\nclass BaseNet(nn.Module):\n    pass\n",
}
HANDED = """
    import json, sys, torch
    import losses, models
    from config import Config, build
    config = Config(json.load(open(sys.argv[1])))
    loss = config.init("loss", losses)
    model = config.init("model", models)
    optimizer = config.init("optimizer", torch.optim, model.parameters())
    schedule = config.init("schedule", torch.optim.lr_scheduler, optimizer)
    later = config.init_later("later")
    others = config.init_later("others", models)
    built = build(torch.nn.Linear, 2, 3), build(losses.Own)
"""


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("loss", {"Own()"}),
        ("model", {"Net()"}),
        ("optimizer", {"torch.optim.<any>()"}),
        ("schedule", {"torch.optim.lr_scheduler.<any>()"}),
        ("later", {"Own()"}),
        ("built[0]", {"torch.nn.Linear()"}),
        ("built[1]", {"Own()"}),
    ],
)
def test_what_a_function_makes_of_what_its_caller_hands_it(
    ask: Ask, asked: str, expected: set[object]
) -> None:
    assert ask({"train.py": f"{HANDED}    ASK({asked})\n", **FACTORY}) == expected


def test_a_function_that_is_handed_itself(ask: Ask) -> None:
    code = "def run(f, x):\n    return f(x)\nASK(run(run, int))\n"
    assert ask({"train.py": code})


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ("import torch\ndef l1(a, b):\n    return 1\n", {"<l1>"}),
        ("RATE = 1\ndef l1(a, b):\n    return 1\n", {"builtins.getattr()"}),
        ("from torch import *\ndef l1(a, b):\n    return 1\n", {"builtins.getattr()"}),
    ],
)
def test_what_is_handed_on_uncalled(ask: Ask, losses: str, expected: set[object]) -> None:
    """A file of functions alone has nothing else that could be asked for by its name."""
    code = "import losses, sys\nASK(getattr(losses, sys.argv[1]))\n"
    assert ask({"train.py": code, "losses.py": losses}) == expected


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (", choices=['SGD', 'Adam']", {"torch.optim.SGD", "torch.optim.Adam"}),
        (", choices={'SGD'}", {"torch.optim.SGD"}),
        (", choices=NAMES", {"torch.optim.SGD"}),
        (", choices=known()", {"torch.optim.<any>"}),
        (", default='SGD'", {"torch.optim.<any>"}),
    ],
)
def test_members_of_a_library_that_an_option_allows(
    ask: Ask, option: str, expected: set[object]
) -> None:
    code = PARSER.format(option).replace("    parser =", "    NAMES = ('SGD',)\n    parser =")
    files = {"train.py": f"{code}    from torch import optim\n    ASK(getattr(optim, args.arch))\n"}
    assert ask({**files, **MODELS}) == expected


@pytest.mark.parametrize("asked", ["globals()[args.arch]()", "eval(args.arch)()"])
@pytest.mark.parametrize(
    ("option", "expected"),
    [(", choices=['Net', 'make']", {"Net()", 3}), (", choices=['Net', 'x + 1']", None), ("", None)],
)
def test_definitions_of_the_file_by_their_names(
    ask: Ask, asked: str, option: str, expected: set[object] | None
) -> None:
    defined = "    class Net:\n        pass\n    def make():\n        return 3\n"
    found = ask({"train.py": f"{PARSER.format(option)}{defined}    ASK({asked})\n", **MODELS})
    assert found == expected if expected is not None else found.isdisjoint({"Net()", 3})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("'L1Loss'", {"torch.nn.L1Loss()"}),
        ("args.arch", {"torch.nn.L1Loss()", "torch.nn.MSELoss()"}),
        ("input()", {"Display"}),
    ],
)
def test_members_of_torch_by_names_that_are_told(
    ask: Ask, name: str, expected: set[object]
) -> None:
    code = PARSER.format(", choices=('L1Loss', 'MSELoss')")
    files = {"train.py": f"{code}    from torch import nn\n    ASK(getattr(nn, {name})())\n"}
    assert ask({**files, **MODELS}) == expected
