import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from safetensors.numpy import save_file

from torchopt_cli.optimizer.comparison.files import compare_files, unseen_bytes
from torchopt_cli.optimizer.comparison.findings import Finding, Kind
from torchopt_cli.optimizer.comparison.tolerance import Precision
from torchopt_cli.optimizer.execution.observations import Observations, WrittenFile

Write = Callable[..., Observations]
VALUES = np.linspace(0, 1, 10, dtype=np.float32)


@pytest.fixture
def writing(run: Callable[..., Observations]) -> Write:
    """A run that wrote these files: text, arrays, or None for a file that is not looked into."""
    plain, numbers = run(steps=2), itertools.count()

    def go(**files: str | np.ndarray | None) -> Observations:
        folder = plain.folder / f"files{next(numbers)}"
        folder.mkdir()
        written: list[WrittenFile] = []
        for name, content in files.items():
            path = name.replace("_", ".")
            if isinstance(content, np.ndarray) and path.endswith(".safetensors"):
                save_file({"weight": content}, folder / path)
            elif isinstance(content, np.ndarray):
                np.save(folder / path, content)
            elif content is not None:
                (folder / path).write_text(content, encoding="utf-8")
            written.append(WrittenFile(path, 1, path if content is not None else None))
        kept = replace(plain, folder=folder, files=tuple(written))
        return replace(kept, snapshots=(), buffers_file=None)

    return go


def exact(original: Observations, other: Observations, *repeats: Observations) -> list[Finding]:
    return compare_files(original, other, repeats, (), None)


def numeric(original: Observations, other: Observations, *near: Observations) -> list[Finding]:
    return compare_files(original, other, (), near, Precision.FLOAT32)


def test_the_same_files_pass(writing: Write) -> None:
    files = {"log_csv": "epoch,loss\n0,0.5\n", "p_npy": VALUES, "sheet_png": None}
    for compare in (exact, numeric):
        assert compare(writing(**files), writing(**files)) == []


def test_a_file_more_is_no_difference(writing: Write) -> None:
    assert exact(writing(), writing(cache_npy=VALUES)) == []


def test_a_file_that_is_not_written(writing: Write) -> None:
    (finding,) = exact(writing(sheet_png=None), writing())
    assert (finding.kind, finding.tensor) == (Kind.FILES, "sheet.png")


def test_a_name_that_the_original_does_not_repeat_is_not_missed(writing: Write) -> None:
    original, repeat = writing(run123_log="x"), writing(run456_log="x")
    assert exact(original, writing(), repeat) == []


def test_numbers_in_text(writing: Write) -> None:
    original = writing(log_csv="epoch,loss\n0,0.500000\n")
    near = writing(log_csv="epoch,loss\n0,0.500001\n")
    off = writing(log_csv="epoch,loss\n0,0.510000\n")
    (finding,) = exact(original, near)
    assert finding.kind is Kind.FILE_VALUE
    assert finding.message == "log.csv: line 2 of the file has 0.500001, not 0.500000: 0,0.500000"
    assert numeric(original, near) == []
    assert [f.kind for f in numeric(original, off)] == [Kind.FILE_VALUE]


def test_what_the_original_does_not_repeat_is_not_compared(writing: Write) -> None:
    original, repeat, other = (writing(log_csv=f"0,{n}.5\n") for n in (1, 2, 3))
    assert [f for f in exact(original, other, repeat) if f.fails] == []


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (VALUES.astype(np.float16), "holds float16 [10], not float32 [10]"),
        (VALUES[:9], "holds float32 [9], not float32 [10]"),
    ],
)
def test_arrays_of_another_form(writing: Write, after: np.ndarray, told: str) -> None:
    for compare in (exact, numeric):
        (finding,) = compare(writing(p_npy=VALUES), writing(p_npy=after))
        assert finding.message == f"p.npy: the array {told}"


def test_arrays_that_rounding_makes_longer(writing: Write) -> None:
    original, near, longer = (
        writing(p_npy=np.resize(VALUES, VALUES.size + more)) for more in (0, 1, 3)
    )
    (finding,) = compare_files(original, longer, [original], [near], Precision.FLOAT32)
    assert not finding.fails
    assert finding.message.endswith("so it does where the original is rounded otherwise")
    (finding,) = compare_files(original, longer, [original], [original], Precision.FLOAT32)
    assert finding.fails


