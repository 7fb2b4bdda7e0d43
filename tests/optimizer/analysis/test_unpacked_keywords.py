"""What is looked up in ``**kwargs``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Ask = Callable[..., set[object]]


@pytest.mark.parametrize(
    ("body", "calls", "expected"),
    [
        ("ASK(kwargs['a'])", "f(b=2, a=1)", {1}),
        ("ASK(kwargs['a'])", "f(a=1)\nf(0, a=2)", {1, 2}),
        ("ASK(kwargs['a'])", "f(a=1)\nf(b=2)", {1, "Unknown"}),
        ("ASK(kwargs['a'])", "f(**more)", {"Unknown"}),
        ("ASK(kwargs[unknown()])", "f(a=1)", {"Unknown"}),
        ("g(**kwargs)\n    'a' in kwargs\n    ASK(kwargs['a'])", "f(a=1)", {1}),
        ("kwargs['a'] = 3\n    ASK(kwargs['a'])", "f(a=1)", {"Unknown"}),
        ("kwargs.update(a=3)\n    ASK(kwargs['a'])", "f(a=1)", {"Unknown"}),
        ("change(kwargs)\n    ASK(kwargs['a'])", "f(a=1)", {"Unknown"}),
    ],
)
def test_keywords(ask: Ask, body: str, calls: str, expected: set[object]) -> None:
    assert ask(f"def f(*args, **kwargs):\n    {body}\n{calls}\n") == expected


def test_attributes_that_are_kept(ask: Ask) -> None:
    code = """
        class Trainer:
            def __init__(self, **kwargs):
                self.size = kwargs["size"]
            def run(self):
                ASK(self.size)
        Trainer(size=7).run()
    """
    assert ask(code) == {7}


@pytest.mark.parametrize(
    ("maker", "calls", "expected"),
    [
        ("def make(deep=False, **kwargs):\n    net(1, **kwargs)", "make(b=2)", {0}),
        ("def make(**kwargs):\n    net(1, **kwargs)", "make(a=2)", {2}),
        ("def make(**kwargs):\n    net(1, **kwargs)", "make(a=2)\nmake()", {0, 2}),
        ("def make(a, **kwargs):\n    net(1, **kwargs)", "make(a=2)", {0}),
        (
            "def make(**kwargs):\n    net(1, **kwargs)\ndef more(**options):\n    make(**options)",
            "more(a=3)",
            {3},
        ),
        ("def make(**kwargs):\n    net(1, **kwargs)", "", {"Unknown"}),
        ("def make(**kwargs):\n    net(1, **kwargs)", "make(**given)", {"Unknown"}),
        ("def make(**kwargs):\n    net(*kwargs, **kwargs)", "make(b=2)", {"Unknown"}),
        ("def make(**kwargs):\n    kwargs['a'] = 5\n    net(1, **kwargs)", "make()", {"Unknown"}),
        (
            "def make(**kwargs):\n    kwargs.setdefault('a', 5)\n    net(1, **kwargs)",
            "make()",
            {"Unknown"},
        ),
        ("@register\ndef make(**kwargs):\n    net(1, **kwargs)", "make(b=2)", {"Unknown"}),
    ],
)
def test_keywords_that_are_handed_on(
    ask: Ask, maker: str, calls: str, expected: set[object]
) -> None:
    assert ask(f"def net(b, a=0):\n    ASK(a)\n{maker}\n{calls}\n") == expected
