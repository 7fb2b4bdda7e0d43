"""Objects of classes that inherit from each other: whose method runs, and what its attributes hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchopt_cli.optimizer.analysis.program.syntax import Module
from torchopt_cli.optimizer.analysis.script import TrainingScript
from torchopt_cli.optimizer.analysis.values.resolver import Resolver

Ask = Callable[..., set[object]]
Script = Callable[..., TrainingScript]


@pytest.mark.parametrize(
    "call",
    [
        "super().__init__(loader)",
        "super(Trainer, self).__init__(loader)",
        "Base.__init__(self, loader)",
        "super().__init__(loader=loader)",
    ],
)
def test_what_the_constructor_of_a_base_is_given(ask: Ask, call: str) -> None:
    code = f"""
        class Base:
            def __init__(self, loader):
                self.loader = loader
                ASK(loader)
        class Trainer(Base):
            def __init__(self, loader):
                {call}
        Trainer(7)
    """
    assert ask(code) == {7}


def test_a_method_of_the_base_runs_the_one_of_a_subclass(script: Script) -> None:
    understood = script("""
        class Base:
            def run(self):
                self.step(1)
            def step(self, n):
                raise NotImplementedError
        class Middle(Base):
            pass
        class Trainer(Middle):
            def step(self, n):
                return n
        Trainer().run()
    """)
    assert _called(understood.resolver, understood.modules[0], "self.step(1)") == {10}


@pytest.mark.parametrize(
    ("body", "decorator", "is_left_out"),
    [
        ("raise NotImplementedError", "", True),
        ("raise NotImplementedError('step')", "", True),
        ("'''A docstring.'''\n                raise NotImplementedError", "", True),
        ("pass", "@abstractmethod", True),
        ("pass", "@abc.abstractmethod", True),
        ("pass", "@abc.abstractclassmethod", True),
        ("pass", "", False),
        ("raise ValueError", "", False),
        ("if n: raise NotImplementedError", "", False),
    ],
)
def test_methods_that_only_ask_for_one(
    script: Script, body: str, decorator: str, is_left_out: bool
) -> None:
    understood = script(f"""
        import abc
        from abc import abstractmethod
        class Base:
            def run(self):
                self.step(1)
            {decorator}
            def step(self, n):
                {body}
        class Trainer(Base):
            def step(self, n):
                return n
    """)
    module = understood.modules[0]
    found = _called(understood.resolver, module, "self.step(1)")
    assert len(found) == (1 if is_left_out else 2)


def test_an_abstract_method_without_another_is_what_runs(script: Script) -> None:
    understood = script("""
        class Base:
            def run(self):
                self.step(1)
            def step(self, n):
                raise NotImplementedError
        Base().run()
    """)
    assert _called(understood.resolver, understood.modules[0], "self.step(1)") == {5}


def test_an_object_of_a_known_class_runs_its_own_method(script: Script) -> None:
    understood = script("""
        class Base:
            def step(self, n):
                return 0
        class Trainer(Base):
            def step(self, n):
                return n
        Base().step(1)
        Trainer().step(2)
    """)
    module = understood.modules[0]
    assert _called(understood.resolver, module, "Base().step(1)") == {3}
    assert _called(understood.resolver, module, "Trainer().step(2)") == {6}


def test_super_is_the_method_of_the_base(script: Script) -> None:
    understood = script("""
        class Base:
            def step(self, n):
                return 0
        class Trainer(Base):
            def step(self, n):
                return super().step(1)
        class Other(Trainer):
            def step(self, n):
                return n
    """)
    assert _called(understood.resolver, understood.modules[0], "super().step(1)") == {3}


def test_attributes_that_the_base_keeps(ask: Ask) -> None:
    code = """
        class Base:
            def __init__(self, size):
                self.size = size
        class Trainer(Base):
            def run(self):
                ASK(self.size)
        Trainer(3).run()
    """
    assert ask(code) == {3}


def test_attributes_that_a_subclass_keeps(ask: Ask) -> None:
    code = """
        class Base:
            def run(self):
                ASK(self.size)
        class Small(Base):
            size = 1
        class Large(Base):
            def __init__(self):
                self.size = 9
    """
    assert ask(code) == {1, 9}


REGISTRY = """
    KINDS = {{}}
    def register(name):
        def keep(cls):
            KINDS[name] = cls
            return {given}
        return keep
    @register("small")
    class Small:
        pass
    @register("large")
    def make_large():
        pass
    ASK(KINDS[input()])
