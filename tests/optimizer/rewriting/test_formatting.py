from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.rewriting.edits import (
    InsertAfter,
    InsertBefore,
    RemoveArgument,
    ReplaceExpression,
    ReplaceStatement,
    SetArgument,
    Span,
    Wrap,
)
from torchopt_cli.optimizer.rewriting.style import Style

Find = Callable[..., Span]
Rewrite = Callable[..., str]
Check = Callable[..., None]

NARROW = Style(line_length=40)


def test_only_the_statement_that_became_too_long_is_broken(span: Find, rewritten: Rewrite) -> None:
    text = "a = {'k':1,   'l' : \"2\"}\nx = DataLoader(dataset, batch_size=16)\nb = f( a )\n"
    call = span(text, "DataLoader(dataset, batch_size=16)")
    result = rewritten(text, SetArgument(call, "shuffle", "True"), style=NARROW)
    assert result == (
        "a = {'k':1,   'l' : \"2\"}\n"
        "x = DataLoader(\n    dataset, batch_size=16, shuffle=True\n)\n"
        "b = f( a )\n"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "x = DataLoader(dataset, batch_size=16)",
            "x = DataLoader(dataset, batch_size=16,\n               shuffle=True)",
        ),
        (
            "if a:\n  DataLoader(dataset, batch_size=16, k=1)",
            "if a:\n  DataLoader(dataset, batch_size=16,\n             k=1, shuffle=True)",
        ),
        # Nothing fits behind the bracket; no call alone; broken by its author.
        (
            "x = a_module_of_a_long_name.DataLoader(dataset)",
            "x = a_module_of_a_long_name.DataLoader(\n  dataset, shuffle=True\n)",
        ),
        (
            "x = 1 + DataLoader(dataset, batch_size=16)",
            "x = 1 + DataLoader(\n  dataset, batch_size=16, shuffle=True\n)",
        ),
        (
            "x = DataLoader(dataset,\n               batch_size=16)",
            "x = DataLoader(dataset,\n               batch_size=16,\n               shuffle=True)",
        ),
    ],
)
def test_arguments_stand_under_each_other_where_the_file_has_them_so(
    before: str, after: str, span: Find, rewritten: Rewrite
) -> None:
    call = before[before.index("a_module" if "a_module" in before else "DataLoader") :]
    style = Style(indent="  ", line_length=40, aligns=True)
    edit = SetArgument(span(before, call), "shuffle", "True")
    assert rewritten(before + "\n", edit, style=style) == after + "\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "x = DataLoader(data,\n               batch_size=16, k=1)",
            "x = DataLoader(data,\n               batch_size=16 // WORLD_SIZE,\n               k=1)",
        ),
        (
            "x = DataLoader(\n    data, seconds=12, batch_size=16)",
            "x = DataLoader(\n    data,\n    seconds=12,\n    batch_size=16 // WORLD_SIZE,\n)",
        ),
    ],
)
def test_a_call_of_several_lines_keeps_its_layout(
    before: str, after: str, span: Find, rewritten: Rewrite
) -> None:
    edit = ReplaceExpression(span(before, "16"), "16 // WORLD_SIZE")
    style = Style(line_length=43, aligns=True)
    assert rewritten(before + "\n", edit, style=style) == after + "\n"


def test_new_statements_align_their_arguments_where_the_file_does(
    span: Find, rewritten: Rewrite
) -> None:
    style = Style(line_length=30, aligns=True)
    edit = InsertAfter(span("if a:\n    x\n", "x"), "y = compute(first=1, second=2)")
    after = "if a:\n    x\n    y = compute(first=1,\n                second=2)\n"
    assert rewritten("if a:\n    x\n", edit, style=style) == after


def test_strings_keep_their_quotes_and_trailing_commas_their_meaning(
    span: Find, rewritten: Rewrite
) -> None:
    text = "x = f('one', [1, 2,], k='a string')\n"
    edit = SetArgument(span(text, "f('one', [1, 2,], k='a string')"), "other", "'b'")
    assert rewritten(text, edit, style=NARROW) == (
        "x = f(\n    'one',\n    [\n        1,\n        2,\n    ],\n    k='a string',\n    other='b',\n)\n"
    )


@pytest.mark.parametrize("values", ["n(x.to(d)), y.to(d)", "(x, y), y.to(d)"])
def test_values_of_a_tuple_get_a_line_each(values: str, span: Find, rewritten: Rewrite) -> None:
    text = f"inputs, targets = {values}\n"
    result = rewritten(text, SetArgument(span(text, "y.to(d)"), "wait", "no"), style=NARROW)
    first = values.removesuffix(", y.to(d)")
    assert result == f"inputs, targets = (\n    {first},\n    y.to(d, wait=no),\n)\n"


