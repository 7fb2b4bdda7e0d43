"""Which bindings of a name a use can see."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Ask = Callable[..., set[object]]


@pytest.mark.parametrize(
    ("code", "values"),
    [
        ("x = 1\nx = 2\nASK(x)\n", {2}),
        ("x = 1\nif c:\n    x = 2\nASK(x)\n", {1, 2}),
        ("x = 1\nif c:\n    x = 2\nelse:\n    x = 3\nASK(x)\n", {2, 3}),
        ("x = 1\nif c:\n    x = 2\nelif d:\n    x = 3\nASK(x)\n", {1, 2, 3}),
        ("x = 1\nif c:\n    x = 2\nelif d:\n    x = 3\nelse:\n    raise E\nASK(x)\n", {2, 3}),
        ("x = 1\nif c:\n    x = 2\nelif d:\n    x = 3\nelse:\n    print()\nASK(x)\n", {1, 2, 3}),
        ("x = 1\ntry:\n    x = 2\nexcept E:\n    x = 3\nASK(x)\n", {2, 3}),
        ("x = 1\ntry:\n    x = 2\nexcept E:\n    pass\nASK(x)\n", {1, 2}),
        ("x = 1\ntry:\n    f()\nexcept E:\n    x = 3\nASK(x)\n", {1, 3}),
        ("x = 1\ntry:\n    f()\nexcept E:\n    raise\nelse:\n    x = 2\nASK(x)\n", {2}),
        ("x = 1\ntry:\n    f()\nfinally:\n    x = 2\nASK(x)\n", {2}),
        (
            "x = 1\nfor i in y:\n    try:\n        x = 2\n    except E:\n        x = 3\n    ASK(x)\n    x = 4\n",
            {2, 3},
        ),
        (
            "x = 1\nif c:\n    x = 2\nelse:\n    with suppress(E):\n        x = 3\nASK(x)\n",
            {1, 2, 3},
        ),
        (
            "x = 1\nif c:\n    x = 2\nelse:\n    if d:\n        x = 3\n    else:\n        x = 4\nASK(x)\n",
            {2, 3, 4},
        ),
        ("x = 1\nif c:\n    x = 2\nelse:\n    ASK(x)\n    x = 3\n", {1}),
        ("x = 1\nif d:\n    if c:\n        x = 2\n    else:\n        x = 3\nASK(x)\n", {1, 2, 3}),
        (
            "for i in c:\n    if i:\n        x = 1\n    else:\n        x = 2\n    ASK(x)\n    x = 3\n",
            {1, 2},
        ),
        (
            "def f(x):\n    if c:\n        x = 1\n    else:\n        x = 2\n    ASK(x)\nf(3)\n",
            {1, 2},
        ),
        ("x = 1\nif c:\n    x = 2\nelse:\n    ASK(x)\n", {1}),
        ("x = 1\nif c:\n    x = 2\nelif d:\n    ASK(x)\n", {1}),
        ("x = 1\nif c:\n    x = 2\nelif ASK(x):\n    pass\n", {1}),
        ("x = 1\nfor i in c:\n    if i:\n        x = 2\n    else:\n        ASK(x)\n", {1, 2}),
        ("for x in [1]:\n    if c:\n        x = 2\n    else:\n        ASK(x)\n", {1}),
        (
            "x = 1\nmatch c:\n    case 1:\n        x = 2\n    case 2:\n        ASK(x)\n",
            {1},
        ),
        ("x = 1\nASK(x)\nx = 2\n", {1}),
        ("x = 1\nwith torch.no_grad():\n    x = 2\nASK(x)\n", {2}),
        ("x = 1\nwith no_grad(), torch.autocast('cuda'):\n    x = 2\nASK(x)\n", {2}),
        ("x = 1\nwith torch.no_grad():\n    x = 2\n    ASK(x)\n    x = 3\n", {2}),
        ("x = 1\nwith torch.no_grad():\n    if c:\n        x = 2\nASK(x)\n", {1, 2}),
        ("x = 1\nif c:\n    with torch.no_grad():\n        x = 2\nASK(x)\n", {1, 2}),
        ("x = 1\ntry:\n    with torch.no_grad():\n        x = 2\nfinally:\n    ASK(x)\n", {1, 2}),
        ("x = 1\nwith suppress(OSError):\n    x = 2\nASK(x)\n", {1, 2}),
        ("x = 1\nwith suppress(OSError), torch.no_grad():\n    x = 2\nASK(x)\n", {1, 2}),
        ("x = 1\nwith suppress(OSError):\n    with no_grad():\n        x = 2\nASK(x)\n", {1, 2}),
        ("x = 1\nwhile ASK(x):\n    x = 2\n", {1, 2}),
        ("while c:\n    x = 1\n    while ASK(x):\n        x = 2\n    x = 3\n", {1, 2}),
        ("x = 1\nx = 2\nwhile c:\n    ASK(x)\n", {2}),
        ("x = 1\nASK(x)\ndel x\n", {1}),
        ("x = 1\ndel x\nx = 2\nASK(x)\n", {2}),
        ("x = 1\ndef f():\n    ASK(x)\nf()\ndel x\n", {1}),
        ("x = 1\ndef f():\n    x = 2\n    ASK(x)\n    del x\n", {2}),
        ("for i in c:\n    x = 1\n    ASK(x)\n    del x\n", {1}),
        ("x = 1\nfor i in c:\n    ASK(x)\n    x = 2\n", {1, 2}),
        ("x = 1\nfor i in c:\n    x = 3\n    ASK(x)\n    x = 2\n", {3}),
        ("for x in [1, 2]:\n    ASK(x)\n    x = 3\n", {1, 2}),
        ("for e in c:\n    for x in [1, 2]:\n        ASK(x)\n        x = 3\n", {1, 2}),
        ("for e in c:\n    x = 0\n    for i in c:\n        ASK(x)\n        x = 3\n", {0, 3}),
        ("for e in c:\n    if e:\n        x = 0\n    ASK(x)\n    x = 3\n", {0, 3}),
        ("x = 1\ndef f():\n    ASK(x)\nx = 2\n", {2}),
        ("x = 1\ndef f():\n    ASK(x)\nx = 2\nf()\n", {2}),
        ("x = 1\ndef f():\n    ASK(x)\nf()\nx = 2\nf()\n", {1, 2}),
        ("x = 1\nx = 2\ndef f():\n    ASK(x)\nf()\nx = 3\n", {2, 3}),
        ("def g():\n    f()\ndef f():\n    ASK(x)\nx = 1\ng()\nx = 2\n", {1, 2}),
        ("def g():\n    f()\ndef f():\n    ASK(x)\nx = 1\nx = 2\ng()\n", {2}),
        ("def f():\n    g() and ASK(x)\ndef g():\n    f()\nx = 1\nx = 2\n", {2}),
        ("class A:\n    def f(self):\n        ASK(x)\nx = 1\nA().f()\nx = 2\n", {1, 2}),
        ("x = 1\nf = lambda: ASK(x)\nf()\nx = 2\n", {1, 2}),
        ("x = 1\n@print\ndef f():\n    ASK(x)\nx = 2\n", {1, 2}),
        ("x = 1\ndef f():\n    ASK(x)\n    return 1\ndef g(y=f()):\n    pass\nx = 2\n", {1, 2}),
    ],
)
def test_flow(ask: Ask, code: str, values: set[int]) -> None:
    assert ask(f"c = open('c')\n{code}") == values


@pytest.mark.parametrize(
    ("unpacked", "values"),
    [
        ("a, x = 0, 1", {1}),
        ("x, *a = 1, 2, 3", {1}),
        ("*a, x = 1, 2, 3", {3}),
        ("*a, x, b = 1, 2, 3", {2}),
        ("a, (*b, x) = 0, (1, 2)", {2}),
        ("x, *a, b = 1, *c", {1}),
        ("*a, x = *c, 3", {3}),
    ],
)
def test_places_in_what_is_unpacked(ask: Ask, unpacked: str, values: set[int]) -> None:
    assert ask(f"c = open('c')\n{unpacked}\nASK(x)\n") == values


@pytest.mark.parametrize("unpacked", ["a, x = *c, 3", "a, x, b = 1, *c", "*a, x, b = 1, 2, *c"])
def test_a_starred_value_hides_the_places_behind_it(ask: Ask, unpacked: str) -> None:
    assert not ask(f"c = open('c')\n{unpacked}\nASK(x)\n") & {1, 2, 3}


@pytest.mark.parametrize(
    "comprehension",
    [
        "[ASK(x) for _ in c]",
        "{ASK(x) for _ in c}",
        "{_: ASK(x) for _ in c}",
        "[[ASK(x) for _ in c] for _ in c]",
    ],
)
def test_comprehensions_run_where_they_stand(ask: Ask, comprehension: str) -> None:
    assert ask(f"c = open('c')\nx = 1\n{comprehension}\nx = 2\n") == {1}


@pytest.mark.parametrize(
    "code",
    [
        "x = 1\ndef f():\n    ASK(x)\n    del x\n",
        "x = 1\ndel x\nASK(x)\n",
        "x, y = 1, 2\ndel (x, y)\nASK(x)\n",
    ],
)
def test_a_deleted_name_has_no_value(ask: Ask, code: str) -> None:
    assert ask(code) == {"Unknown"}
