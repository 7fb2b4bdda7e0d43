from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.rewriting.edits import (
    AddContext,
    Decorate,
    InsertAfter,
    InsertBefore,
    RemoveStatement,
    ReplaceExpression,
    ReplaceStatement,
    SetArgument,
    Span,
    Wrap,
)
from torchopt_cli.optimizer.rewriting.rewrites import EditError

Find = Callable[..., Span]
Rewrite = Callable[..., str]
Check = Callable[..., None]


# Insertions


def test_insertions_respect_the_comments_around_a_statement(check: Check, span: Find) -> None:
    check(
        """
        a()  # one

        # about a, still

        # leads b
        # leads b too
        b()  # two
        # leads c
        c()
        """,
        """
        a()  # one

        # about a, still

        before()

        # leads b
        # leads b too
        b()  # two
        after()
        # leads c
        c()
        """,
        lambda text: [
            InsertBefore(span(text, "b()"), "before()"),
            InsertAfter(span(text, "b()"), "after()"),
        ],
    )


def test_what_is_inserted_above_a_comment_in_a_paragraph_belongs_to_that(
    check: Check, span: Find
) -> None:
    check(
        "a()\n# leads b\nb()\n",
        "a()\nbefore()\n# leads b\nb()\n",
        lambda text: [InsertBefore(span(text, "b()"), "before()")],
    )


def test_several_insertions_keep_their_order(check: Check, span: Find) -> None:
    check(
        "def f():\n    a()\n",
        "def f():\n    one()\n    two()\n    a()\n    three()\n    four()\n",
        lambda text: [
            InsertAfter(span(text, "a()"), "three()"),
            InsertBefore(span(text, "a()"), "one()"),
            InsertBefore(span(text, "a()"), "two()"),
            InsertAfter(span(text, "a()"), "four()"),
        ],
    )


def test_insertion_after_a_block_comes_after_its_closing_comments(check: Check, span: Find) -> None:
    check(
        """
        for x in y:
            a(x)

            # the end of the loop
        # what follows
        b()
        """,
        """
        for x in y:
            a(x)
            inner()

            # the end of the loop
        after()
        # what follows
        b()
        """,
        lambda text: [
            InsertAfter(
                span(text, text[text.index("for") : text.index("\n\n")]),
                "after()",
            ),
            InsertAfter(span(text, "a(x)"), "inner()"),
        ],
    )


@pytest.mark.parametrize("unit", ["  ", "    ", "\t", "   "])
def test_inserted_code_gets_the_indentation_of_the_file(
    unit: str, span: Find, rewritten: Rewrite
) -> None:
    text = f"class A:\n{unit}def f(self):\n{unit * 2}a()\n"
    code = '''
        for x in y:
            # why
            if x:
                b(
                    x,
                )

            s = """
        kept
            """
    '''
    expected = [
        "class A:",
        f"{unit}def f(self):",
        f"{unit * 2}a()",
        f"{unit * 2}for x in y:",
        f"{unit * 3}# why",
        f"{unit * 3}if x:",
        f"{unit * 4}b(",
        f"{unit * 5}x,",
        f"{unit * 4})",
        "",
        f'{unit * 3}s = """',
        "kept",
        '    """',
    ]
    result = rewritten(text, InsertAfter(span(text, "a()"), code))
    assert result.split("\n") == [*expected, ""]


def test_definitions_are_set_apart(check: Check, span: Find) -> None:
    check(
        """
        import a


        # leads f
        @a.b
        def f():
            x()

            def g():
                pass
        """,
        """
        import a


        def new():
            pass


        seed(0)


        # leads f
        @a.b
        def f():
            x()

            y()

            def g():
                pass
        """,
        lambda text: [
            InsertAfter(span(text, "import a"), "\n\ndef new():\n    pass\n"),
            InsertBefore(span(text, text[text.index("def f") :].rstrip()), "seed(0)"),
            InsertBefore(span(text, "def g():\n        pass"), "y()"),
        ],
    )


# Statements that share a line


