"""What is made beside an object follows it to where it is used."""

from __future__ import annotations

import ast
from collections.abc import Callable
from textwrap import dedent

import pytest

from torchopt_cli.optimizer.analysis.editing.companions import (
    Companion,
    SharedFunctionError,
    find_companion,
)
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]


def companion(understood: TrainingScript) -> Companion | None:
    """The companion of everything ``.step()`` is called on."""
    uses = [
        (call.func.value, module)
        for module in understood.modules
        for call in module.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "step"
    ]
    return find_companion(understood.resolver, uses)


def place(found: Companion | None) -> str | None:
    return found.module.code(found.statement).split("\n")[0] if found else None


def test_same_scope(script: Script) -> None:
    found = companion(script("a = make()\nb = make()\nc = 1\na.step()\nb.step()\n"))
    assert place(found) == "b = make()"
    assert found is not None
    assert (found.prefix, found.parameters, found.arguments) == ("", (), ())


def test_below_both_branches(script: Script) -> None:
    found = companion(script("if x:\n    a = one()\nelse:\n    a = two()\na.step()\n"))
    assert place(found) == "if x:"


def test_below_the_whole_test(script: Script) -> None:
    """Between `elif` and what precedes it there is no room."""
    code = "if x:\n    stop()\nelif y:\n    a = one()\nelse:\n    a = two()\na.step()\n"
    assert place(companion(script(code))) == "if x:"


def test_module_name_in_a_function(script: Script) -> None:
    assert place(companion(script("a = make()\ndef f():\n    a.step()\nf()\n"))) == "a = make()"


def test_through_parameters(script: Script) -> None:
    found = companion(
        script(
            dedent(
                """
                def inner(b):
                    b.step()

                def outer(x, a):
                    inner(a)

                def main():
                    opt = make()
                    outer(1, a=opt)

                main()
                """
            )
        )
    )
    assert found is not None
    assert place(found) == "opt = make()"
    assert [(new.function.name, new.after) for new in found.parameters] == [
        ("inner", "b"),
        ("outer", "a"),
    ]
    assert [(found.module.code(new.call), new.keyword) for new in found.arguments] == [
        ("inner(a)", False),
        ("outer(1, a=opt)", True),
    ]


def test_attribute_of_self(script: Script) -> None:
    found = companion(
        script(
            "class T:\n    def __init__(self):\n        self.a = make()\n"
            "    def f(self):\n        self.a.step()\n"
        )
    )
    assert place(found) == "self.a = make()"
    assert found is not None
    assert found.prefix == "self."


BASE = "class Base:\n    def __init__(self, a):\n        self.a = a\n"


def test_attribute_that_the_base_keeps(script: Script) -> None:
    found = companion(script(BASE + "class T(Base):\n    def f(self):\n        self.a.step()\n"))
    assert place(found) == "self.a = a"
    assert found is not None
    assert found.prefix == "self."


def test_an_attribute_that_a_subclass_keeps_for_its_base(script: Script) -> None:
    found = companion(
        script(
            "class Base:\n    def f(self):\n        self.a.step()\n"
            "class T(Base):\n    def __init__(self):\n        self.a = make()\n"
        )
    )
    assert place(found) == "self.a = make()"


def test_elements_of_a_list(script: Script) -> None:
    code = "opts = [make()]\nfor a in opts:\n    a.step()\nopts[0].step()\n"
    assert place(companion(script(code))) == "opts = [make()]"


def test_where_it_cannot_follow(script: Script) -> None:
    for code in (
        "state.a.step()",
        "def f(a):\n    a.step()",
        "def f(a):\n    a.step()\nf(*args)",
        "def f(a):\n    a.step()\nf(x)\nregister(f)\nx = 1",
        "@decorated\ndef f(a):\n    a.step()\nx = 1\nf(x)",
        "def f(a=None):\n    a.step()\nf()",
        "a = make()\na.step()\nclass T:\n    def f(self):\n        self.b = make()\n        self.b.step()",
        "class T:\n    def f(self):\n        self.a = make()\n    def g(self):\n        self.a = make()\n"
        "    def h(self):\n        self.a.step()",
        BASE + "class T(Base):\n    def __init__(self):\n        self.a = make()\n"
        "    def f(self):\n        self.a.step()",
        BASE + "class T(Base):\n    def f(this):\n        this.a.step()",
        "class Base:\n    def g(self, a):\n        pass\nclass T(Base):\n    def g(self, a):\n        a.step()\n"
        "a = make()\nT().g(a)",
    ):
        assert companion(script(code + "\n")) is None, code


