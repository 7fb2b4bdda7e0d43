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