@pytest.mark.parametrize(
    ("text", "target", "result"),
    [
        ("a(); b(); c()  # d\n", "a()", "a()\nnew()\nb(); c()  # d\n"),
        ("a(); b(); c()  # d\n", "b()", "a(); b()\nnew()\nc()  # d\n"),
        ("a(); b(); c();  # d\n", "c()", "a(); b(); c();  # d\nnew()\n"),
        ("if x: a()\nb()\n", "a()", "if x:\n    a()\n    new()\nb()\n"),
        ("if x: a(); b()\n", "a()", "if x:\n    a()\n    new()\n    b()\n"),
        ("if x: a(); b()\n", "b()", "if x:\n    a(); b()\n    new()\n"),
        ("if x: pass\nelse: a()  # c\n", "a()", "if x: pass\nelse:\n    a()  # c\n    new()\n"),
        (
            "def f(): return (yield)\n",
            "return (yield)",
            "def f():\n    return (yield)\n    new()\n",
        ),
        ("if x:\\\n  a()\n", "a()", "if x:\n    a()\n    new()\n"),
        ("a() ;\\\n  b()\n", "a()", "a()\nnew()\nb()\n"),
        ("try: a()\nfinally: b()", "b()", "try: a()\nfinally:\n    b()\n    new()"),
        (
            "match x:\n    case 1: a()\n",
            "a()",
            "match x:\n    case 1:\n        a()\n        new()\n",
        ),
    ],
)
def test_insertion_after_splits_a_line_only_as_needed(
    text: str, target: str, result: str, span: Find, rewritten: Rewrite
) -> None:
    assert rewritten(text, InsertAfter(span(text, target), "new()")) == result


@pytest.mark.parametrize(
    ("text", "target", "result"),
    [
        ("a(); b(); c()  # d\n", "a()", "new()\na(); b(); c()  # d\n"),
        ("a(); b(); c()  # d\n", "c()", "a(); b()\nnew()\nc()  # d\n"),
        ("for x in y: a(x)\n", "a(x)", "for x in y:\n    new()\n    a(x)\n"),
        ("\tx\n".replace("\tx", "if a:\n\tb(); c()"), "c()", "if a:\n\tb()\n\tnew()\n\tc()\n"),
    ],
)
def test_insertion_before_splits_a_line_only_as_needed(
    text: str, target: str, result: str, span: Find, rewritten: Rewrite
) -> None:
    assert rewritten(text, InsertBefore(span(text, target), "new()")) == result


def test_an_elif_becomes_a_block_to_insert_into(check: Check, span: Find) -> None:
    check(
        '''
        if a:
            one()
        elif b:
            """kept
        as it is"""
        elif c:
            three()
            # three ends
        else:
            four()
        ''',
        '''
        if a:
            one()
        else:
            before()
            if b:
                """kept
        as it is"""
            else:
                if c:
                    three()
                    # three ends
                else:
                    four()
                after()
        ''',
        lambda text: [
            InsertAfter(span(text, text[text.index("elif c") :].rstrip()), "after()"),
            InsertBefore(span(text, text[text.index("elif b") :].rstrip()), "before()"),
        ],
    )


# Removals


