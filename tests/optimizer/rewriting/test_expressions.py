from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.rewriting.edits import (
    InsertArgument,
    RemoveArgument,
    ReplaceArguments,
    ReplaceExpression,
    SetArgument,
    SetDictEntry,
    Span,
)
from torchopt_cli.optimizer.rewriting.rewrites import EditError

Find = Callable[..., Span]
Rewrite = Callable[..., str]


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("f()", "f(new=1)"),
        ("f( )", "f(new=1)"),
        ("f(a)", "f(a, new=1)"),
        ("f(a, b=2)", "f(a, b=2, new=1)"),
        ("f(a,b=2)", "f(a,b=2,new=1)"),
        ("f(a, b = 2)", "f(a, b = 2, new = 1)"),
        ("f(a, b=2,)", "f(a, b=2, new=1,)"),
        ("f(a, **kw)", "f(a, new=1, **kw)"),
        ("f(**kw)", "f(new=1, **kw)"),
        ("f(*args)", "f(*args, new=1)"),
        ("f(b=2, *args, **kw)", "f(b=2, new=1, *args, **kw)"),
        ("f(**one, b=2, **two)", "f(**one, b=2, new=1, **two)"),
        ("f(new=2)", "f(new=1)"),
        ("f(new = g(2, 3), b=1)", "f(new = 1, b=1)"),
        ("f(x for x, y in z)", "f((x for x, y in z), new=1)"),
        ("f((x for x in z))", "f((x for x in z), new=1)"),
        ("f((x for x in z), k=1)", "f((x for x in z), k=1, new=1)"),
        ("f(lambda a, b: (a, b), c)", "f(lambda a, b: (a, b), c, new=1)"),
        ("f(a == b, c <= d)", "f(a == b, c <= d, new=1)"),
        ("(f)((a), (b))", "(f)((a), (b), new=1)"),
        ("f(a)(b)", "f(a)(b, new=1)"),
        ("f[g(1)](a[1:2, 3])", "f[g(1)](a[1:2, 3], new=1)"),
        ("f(',', \")\", '''(,''')", "f(',', \")\", '''(,''', new=1)"),
        ("f(\n    a,\n    b=2,\n)", "f(\n    a,\n    b=2,\n    new=1,\n)"),
        ("f(\n    a,\n    b=2\n)", "f(\n    a,\n    b=2,\n    new=1\n)"),
        ("f(a,\n  b=2)", "f(a,\n  b=2,\n  new=1)"),
        ("f(a,\n  b=2, c=3)", "f(a,\n  b=2, c=3, new=1)"),
        ("f(\n    a, b=2,\n)", "f(\n    a, b=2, new=1,\n)"),
        (
            "f(\n    a,  # first\n    b=2,  # second\n    # end\n)",
            "f(\n    a,  # first\n    b=2,  # second\n    new=1,\n    # end\n)",
        ),
        ("f(\n    a,\n    b=2  # second\n)", "f(\n    a,\n    b=2,  # second\n    new=1\n)"),
        ("f(\n    a,\n    **kw,\n)", "f(\n    a,\n    new=1,\n    **kw,\n)"),
        (
            "f(\n    a,  # first\n    # rest\n    **kw\n)",
            "f(\n    a,  # first\n    new=1,\n    # rest\n    **kw\n)",
        ),
        ("f(\n    **kw\n)", "f(\n    new=1,\n    **kw\n)"),
        ("f( a\n , b=2\n )", "f( a\n , b=2\n , new=1\n )"),
        ("f(\n    # nothing yet\n)", "f(\n    # nothing yet\n    new=1,\n)"),
        ("f(g(\n    a,\n), b=2)", "f(g(\n    a,\n), b=2, new=1)"),
        ("f(a, b=[\n    1,\n])", "f(a, b=[\n    1,\n], new=1)"),
    ],
)
def test_set_argument_keeps_the_layout_of_the_call(
    call: str, result: str, span: Find, rewritten: Rewrite
) -> None:
    text = f"x = {call}\n"
    assert rewritten(text, SetArgument(span(text, call), "new", "1")) == f"x = {result}\n"


