"""docs/emulation.md names the tests of what is emulated, and each of these tests has a row there."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "emulation.md"
FILES = (*sorted((HERE / "probe" / "cuda").glob("test_*.py")), HERE / "test_emulated_runs.py")
ABOUT_VERDICTS = {
    "test_a_rewrite_that_would_crash_on_cuda_is_not_equivalent",
    "test_a_device_that_the_script_does_not_use_is_not_named",
}


def test_every_row_has_its_test_and_every_test_its_row() -> None:
    rows = re.findall(
        r"^\|[^|]+\| `(test_\w+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    tests = [
        name
        for file in FILES
        for name in re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(rows) == len(set(rows)) > 40
    assert sorted(rows) == sorted(set(tests) - ABOUT_VERDICTS)
