"""``torchopt rules`` and ``torchopt explain``: what the transforms are."""

from __future__ import annotations

import difflib
import re
import sys
import textwrap
from textwrap import dedent
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ExitCode, TorchoptError
from ..options import Tier
from ..terminal import painter, print_error, reflowed, width_of
from .flags import Action

if TYPE_CHECKING:
    from ...transforms.base import Transform


_PAGE = re.compile(r"\[[^\]]+\]\(\.\./([\w/.-]+)\)")
"""A link from a page of ``docs/transforms`` to another of the documentation."""


def rules() -> Action:
    """List the transforms: name, tier, stage, what each does."""
    return _rules


def explain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The transform, such as no-grad.")],
) -> Action:
    """Explain one transform: what it does, when, and when not."""
    return lambda _: _explain(name)


def example_diff(transform: Transform) -> str:
    """The transform's example as the body of a unified diff: all of it, no file names."""
    example = transform.example
    before = dedent(example.before).lstrip("\n").splitlines()
    if example.after is None:
        return "".join(f" {line}".rstrip() + "\n" for line in before)
    after = dedent(example.after).lstrip("\n").splitlines()
    lines = list(difflib.unified_diff(before, after, n=len(before) + len(after), lineterm=""))
    return "".join(f"{line}\n" for line in lines[3:])


def summary(transform: Transform) -> str:
    """What the transform does: the first paragraph of its documentation, on one line."""
    return " ".join(transform.documentation().split("\n\n")[0].split()).replace("``", "`")


def stage_label(transform: Transform) -> str:
    """The transform's stage in words."""
    return transform.stage.name.lower().replace("_", " ")


def report_broken_transforms() -> None:
    """Tell about the transforms that are missing because their modules cannot be imported."""
    from ...transforms.registry import broken_transforms
    from ..pipeline.transaction import internal_error

    for broken in broken_transforms():
        message = f"{broken.name} is left out: {internal_error(broken.error)}"
        print_error(TorchoptError(message, broken.path))


def _rules(_: tuple[str, ...]) -> int:
    from ...transforms.registry import all_transforms

    report_broken_transforms()
    transforms = all_transforms()
    width = max((len(transform.name) for transform in transforms), default=0)
    columns = width_of(sys.stdout)
    for transform in transforms:
        row = f"{transform.name:{width}}  {transform.kind:8}  {stage_label(transform):13}  "
        print(_hanging(row, f"{summary(transform)}{_asked_by(transform)}", columns))
    return ExitCode.OK


def _asked_by(transform: Transform) -> str:
    """What has to be given for the transform to run, in parentheses; nothing where it runs by itself."""
    if transform.asked_by is not None:
        return f" (only with --{transform.asked_by})"
    flags = ["--tier semantic"] if transform.tier is Tier.SEMANTIC else []
    flags += ["--select"] if transform.opt_in else []
    return f" (only with {' and '.join(flags)})" if flags else ""


def _hanging(row: str, text: str, columns: int | None) -> str:
    """``text`` beside ``row``, or below it where that leaves it little room."""
    if columns is None or len(row) + len(text) <= columns:
        return row + text
    indent = len(row) if columns - len(row) >= 40 else 4
    lines = textwrap.wrap(text, max(columns - indent, 20))
    first = row if indent == len(row) else f"{row.rstrip()}\n{' ' * indent}"
    return first + f"\n{' ' * indent}".join(lines)


def _explain(name: str) -> int:
    from ...transforms.registry import all_transforms
    from ..config import suggestion

    known = {transform.name: transform for transform in all_transforms()}
    report_broken_transforms()
    if name not in known:
        raise TorchoptError(f"explain: no transform is called {name!r}{suggestion(name, known)}")
    transform = known[name]
    paint = painter(sys.stdout)
    print(
        f"{paint(name, 'bold')} [{transform.kind}], stage: {stage_label(transform)}{_asked_by(transform)}\n"
    )
    text = _PAGE.sub(r"docs/\1", transform.documentation().replace("``", "`"))
    print(reflowed(text, width_of(sys.stdout)) + "\n")
    for line in example_diff(transform).splitlines():
        print(paint(line, {"+": "green", "-": "red"}.get(line[:1], "")))
    for message in transform.example.advice:
        print(f"\n{paint('Advice:', 'bold')} {message}")
    return ExitCode.OK
