import pytest

from torchopt_cli.optimizer.pipeline.suppression import Suppression, edited_span, suppressions
from torchopt_cli.optimizer.rewriting.edits import (
    AddImport,
    InsertAfter,
    RemoveImportedName,
    ReplaceArguments,
    SetArgument,
    Span,
    Wrap,
)


def only(text: str) -> Suppression:
    (suppression,) = suppressions(text)
    return suppression


@pytest.mark.parametrize(
    "text",
    [
        "x = 1  # torch: ignore\n",
        "x = '# torchopt: ignore'\n",
        '"""\n# torchopt: ignore-file\n"""\n',
        "x = f'{1}# torchopt: ignore[no-grad]'\n",
        "x = 1  # torchopt: ignored\n",
        "x = 1  # torchopt: ignore-line\n",
    ],
)
def test_what_is_no_suppression(text: str) -> None:
    assert suppressions(text) == ()


def test_names_and_reason() -> None:
    found = only("x = 1  # torchopt: ignore[no-grad, autocast] needs the graph\n")
    assert found.names == {"no-grad", "autocast"}
    assert found.reason == "needs the graph"
    assert (found.line, found.whole_file) == (1, False)


def test_without_names_it_means_all() -> None:
    found = only("x = 1  # torchopt: ignore\n")
    assert (found.names, found.reason) == (frozenset(), "")
    assert found.keeps_off("anything", [Span(1, 0, 1, 5)])


def test_it_stands_beside_other_comments() -> None:
    found = only("x = 1  # noqa: E501  # torchopt: ignore[compile]: slow  # type: ignore\n")
    assert (found.names, found.reason) == ({"compile"}, "slow")


def test_ignore_file() -> None:
    found = only("import torch\n# torchopt: ignore-file generated\n")
    assert (found.whole_file, found.reason) == (True, "generated")
    assert found.keeps_off("anything", [])


@pytest.mark.parametrize("comment_line", [1, 2, 3])
def test_any_line_of_a_call_speaks_for_the_whole_call(comment_line: int) -> None:
    lines = ["f(", "    1,", ")", "g()"]
    lines[comment_line - 1] += "  # torchopt: ignore"
    found = only("\n".join(lines))
    assert (found.first, found.last) == (1, 3)


def test_a_comment_of_its_own_speaks_for_the_statement_below() -> None:
    found = only("x = 1\n\n# torchopt: ignore\n# and another comment\ny = 2\nz = 3\n")
    assert not found.keeps_off("t", [Span(1, 0, 1, 5)])
    assert found.keeps_off("t", [Span(5, 0, 5, 5)])
    assert not found.keeps_off("t", [Span(6, 0, 6, 5)])


def test_a_blank_line_cuts_it_off() -> None:
    found = only("x = 1\n# torchopt: ignore\n\ny = 2\n")
    assert (found.first, found.last) == (2, 2)


def test_at_the_end_of_an_indented_block() -> None:
    found = only("if x:\n    y = 1\n    # torchopt: ignore\n")
    assert (found.first, found.last) == (3, 3)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_lines_are_counted_for_every_newline(newline: str) -> None:
    assert only(newline.join(["x = 1", "y = 2", "z = 3  # torchopt: ignore", ""])).line == 3


def test_a_named_one_holds_inside_a_wider_change_and_a_bare_one_does_not() -> None:
    loop = Span(1, 0, 3, 10)
    text = "for x in y:\n    a(x)\n    b(x)  # torchopt: ignore{}\n"
    assert only(text.format("[no-grad]")).keeps_off("no-grad", [loop])
    assert not only(text.format("[no-grad]")).keeps_off("compile", [loop])
    assert not only(text.format("")).keeps_off("no-grad", [loop])


def test_the_span_of_each_edit() -> None:
    first, last = Span(1, 0, 2, 5), Span(4, 0, 6, 1)
    assert edited_span(Wrap(first, last, "with x:")) == Span(1, 0, 6, 1)
    assert edited_span(SetArgument(first, "k", "v")) == first
    assert edited_span(ReplaceArguments(first, ("k",), (("l", "v"),))) == first
    assert edited_span(InsertAfter(last, "x = 1")) == last
    assert edited_span(AddImport("torch")) is None
    assert edited_span(RemoveImportedName("torch", "nn")) is None