"""


def test_what_decorators_register(ask: Ask) -> None:
    assert ask(REGISTRY.format(given="cls")) == {"<Small>", "<make_large>"}


KEPT = """
    class Registry:
        def __init__(self):
            self._kinds = {{}}
        def register(self, name):
            def keep(cls):
                if name in self._kinds:
                    raise KeyError(name)
                self._kinds[name] = cls
                return cls
            return keep
        def build(self, name, *args, **kwargs):
            return self._kinds[name](*args, **kwargs)
    MODELS = Registry()
    @MODELS.register("small")
    class Small:
        pass
    @MODELS.register("large")
    class Large:
        pass
    {fill}
    ASK(MODELS.build(input(), width=3))
"""


def test_what_a_registry_of_the_projects_own_keeps(ask: Ask) -> None:
    assert ask(KEPT.format(fill="")) == {"Small()", "Large()"}


REGISTRIES = {
    "a dict that is made by a call": ("self._kinds = {}", "self._kinds = dict()"),
    "an ordered dict": ("self._kinds = {}", "import collections\n            self._kinds = collections.OrderedDict()"),
    "get": ("self._kinds[name](", "self._kinds.get(name)("),
    "get or None": (
        "return self._kinds[name](",
        "make = self._kinds.get(name, None)\n            if make is None:\n                raise KeyError(name)\n            return make(",
    ),
    "of the class": (
        "        def __init__(self):\n            self._kinds = {}",
        "        _kinds = {}",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), REGISTRIES.values(), ids=REGISTRIES)
def test_registries_in_other_forms(ask: Ask, old: str, new: str) -> None:
    code = KEPT.format(fill="")
    assert old in code
    assert ask(code.replace(old, new)) == {"Small()", "Large()"}


DECORATES = """
    class Registry:
        kinds = {}
        def _keep(self, kind):
            self.kinds[kind.__name__] = kind
        def register(self, kind):
            self._keep(kind)
            return kind
    MODELS = Registry()
    @MODELS.register
    class Small:
        pass
    @MODELS.register
    class Large:
        pass
    ASK(MODELS.kinds[input()])