@pytest.mark.parametrize(
    ("text", "targets", "result"),
    [
        ("a()\nb()  # gone too\nc()\n", ["b()"], "a()\nc()\n"),
        ("a()\n# stays\nb()\nc()\n", ["b()"], "a()\n# stays\nc()\n"),
        ("a()\n\nb()\n\nc()\n", ["b()"], "a()\n\nc()\n"),
        ("a()\n\nb()\nc()\n\nd()\n", ["b()", "c()"], "a()\n\nd()\n"),
        ("a()\n\nb()\n\nc()\n\nd()\n", ["b()", "c()"], "a()\n\nd()\n"),
        ("a()\n\nb()\n", ["a()"], "b()\n"),
        ("a()\n\nb()\n\n\ndef f(): pass\n", ["b()"], "a()\n\n\ndef f(): pass\n"),
        ("a()\nb(\n  1,\n)\nc()\n", ["b(\n  1,\n)"], "a()\nc()\n"),
        ("a(); b(); c()\n", ["a()"], "b(); c()\n"),
        ("a(); b(); c()\n", ["b()"], "a(); c()\n"),
        ("a(); b(); c()\n", ["c()"], "a(); b()\n"),
        ("a(); b(); c()\n", ["b()", "c()"], "a()\n"),
        ("a(); b(); c()\n", ["a()", "c()"], "b()\n"),
        ("a(); b()\nc()\n", ["a()", "b()"], "c()\n"),
        ("if x: a(); b()\n", ["a()"], "if x: b()\n"),
        ("if x: a()  # why\n", ["a()"], "if x: pass  # why\n"),
        ("if x: a(); b()\n", ["a()", "b()"], "if x: pass\n"),
        ("if x:\n    a()\n    # stays\nb()\n", ["a()"], "if x:\n    pass\n    # stays\nb()\n"),
        ("if x:\n    a()\n    b()\n", ["a()", "b()"], "if x:\n    pass\n"),
        ("if x:\n    a()\n    b()\n", ["b()"], "if x:\n    a()\n"),
        (
            "try:\n    a()\n\n    b()\nexcept E:\n    c()\n",
            ["b()"],
            "try:\n    a()\nexcept E:\n    c()\n",
        ),
        (
            "if x:\n    a()\n\n    b()\n\nelse:\n    c()\n",
            ["b()"],
            "if x:\n    a()\n\nelse:\n    c()\n",
        ),
        ("if x:\n    a()\n\n    b()\nelsewhere()\n", ["b()"], "if x:\n    a()\n\nelsewhere()\n"),
        ("a()\n\nb()\n", ["b()"], "a()\n"),
        ("a()", ["a()"], ""),
        ("a()\nb()", ["b()"], "a()\n"),
        ("@d\ndef f():\n    pass\n    # f ends\na()\n", ["def f():\n    pass"], "a()\n"),
    ],
)
def test_removed_statements(
    text: str, targets: list[str], result: str, span: Find, rewritten: Rewrite
) -> None:
    edits = [RemoveStatement(span(text, target)) for target in targets]
    assert rewritten(text, *edits) == result


@pytest.mark.parametrize(
    ("text", "targets", "result"),
    [
        ("a()\n\n# one\nb()\n\n# two\nc()\n\nd()\n", ["b()", "c()"], "a()\n\n# one\n# two\nd()\n"),
        ("a()\n# stays\nb()\nc()\n\nd()\n", ["b()", "c()"], "a()\n# stays\nd()\n"),
        ("a()\n\nb()\n\nc()\n", ["b()"], "a()\n\nc()\n"),
        ("a()\nb()\n\nc()\n", ["b()"], "a()\n\nc()\n"),
    ],
)
def test_comments_above_removed_statements_close_up(
    text: str, targets: list[str], result: str, span: Find, rewritten: Rewrite
) -> None:
    edits = [RemoveStatement(span(text, target), closes_up=True) for target in targets]
    assert rewritten(text, *edits) == result


def test_a_block_whose_statements_are_replaced_by_inserted_ones_needs_no_pass(
    check: Check, span: Find
) -> None:
    check(
        "if x:\n    a()\nb()\n",
        "if x:\n    new()\nb()\n",
        lambda text: [
            RemoveStatement(span(text, "a()")),
            InsertAfter(span(text, "a()"), "new()"),
        ],
    )


def test_a_wrap_left_empty_holds_pass(check: Check, span: Find) -> None:
    check(
        "a()\nb()\n",
        "with c:\n    pass\nb()\n",
        lambda text: [
            RemoveStatement(span(text, "a()")),
            Wrap(span(text, "a()"), span(text, "a()"), "with c:"),
        ],
    )


# Replacements


@pytest.mark.parametrize(
    ("text", "target", "code", "result"),
    [
        ("# why\na()  # what\n", "a()", "b()", "# why\nb()  # what\n"),
        ("if x: a(); b()\n", "a()", "c = 1", "if x: c = 1; b()\n"),
        ("if x: a(); b()\n", "a()", "c()\nd()", "if x:\n    c()\n    d()\n    b()\n"),
        ("if x: a()\n", "a()", "with c:\n    a()", "if x:\n    with c:\n        a()\n"),
        ("@d\nclass A:\n    pass\n", "class A:\n    pass", "A = None", "A = None\n"),
        ("for x in y:\n\ta()\n", "a()", "if x:\n    b()", "for x in y:\n\tif x:\n\t\tb()\n"),
        (
            "if a:\n    b()\nelif c:\n    d()\n",
            "elif c:\n    d()",
            "e()",
            "if a:\n    b()\nelse:\n    e()\n",
        ),
        (
            "if a:\n  for x in y:  # each\n    # slowly\n    b(x)  # 1\n    c(x)  # 2\n  else:\n    d()\n",
            "for x in y:  # each\n    # slowly\n    b(x)  # 1\n    c(x)  # 2\n  else:\n    d()",
            "e(y)  # 1",
            "if a:\n  # each\n  # slowly\n  # 2\n  e(y)  # 1\n",
        ),
        ("for x in y:\n    b(x)  # 1\n", "for x in y:\n    b(x)", "c(y)", "c(y)  # 1\n"),
    ],
)
def test_replaced_statements(
    text: str, target: str, code: str, result: str, span: Find, rewritten: Rewrite
) -> None:
    assert rewritten(text, ReplaceStatement(span(text, target), code)) == result