def test_names_with_a_comma_behind_them_stay_in_one_line(span: Find, rewritten: Rewrite) -> None:
    text = "inputs, targets, = x.to(d), y.to(d)\n"
    result = rewritten(text, SetArgument(span(text, "y.to(d)"), "wait", "no"), style=NARROW)
    assert result == "inputs, targets = (\n    x.to(d),\n    y.to(d, wait=no),\n)\n"


@pytest.mark.parametrize(
    ("opening", "key", "closing"),
    [("x = {", "'key': ", "}"), ("x = f(", "key=", ")"), ("x = [", "", "]")],
)
def test_elements_on_lines_of_their_own_stay_there(
    opening: str, key: str, closing: str, span: Find, rewritten: Rewrite
) -> None:
    first = "a(\n        1, 2\n    )"
    text = f"{opening}\n    {key.replace('key', 'one')}{first},\n    {key}SGD(weights, lr=0.1)\n{closing}\n"
    edit = SetArgument(span(text, "SGD(weights, lr=0.1)"), "fused", "True")
    broken = "SGD(\n        weights, lr=0.1, fused=True\n    )"
    after = text.replace("SGD(weights, lr=0.1)", broken)
    assert rewritten(text, edit, style=Style(line_length=35)) == after


def test_comment_behind_a_tuple_stays_behind_it(span: Find, rewritten: Rewrite) -> None:
    text = "größe, ziel = n(größe.to(d)), y.to(d)  # 画像\n"
    result = rewritten(text, SetArgument(span(text, "y.to(d)"), "wait", "no"), style=NARROW)
    assert result == "größe, ziel = (\n    n(größe.to(d)),\n    y.to(d, wait=no),\n)  # 画像\n"


@pytest.mark.parametrize("values", ["(model(x), y.to(d))", "(model(x)), y.to(d)"])
def test_brackets_of_a_tuple_are_not_doubled(values: str, span: Find, rewritten: Rewrite) -> None:
    text = f"inputs, targets = {values}\n"
    result = rewritten(text, SetArgument(span(text, "y.to(d)"), "wait", "no"), style=NARROW)
    assert result.startswith("inputs, targets = (")
    assert "((model" not in result


@pytest.mark.parametrize("unit", ["  ", "\t"])
def test_broken_statements_get_the_indentation_of_the_file(
    unit: str, span: Find, rewritten: Rewrite
) -> None:
    text = f"if a:\n{unit}x = DataLoader(dataset, size=1)\n"
    style = Style(indent=unit, line_length=45)
    edit = SetArgument(span(text, "DataLoader(dataset, size=1)"), "shuffle", "a and b or c")
    assert rewritten(text, edit, style=style) == (
        f"if a:\n{unit}x = DataLoader(\n{unit * 2}dataset, size=1, shuffle=a and b or c\n{unit})\n"
    )


def test_line_ends_are_those_of_the_file(span: Find, rewritten: Rewrite) -> None:
    text = "x = DataLoader(dataset, batch_size=16)\r\ny = 1\r\n"
    edit = SetArgument(span(text, "DataLoader(dataset, batch_size=16)"), "shuffle", "True")
    style = Style(newline="\r\n", line_length=40)
    assert rewritten(text, edit, style=style) == (
        "x = DataLoader(\r\n    dataset, batch_size=16, shuffle=True\r\n)\r\ny = 1\r\n"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "if f(argument_one, argument_two):\n    pass\n",
            "if f(\n    argument_one, argument_two, k=value_\n):\n    pass\n",
        ),
        (
            "if a:\n    pass\nelif f(argument_one, argument_two):\n    pass\n",
            "if a:\n    pass\nelif f(\n    argument_one, argument_two, k=value_\n):\n    pass\n",
        ),
        (
            "@f(argument_one, argument_two)\ndef g( x ): pass\n",
            "@f(argument_one, argument_two, k=value_)\ndef g( x ): pass\n",
        ),
        (
            "@f(argument_one, argument_two__)\ndef g( x ): pass\n",
            "@f(\n    argument_one,\n    argument_two__,\n    k=value_,\n)\ndef g( x ): pass\n",
        ),
        (
            "try:\n    pass\nexcept f(argument_one, argument_two):\n    pass\n",
            "try:\n    pass\nexcept f(\n    argument_one, argument_two, k=value_\n):\n    pass\n",
        ),
        (
            "for x in f(argument_one, argument_two): g( x )\n",
            "for x in f(\n    argument_one, argument_two, k=value_\n):\n    g( x )\n",
        ),
        (
            "async def h():\n    async with f(argument_one):\n        g( )\n",
            "async def h():\n    async with f(\n        argument_one, k=value_\n    ):\n        g( )\n",
        ),
    ],
)
def test_headers_and_decorators_are_broken_without_their_bodies(
    before: str, after: str, span: Find, rewritten: Rewrite
) -> None:
    start = before.index("f(argument")
    call = before[start : before.index(")", start) + 1]
    edit = SetArgument(span(before, call), "k", "value_")
    assert (
        rewritten(before, edit, style=Style(line_length=40 if "async" not in before else 36))
        == after
    )


