"""Where an object goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.values.object_flow import ObjectFlow, Use

Script = Callable[..., TrainingScript]


def around(use: Use) -> str:
    return use.module.code(use.parent)


def follow(script: Script, files: str | Mapping[str, str], *, exact: bool = False) -> list[str]:
    """The uses of what ``make()`` gives."""
    understood = script(files)
    for module in understood.modules:
        for call in module.calls:
            if module.code(call.func) == "make":
                flow = ObjectFlow(understood.resolver, exact=exact)
                found = [around(use) for use in flow.follow(call, module)]
                return [*found, *(f"mixed {fact.code}" for fact in flow.mixed())]
    raise AssertionError("no make()")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = make()\nuse(x)\nx = 3\nuse2(x)\n", ["use(x)"]),
        ("a, b = make(), 3\nuse(b)\nuse2(a)\n", ["use2(a)"]),
        ("d = {'a': make(), 'b': 3}\nuse(d['b'])\nuse2(d['a'])\n", ["use2(d['a'])"]),
        ("k = open()\nd = {'a': make()}\nuse(d[k])\n", ["use(d[k])"]),
        ("d = {k: make() for k in 'ab'}\nuse(d['a'])\n", ["use(d['a'])"]),
        ("l = [make(), 3]\nl.append(4)\n", ["l.append"]),
        ("l = [make(), 3]\nuse(*l)\n", ["*l"]),
        ("x = make()\nif x:\n    pass\nif x is not None:\n    use(x)\n", ["use(x)"]),
        ("x = make()\nx += 1\n", ["x += 1"]),
        ("x = make() if a else 3\nuse(x)\n", ["use(x)"]),
        ("def f(x):\n    use(x)\nf(make())\n", ["use(x)"]),
        ("def f(*xs):\n    use(xs)\nf(make())\n", ["f(make())"]),
        ("def f(x):\n    use(locals())\nf(make())\n", ["f(make())"]),
        ("def f():\n    return make(), 3\na, b = f()\nuse(a)\n", ["use(a)"]),
        ("def f():\n    return make()\nuse(f)\nuse2(f())\n", ["return make()"]),
        ("def f():\n    yield make()\nuse(f())\n", ["yield make()"]),
        ("class A:\n    x = make()\n", ["x = make()"]),
        ("y = make()\nclass A:\n    y = y\n", ["y = y"]),
        (
            "class A:\n    def __init__(self, x):\n        self.x = x\n    def go(self):\n        use(self.x)\n"
            "class B:\n    def go(self):\n        use2(self.x)\nA(make())\n",
            ["use(self.x)"],
        ),
        ("a = open()\na.x = make()\nb = open()\nuse(b.x)\n", ["use(b.x)"]),
    ],
)
def test_uses(script: Script, code: str, expected: list[str]) -> None:
    assert follow(script, code) == expected


def test_uses_in_other_files(script: Script) -> None:
    files = {
        "train.py": "import data\nfrom data import x as y\nuse(data.x)\nuse2(y)\n",
        "data.py": "x = make()\n",
    }
    assert sorted(follow(script, files)) == ["use(data.x)", "use2(y)"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = make() if a else 3\nuse(x)\n", ["make() if a else 3"]),
        ("x = make()\nif a:\n    x = 3\nuse(x)\n", ["use(x)", "mixed x"]),
        ("def f(x):\n    use(x)\nf(make())\nf(3)\n", ["use(x)", "mixed x"]),
        ("def f(x):\n    use(x)\nf(make())\n", ["use(x)"]),
        ("class A:\n    pass\na = A()\na.x = make()\nuse(a.x)\n", ["a.x = make()"]),
        ("def f():\n    if a:\n        return 3\n    return make()\nuse(f())\n", ["return make()"]),
    ],
)
def test_exact_flow_notices_what_else_may_be_meant(
    script: Script, code: str, expected: list[str]
) -> None:
    assert follow(script, code, exact=True) == expected
