"""Where statements stand relative to each other."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.program.statements import are_alternatives
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ONE() if a else OTHER()", True),
        ("OTHER(1) if a else f(ONE())", True),
        ("if a:\n    ONE()\nelse:\n    OTHER()", True),
        ("if a:\n    ONE()\nelif b:\n    OTHER()", True),
        ("if a:\n    ONE()\nOTHER()", False),
        ("if a:\n    ONE()\n    OTHER()", False),
        ("x = ONE() if OTHER() else 1", False),
        ("if a:\n    def f():\n        ONE()\nelse:\n    OTHER()", False),
        ("for i in x:\n    ONE()\nelse:\n    OTHER()", False),
        ("try:\n    ONE()\nexcept E:\n    OTHER()", False),
    ],
)
def test_alternatives(script: Script, code: str, expected: bool) -> None:
    module = script(dedent(code)).entry
    one, other = (
        next(call for call in module.calls if getattr(call.func, "id", None) == name)
        for name in ("ONE", "OTHER")
    )
    assert are_alternatives(one, other, module) is expected
    assert are_alternatives(other, one, module) is expected
