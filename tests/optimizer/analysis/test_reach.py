"""What code runs when a piece of code runs."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.calls.reach import never_runs, reached_nodes
from torchopt_cli.optimizer.analysis.script import TrainingScript

Script = Callable[..., TrainingScript]
HEAD = """\
import functools, json
def work(*values):
    return "reached"
direct = lambda x: "reached"
tools = {"work": direct}
bound = functools.partial(work, 1)
class Holder:
    def __init__(self):
        self.work = lambda: "reached"
def given(f):
    return f()
"""


@pytest.mark.parametrize(
    ("statement", "reached"),
    [
        ("work()", True),
        ("direct(1)", True),
        ("tools['work'](1)", True),
        ("bound(2)", True),
        ("Holder().work()", True),
        ("given(lambda: 'reached')", True),
        ("list(map(direct, []))", True),
        ("sorted([], key=lambda x: 'reached')", True),
        ("optimizer.step(lambda: 'reached')", True),
        ("other = direct", False),
        ("bound = functools.partial(work, 2)", False),
        ("json.register(direct)", False),
    ],
)
def test_functions_reached(script: Script, statement: str, reached: bool) -> None:
    understood = script(f"{HEAD}{statement}\n")
    entry = understood.entry
    nodes = [r.node for r in reached_nodes(understood.resolver, [entry.tree.body[-1]], entry)]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
    assert ("reached" in texts) is reached


@pytest.mark.parametrize(
    ("train", "rest", "leftover"),
    [
        ("", "", True),
        ("from other import tool\ntool()", "", False),
        ("from other import tool as t\nt()", "", False),
        ("import other\nother.tool()", "", False),
        ("import other\ngetattr(other, 'tool')()", "", False),
        ("", "KINDS = {'a': tool}", False),
        ("", "def main():\n    tool()", True),
        ("other.main()", "def main():\n    tool()", False),
        ("", "if __name__ == '__main__':\n    tool()", True),
        ("", "def again():\n    return 1", True),
    ],
)
def test_a_function_that_is_named_nowhere_is_a_leftover(
    script: Script, train: str, rest: str, leftover: bool
) -> None:
    other = f"def tool(n):\n    HERE()\n    return tool(n - 1)\n\n{rest}\n"
    understood = script({"train.py": f"import other\n{train}\n", "other.py": other})
    assert _leftover(understood) == [leftover]


@pytest.mark.parametrize(
    ("text", "leftover"),
    [
        ("HERE()", False),
        ("if __name__ == '__main__':\n    HERE()", True),
        ("if True:\n    HERE()", False),
        ("class Net:\n    def forward(self):\n        HERE()", True),
        ("class Net:\n    HERE()", False),
        ("class Net(Base):\n    def forward(self):\n        HERE()", False),
        ("@register\nclass Net:\n    def forward(self):\n        HERE()", False),
        ("class Net:\n    def forward(self):\n        HERE()\nNETS = {'net': Net}", False),
        ("@register\ndef tool():\n    HERE()", False),
    ],
)
def test_other_places_of_an_imported_file(script: Script, text: str, leftover: bool) -> None:
    understood = script({"train.py": "import other\n", "other.py": text + "\n"})
    assert _leftover(understood) == [leftover]
    assert _leftover(script(text + "\n")) == [False]


def _leftover(understood: TrainingScript) -> list[bool]:
    return [
        never_runs(understood.resolver, call, module)
        for module in understood.modules
        for call in module.calls
        if module.code(call.func) == "HERE"
    ]


@pytest.mark.parametrize(
    ("decorated", "runs"),
    [
        ("import click\n@click.command()\n@click.option('--lr')\ndef job(lr):\n", True),
        (
            "import click\n@click.group()\ndef cli():\n    pass\n@cli.command()\ndef job(lr):\n",
            True,
        ),
        ("from sacred import Experiment\nex = Experiment()\n@ex.automain\ndef job(lr):\n", True),
        ("@cached\ndef job(lr):\n", False),
        ("@app.command()\ndef job(lr):\n", False),
    ],
)
def test_commands_of_a_command_line_run(script: Script, decorated: str, runs: bool) -> None:
    understood = script(f"{decorated}    inner()\ndef inner():\n    pass\n")
    names = {getattr(function, "name", "") for function in understood.functions_run}
    assert names >= {"job", "inner"} if runs else names == set()