def test_arrays_by_value(writing: Write) -> None:
    original = writing(p_npy=VALUES)
    near, off = writing(p_npy=VALUES * np.float32(1 + 1e-6)), writing(p_npy=VALUES * 1.01)
    assert [f.message for f in exact(original, near)] == ["p.npy: the array differs"]
    assert numeric(original, near) == []
    off = writing(p_npy=VALUES * np.float32(1.01))
    assert [f.kind for f in numeric(original, off)] == [Kind.FILE_VALUE]
    assert numeric(original, off, off) == []


def test_whole_numbers_may_differ_as_often_as_in_neighbours(writing: Write) -> None:
    def labels(changed: int) -> Observations:
        return writing(p_npy=np.where(np.arange(20) < changed, 1, 0))

    assert numeric(labels(0), labels(4), labels(1)) == []
    (finding,) = numeric(labels(0), labels(5), labels(1))
    assert "5 of 20 whole numbers differ" in finding.message


def test_weights_in_safetensors_are_compared_as_arrays(writing: Write) -> None:
    original = writing(model_safetensors=VALUES)
    rounded = VALUES * np.float32(1 + 1e-7)
    assert exact(original, writing(model_safetensors=VALUES)) == []
    assert numeric(original, writing(model_safetensors=rounded)) == []
    for compare in (exact, numeric):
        (finding,) = compare(original, writing(model_safetensors=VALUES * np.float32(1.01)))
        assert (finding.kind, finding.tensor) == (Kind.FILE_VALUE, "model.safetensors")


def test_a_safetensors_file_that_cannot_be_read_is_not_compared(writing: Write) -> None:
    broken = writing(model_safetensors="not a header")
    assert exact(broken, writing(model_safetensors="another one")) == []


def test_the_layout_of_json_is_no_value(writing: Write) -> None:
    wide = '[{"epoch": 0, "loss": 0.5}, {"epoch": 1, "loss": 0.25}]'
    tall = '[\n {\n  "loss": 0.50,\n  "epoch": 0\n },\n {\n  "loss": 0.25,\n  "epoch": 1\n }\n]\n'
    assert exact(writing(h_json=wide), writing(h_json=tall)) == []
    (finding,) = exact(writing(h_json=wide), writing(h_json=tall.replace("0.25", "0.75")))
    assert (finding.kind, finding.original, finding.rewritten) == (Kind.FILE_VALUE, "0.25", "0.75")
    (finding,) = exact(writing(h_json=wide), writing(h_json=tall.replace("loss", "lost")))
    assert "reads otherwise" in finding.message


def test_the_layout_of_lines_of_json_is_no_value(writing: Write) -> None:
    before, after = (
        '{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.4}\n',
        '{"loss":0.5,"step":1}\n',
    )
    (finding,) = exact(writing(h_jsonl=before), writing(h_jsonl=after))
    assert "reads otherwise" in finding.message
    after += '{"loss":0.4,"step":2}\n'
    assert exact(writing(h_jsonl=before), writing(h_jsonl=after)) == []


def test_what_a_profiler_saw_is_no_value(writing: Write) -> None:
    traces = [f'{{"schemaVersion": 1, "traceEvents": [{{"ts": {time}}}]}}' for time in (1, 2)]
    assert exact(writing(h_json=traces[0]), writing(h_json=traces[1])) == []
    assert exact(writing(h_json=traces[0]), writing(h_json='{"loss": 0.5}')) != []


def test_what_is_no_json_is_compared_as_text(writing: Write) -> None:
    assert exact(writing(h_json="a 1"), writing(h_json="a 1")) == []
    assert exact(writing(h_json="a 1"), writing(h_json="b 1")) != []


@pytest.fixture
def keeping(run: Callable[..., Observations]) -> Callable[..., Observations]:
    """A run that wrote a picture of these bytes, and a link that leads there."""
    plain = run(steps=2)

    def go(digest: str | None = None, leads_to: str | None = None) -> Observations:
        picture = WrittenFile("sheet.png", 1, digest=digest)
        link = WrittenFile("latest.pt", 0, leads_to=leads_to)
        return replace(plain, files=(picture, link) if leads_to else (picture,))

    return go


def test_other_bytes_show_nothing(keeping: Callable[..., Observations]) -> None:
    ours, theirs = keeping("a"), keeping("b")
    told = unseen_bytes(ours, theirs, [keeping("a")])
    assert told == "sheet.png has other bytes, and what they mean is not known"
    assert [(f.kind, f.fails) for f in numeric(ours, theirs)] == [(Kind.FILE_VALUE, False)]
    assert exact(ours, theirs, keeping("a")) == []