# Wraps


def test_wrapped_statements_take_their_comments_along(check: Check, span: Find) -> None:
    check(
        '''
        a()

        # leads b
        b(1,
          2)  # trailing
        s = """
        not code
            """ + f"""{x
        }"""

        if c:
            d()
            # ends c

        # leads e
        e()
        ''',
        '''
        a()

        # leads b
        with torch.no_grad():
            b(1,
              2)  # trailing
            s = """
        not code
            """ + f"""{x
        }"""

            if c:
                d()
                # ends c

        # leads e
        e()
        ''',
        lambda text: [
            Wrap(
                span(text, "b(1,\n  2)"),
                span(text, "if c:\n    d()"),
                "with torch.no_grad():",
            )
        ],
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "# both\na()\nb()\n",
            "# both\nwith torch.no_grad():\n    a()\n    b()\n",
        ),
        (
            "# one\na()\n# other\nb()\n",
            "with torch.no_grad():\n    # one\n    a()\n    # other\n    b()\n",
        ),
        (
            "# both\n\na()\nb()\n",
            "# both\n\nwith torch.no_grad():\n    a()\n    b()\n",
        ),
    ],
)
def test_a_comment_about_all_wrapped_statements_stays_above(
    check: Check, span: Find, before: str, after: str
) -> None:
    header = "with torch.no_grad():"
    check(before, after, lambda text: [Wrap(span(text, "a()"), span(text, "b()"), header)])


def test_what_is_inserted_goes_below_a_comment_about_all_wrapped_statements(
    check: Check, span: Find
) -> None:
    check(
        "# both\na()\nb()\n",
        "# both\nwith torch.no_grad():\n    new()\n    a()\n    b()\n",
        lambda text: [
            InsertBefore(span(text, "a()"), "new()"),
            Wrap(span(text, "a()"), span(text, "b()"), "with torch.no_grad():"),
        ],
    )


def test_what_is_inserted_outside_goes_above_all_headers(check: Check, span: Find) -> None:
    check(
        """
        first()
        # about a
        a()
        b()
        """,
        """
        first()

        new()

        if one:
            if two:
                # about a
                a()
            b()
        """,
        lambda text: [
            InsertBefore(span(text, "a()"), "new()", True, outside=True),
            Wrap(span(text, "a()"), span(text, "a()"), "if two:"),
            Wrap(span(text, "a()"), span(text, "b()"), "if one:"),
        ],
    )


def test_inside_and_outside_of_a_header(check: Check, span: Find) -> None:
    check(
        "a()\n",
        "def new():\n    pass\n\n\nif one:\n    inner()\n    a()\n    after()\n",
        lambda text: [
            InsertBefore(span(text, "a()"), "inner()"),
            InsertBefore(span(text, "a()"), "def new():\n    pass", outside=True),
            InsertAfter(span(text, "a()"), "after()"),
            Wrap(span(text, "a()"), span(text, "a()"), "if one:"),
        ],
    )


def test_outside_without_a_header(check: Check, span: Find) -> None:
    check(
        "a()\n",
        "new()\na()\n",
        lambda text: [InsertBefore(span(text, "a()"), "new()", outside=True)],
    )


def test_a_comment_above_a_main_guard_is_about_what_it_guards(check: Check, span: Find) -> None:
    check(
        "# settings\na()\nb()\n",
        'if __name__ == "__main__":\n    # settings\n    a()\n    b()\n',
        lambda text: [Wrap(span(text, "a()"), span(text, "b()"), 'if __name__ == "__main__":')],
    )