def test_comments_inside_a_statement_stay_where_they_are(span: Find, rewritten: Rewrite) -> None:
    text = "x = f(a,  # one\n      b)  # two\n"
    result = rewritten(
        text,
        SetArgument(span(text, "f(a,  # one\n      b)"), "k", "value + value + value"),
        style=NARROW,
    )
    assert result == "x = f(a,  # one\n      b,\n      k=value + value + value)  # two\n"
    longer = rewritten(
        text,
        SetArgument(span(text, "f(a,  # one\n      b)"), "k", "value + value + value + 1"),
        style=Style(line_length=32),
    )
    assert longer == ("x = f(\n    a,  # one\n    b,\n    k=value + value + value + 1,\n)  # two\n")


def test_a_comment_that_stood_out_stands_out_again(span: Find, rewritten: Rewrite) -> None:
    text = "x = f(a, b)  # one, two, three and four words\n"
    edit = SetArgument(span(text, "f(a, b)"), "k", "1")
    assert rewritten(text, edit, style=NARROW) == (
        "x = f(a, b, k=1)  # one, two, three and four words\n"
    )
    edit = SetArgument(span(text, "f(a, b)"), "k", "the_name_of_another_value_x")
    assert rewritten(text, edit, style=NARROW) == (
        "x = f(\n    a, b, k=the_name_of_another_value_x\n)  # one, two, three and four words\n"
    )


def test_what_black_cannot_shorten_stays(span: Find, rewritten: Rewrite) -> None:
    text = "x = f( a )['k']  # why\n"
    edit = ReplaceExpression(span(text, "f( a )['k']"), "a_name_that_is_longer_than_the_line")
    expected = "x = a_name_that_is_longer_than_the_line  # why\n"
    assert rewritten(text, edit, style=Style(line_length=20)) == expected


def test_a_line_that_was_too_long_and_shrinks_stays_one_line(
    span: Find, rewritten: Rewrite
) -> None:
    text = "x = function(argument_one, argument_two, gone=1, k=2)\n"
    edit = RemoveArgument(span(text, "function(argument_one, argument_two, gone=1, k=2)"), "gone")
    assert rewritten(text, edit, style=NARROW) == text.replace("gone=1, ", "")


def test_new_statements_are_broken_like_edited_ones(
    check: Check, span: Find, rewritten: Rewrite
) -> None:
    text = "if a:\n  b()\n"
    code = "x = function(argument_one, argument_two)\nif x:\n    y = 'z'\n"
    broken = "x = function(\n    argument_one, argument_two\n  )\n"
    style = Style(indent="  ", line_length=36)
    after = rewritten(text, InsertAfter(span(text, "b()"), code), style=style)
    assert after == (
        "if a:\n  b()\n  x = function(\n    argument_one, argument_two\n  )\n  if x:\n    y = 'z'\n"
    )
    before = rewritten(text, InsertBefore(span(text, "b()"), code), style=style)
    assert before == (
        "if a:\n  x = function(\n    argument_one, argument_two\n  )\n  if x:\n    y = 'z'\n  b()\n"
    )
    replaced = rewritten(text, ReplaceStatement(span(text, "b()"), code), style=style)
    assert replaced == "if a:\n  " + broken + "  if x:\n    y = 'z'\n"


def test_wrapping_breaks_the_lines_that_it_pushes_too_far(span: Find, rewritten: Rewrite) -> None:
    text = (
        "short( 1 )\n"
        "fits = function(argument_one, two_____)\n"
        "too_long_already = function(argument_one, two)\n"
        "edited = function(argument_one)\n"
    )
    result = rewritten(
        text,
        Wrap(span(text, "short( 1 )"), span(text, "edited = function(argument_one)"), "if a:"),
        SetArgument(span(text, "function(argument_one)"), "k", "2"),
        style=NARROW,
    )
    assert result == (
        "if a:\n"
        "    short( 1 )\n"
        "    fits = function(\n"
        "        argument_one, two_____\n"
        "    )\n"
        "    too_long_already = function(argument_one, two)\n"
        "    edited = function(argument_one, k=2)\n"
    )