@pytest.mark.parametrize(("other", "repeat"), [("a", "a"), ("b", "c"), (None, "a"), ("b", None)])
def test_bytes_that_are_the_same_or_differ_by_themselves(
    keeping: Callable[..., Observations], other: str | None, repeat: str | None
) -> None:
    assert unseen_bytes(keeping("a"), keeping(other), [keeping(repeat)]) is None


def test_a_link_that_leads_elsewhere(keeping: Callable[..., Observations]) -> None:
    ours, theirs = keeping(leads_to="epoch2.pt"), keeping(leads_to="epoch1.pt")
    for compare in (exact, numeric):
        (finding,) = compare(ours, theirs)
        assert (finding.kind, finding.tensor) == (Kind.FILE_VALUE, "latest.pt")
        assert finding.message == "latest.pt leads to epoch1.pt, and led to epoch2.pt"
        assert compare(ours, ours) == []
    assert exact(ours, theirs, theirs) == []
    assert "is not written" in exact(ours, keeping())[0].message


@pytest.mark.parametrize(
    ("told", "ranks", "fails"),
    [({}, 2, False), ({"Software": "Matplotlib version3.9.2"}, 2, True), ({}, 0, True)],
    ids=["of samples", "plot", "one process"],
)
def test_a_picture_of_what_rank_0_has_of_a_batch(
    run: Callable[..., Observations], told: dict[str, str], ranks: int, fails: bool
) -> None:
    plain = run(steps=2)

    def showing(name: str, rows: int) -> Observations:
        folder = plain.folder / name
        folder.mkdir()
        about = PngInfo()
        for key, text in told.items():
            about.add_text(key, text)
        Image.new("RGB", (20, rows)).save(folder / "made.png", pnginfo=about)
        file = WrittenFile("made.png", 1, digest=name, bytes_as="made.png")
        return replace(plain, folder=folder, files=(file,))

    original, other = showing("original", 40), showing("other", 20)
    other = replace(other, ranks=(plain,) * ranks)
    (finding,) = compare_files(original, other, (original,), (), Precision.FLOAT32)
    assert finding.fails is fails
    assert ("its own share of a batch" in finding.message) is not fails


def test_numbers_beside_progress_bars(writing: Write) -> None:
    """Told in every step or in some, and in other words or not at all: only the same words have to have the same numbers."""

    def showing(text: str | None) -> Observations:
        one = writing(bars=text)
        files = tuple(replace(file, path="<progress bars>") for file in one.files)
        return replace(one, files=files if text is not None else ())

    lines = ("step 1 postfix: loss=0.5", "step 2 postfix: loss=0.4", "step 3 postfix: loss=0.3")
    original = showing("\n".join(lines))
    assert not exact(original, showing(None), original)
    assert not exact(original, showing(lines[2]), original)
    assert not exact(original, showing("step 2 postfix: mean loss=0.9"), original)
    (found,) = exact(original, showing("step 1 desc: train\nstep 3 postfix: loss=0.2"), original)
    assert (found.kind, found.fails) == (Kind.FILE_VALUE, True)
    assert found.message.startswith("<progress bars>: line 1 has 0.2, not 0.3")
    ranks = replace(showing("step 3 postfix: loss=0.2"), ranks=(original, original))
    assert not exact(original, ranks, original)


def test_weights_in_files_have_to_be_those_of_the_end(run: Callable[..., Observations]) -> None:
    """Rounding scatters a long training so far that it would hide weights that were rounded, or those of a step before."""

    def dumped(one: Observations, name: str, *, as_half: bool = False) -> Observations:
        weights = (one.tensors(one.snapshots[-1]) or {})[name]
        kept = weights.astype(np.float16).astype(weights.dtype) if as_half else weights
        np.save(one.folder / "w.npy", kept)
        return replace(one, files=(WrittenFile("w.npy", 1, "w.npy"),))

    names = [f for f, w in (run().tensors(run().snapshots[-1]) or {}).items() if w.ndim == 2]
    original, right, wrong, *near = (
        dumped(run(perturb=1e-2 if seed else 0.0, seed=seed), names[0], as_half=seed == 2)
        for seed in range(5)
    )
    assert numeric(original, right, *near) == []
    (finding,) = numeric(original, wrong, *near)
    assert finding.message == (
        f"w.npy: the array is not {names[0]} as the last step left it, and in the original it is"
    )
