from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchopt_cli.optimizer.rewriting.attribution import Provenance, unified_diff

ORIGINAL = "".join(f"line {number}\n" for number in range(1, 31))


def change(text: str, *replacements: tuple[str, str]) -> str:
    for old, new in replacements:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def test_an_unchanged_text_maps_to_itself_and_has_no_diff() -> None:
    provenance = Provenance.of(ORIGINAL)
    assert [provenance.original_line(n) for n in (1, 17, 30)] == [1, 17, 30]
    assert provenance.names_at(3) == provenance.names_at_original(3) == ()
    assert unified_diff("a.py", provenance) == ""
    assert unified_diff("a.py", provenance.after(ORIGINAL, "nothing")) == ""


def test_lines_are_followed_through_several_changes() -> None:
    first = change(ORIGINAL, ("line 5\n", "import a\nline 5\n"), ("line 20\n", "LINE 20\n"))
    second = change(first, ("line 10\n", ""), ("LINE 20\n", "LINE 20, more\n"))
    provenance = Provenance.of(ORIGINAL).after(first, "one").after(second, "two")
    current = second.splitlines()
    where = {line: number for number, line in enumerate(current, 1)}
    assert provenance.original_line(where["line 30"]) == 30
    assert provenance.original_line(where["line 11"]) == 11
    assert provenance.original_line(where["import a"]) == 4
    assert provenance.original_line(where["LINE 20, more"]) == 20
    assert provenance.names_at(where["import a"]) == ("one",)
    assert provenance.names_at(where["LINE 20, more"]) == ("one", "two")
    assert provenance.names_at(where["line 11"]) == ()
    assert provenance.names_at_original(10) == ("two",)
    assert provenance.names_at_original(20) == ("one", "two")


def test_new_lines_map_to_the_nearest_line_above() -> None:
    provenance = Provenance.of("a\nb\n").after("x\ny\na\nb\nz\n", "t")
    assert [provenance.original_line(n) for n in range(1, 6)] == [1, 1, 1, 2, 2]
    assert provenance.original_line(99) == 2
    assert Provenance.of("").after("a\n", "t").original_line(1) == 1
    assert Provenance.of("a\n").after("", "t").original_line(1) == 1


def test_indented_lines_keep_their_origin() -> None:
    before = "import a\nx = f()\n\nfor y in x:\n    print(y)\n"
    after = (
        'import a\nif __name__ == "__main__":\n    x = f()\n\n    for y in x:\n        print(y)\n'
    )
    provenance = Provenance.of(before).after(after, "main-guard")
    assert [provenance.original_line(n) for n in range(1, 7)] == [1, 1, 2, 3, 4, 5]
    assert provenance.names_at(5) == ("main-guard",)


def test_every_hunk_names_its_transforms_in_order() -> None:
    first = change(ORIGINAL, ("line 3\n", "line 3, one\n"), ("line 28\n", "line 28, one\n"))
    second = change(first, ("line 4\n", "line 4, two\n"), ("line 15\n", ""))
    third = change(second, ("line 28, one\n", "line 28\n"), ("line 29\n", "line 29, three\n"))
    provenance = Provenance.of(ORIGINAL)
    for name, text in (("one", first), ("two", second), ("three", third)):
        provenance = provenance.after(text, name)
    diff = unified_diff("pkg/train.py", provenance)
    assert [line for line in diff.splitlines() if line.startswith(("@@", "---", "+++"))] == [
        "--- a/pkg/train.py",
        "+++ b/pkg/train.py",
        "@@ -1,7 +1,7 @@ one, two",
        "@@ -12,7 +12,6 @@ two",
        "@@ -26,5 +25,5 @@ three",
    ]
    assert "-line 15\n line 16" in diff


def test_changes_close_to_each_other_share_a_hunk() -> None:
    near = change(ORIGINAL, ("line 10\n", "x\n"), ("line 17\n", "y\n"))
    far = change(ORIGINAL, ("line 10\n", "x\n"), ("line 18\n", "y\n"))
    for text, hunks in ((near, 1), (far, 2)):
        assert unified_diff("a", Provenance.of(ORIGINAL).after(text, "t")).count("@@ t\n") == hunks