def test_lines_that_no_formatter_bounds_are_indented_as_they_are(
    span: Find, rewritten: Rewrite
) -> None:
    text = "b = function(argument_one)\nfits = function(argument_one, two_____)\n"
    result = rewritten(
        text,
        Wrap(span(text, "b = function(argument_one)"), span(text, text.splitlines()[1]), "if a:"),
        SetArgument(span(text, "function(argument_one)"), "key", "'value'"),
        style=Style(line_length=40, is_bounded=False),
    )
    assert result == (
        "if a:\n"
        "    b = function(\n"
        "        argument_one, key='value'\n"
        "    )\n"
        "    fits = function(argument_one, two_____)\n"
    )


def test_black_is_not_imported_when_everything_fits(
    span: Find, rewritten: Rewrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "black", None)
    text = "x = f(a)\n"
    assert rewritten(text, SetArgument(span(text, "f(a)"), "k", "1")) == "x = f(a, k=1)\n"
    text = "x = f(a)[0]\n"
    with pytest.raises(ImportError):
        rewritten(text, SetArgument(span(text, "f(a)"), "k", "1"), style=Style(line_length=9))


def test_a_line_that_was_too_long_may_grow_a_little(span: Find, rewritten: Rewrite) -> None:
    call = "f(argument_one, argument_two, argument_three, argument_four)"
    text = f"result = {call}\n"
    little = SetArgument(span(text, call), "k", "1")
    assert rewritten(text, little, style=NARROW) == f"result = {call[:-1]}, k=1)\n"
    much = SetArgument(span(text, call), "keyword", "value")
    assert rewritten(text, much, style=NARROW).count("\n") > 1


def test_lines_that_were_too_long_before_keep_the_breaks_of_their_author(
    rewritten: Rewrite, span: Find
) -> None:
    made = "made = {\n    'a'  : first(alpha, beta, gamma, delta),\n    'b'  : second(alpha, beta, gamma, delta)\n}\n"
    longer = f"# {'The file has a line that is longer still.':60}.\n"

    def with_argument(text: str) -> str:
        edit = SetArgument(span(text, "first(alpha, beta, gamma, delta)"), "k", "1")
        return rewritten(text, edit, style=NARROW)

    kept = made.replace("delta),", "delta, k=1),")
    assert with_argument(longer + made) == longer + kept
    assert with_argument(made) != kept


@pytest.mark.parametrize(
    ("call", "behind", "broken"),
    [
        (
            "y = f(x[i * n:(i+1) * n], k = 1",
            ")[0]",
            "y = f(\n    x[i * n:(i+1) * n],\n    k = 1,\n    other = 'b',\n)[0]",
        ),
        (
            "if f({'k':1, 'lang':x[ 0 ]}",
            ") ==3 : pass",
            "if (\n    f({'k':1, 'lang':x[ 0 ]}, other='b')\n    ==3\n):\n    pass",
        ),
        (
            'y = f(f"{a  + b}", -  c',
            ")[1]+h[d:e,::2]",
            "y = (\n    f(f\"{a  + b}\", -  c, other='b')[1]\n    +h[d:e,::2]\n)",
        ),
        (
            "x,y=f(a=aaaaaaaa",
            "),g(bbbbbbbbbbbbb)",
            "x,y=(\n    f(a=aaaaaaaa, other='b'),\n    g(bbbbbbbbbbbbb),\n)",
        ),
    ],
)
def test_what_stays_in_a_line_keeps_its_spaces(
    call: str, behind: str, broken: str, span: Find, rewritten: Rewrite
) -> None:
    text = f"{call}{behind}\n"
    edit = SetArgument(span(text, call[call.index("f(") :] + ")"), "other", "'b'")
    assert rewritten(text, edit, style=NARROW) == f"{broken}\n"


def test_wide_spaces_that_would_be_too_long_again_are_not_kept(
    span: Find, rewritten: Rewrite
) -> None:
    text = "y = f(aaaaaaaaa          +          bbbbbbbbb)[0]\n"
    edit = SetArgument(span(text, text[4:-4]), "other", "'bcd'")
    assert rewritten(text, edit, style=NARROW) == (
        "y = f(\n    aaaaaaaaa + bbbbbbbbb, other='bcd'\n)[0]\n"
    )
