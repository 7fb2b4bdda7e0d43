"""Between which numbers sizes lie."""

from __future__ import annotations

import pytest

from torchopt_cli.optimizer.analysis.tensors.size_bounds import size_bounds

from .conftest import questions

OPTIONS = """
    import argparse
    import math
    import numpy as np

    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--unset", type=int)
    args = parser.parse_args()
    NAMES = ["a", "b", "c"]
    SHAPE = (1, 28, 28)
"""


@pytest.mark.parametrize(
    ("size", "bounds"),
    [
        ("7", (7, 7)),
        ("args.hidden", (64, 64)),
        ("args.hidden * 2 ** args.layers", (512, 512)),
        ("args.hidden // 3 - 1", (20, 20)),
        ("int(np.prod(SHAPE))", (784, 784)),
        ("math.prod((args.hidden, 2))", (128, 128)),
        ("len(NAMES)", (3, 3)),
        ("len({'a': 1})", (1, 1)),
        ("max(args.hidden, 100)", (100, 100)),
        ("min(args.hidden, len(NAMES))", (3, 3)),
        ("64 if args.layers else 128", (64, 128)),
        ("args.unset", None),
        ("args.rate", None),
        ("True", None),
        ("len([*NAMES])", None),
        ("len(open('x').read())", None),
        ("args.hidden // 0", None),
        ("args.hidden // len(NAMES)", (21, 21)),
        ("args.hidden // int(input())", (0, 64)),
        ("args.hidden // args.rate", None),
        ("args.hidden // unknown()", None),
        ("(args.layers - args.hidden) // int(input())", None),
        ("2 ** 1000", None),
        ("args.hidden @ 2", None),
        ("unknown()", None),
    ],
)
def test_sizes(script, size, bounds):
    found = script(OPTIONS + f"\n    ASK({size})\n")
    ((asked, module),) = questions(found)
    assert size_bounds(found.resolver, asked, module) == bounds


def test_what_a_loop_counts(script):
    found = script(
        OPTIONS
        + """
    for i in range(args.layers):
        width = args.hidden * 2 ** (args.layers - i)
        ASK(width)
    for j in range(2, 5):
        ASK(j)
    for k in range(0, 100, 10):
        ASK(k)
    for name in NAMES:
        ASK(name)
    """
    )
    told = [size_bounds(found.resolver, asked, module) for asked, module in questions(found)]
    assert told == [(128, 512), (2, 4), None, None]


def test_a_parameter_is_what_the_calls_give(script):
    found = script(
        OPTIONS
        + """
    class Net:
        def __init__(self, width):
            self.width = width
            ASK(self.width + 1)

    Net(args.hidden)
    Net(16)
    """
    )
    ((asked, module),) = questions(found)
    assert size_bounds(found.resolver, asked, module) == (17, 65)


def test_an_endless_definition_has_no_bounds(script):
    found = script("def f(n):\n    return f(n + 1)\n\n\nx = f(1)\nASK(x)\n")
    ((asked, module),) = questions(found)
    assert size_bounds(found.resolver, asked, module) is None


FIELDS = """
    from dataclasses import dataclass

    import tyro

    @dataclass
    class Common:
        envs: int = 4
        steps: int = 128

    @dataclass
    class Args(Common):
        batch: int = 0
        unset: int = None
        rate: float = 0.5

    class Other:
        def __init__(self):
            self.envs = 1_000

    args = tyro.cli(Args)
    args.batch = args.envs * args.steps
"""


@pytest.mark.parametrize(
    ("size", "bounds"),
    [
        ("args.steps", (128, 128)),
        ("args.envs", (4, 4)),
        ("args.batch", (0, 512)),
        ("args.batch // 4", (0, 128)),
        ("args.unset", None),
        ("args.rate", None),
        ("args.missing", None),
    ],
)
def test_fields_of_options(script, size, bounds):
    found = script(FIELDS + f"\n    ASK({size})\n")
    ((asked, module),) = questions(found)
    assert size_bounds(found.resolver, asked, module) == bounds


@pytest.mark.parametrize(
    ("assigned", "bounds"),
    [
        ("args.hidden = 512", (64, 512)),
        ("args.hidden = int(input())", None),
        ("args.hidden *= 2", None),
        ("for args.hidden in range(8): pass", None),
        ("math.hidden = 512", (64, 64)),
    ],
)
def test_an_option_that_the_script_sets_itself(script, assigned, bounds):
    found = script(OPTIONS + f"\n    {assigned}\n    ASK(args.hidden)\n")
    ((asked, module),) = questions(found)
    assert size_bounds(found.resolver, asked, module) == bounds


@pytest.mark.parametrize(
    ("given", "bounds"), [("args.hidden", (64, 64)), ("args.hidden * 2", None)]
)
def test_an_option_handed_on_under_its_own_name(script, given, bounds):
    handed = f"    net = load()\n    net.hidden = {given}\n" * 6
    found = script(OPTIONS + "    from nets import load\n" + handed + "    ASK(args.hidden)\n")
    ((asked, module),) = questions(found)
    assert size_bounds(found.resolver, asked, module) == bounds