def run(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def check_applies(
    folder: Path, name: str, texts: list[str], encoding: str = "utf-8", bom: bool = False
) -> None:
    """The diff, applied by git and by patch, gives the last text from the first, and back."""
    mark = b"\xef\xbb\xbf" if bom else b""
    before, after = (mark + text.encode(encoding) for text in (texts[0], texts[-1]))
    provenance = Provenance.of(texts[0])
    for number, text in enumerate(texts[1:]):
        provenance = provenance.after(text, f"transform-{number}")
    diff = unified_diff(name, provenance, bom=bom)
    if before == after:
        assert diff == ""
        return
    patch = folder / "change.patch"
    patch.write_bytes(diff.encode(encoding))
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    tools = {
        "git": ("git", "apply", "--whitespace=nowarn"),
        "patch": ("patch", "-p1", "--silent", "--no-backup-if-mismatch", "-i"),
    }
    for tool, command in tools.items():
        # An empty text is, to both, a file that is not there.
        path.write_bytes(before)
        run(folder, *command, patch.name)
        assert path.read_bytes() == after, tool
        if tool == "git" and before and after:
            run(folder, *command, "--reverse", patch.name)
            assert path.read_bytes() == before


needs_tools = pytest.mark.skipif(
    not (shutil.which("git") and shutil.which("patch")), reason="needs git and patch"
)


@needs_tools
@pytest.mark.parametrize(
    "texts",
    [
        ["a\nb\n", "a\nc\n"],
        ["a\nb", "a\nc"],
        ["a\nb", "a\nb\n"],
        ["a\nb\n", "a\nb"],
        ["a\nb", "x\na\nb"],
        ["a\r\nb\r\nc\r\n", "a\r\nx\r\nc\r\n"],
        ["a\r\nb\nc", "a\nb\r\nc\r\n"],
        ["a\x0c\nb\u2028c\n\td \n", "a\x0c\nb\u2028x\n\td \n"],
        [ORIGINAL, change(ORIGINAL, ("line 3\n", "")), change(ORIGINAL, ("line 30\n", "x"))],
        ["-- a\n++ b\n@@ c\n", "-- x\n++ b\n@@ c\n"],
        ["old\rmac\n", "new\rmac\n"],
    ],
)
def test_git_and_patch_apply_the_diff(tmp_path: Path, texts: list[str]) -> None:
    check_applies(tmp_path, "train.py", texts)


@needs_tools
@pytest.mark.parametrize("name", ["pkg/sub/train.py", "with space.py", "größe.py", 'a"quote.py'])
def test_file_names_survive(tmp_path: Path, name: str) -> None:
    check_applies(tmp_path, name, ["a\nb\n", "a\nc\n"])


@needs_tools
def test_other_encodings_and_byte_order_marks_survive(tmp_path: Path) -> None:
    check_applies(tmp_path, "latin.py", ["é\nb\n", "é\nü\n"], encoding="latin-1")
    check_applies(tmp_path, "marked.py", ["import a\nb\n", "import a\nc\n"], bom=True)
    check_applies(tmp_path, "first.py", ["import a\nb\n", "import c\nb\n"], bom=True)


LINES = st.lists(
    st.sampled_from(["a", "b", "  a", "c()", "", "\td", "e\r", "# é"]), min_size=1, max_size=12
)


@needs_tools
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25
)
@given(
    texts=st.lists(LINES, min_size=2, max_size=4),
    ends=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_any_sequence_of_texts_gives_a_diff_that_applies(
    tmp_path: Path, texts: list[list[str]], ends: list[bool]
) -> None:
    joined = ["\n".join(lines) + "\n" * end for lines, end in zip(texts, ends, strict=False)]
    check_applies(tmp_path, "train.py", [text or "x\n" for text in joined])


@settings(deadline=None)
@given(texts=st.lists(LINES, min_size=1, max_size=5))
def test_lines_nobody_touched_map_to_equal_original_lines(texts: list[list[str]]) -> None:
    original = "".join(line + "\n" for line in texts[0])
    provenance = Provenance.of(original)
    for number, lines in enumerate(texts[1:]):
        provenance = provenance.after("".join(line + "\n" for line in lines), str(number))
    for number, line in enumerate(provenance.current, 1):
        origin = provenance.original_line(number)
        assert 1 <= origin <= len(provenance.original)
        if not provenance.names_at(number):
            assert provenance.original[origin - 1] == line
