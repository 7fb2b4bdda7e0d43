"""Files that a script writes beside its checkpoints: predictions, logs and metrics as text or as arrays of numpy's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..execution.observations import Observations, WrittenFile
from ..execution.written_files import ARRAYS
from .arrays import as_long_as_others, compare_arrays, differing
from .findings import Finding, Kind, note
from .lines import read_lines, without_options
from .pictures import compare_pictures, is_plot, pixels
from .raw_numbers import compare_raw
from .text import compare_text
from .tolerance import Precision
from .written_weights import weights_in

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .arrays import Arrays


_BARS = "<progress bars>"
"""What is told beside progress bars, a line for each step: how often that is done, if at all, and in which words, is a matter of taste."""
_JSON = frozenset({".json", ".jsonl", ".ndjson"})


def compare_files(
    original: Observations,
    other: Observations,
    repeats: Sequence[Observations],
    neighbours: Sequence[Observations],
    precision: Precision | None,
) -> list[Finding]:
    """Files that are no longer written, and contents that differ by more than printed numbers and tensors may.

    Only files that every run of the original writes count: names may hold a process number.
    """
    found: list[Finding] = []
    written = {file.path for file in other.files}
    for file in original.files:
        if any(file.path not in {one.path for one in run.files} for run in repeats):
            continue
        if file.path == _BARS and (file.path not in written or other.ranks):
            continue  # a rank tells its own share there
        if file.path not in written:
            message = f"{file.path} is not written"
            found.append(Finding(Kind.FILES, message, tensor=file.path))
            continue
        if file.leads_to is not None:
            found.extend(_link(file, other, repeats))
            continue
        if precision is not None and _has_other_bytes(file, other, repeats):
            found.extend(_raw(file, original, other, neighbours, precision))
        runs = (original, other, repeats, neighbours)
        compare = _arrays if Path(file.path).suffix.lower() in ARRAYS else _text
        found.extend(compare(file.path, *runs, precision))
    return found


def compare_bytes(
    original: Observations,
    other: Observations,
    repeats: Sequence[Observations],
    neighbours: Sequence[Observations],
    precision: Precision,
) -> list[Finding]:
    """Other bytes of files that are not looked into: which of them are numbers is told by ``neighbours``, how far these may be off is not."""
    return [
        finding
        for file in original.files
        if _has_other_bytes(file, other, repeats)
        for finding in _raw(file, original, other, neighbours, precision, rounding=False)
    ]


def unseen_bytes(
    original: Observations, other: Observations, repeats: Sequence[Observations]
) -> str | None:
    """A file that has the same bytes in all runs of the original, and others in a rewrite that does the same bit for bit.

    What they mean is not known: pictures, databases. None where there is none.
    """
    changed = (file.path for file in original.files if _has_other_bytes(file, other, repeats))
    first = next(changed, None)
    return first and f"{first} has other bytes, and what they mean is not known"


def _has_other_bytes(
    file: WrittenFile, other: Observations, repeats: Sequence[Observations]
) -> bool:
    """Whether a file that is not looked into has the same bytes in all runs of the original, and others in the rewrite."""
    after, *again = (
        next((one.digest for one in run.files if one.path == file.path), None)
        for run in (other, *repeats)
    )
    known = file.digest is not None and after is not None
    return known and after != file.digest and all(one == file.digest for one in again)


def _raw(
    file: WrittenFile,
    original: Observations,
    other: Observations,
    neighbours: Sequence[Observations],
    precision: Precision,
    *,
    rounding: bool = True,
) -> Iterator[Finding]:
    """A file of a format that is not known; with ``rounding`` its numbers may be as far off as the neighbours' are."""
    ours, theirs, *near = (_bytes(run, file.path) for run in (original, other, *neighbours))
    if ours is None or theirs is None:
        message = f"{file.path} has other bytes, and is not compared"
        yield note(Kind.FILE_VALUE, message, tensor=file.path)
        return
    known = [one for one in near if one is not None]
    pictures = [picture for one in (ours, theirs, *known) if (picture := pixels(one)) is not None]
    if len(pictures) == 2 + len(known):
        before, after, *others = pictures
        given = (file.path, before, after, others, precision)
        found = compare_pictures(*given, rounding=rounding)
        yield from map(_own_share, found) if other.ranks and not is_plot(ours) else found
        return
    yield from compare_raw(file.path, ours, theirs, known, precision, rounding=rounding)


def _own_share(finding: Finding) -> Finding:
    """What rank 0 shows may be what it has of a batch, such as the pictures that it has made itself."""
    if not finding.fails:
        return finding
    message = f"{finding.message}: rank 0 may show its own share of a batch"
    return note(finding.kind, message, tensor=finding.tensor)


def _bytes(run: Observations, path: str) -> bytes | None:
    """What is in a file that is neither text nor arrays, None where it was not kept or is of another kind."""
    names = {file.path: file.bytes_as for file in run.files}
    name = names.get(path)
    return None if name is None else (run.folder / name).read_bytes()


def _link(
    file: WrittenFile, other: Observations, repeats: Sequence[Observations]
) -> Iterator[Finding]:
    """Where a symbolic link leads to, unless that differs between runs of the original."""
    after, *again = (
        next((one.leads_to for one in run.files if one.path == file.path), None)
        for run in (other, *repeats)
    )
    if after != file.leads_to and all(one == file.leads_to for one in again):
        now = "is no link any more" if after is None else f"leads to {after}"
        message = f"{file.path} {now}, and led to {file.leads_to}"
        yield Finding(Kind.FILE_VALUE, message, tensor=file.path)