def test_a_comment_behind_the_end_of_a_string_leads_up_to_nothing(check: Check, span: Find) -> None:
    check(
        'x = """\n"""  # of x\na()\n',
        'x = """\n"""  # of x\nnew()\na()\n',
        lambda text: [InsertBefore(span(text, "a()"), "new()")],
    )


def test_a_main_guard_takes_the_rest_of_the_module(check: Check, span: Find) -> None:
    check(
        """
        import a


        def f():
            pass


        # the script
        x = f()
        for y in x:
            print(y)

        # the end
        """,
        """
        import a


        def f():
            pass


        if __name__ == "__main__":
            # the script
            x = f()
            for y in x:
                print(y)

            # the end
        """,
        lambda text: [
            Wrap(
                span(text, "x = f()"),
                span(text, "for y in x:\n    print(y)"),
                'if __name__ == "__main__":',
            )
        ],
    )


def test_the_marks_at_the_top_of_a_file_stay_there(check: Check, span: Find) -> None:
    check(
        "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n# leads a\na()\n",
        "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\nif b:\n    # leads a\n    a()\n",
        lambda text: [Wrap(span(text, "a()"), span(text, "a()"), "if b:")],
    )


def test_edits_lie_inside_wraps_and_wraps_inside_wraps(check: Check, span: Find) -> None:
    check(
        """
        for x in y:
            a(x)
            if b: c(x); d(x)
            # ends the loop
        """,
        """
        if main:
            for x in y:
                with one:
                    new()
                    a(x)
                    if b:
                        with two:
                            c(x, k=1)
                        z(x)
                    # ends the loop
        """,
        lambda text: [
            Wrap(
                span(text, text.rstrip().rpartition("\n")[0]),
                span(text, text.rstrip().rpartition("\n")[0]),
                "if main:",
            ),
            Wrap(span(text, "a(x)"), span(text, "if b: c(x); d(x)"), "with one:"),
            InsertBefore(span(text, "a(x)"), "new()"),
            Wrap(span(text, "c(x)"), span(text, "c(x)"), "with two:"),
            SetArgument(span(text, "c(x)"), "k", "1"),
            ReplaceExpression(span(text, "d"), "z"),
        ],
    )


@pytest.mark.parametrize(
    ("text", "first", "last", "result"),
    [
        ("a(); b(); c()\n", "b()", "b()", "a()\nwith x:\n    b()\nc()\n"),
        ("a(); b(); c()\n", "a()", "b()", "with x:\n    a(); b()\nc()\n"),
        ("for i in j: a(); b()", "a()", "b()", "for i in j:\n    with x:\n        a(); b()"),
        ("for i in j: a()", "for i in j: a()", "for i in j: a()", "with x:\n    for i in j: a()"),
        (
            "@d\ndef f():\n    pass\n",
            "def f():\n    pass",
            "def f():\n    pass",
            "with x:\n    @d\n    def f():\n        pass\n",
        ),
        (
            "x = 1 + \\\n  2\n",
            "x = 1 + \\\n  2",
            "x = 1 + \\\n  2",
            "with x:\n    x = 1 + \\\n      2\n",
        ),
        ("a()\n\x0cb()\n", "a()", "b()", "with x:\n    a()\n\x0c    b()\n"),
        ("if 1:\n\ta()\n", "a()", "a()", "if 1:\n\twith x:\n\t\ta()\n"),
        ("if 1:\n  a()\n", "a()", "a()", "if 1:\n  with x:\n    a()\n"),
        ("a()\r\nb()\r\n", "a()", "b()", "with x:\r\n    a()\r\n    b()\r\n"),
    ],
)
def test_wraps_fit_the_file(
    text: str, first: str, last: str, result: str, span: Find, rewritten: Rewrite
) -> None:
    assert rewritten(text, Wrap(span(text, first), span(text, last), "with x:")) == result


def test_wrapping_an_elif_opens_it(check: Check, span: Find) -> None:
    check(
        "if a:\n    b()\nelif c:\n    d()\n",
        "if a:\n    b()\nelse:\n    with x:\n        if c:\n            d()\n",
        lambda text: [
            Wrap(span(text, "elif c:\n    d()"), span(text, "elif c:\n    d()"), "with x:")
        ],
    )


def test_wraps_of_statements_that_are_no_range_are_errors(span: Find, rewritten: Rewrite) -> None:
    text = "a()\nif x:\n    b()\nc()\n"
    for first, last in (("c()", "a()"), ("a()", "b()"), ("b()", "c()")):
        with pytest.raises(EditError, match="not in one block"):
            rewritten(text, Wrap(span(text, first), span(text, last), "with x:"))


