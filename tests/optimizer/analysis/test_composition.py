"""What a value was given."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.values.composition import composed_of
from torchopt_cli.optimizer.analysis.values.values import Literal

Script = Callable[..., TrainingScript]


@pytest.mark.parametrize(
    ("expression", "literals"),
    [
        ("3", {3}),
        ("[1, (2, {3})]", {1, 2, 3}),
        ("{'a': 1, 'b': [2]}", {1, 2}),
        ("f(1, key=[2])", {1, 2}),
        ("f(g(1))", {1}),
        ("[1 for _ in x]", {1}),
        ("{k: 1 for k in x}", {1}),
        ("(1 for _ in x)", {1}),
        ("1 + 2", {1, 2}),
        ("[1] if x else [2]", {1, 2}),
        ("-x", set()),
        ("f(*[1, 2])", {1, 2}),
        ("filled", {1, 2, 3, 4}),
        ("f(*filled)", {1, 2, 3, 4}),
    ],
)
def test_everything_inside(script: Script, expression: str, literals: set[int]) -> None:
    filled = "filled = [1]\nfilled.append(2)\nfilled.extend([3])\nfilled.insert(0, 4)\n"
    understood = script(f"from lib import f, g\nx = open('x')\n{filled}ASK({expression})\n")
    entry = understood.entry
    (call,) = [c for c in entry.calls if entry.code(c.func) == "ASK"]
    parts = composed_of(understood.resolver, understood.values(call.args[0], entry))
    assert {p.value for p in parts if isinstance(p, Literal) and p.value != "x"} == literals


def test_a_value_made_of_itself_ends(script: Script) -> None:
    understood = script("from lib import f\nx = f(1)\nfor i in range(3):\n    x = f(x)\nASK(x)\n")
    entry = understood.entry
    values = understood.values(entry.calls[-1].args[0], entry)
    assert len(list(composed_of(understood.resolver, values))) >= 2
