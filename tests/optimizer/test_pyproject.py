from __future__ import annotations

from pathlib import Path

import pytest

from torchopt_cli.optimizer.errors import TorchoptError
from torchopt_cli.optimizer.pyproject import configuration_table, place_of

TEXT = """\
[project]
name = "torchopt"  # steps = 1

[tool.torchopt]
# seed = 3
steps = 7
"tier" = 'exact'
gate.seed = 2

[tool . torchopt.gate]
  steps = 5
table = {inner = 1,
         more = {steps = 2}}

[[tool.torchopt.gate.scripts]]
script = "a.py"

[[tool.torchopt.gate.scripts]]
script = "b.py"

[tool.other]
list = [
    {script = "a.py"},
    {script = "b.py", x = 1},
]
"""


@pytest.mark.parametrize(
    ("names", "place"),
    [
        (("tool", "torchopt", "steps"), (6, 1)),
        (("tool", "torchopt", "tier"), (7, 1)),
        (("tool", "torchopt", "gate", "seed"), (8, 1)),
        (("tool", "torchopt", "gate", "steps"), (11, 3)),
        (("tool", "torchopt", "gate", "table", "more", "steps"), (13, 18)),
        (("tool", "torchopt", "gate", "scripts", 0, "script"), (16, 1)),
        (("tool", "torchopt", "gate", "scripts", 1), (18, 1)),
        (("tool", "torchopt", "gate", "scripts", 1, "script"), (19, 1)),
        (("tool", "torchopt", "gate", "scripts", 1, "args"), (18, 1)),
        (("tool", "other", "list", 1, "x"), (24, 23)),
        (("tool", "torchopt", "seed"), (4, 1)),  # not what a comment says
        (("build",), (None, None)),
    ],
)
def test_the_place_of_a_key(names: tuple[str | int, ...], place: tuple[int, int]) -> None:
    assert place_of(TEXT, *names) == place


def test_a_file_that_is_not_in_utf_8_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"[tool.torchopt]\n# caf\xe9\n")
    with pytest.raises(
        TorchoptError, match=r"pyproject.toml:2: not valid TOML: it is not in UTF-8"
    ):
        configuration_table(tmp_path)