@pytest.mark.parametrize(
    ("call", "position", "result"),
    [
        ("f(a, b)", 1, "f(a, 9)"),
        ("f(a, b)", 2, "f(a, b, new=9)"),
        ("f(a, c=1)", 1, "f(a, c=1, new=9)"),
        ("f(a, new=1)", 0, "f(a, new=9)"),
        ("f(\n    a,  # one\n    b,\n)", 0, "f(\n    9,  # one\n    b,\n)"),
        ("f(a, b, *rest)", 1, "f(a, 9, *rest)"),
    ],
)
def test_set_argument_replaces_what_is_passed_by_position(
    call: str, position: int, result: str, span: Find, rewritten: Rewrite
) -> None:
    edit = SetArgument(span(call, call), "new", "9", position)
    assert rewritten(call, edit) == result


def test_set_argument_refuses_what_an_unpacked_list_may_hold(
    span: Find, rewritten: Rewrite
) -> None:
    with pytest.raises(EditError, match="passed by"):
        rewritten("f(*args)", SetArgument(span("f(*args)", "f(*args)"), "new", "1", position=1))


def test_several_arguments_of_one_call_and_of_calls_inside(span: Find, rewritten: Rewrite) -> None:
    text = "loader = DataLoader(Data(root), 4, num_workers=0)\n"
    call = span(text, "DataLoader(Data(root), 4, num_workers=0)")
    result = rewritten(
        text,
        SetArgument(call, "num_workers", "2"),
        SetArgument(span(text, "Data(root)"), "train", "True"),
        SetArgument(call, "pin_memory", "True"),
        ReplaceExpression(span(text, "root"), "path"),
        SetArgument(call, "batch_size", "8", position=1),
    )
    assert result == (
        "loader = DataLoader(Data(path, train=True), 8, num_workers=2, pin_memory=True)\n"
    )


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a or b", "a or b"),
        ("1, 2", "(1, 2)"),
        ("x for x in y", "(x for x in y)"),
        ("(yield)", "(yield)"),
        ("n := 3", "(n := 3)"),
        ("a if b else c", "a if b else c"),
        ("lambda: 0", "lambda: 0"),
    ],
)
def test_values_stay_one_argument(value: str, written: str, span: Find, rewritten: Rewrite) -> None:
    assert rewritten("f()", SetArgument(span("f()", "f()"), "k", value)) == f"f(k={written})"


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("f(gone=1)", "f()"),
        ("f(a, gone=1)", "f(a)"),
        ("f(gone=1, a=2)", "f(a=2)"),
        ("f(a, gone=1, b=2)", "f(a, b=2)"),
        ("f(a, gone=1,)", "f(a,)"),
        ("f(\n    a,\n    gone=1,\n)", "f(\n    a,\n)"),
        ("f(\n    a,\n    gone=1\n)", "f(\n    a\n)"),
        ("f(\n    gone=1,\n    b=2,\n)", "f(\n    b=2,\n)"),
        (
            "f(\n    a,  # one\n    gone=1,  # two\n    # own\n    b=2,  # three\n)",
            "f(\n    a,  # one\n    # own\n    b=2,  # three\n)",
        ),
        (
            "f(\n    a,  # one\n    # own\n    gone=1,  # two\n    # end\n)",
            "f(\n    a,  # one\n    # own\n    # end\n)",
        ),
        ("f(a, gone=1,\n  b=2)", "f(a,\n  b=2)"),
        ("f(a,  # one\n  gone=1)", "f(a  # one\n  )"),
        ("f(\n    gone=1,  # one\n)", "f()"),
        ("f(\n    # why\n    gone=1,\n)", "f(\n    # why\n)"),
    ],
)
def test_remove_argument(call: str, result: str, span: Find, rewritten: Rewrite) -> None:
    text = f"x = {call}\n"
    assert rewritten(text, RemoveArgument(span(text, call), "gone")) == f"x = {result}\n"


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("f(a, one=1, two=2)", "f(a, x=3, y=4)"),
        ("f(a, two=2, k=0, one=1, **kw)", "f(a, x=3, y=4, k=0, **kw)"),
        ("f(one = 1, two = 2)", "f(x = 3, y = 4)"),
        (
            "f(\n    a,\n    one=1,\n    k=0,\n    two=2,\n)",
            "f(\n    a,\n    x=3,\n    y=4,\n    k=0,\n)",
        ),
        (
            "f(\n    a,    # a\n    one=1,    # first\n    k=0,  # k\n    two=2,    # second\n)",
            "f(\n    a,    # a\n    x=3,\n    y=4,  # first; second\n    k=0,  # k\n)",
        ),
        (
            "f(\n    a,\n    one=1,\n    two=2,  # second\n)",
            "f(\n    a,\n    x=3,\n    y=4,  # second\n)",
        ),
        (
            "f(\n    a,\n    one=1,  # first\n    # own\n    two=2\n)",
            "f(\n    a,\n    x=3,\n    y=4  # first\n    # own\n)",
        ),
        ("f(one=1,  # first\n  two=2)", "f(x=3, y=4  # first\n  )"),
        ("f(one=1, two=2,  # both\n  k=0)", "f(x=3, y=4,  # both\n  k=0)"),
        ("f(a, one=1,  # first\n  two=2)", "f(a, x=3, y=4  # first\n  )"),
    ],
)
def test_replace_arguments(call: str, result: str, span: Find, rewritten: Rewrite) -> None:
    text = f"n = {call}\n"
    edit = ReplaceArguments(span(text, call), ("one", "two"), (("x", "3"), ("y", "4")))
    assert rewritten(text, edit) == f"n = {result}\n"