def test_where_another_script_calls_the_function(script: Script) -> None:
    understood = script(
        {
            "train.py": "from engine import f\na = make()\nf(a)\n",
            "engine.py": "def f(a):\n    a.step()\n",
            "other.py": "from engine import f\nf(make())\n",
        }
    )
    with pytest.raises(SharedFunctionError, match=r"`other\.py` uses `f`, too"):
        companion(understood)


def test_made_before_the_first_use(script: Script) -> None:
    """Beside the last of several objects where that is early enough, else beside the first."""
    for code, where in (
        ("a = make()\nb = make()\na.step()\nb.step()", "b = make()"),
        ("a = make()\na.step()\nb = make()\nb.step()", "a = make()"),
        ("a = make()\na.step()\na = make()\na.step()", "a = make()"),
        ("a = make()\ndef f():\n    a.step()\nf()\nb = make()\nb.step()", "a = make()"),
        ("a = make()\ndef f():\n    a.step()\nb = make()\nf()\nb.step()", "b = make()"),
    ):
        found = companion(script(code + "\n"))
        assert place(found) == where, code
        assert found is not None
        assert found.statement.lineno <= 1 + code[: code.index(where)].count("\n"), code


def test_no_place_comes_first(script: Script) -> None:
    code = "if x:\n    a = make()\n    a.step()\nelse:\n    a = other()\n    a.step()\n"
    assert companion(script(code)) is None


def test_behind_the_last_of_those_it_belongs_to(script: Script) -> None:
    found = companion(
        script(
            dedent(
                """
                def step(net, a, b, data, c=None):
                    a.step()
                    b.step()

                def train(net, a, b, data):
                    step(net, a, b, data)

                a = make()
                b = make()
                train(net, a, b, data=data)
                """
            )
        )
    )
    assert found is not None
    assert [new.after for new in found.parameters] == ["b", "b"]
    assert [found.module.code(new.after) for new in found.arguments] == ["b", "b"]
    assert place(found) == "b = make()"


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [("a, b=None", "one, two"), ("b, a", "two, one"), ("a, b", "one, self.two")],
)
def test_behind_the_first_of_those_it_belongs_to(
    script: Script, parameters: str, arguments: str
) -> None:
    code = f"""
    def step({parameters}):
        a.step()
        b.step()

    one = make()
    two = make()
    step({arguments})
    """
    found = companion(script(dedent(code)))
    assert found is not None
    assert [new.after for new in found.parameters] == ["a"]


ONE_FOR_BOTH = """
def run_epoch(model, loader, OPTIMIZER, verbose=False):
    if optimizer is not None:
        optimizer.step()

def main():
    optimizer = make()
    run_epoch(model, train_loader, TRAINS)
    run_epoch(model, val_loader, EVALUATES)

main()
"""


def one_for_both(script: Script, optimizer: str, trains: str, evaluates: str) -> Companion | None:
    code = ONE_FOR_BOTH.replace("OPTIMIZER", optimizer).replace("TRAINS", trains)
    return companion(script(code.replace("EVALUATES", evaluates)))


def test_beside_none(script: Script) -> None:
    """A call that has nothing to step hands the companion on all the same."""
    found = one_for_both(script, "optimizer", "optimizer", "None")
    assert found is not None
    assert place(found) == "optimizer = make()"
    assert [new.after for new in found.parameters] == ["optimizer"]
    assert [ast.unparse(new.after) for new in found.arguments] == ["optimizer", "None"]
    assert not any(new.keyword for new in found.arguments)


@pytest.mark.parametrize("evaluates", ["", "verbose=True"])
def test_behind_what_no_call_leaves_out(script: Script, evaluates: str) -> None:
    found = one_for_both(script, "optimizer=None", "optimizer", evaluates)
    assert found is not None
    assert [new.after for new in found.parameters] == ["loader"]
    assert [ast.unparse(new.after) for new in found.arguments] == ["train_loader", "val_loader"]


def test_nothing_that_calls_leave_out_but_none(script: Script) -> None:
    assert one_for_both(script, "optimizer=other", "optimizer", "") is None


def test_beside_none_where_the_owner_is_not_seen(script: Script) -> None:
    code = ONE_FOR_BOTH.replace("OPTIMIZER", "optimizer").replace("TRAINS", "optimizer")
    code = code.replace("    run_epoch(model, val_loader, EVALUATES)", "    evaluate()")
    code += "\ndef evaluate():\n    run_epoch(model, val_loader, None)\n"
    assert companion(script(code)) is None