def _text(
    path: str,
    original: Observations,
    other: Observations,
    repeats: Sequence[Observations],
    neighbours: Sequence[Observations],
    precision: Precision | None,
) -> Iterator[Finding]:
    ours, theirs = _content(original, path), _content(other, path)
    if ours is None or theirs is None:
        return
    if _is_trace(path, ours) and _is_trace(path, theirs):
        return  # what a profiler saw of each, and when
    again, near = (
        [text for run in runs if (text := _content(run, path)) is not None]
        for runs in (repeats, neighbours)
    )
    if path == _BARS:
        ours, *others = _told_by_all(ours, theirs, *again, *near)
        theirs, again, near = others[0], others[1 : 1 + len(again)], others[1 + len(again) :]
    if Path(path).suffix.lower() in _JSON:
        ours, theirs, again, near = _laid_out_alike(ours, theirs, again, near)
    for finding in compare_text(ours, theirs, again, near, precision):
        if finding.kind is Kind.STDOUT:
            message = f"{path}: {_of_a_file(finding.message, path)}"
            yield replace(finding, kind=Kind.FILE_VALUE, message=message, tensor=path)


def _of_a_file(message: str, path: str) -> str:
    """``message`` about lines of output as one about those of a file, or of what is told somewhere (``<logging>``)."""
    of = "" if path.startswith("<") else " file"
    message = message.replace("of the original's output", f"of the original's{of}")
    return message.replace(" of the output", f" of the{of}" if of else "")


def _told_by_all(*texts: str) -> list[str]:
    """Of the lines of each those that all have, in the same words: what the same step tells."""
    lines = [
        {(line.text.partition(":")[0], line.skeleton): line.text for line in read_lines(text)}
        for text in texts
    ]
    common = [words for words in lines[0] if all(words in other for other in lines)]
    return ["\n".join(of_one[words] for words in common) for of_one in lines]


def _is_trace(path: str, text: str) -> bool:
    """Whether a file is what ``export_chrome_trace`` of a profiler writes."""
    return Path(path).suffix.lower() in _JSON and '"traceEvents"' in text


def _laid_out_alike(
    ours: str, theirs: str, again: list[str], near: list[str]
) -> tuple[str, str, list[str], list[str]]:
    """JSON texts as they are where both versions write them alike, else all in one layout: that is no value.

    Also as they are where one cannot be read.
    """
    words = [[line.skeleton for line in read_lines(text)] for text in (ours, theirs)]
    if words[0] != words[1]:
        with suppress(ValueError):
            texts = [_laid_out(text) for text in (ours, theirs, *again, *near)]
            return texts[0], texts[1], texts[2 : 2 + len(again)], texts[2 + len(again) :]
    return ours, theirs, again, near


def _laid_out(text: str) -> str:
    try:
        values = [json.loads(text)]
    except ValueError:
        values = [json.loads(line) for line in text.splitlines() if line.strip()]
    return "\n".join(json.dumps(value, indent=2, sort_keys=True) for value in values)


def _arrays(
    path: str,
    original: Observations,
    other: Observations,
    repeats: Sequence[Observations],
    neighbours: Sequence[Observations],
    precision: Precision | None,
) -> Iterator[Finding]:
    ours, theirs = _read(original, path), _read(other, path)
    if ours is None or theirs is None:
        return
    others = (*repeats, *neighbours) if precision is not None else ()
    read = [(run, arrays) for run in others if (arrays := _read(run, path)) is not None]
    near = [arrays for _, arrays in read]
    for name, array in ours.items():
        after = theirs.get(name)
        if after is not None and (after.dtype, after.shape) == (array.dtype, array.shape):
            continue
        now = f"{after.dtype} {list(after.shape)}" if after is not None else "nothing"
        message = f"{path}: {name} holds {now}, not {array.dtype} {list(array.shape)}"
        lengths = [one[name] for one in near if name in one]
        if after is not None and as_long_as_others(array, after, lengths):
            yield note(
                Kind.FILE_VALUE,
                f"{message}; so it does where the original is rounded otherwise",
                tensor=path,
            )
            continue
        yield Finding(Kind.FILE_VALUE, message, tensor=path)
        return
    if precision is None:
        for name in differing(ours, theirs):
            yield Finding(Kind.FILE_VALUE, f"{path}: {name} differs", tensor=path)
            return
        return
    live = weights_in(original, ours).intersection(*(weights_in(*one) for one in read))
    if lost := min(live - weights_in(other, theirs), default=None):
        name, weight = lost
        message = (
            f"{path}: {name} is not {weight} as the last step left it, and in the original it is"
        )
        yield Finding(Kind.FILE_VALUE, message, tensor=path)
        return
    found = compare_arrays(
        Kind.FILE_VALUE, "content", lambda _: path, ours, theirs, near, precision
    )
    yield from (replace(finding, tensor=path) for finding in found[:1])


def _content(run: Observations, path: str) -> str | None:
    kept = _kept(run, path)
    if kept is None:
        return None
    blotted = next(file.blotted for file in run.files if file.path == path)
    text = kept.read_text(encoding="utf-8", errors="replace")
    return without_options(text if run.stamps is None else run.stamps.masked(text), blotted)


def _read(run: Observations, path: str) -> Arrays | None:
    """The arrays of a file by their names; None where it was not kept or is no such file."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors import numpy as safetensors_numpy

    kept = _kept(run, path)
    if kept is None:
        return None
    try:
        if kept.suffix == ".safetensors":
            return safetensors_numpy.load_file(str(kept))  # pyright: ignore[reportUnknownMemberType]
        loaded: Any = np.load(kept, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"the array": cast("NDArray[np.generic]", loaded)}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, SafetensorError, KeyError, TypeError):  # or bfloat16
        return None


def _kept(run: Observations, path: str) -> Path | None:
    names: Mapping[str, str | None] = {file.path: file.kept_as for file in run.files}
    name = names.get(path)
    return None if name is None else run.folder / name
