"""Whoever calls a function is found, and what cannot call it is not asked about."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.values.resolver import Resolver

Files = str | Mapping[str, str]
Script = Callable[[Files], TrainingScript]


def callers(script: TrainingScript, name: str) -> set[str]:
    """The calls that reach the functions of a name, as they are spelled."""
    functions = [
        node
        for module in script.modules
        for node in module.tree.body
        if getattr(node, "name", "") == name
    ]
    assert functions
    return {
        site.module.code(site.call)
        for function in functions
        for site in script.resolver.call_sites(function)
    }


TRAIN = "def train(model): pass"
NET = """
    class Net:
        def train(self): return self
        def step(self): return self.train().train()
"""


def test_methods_of_the_name_are_not_asked_about(script: Script) -> None:
    files = {
        "main.py": """
            from net import Net
            def train(model):
                model.train()
            train(Net())
        """,
        "net.py": NET,
    }
    found = script(files)
    assert callers(found, "train") == {"train(Net())"}
    assert not any(
        found.resolver.is_known(call.func) for call in found.modules[1].calls_named("train")
    )


@pytest.mark.parametrize(
    ("entry", "called"),
    [
        ("import engine\nengine.train(1)", "engine.train(1)"),
        ("import engine as e\ne.train(1)", "e.train(1)"),
        ("from engine import train as fit\nfit(1)", "fit(1)"),
        ("from engine import *\ntrain(1)", "train(1)"),
        ("import engine\nrun = engine.train\nrun(1)", "run(1)"),
        ("import engine\ndef main(how):\n    how.train(1)\nmain(engine)", "how.train(1)"),
        ("import engine\nclass Of:\n    by = engine\nOf.by.train(1)", "Of.by.train(1)"),
        ("import package.engine\nhow = package.engine\nhow.train(1)", "how.train(1)"),
        ("from engine import train as fit\nhow = {'a': fit}\nhow['a'](1)", "how['a'](1)"),
        ("import engine\nclass Of:\n    how = engine.train\nOf.how(1)", "Of.how(1)"),
        ("import engine\nhow = {'a': engine.train}\nhow['a'](1)", "how['a'](1)"),
        ("import engine\nhow = {'a': engine.train}\nrun = how[input()]\nrun(1)", "run(1)"),
        ("import engine\nhow = {'a': engine.train}\nrun = how\nfit = run['a']\nfit(1)", "fit(1)"),
        ("import engine\nhow = [engine.train]\nfor run in how:\n    run(1)", "run(1)"),
        ("import engine\n(engine.train if 1 else print)(1)", "(engine.train if 1 else print)(1)"),
    ],
)
def test_every_way_to_a_function_of_a_module(script: Script, entry: str, called: str) -> None:
    found = script(
        {
            "main.py": entry,
            "engine.py": TRAIN,
            "package/__init__.py": "",
            "package/engine.py": TRAIN,
            "net.py": NET,
        }
    )
    assert callers(found, "train") == {called}


def test_a_decorator_of_the_project_may_keep_what_it_decorates(script: Script) -> None:
    found = script("""
        KEPT = {}
        def register(function):
            KEPT["train"] = function
            return function
        @register
        def train(model): pass
        KEPT["train"](1)
    """)
    assert callers(found, "train") == {'KEPT["train"](1)'}


def test_a_decorator_of_a_library_does_not(script: Script) -> None:
    found = script("""
        import torch
        @torch.no_grad()
        def evaluate(model): pass
        evaluate(1)
    """)
    assert callers(found, "evaluate") == {"evaluate(1)"}


def test_calls_are_given_file_by_file_whatever_was_asked_before(script: Script) -> None:
    files = {
        "main.py": """
            import more
            def f(x): pass
            f(1)
            f(2)
            more.g(f)
        """,
        "more.py": """
            def g(function):
                function(3)
                function(4)
        """,
    }
    found = script(files)
    (function,) = (n for n in found.modules[0].tree.body if getattr(n, "name", "") == "f")
    for module in reversed(found.modules):
        for call in reversed(module.calls):
            found.resolver.callees(call, module)
    sites = found.resolver.call_sites(function)
    assert [site.module.code(site.call) for site in sites] == [
        "f(1)",
        "f(2)",
        "function(3)",
        "function(4)",
    ]


def test_in_a_tangle_everything_is_found(script: Script) -> None:
    # Every function is handed every other, so that what one of them calls leads to all calls of all.
    count = 40
    tangle = "\n".join(
        f"def f{n}(g, h):\n    g(h, f{(n + 1) % count})\n    return h(f{n * 7 % count}, g) or f{n * 11 % count}"
        for n in range(count)
    )
    found = script(
        {
            "main.py": """
            import torch
            from tangle import f0, f1
            def fit(model, loader):
                model.fit(loader)
                for batch in loader:
                    model(batch)
            loader = torch.utils.data.DataLoader([])
            fit(f0(f1, f1), loader)
        """,
            "tangle.py": tangle,
        }
    )
    (output,) = found.modules[0].calls_named("model")
    callees = found.resolver.callees(output, found.modules[0])
    assert {callee.node.name for callee in callees} == {f"f{n}" for n in range(count)}
    values = found.resolver.values(output.func, found.modules[0])
    assert {type(value).__name__ for value in values} == {"Function", "Display"}
    assert callers(found, "fit") == {"fit(f0(f1, f1), loader)"}
    (loop,) = (n for n in found.modules[0].nodes if type(n).__name__ == "For")
    values = found.resolver.values(loop.iter, found.modules[0])
    assert {type(value).__name__ for value in values} == {"Made"}


@pytest.mark.parametrize("first", range(6))
def test_call_sites_and_callees_agree_wherever_one_begins_to_ask(
    script: Script, first: int
) -> None:
    found = script(
        """
        import random

        class Part:
            def __init__(self, inner=None):
                self.inner = inner
                self.handler = self.run
            def run(self, f):
                return f(self.inner.handler) if self.inner else f
            def other(self, f):
                return self.run

        def f0(g): return g(f1)
        def f1(g): return Part(g).handler(f2)
        def f2(g): return random.choice([f0, f1])(g) or g(f0)
        def f3(g): return made.run(g)(f3)

        made = Part(Part(Part()))
        made.handler = made.other
        for f in (f0, f1, f2, f3):
            made.handler(f)(f)
        """
    )
    (module,) = found.modules
    functions = [n for n in module.nodes if type(n).__name__ == "FunctionDef"]
    functions = functions[first:] + functions[:first]
    sites = {f: {site.call for site in found.resolver.call_sites(f)} for f in functions}
    callees = {call: found.resolver.callees(call, module) for call in module.calls}
    reached = {
        f: {call for call, to in callees.items() if any(one.node is f for one in to)}
        for f in functions
    }
    assert sites == reached
    assert sum(map(len, sites.values())) > len(functions)


def calls_asked_about(script: Script, functions: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often is asked what a call reaches, where ``functions`` functions are handed to each other."""
    lines = [f"def f{n}(run):\n    run(f{n + 1})\n" for n in range(functions)]
    found = script("".join(lines) + f"def f{functions}(run):\n    last(run)\nf0(f1)\n")
    asked: list[ast.Call] = []
    callees = Resolver.callees
    with monkeypatch.context() as patch:
        patch.setattr(Resolver, "callees", lambda r, c, m: asked.append(c) or callees(r, c, m))
        (last,) = found.entry.calls_named("last")
        assert found.resolver.values(last.args[0], found.entry)
    return len(asked)


def test_functions_that_any_call_may_reach_share_the_asking(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (calls_asked_about(script, count, monkeypatch) for count in (10, 40))
    assert few <= many <= 6 * few