@pytest.mark.parametrize(
    ("display", "result"),
    [
        ("{}", '{"new": 1}'),
        ("{'a': 2}", "{'a': 2, 'new': 1}"),
        ('{"a":2, **more}', '{"a":2, **more, "new":1}'),
        ("{'new': lambda x, y: 0, 'a': 2}", "{'new': 1, 'a': 2}"),
        ('{\n    "a": 2,  # two\n}', '{\n    "a": 2,  # two\n    "new": 1,\n}'),
        ("{1: 'new'}", "{1: 'new', \"new\": 1}"),
    ],
)
def test_set_dict_entry(display: str, result: str, span: Find, rewritten: Rewrite) -> None:
    text = f"options = {display}\n"
    edit = SetDictEntry(span(text, display), "new", "1")
    assert rewritten(text, edit) == f"options = {result}\n"


@pytest.mark.parametrize(
    ("text", "target", "code", "result"),
    [
        ("y = x.cuda()", "x.cuda()", "x", "y = x"),
        ("y = a * b", "b", "c + d", "y = a * (c + d)"),
        ("y = a + b", "b", "c * d", "y = a + c * d"),
        ("y = -a", "a", "b ** c", "y = -b ** c"),
        ("y = a ** b", "a", "-c", "y = (-c) ** b"),
        ("y = x.foo", "x", "a or b", "y = (a or b).foo"),
        ("y = (x).foo", "x", "a or b", "y = (a or b).foo"),
        ("y = x[i]", "i", "a, b", "y = x[a, b]"),
        ("f(x)", "x", "a, b", "f((a, b))"),
        ("f(x)", "x", "a if b else c", "f(a if b else c)"),
        ("y = x if a else b", "a", "lambda: 0", "y = x if (lambda: 0) else b"),
        ("y = x", "x", "a\n    + b", "y = (a\n    + b)"),
        ("y = f(\n  x\n)", "x", "a\n  + b", "y = f(\n  a\n  + b\n)"),
        ("y = (a)if(b)else c", "a", "d", "y = (d)if(b)else c"),
        ('y = "a"if b else c', '"a"', "d", "y = (d)if b else c"),
        ("y = 1 .real", "1", "n", "y = n .real"),
        ("y = n.real", "n", "1", "y = (1).real"),
        ("for x in y: pass", "y", "a, b", "for x in a, b: pass"),
        ("return_value = not x", "x", "a and b", "return_value = not (a and b)"),
        ("y = [x, 2]", "x", "n := 1", "y = [n := 1, 2]"),
        ("y = x", "x", "n := 1", "y = (n := 1)"),
        ("f(*x)", "*x", "*y", "f(*y)"),
        ("with a as b: pass", "a", "c, d", "with (c, d) as b: pass"),
        ("@a\ndef f(): pass\n", "a", "b.c(d)", "@b.c(d)\ndef f(): pass\n"),
        ("while x: pass", "x", "(yield)", "while (yield): pass"),
    ],
)
def test_replaced_expressions_mean_what_they_say(
    text: str, target: str, code: str, result: str, span: Find, rewritten: Rewrite
) -> None:
    assert rewritten(text, ReplaceExpression(span(text, target), code)) == result


@pytest.mark.parametrize(
    ("target", "code", "result"),
    [
        ("(a, b)", "c", "x = f(c, d)\n"),
        ("f((a, b), d)", "(\n    1,\n)", "x = (\n    1,\n)\n"),
    ],
)
def test_tuples_are_replaced_with_their_brackets(
    target: str, code: str, result: str, span: Find, rewritten: Rewrite
) -> None:
    text = "x = f((a, b), d)\n"
    assert rewritten(text, ReplaceExpression(span(text, target), code)) == result


