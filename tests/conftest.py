"""What tests of all folders share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.verification.warm import warm_interpreter


def pytest_configure() -> None:
    """Interrupts arrive, also where the tests were started in the background and inherit that they are ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def warm_python() -> Iterator[Path]:
    """An interpreter for scripts under verification that has torch imported already: most of a short run is that import.

    What tests are about starting a script uses ``sys.executable``.
    """
    with warm_interpreter() as python:
        yield python
