import pytest

from torchopt_cli.optimizer.pipeline.undefined_names import undefined_names


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nx = torch.ones(1)\n",
        "from a import b as c\nc()\n",
        "import a.b\na.b.c()\n",
        "def f(x, *args, **kwargs):\n    return x, args, kwargs\nf(1)\n",
        "def f():\n    return later\nlater = 1\n",
        "def f():\n    global made\n    made = 1\ndef g():\n    return made\n",
        "print(len([y := 1 for _ in range(3)]), y)\n",
        "class A:\n    x: int = 1\n    def f(self):\n        return __class__, super()\n",
        "try:\n    pass\nexcept ValueError as error:\n    print(error, __file__, __name__)\n",
        "for i in range(3):\n    pass\nprint(i)\n",
        "def outer():\n    n = 1\n    def inner():\n        nonlocal n\n        n += 1\n",
        "with open('f') as handle:\n    print(handle)\n",
    ],
)
def test_bound_names_are_defined(text: str) -> None:
    assert undefined_names(text) == frozenset()


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("x = torch.ones(1)\n", {"torch"}),
        ("def f():\n    return torch.ones(device)\n", {"torch", "device"}),
        ("class A:\n    x = device\n", {"device"}),
        ("class A:\n    x = 1\n    def f(self):\n        return x\n", {"x"}),
        ("def f():\n    made = 1\nprint(made)\n", {"made"}),
        ("def f():\n    global made\n    return made\nprint(made)\n", {"made"}),
        ("@decorate\ndef f(x=default): ...\n", {"decorate", "default"}),
        ("print([i for i in items])\nprint(i)\n", {"items", "i"}),
    ],
)
def test_unbound_names_are_found(text: str, missing: set[str]) -> None:
    assert undefined_names(text) == missing


def test_a_star_import_makes_it_undecidable() -> None:
    assert undefined_names("from torch import *\nx = ones(1)\n") is None


def test_nothing_is_said_about_string_escapes(recwarn: pytest.WarningsRecorder) -> None:
    assert undefined_names("x = '\\d'\n") == frozenset()
    assert not recwarn.list
