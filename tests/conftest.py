"""What tests of all folders share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.verification.warm import warm_interpreter


@pytest.fixture(scope="session")
def warm_python() -> Iterator[Path]:
    """An interpreter for scripts under verification that has torch imported already: most of a short run is that import.

    What tests are about starting a script uses ``sys.executable``.
    """
    with warm_interpreter() as python:
        yield python