def test_format_strings_are_edited_only_where_that_is_safe(span: Find, rewritten: Rewrite) -> None:
    text = "print(f'{loss.item():.3f} {n}')\n"
    target = span(text, "loss.item()")
    assert rewritten(text, ReplaceExpression(target, "loss")) == "print(f'{loss:.3f} {n}')\n"
    braces = rewritten(text, ReplaceExpression(target, "{a: b}"))
    assert braces == "print(f'{({a: b}):.3f} {n}')\n"
    for code in ('d["k"]', "d['k']", "a #"):
        with pytest.raises(EditError):
            rewritten(text, ReplaceExpression(target, code))


def test_columns_are_counted_in_characters(span: Find, rewritten: Rewrite) -> None:
    text = "'äöü€𝄞'; y = größe(ß, 'é')\n"
    edit = SetArgument(span(text, "größe(ß, 'é')"), "k", "ä")
    assert rewritten(text, edit) == "'äöü€𝄞'; y = größe(ß, 'é', k=ä)\n"


@pytest.mark.parametrize(
    ("text", "kind", "target"),
    [
        ("f(a)", "call", "a"),
        ("f(a)", "call", "f(a"),
        ("x = {1, 2}", "dict", "{1, 2}"),
        ("x = 1", "expression", "= 1"),
    ],
)
def test_a_target_that_is_not_there_is_an_error(
    text: str, kind: str, target: str, span: Find, rewritten: Rewrite
) -> None:
    where = span(text, target)
    edits = {
        "call": SetArgument(where, "k", "1"),
        "dict": SetDictEntry(where, "k", "1"),
        "expression": ReplaceExpression(where, "y"),
    }
    with pytest.raises(EditError, match=r"at line 1: no .* there"):
        rewritten(text, edits[kind])
    with pytest.raises(EditError):
        rewritten(text, ReplaceExpression(Span(7, 0, 7, 1), "y"))


def test_what_cannot_be_done_is_an_error(span: Find, rewritten: Rewrite) -> None:
    call = span("f(a)", "f(a)")
    for edit in (
        RemoveArgument(call, "k"),
        ReplaceArguments(call, ("k",), (("k", "1"),)),
        SetArgument(call, "k", "1 +"),
        ReplaceExpression(call, "x ="),
        ReplaceExpression(call, "pass"),
    ):
        with pytest.raises(EditError):
            rewritten("f(a)", edit)


def test_conflicts_are_errors(span: Find, rewritten: Rewrite) -> None:
    text = "x = f(g(a), b=1)\n"
    outer, inner = span(text, "f(g(a), b=1)"), span(text, "g(a)")
    conflicts = [
        (ReplaceExpression(outer, "c"), ReplaceExpression(outer, "d")),
        (ReplaceExpression(outer, "c"), ReplaceExpression(inner, "d")),
        (ReplaceExpression(inner, "c"), SetArgument(inner, "k", "1")),
        (SetArgument(inner, "k", "1"), ReplaceExpression(inner, "c")),
        (SetArgument(outer, "b", "2"), SetArgument(outer, "b", "3")),
        (SetArgument(outer, "b", "2"), RemoveArgument(outer, "b")),
    ]
    for pair in conflicts:
        with pytest.raises(EditError):
            rewritten(text, *pair)
    same = ReplaceExpression(inner, "c")
    assert rewritten(text, same, same, SetArgument(outer, "b", "2")) == "x = f(c, b=2)\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_what_is_written_has_the_line_ends_of_the_file(
    newline: str, span: Find, rewritten: Rewrite
) -> None:
    text = newline.join(["f(a=1)", "g(b=2)", "h({'c': 3})", "x", ""])
    new = "[\n    7,\n]"
    result = rewritten(
        text,
        SetArgument(span(text, "f(a=1)"), "d", new),
        InsertArgument(span(text, "f(a=1)"), 0, new),
        ReplaceArguments(span(text, "g(b=2)"), ("b",), (("e", new),)),
        SetDictEntry(span(text, "{'c': 3}"), "k", new),
        ReplaceExpression(span(text, "x"), new),
    )
    assert result.count("7") == 5
    assert result.count("\n") == result.count(newline) == text.count(newline) + 10
