"""What goes to the user's terminal: paths as they would type them, errors, colour, progress."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeAlias, TypeVar

from .errors import TorchoptError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_T = TypeVar("_T")
_LAID_OUT = re.compile(r"^(?:\s|[-*|>] |```|\d+\. )", re.MULTILINE)
_NARROWEST, _WIDEST = 20, 100
_SECONDS_BEFORE_PROGRESS = 1.0
_SECONDS_BETWEEN_LINES = 30.0
_CODES = {"bold": "\x1b[1m", "red": "\x1b[31m", "green": "\x1b[32m", "yellow": "\x1b[33m"}
_CODES["cyan"] = "\x1b[36m"

Paint: TypeAlias = Callable[[str, str], str]
"""Gives a text (first) a colour, by name (second; empty for none)."""


def path_from_here(path: Path) -> str:
    """``path`` for a program: from the working directory when it lies below it, else in full."""
    absolute = Path(os.path.abspath(path))
    here = Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def display_path(path: Path) -> str:
    """``path`` for a reader: from the working directory, or in full where that is shorter."""
    shown = path_from_here(path)
    try:
        return min(shown, os.path.relpath(path), key=len) if os.path.isabs(shown) else shown
    except ValueError:  # on another drive
        return shown


def width_of(stream: TextIO) -> int | None:
    """How wide the terminal is that ``stream`` is, None where it is none."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def reflowed(text: str, width: int | None) -> str:
    """``text`` with the lines of its paragraphs broken anew; lists, code and tables stay."""
    if width is None:
        return text
    measure = max(_NARROWEST, min(width, _WIDEST))
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        paragraph if _LAID_OUT.search(paragraph) else textwrap.fill(paragraph, measure)
        for paragraph in paragraphs
    )


def counted(number: int, noun: str) -> str:
    """``1 change``, ``2 changes``, ``2 processes``."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def plain_table() -> Table:
    """A table without lines, as every report has them."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, header_style="bold")


def print_table(console: Console, title: str, table: Table) -> None:
    """Print ``table`` below its title, apart from what is above."""
    console.print()
    console.print(title, style="bold", markup=False, highlight=False, soft_wrap=True)
    console.print(table)


def error_line(error: TorchoptError) -> str:
    """The one line that tells the user about ``error``."""
    if error.path is None:
        return f"torchopt: {error}"
    return str(replace(error, path=Path(display_path(error.path))))


def print_error(error: TorchoptError) -> None:
    print(error_line(error), file=sys.stderr)


def print_note(message: str) -> None:
    print(f"note: {message}", file=sys.stderr)


def painter(stream: TextIO) -> Paint:
    """What gives text a colour on ``stream``.

    No colour unless it is a terminal and nobody said NO_COLOR (https://no-color.org).
    """
    dumb = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if dumb or not stream.isatty():
        return lambda text, _: text
    return lambda text, colour: f"{_CODES[colour]}{text}\x1b[0m" if colour else text


def with_progress(items: Sequence[_T], description: str) -> Iterator[_T]:
    """The ``items``, with a bar on stderr once they take over a second and stderr is a terminal."""
    started = time.monotonic()
    remaining = iter(items)
    done = 0
    for item in remaining:
        yield item
        done += 1
        if sys.stderr.isatty() and time.monotonic() - started > _SECONDS_BEFORE_PROGRESS:
            break
    else:
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=len(items), completed=done)
        for item in remaining:
            yield item
            progress.advance(task)


@contextmanager
def progress_bar() -> Generator[Callable[[int, int, str], None], None, None]:
    """Gives a function that shows (done, total, description) on stderr: a bar where that is a terminal, else lines."""
    if not sys.stderr.isatty():
        with SignsOfLife() as signs:
            yield lambda done, total, what: signs.doing(f"{done} of {total} done, now: {what}")
        return
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn

    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)

        def show(done: int, total: int, description: str) -> None:
            progress.update(task, completed=done, total=total, description=description)

        yield show


class SignsOfLife:
    """Tells on stderr what is being done, again every half minute while that takes long.

    Silence looks like a hang, and some CI systems end what is silent. A thread of its own tells, since the one that works
    waits for a run that may take all of its time limit.
    """

    def __init__(self) -> None:
        self._started = self._told = time.monotonic()
        self._what = "getting ready"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on_telling, daemon=True)

    def __enter__(self) -> SignsOfLife:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def doing(self, what: str) -> None:
        """What is being done from now on."""
        self._what = what

    def tell(self, what: str) -> None:
        """Say at once what is being done from now on."""
        self._print(what)
        self._what = f"still {what}"

    def _go_on_telling(self) -> None:
        while not self._over.wait(self._seconds_left()):
            if self._seconds_left() <= 0:  # else something was told in the meantime
                self._print(self._what)

    def _seconds_left(self) -> float:
        return self._told + _SECONDS_BETWEEN_LINES - time.monotonic()

    def _print(self, what: str) -> None:
        self._told = time.monotonic()
        minutes = (self._told - self._started) / 60
        print(f"[{minutes:5.1f} min] {what}", file=sys.stderr, flush=True)