"""


def test_a_method_that_decorates(ask: Ask) -> None:
    assert ask(DECORATES) == {"<Small>", "<Large>"}


def test_a_registry_that_a_folder_of_modules_fills(ask: Ask) -> None:
    files = {
        "train.py": "import importlib\nfrom kinds import KINDS\nfor name in names():\n"
        "    importlib.import_module('nets.' + name)\nASK(KINDS[input()])\n",
        "kinds.py": "KINDS = {}\ndef register(kind):\n    KINDS[kind.__name__] = kind\n    return kind\n",
        "nets/small.py": "from kinds import register\n@register\nclass Small:\n    pass\n",
        "nets/large.py": "from kinds import register\n@register\nclass Large:\n    pass\n",
    }
    assert ask(files) == {"<Small>", "<Large>"}


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("{'s': Small, 'l': Large}.get(input())()", {"Small()", "Large()"}),
        ("{'s': Small, 'l': Large}.get('l')()", {"Large()"}),
        ("{'s': Small}.get(input(), Large)()", {"Small()", "Large()"}),
        ("dict(s=Small, l=Large)[input()]()", {"Small()", "Large()"}),
        ("dict(s=Small, l=Large).get('s')()", {"Small()"}),
        ("dict(others(), l=Large)[input()]()", {"Display"}),
        ("{'s': 3, 'l': 4}.get('s')", {"Display"}),
    ],
)
def test_classes_that_are_got_from_a_table(ask: Ask, table: str, expected: set[object]) -> None:
    """Numbers are settings, which may have changed since."""
    classes = "class Small:\n    pass\nclass Large:\n    pass\n"
    assert ask(f"{classes}ASK({table})\n") == expected


@pytest.mark.parametrize(
    "fill",
    [
        "MODELS._kinds.update(others())",
        "MODELS._kinds['x'], other = load()",
        "importlib.import_module(f'models.{input()}')",
    ],
)
def test_a_registry_that_is_filled_in_another_way(ask: Ask, fill: str) -> None:
    assert ask(KEPT.format(fill=fill)).isdisjoint({"Small()", "Large()"})


def test_decorators_that_wrap_are_no_callers(ask: Ask) -> None:
    code = """
        def timed(function):
            def inner(*args, **kwargs):
                return function(*args, **kwargs)
            return inner
        @timed
        def train(loader):
            ASK(loader)
        train(5)
    """
    assert ask(code) == {5}


@pytest.mark.parametrize("decorator", ["", "@classmethod", "@staticmethod"])
def test_the_first_argument_of_a_method_called_on_the_class(ask: Ask, decorator: str) -> None:
    code = f"""
        class Maker:
            {decorator}
            def make(first, second):
                ASK(second)
        Maker.make(1, 2)
    """
    # The class itself is the first argument of a class method.
    assert ask(code) == ({1} if decorator == "@classmethod" else {2})


def test_what_a_class_method_makes(ask: Ask) -> None:
    """``cls`` is the class: calling it makes an object, whose attributes are known."""
    code = """
        class Maker:
            def __init__(self, size):
                self.size = size
            @classmethod
            def make(cls, size):
                return cls(size)
        ASK(Maker.make(3).size)
        Maker(4)
    """
    assert ask(code) == {3, 4}


def test_classes_that_derive_from_each_other_end(ask: Ask) -> None:
    code = """
        class A(B):
            def f(self):
                ASK(self.x)
        class B(A):
            def g(self):
                self.x = 1
    """
    assert ask(code) == {1}


@pytest.mark.parametrize(
    ("imports", "code", "expected"),
    [
        ("from torch import optim", "getattr(optim, 'Adam')", "torch.optim.Adam"),
        ("from torch import optim", "getattr(optim, name)", "torch.optim.<any>"),
        ("import torch", "getattr(torch.optim, f'{name}W')", "torch.optim.<any>"),
        ("from torchvision import models", "getattr(models, name)", "torchvision.models.<any>"),
        ("from torchvision import models", "models.__dict__[name]", "torchvision.models.<any>"),
        ("import torch", "getattr(torch, name)", "builtins.getattr()"),
        ("from torch import optim", "getattr(optim, name, None)", "builtins.getattr()"),
        ("import mine as optim", "getattr(optim, name)", "builtins.getattr()"),
    ],
)
def test_members_of_a_library_chosen_by_name(
    ask: Ask, imports: str, code: str, expected: str
) -> None:
    assert ask(f"import sys\n{imports}\nname = sys.argv[1]\nASK({code})") == {expected}


def _called(resolver: Resolver, module: Module, code: str) -> set[int]:
    """The lines of the functions that the call ``code`` may run."""
    calls = [call for call in module.calls if module.code(call) == code]
    assert len(calls) == 1
    return {function.node.lineno for function in resolver.callees(calls[0], module)}


def test_a_base_class_that_a_function_is_given(ask: Ask) -> None:
    assert ask(
        """
        import torch
        def make(base):
            class Net(base):
                def forward(self, x): return x
            return Net
        ASK(make(torch.nn.Module))
        """
    ) == {"<Net>"}