def test_wraps_that_overlap_are_errors(span: Find, rewritten: Rewrite) -> None:
    text = "a()\nb()\nc()\n"
    a, b, c = (span(text, name) for name in ("a()", "b()", "c()"))
    with pytest.raises(EditError, match="overlaps"):
        rewritten(text, Wrap(a, b, "with x:"), Wrap(b, c, "with y:"))
    assert rewritten(text, Wrap(b, b, "with x:"), Wrap(b, c, "with y:")) == (
        "a()\nwith y:\n    with x:\n        b()\n    c()\n"
    )


# Context managers


def test_context_managers_are_added_behind_those_there_are(span: Find, rewritten: Rewrite) -> None:
    text = "with a(), b(c) as d:  # why\n    e()\n"
    whole, call = span(text, text.rstrip()), span(text, "b(c)")
    assert rewritten(text, AddContext(whole, "f()")) == (
        "with a(), b(c) as d, f():  # why\n    e()\n"
    )
    text = "with (b(c)):\n    e()\n"
    whole, call = span(text, text.rstrip()), span(text, "b(c)")
    edits = AddContext(whole, "f()"), SetArgument(call, "k", "1")
    assert rewritten(text, *edits) == "with (b(c, k=1), f()):\n    e()\n"


# Decorators


def test_decorators_stand_nearest_to_their_function(check: Check, span: Find) -> None:
    check(
        """
        class A:
            # leads f
            @staticmethod
            # about f
            async def f(): pass

            def g(self): return 1
        """,
        """
        class A:
            # leads f
            @staticmethod
            # about f
            @torch.no_grad()
            async def f(): pass

            @one
            @two
            def g(self): return 1
        """,
        lambda text: [
            Decorate(span(text, "async def f(): pass"), "torch.no_grad()"),
            Decorate(span(text, "def g(self): return 1"), "one"),
            Decorate(span(text, "def g(self): return 1"), "two"),
        ],
    )


def test_statement_targets_that_are_not_there_are_errors(span: Find, rewritten: Rewrite) -> None:
    text = "def f():\n    a(b)\n"
    where = span(text, "b")
    for edit in (
        InsertBefore(where, "x"),
        InsertAfter(where, "x"),
        ReplaceStatement(where, "x"),
        RemoveStatement(where),
        Wrap(where, where, "with x:"),
        Decorate(where, "x"),
        AddContext(where, "x"),
        Decorate(span(text, "a(b)"), "x"),
    ):
        with pytest.raises(EditError, match=f"{type(edit).__name__} at line 2: no .* there"):
            rewritten(text, edit)


def test_edits_inside_what_is_removed_or_replaced_are_errors(
    span: Find, rewritten: Rewrite
) -> None:
    text = "if x:\n    a(b)\n"
    whole, call = span(text, text.rstrip()), span(text, "a(b)")
    for outer in (RemoveStatement(whole), ReplaceStatement(whole, "c()")):
        for inner in (SetArgument(call, "k", "1"), InsertAfter(call, "d()"), RemoveStatement(call)):
            with pytest.raises(EditError, match=r"lies inside|overlaps"):
                rewritten(text, outer, inner)


def test_code_that_does_not_parse_is_an_error(span: Find, rewritten: Rewrite) -> None:
    text = "a()\n"
    where = span(text, "a()")
    for edit in (
        InsertBefore(where, "x ="),
        ReplaceStatement(where, "for x"),
        Wrap(where, where, "with x"),
        Decorate(span("def f(): 0", "def f(): 0"), "x"),
    ):
        with pytest.raises(EditError):
            rewritten(text, edit)


def test_a_block_of_a_file_with_several_indentations_is_indented_as_the_one_around(
    check: Check, span: Find
) -> None:
    check(
        "for a in b:\n  if a:\n      c()\n\ndef f():\n    d()\n\ndef g():\n    e()\n",
        "for a in b:\n  with h():\n    if a:\n        c()\n\ndef f():\n    d()\n\ndef g():\n    e()\n",
        lambda text: [
            Wrap(span(text, "if a:\n      c()"), span(text, "if a:\n      c()"), "with h():")
        ],
    )
