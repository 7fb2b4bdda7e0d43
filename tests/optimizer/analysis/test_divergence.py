"""What is another thing in every process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.distributed.divergence import Divergence
from torchopt_cli.optimizer.analysis.script import TrainingScript

from .conftest import questions

Script = Callable[..., TrainingScript]


def diverging(script: Script, code: str) -> list[bool]:
    """For the arguments of each ``ASK(..)``, whether they may differ between processes."""
    understood = script("import argparse, random, time\n" + code)
    divergence = Divergence(understood.resolver, understood.loaders, (), ())
    return [divergence.of(expression, module) for expression, module in questions(understood)]


@pytest.mark.parametrize(
    "code",
    [
        "args = argparse.Namespace(lr=1)\nargs.seed = random.random()\n",
        "args = argparse.Namespace(lr=1)\ndef seed(a):\n    a.seed = random.random()\nseed(args)\n",
        "def get():\n    a = argparse.Namespace(lr=1)\n    a.seed = random.random()\n    return a\nargs = get()\n",
        "made = argparse.Namespace(lr=1)\nmade.seed = random.random()\nargs = made\n",
        "class Run:\n    def __init__(self, given):\n        self.args = given\n"
        "ns = argparse.Namespace(lr=1)\nns.seed = random.random()\nargs = Run(ns).args\n",
    ],
    ids=["attribute", "function", "returned", "other name", "kept"],
)
def test_a_part_of_an_object(script: Script, code: str) -> None:
    asked = "ASK(args.seed)\nASK(args.lr)\nASK(args)\n"
    assert diverging(script, code + asked) == [True, False, True]


def test_a_part_that_is_handed_on(script: Script) -> None:
    code = "def run(a):\n    ASK(a.seed)\n    ASK(a.lr)\nargs = argparse.Namespace(lr=1)\nargs.seed = random.random()\nrun(args)\n"
    assert diverging(script, code) == [True, False]


def test_a_key_of_a_dict(script: Script) -> None:
    code = "state = {'lr': 1}\nstate['time'] = time.time()\nkey = input()\n"
    assert diverging(script, code + "ASK(state['lr'])\nASK(state['time'])\nASK(state[key])\n") == [
        False,
        True,
        True,
    ]


def test_a_whole_object(script: Script) -> None:
    code = "args = argparse.Namespace(lr=random.random())\nASK(args.lr)\nrow = [1]\nrow[0] = random.random()\nASK(row)\n"
    assert diverging(script, code) == [True, True]


def test_what_holds_under_a_part(script: Script) -> None:
    code = "args = argparse.Namespace(lr=1)\nargs.seed = random.random()\nx = 0\nif args.seed > 1:\n    x = 1\ny = 0\nif args.lr > 1:\n    y = 1\nASK(x)\nASK(y)\n"
    assert diverging(script, code) == [True, False]
