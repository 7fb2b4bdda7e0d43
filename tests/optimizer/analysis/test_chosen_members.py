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
