"""Writes ``docs/transforms``: one page per transform, from its docstring and its example.

Run as ``python -m torchopt_cli.optimizer.documentation docs/transforms``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import dedent

from ..transforms.base import Transform
from ..transforms.registry import all_transforms, broken_transforms
from .commands.catalogue import example_diff, stage_label, summary

_INDEX = "README.md"


def pages(transforms: Sequence[Transform]) -> Mapping[str, str]:
    """Every page by its file name: the index, and one per transform."""
    return {_INDEX: _index(transforms)} | {
        f"{transform.name}.md": page(transform) for transform in transforms
    }


def page(transform: Transform) -> str:
    """The page of one transform, in Markdown."""
    runs = "only when selected by name" if transform.opt_in else "by default"
    if transform.kind == "semantic":
        runs = "only with `--tier semantic`"
        if transform.advises:
            runs = "by default to advise, with `--tier semantic` to change"
    if transform.asked_by is not None:
        runs = f"only with `--{transform.asked_by}`"
    return f"""# {transform.name}

Tier: **{transform.kind}** · stage: {stage_label(transform)} · runs {runs}

{transform.documentation().replace("``", "`")}

## Example

{_example(transform)}
<!-- Written by `make docs` from transforms/{transform.name.replace("-", "_")}.py. -->
"""


def _example(transform: Transform) -> str:
    example = transform.example
    if example.after is not None:
        return f"```diff\n{example_diff(transform)}```\n"
    told = "".join(f"\n> {message}\n" for message in example.advice)
    return f"```python\n{dedent(example.before)}```\n{told}"


def write(folder: Path, transforms: Sequence[Transform]) -> None:
    """Write all pages to ``folder`` and remove those of transforms that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = pages(transforms)
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    for stale in folder.glob("*.md"):
        if stale.name not in wanted:
            stale.unlink()


def _index(transforms: Sequence[Transform]) -> str:
    rows = [
        f"| [{transform.name}]({transform.name}.md) | {transform.kind} "
        f"| {stage_label(transform)} | {summary(transform)} |"
        for transform in transforms
    ]
    table = "\n".join(["| name | tier | stage | does |", "|---|---|---|---|", *rows])
    return f"# Transforms\n\nIn the order they are applied.\n\n{table}\n\n<!-- Written by `make docs`. -->\n"


if __name__ == "__main__":
    for broken in broken_transforms():
        raise broken.error
    write(Path(sys.argv[1]), all_transforms())
