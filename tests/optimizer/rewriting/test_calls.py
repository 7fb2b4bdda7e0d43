"""A call is broken exactly as black breaks it, or black is asked."""

from __future__ import annotations

import black
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchopt_cli.optimizer.rewriting.calls import exploded_call

names = st.sampled_from(
    ["x", "loader", "train_dataset", "args.batch_size", "min(8, cores)", "'a b'", "[1, 2]"]
)
arguments = st.lists(
    st.one_of(names, st.builds("{}={}".format, st.sampled_from(["num_workers", "shuffle"]), names)),
    min_size=1,
    max_size=6,
)
callees = st.sampled_from(["DataLoader", "torch.utils.data.DataLoader", "f"])
heads = st.sampled_from(["", "loader = ", "self.loader = ", "return "])


def in_black(code: str, line_length: int) -> str:
    return black.format_str(
        code, mode=black.Mode(line_length=line_length, string_normalization=False)
    ).rstrip()


@given(heads, callees, arguments, st.integers(20, 100))
def test_breaks_as_black_does(head: str, callee: str, given: list[str], line_length: int) -> None:
    ordered = sorted(given, key=lambda text: "=" in text)
    keywords = [text.partition("=")[0] for text in ordered if "=" in text]
    code = f"{head}{callee}({', '.join(ordered)})"
    if len(set(keywords)) < len(keywords) or len(code) <= line_length:
        return
    broken = exploded_call(code, line_length)
    assert broken is None or broken == in_black(code, line_length)


def test_the_usual_case_needs_no_black() -> None:
    code = "loader = DataLoader(train_dataset, batch_size=args.batch_size, num_workers=num_workers)"
    assert exploded_call(code, 70) == in_black(code, 70)
    assert exploded_call(code, 40) == in_black(code, 40)


def test_a_call_that_is_broken_already_is_broken_further() -> None:
    code = "loader = DataLoader(\n    train_dataset, batch_size=args.batch_size, shuffle=True\n)"
    assert exploded_call(code, 40) == in_black(code, 40)


@pytest.mark.parametrize(
    "code",
    [
        "x = f(a)[0]",
        "x, y = f(a), g(b)",
        "x = f(a).g(b)",
        "x = f(i for i in a)",
        "x = f(a, b,)",
        "x = f()",
        "x = f(a)  # why",
        "with f(a): pass",
        "x = f(a, [b,])",
        "x = f([\n    a])",
        "x = y = f(a)",
    ],
)
def test_everything_else_is_left_to_black(code: str) -> None:
    assert exploded_call(code, 8) is None
