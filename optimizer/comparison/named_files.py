"""Files that are named by numbers which rounding moves: ``epoch=03-val=0.7421.ckpt``.

In the numeric tier such a file is the original's under another name, where nothing but its decimals differs; these are judged as
printed numbers are.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..execution.observations import Observations
from .findings import Finding, Kind
from .text import compare_text
from .tolerance import Precision

_DECIMALS = re.compile(r"\d+\.\d+(?:[eE][-+]?\d+)?")
"""A number with decimals. Whole ones count something: epochs, steps, folds."""


def compare_file_names(
    original: Observations,
    other: Observations,
    repeats: Sequence[Observations],
    neighbours: Sequence[Observations],
    precision: Precision,
) -> list[Finding]:
    """Decimals in the names of files that are further off than printed numbers may be."""
    renamed = _original_names(original, other)
    if not renamed:
        return []
    near = [
        {ours: theirs for theirs, ours in _original_names(original, run).items()}
        for run in (*repeats, *neighbours)
    ]
    ours = list(renamed.values())
    texts = ["\n".join(_told(name, of_one.get(name, name)) for name in ours) for of_one in near]
    found = compare_text(
        "\n".join(_told(name, name) for name in ours),
        "\n".join(_told(name, theirs) for theirs, name in renamed.items()),
        texts[: len(repeats)],
        texts[len(repeats) :],
        precision,
    )
    return [
        replace(
            finding,
            kind=Kind.FILES,
            message=finding.message.replace("of the output", "of the names of files"),
        )
        for finding in found
        if finding.kind is Kind.STDOUT
    ]


def under_original_names(original: Observations, run: Observations) -> Observations:
    """``run`` as if its files had the names that the original's have, where only decimals in them differ."""
    renamed = _original_names(original, run)
    if not renamed:
        return run
    return replace(
        run,
        files=tuple(replace(one, path=renamed.get(one.path, one.path)) for one in run.files),
        checkpoints=tuple(
            replace(one, path=renamed.get(one.path, one.path)) for one in run.checkpoints
        ),
        removed=tuple(renamed.get(path, path) for path in run.removed),
    )


def _original_names(original: Observations, run: Observations) -> dict[str, str]:
    """The original's name of each file that ``run`` gives other decimals, where it has as many with the same words.

    Of several with the same words the first saved is the first, or the one with the lowest number.
    """
    ours, theirs = _by_words(original), _by_words(run)
    return {
        name: known
        for words, names in theirs.items()
        if len(names) == len(ours.get(words, ())) and {*names} != {*ours[words]}
        for name, known in zip(names, ours[words], strict=True)
    }


def _by_words(run: Observations) -> Mapping[str, list[str]]:
    paths = [*(save.path for save in run.checkpoints), *(file.path for file in run.files)]
    found: dict[str, list[str]] = defaultdict(list)
    for path in dict.fromkeys(paths):
        if _DECIMALS.search(path):
            found[_DECIMALS.sub("#", path)].append(path)
    return found


def _told(words_of: str, name: str) -> str:
    """The numbers in ``name`` behind the words that it has."""
    return f"{_DECIMALS.sub('#', words_of)} {' '.join(_DECIMALS.findall(name))}"
