"""Values are traced through every way Python lets a name get one, and no further than is certain."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.analysis.script import TrainingScript

from .conftest import questions

Ask = Callable[..., set[object]]
LOADER = "torch.utils.data.DataLoader"


@pytest.mark.parametrize(
    ("imports", "spelled"),
    [
        ("import torch", "torch.utils.data.DataLoader"),
        ("import torch as th", "th.utils.data.DataLoader"),
        ("import torch.utils.data", "torch.utils.data.DataLoader"),
        ("import torch.utils.data as D", "D.DataLoader"),
        ("from torch.utils import data", "data.DataLoader"),
        ("from torch.utils.data import DataLoader", "DataLoader"),
        ("from torch.utils.data import DataLoader as DL", "DL"),
        ("from torch.utils.data.dataloader import DataLoader", "DataLoader"),
        ("from torch.utils.data import *", "DataLoader"),
        ("import torch\nLoader = torch.utils.data.DataLoader", "Loader"),
        ("from torch import utils\nlib = utils.data", "lib.DataLoader"),
        (
            "try:\n    from torch.utils.data import DataLoader\nexcept ImportError:\n    raise",
            "DataLoader",
        ),
        (
            "try:\n    import torch\nexcept ImportError:\n    torch = None",
            "torch.utils.data.DataLoader",
        ),
    ],
)
def test_every_import_form(ask: Ask, imports: str, spelled: str) -> None:
    assert ask(f"{imports}\nASK({spelled})") == {LOADER}


def test_a_progress_bar_of_a_star_import(ask: Ask) -> None:
    assert ask("from tqdm import *\nASK(tqdm)\nASK(len)") == {"tqdm.tqdm"}


def test_elements_of_comprehensions(ask: Ask) -> None:
    code = "import torch\nlayers = [torch.nn.Linear(2, 2) for _ in range(3)]\n"
    assert ask(code + "for layer in layers:\n    ASK(layer)") == {"torch.nn.Linear()"}
    assert ask(code + "[ASK(layer) for layer in layers]") == {"torch.nn.Linear()"}


def test_a_function_of_autograd_does_not_give_its_class(ask: Ask) -> None:
    code = "import torch\nclass AllReduce(torch.autograd.Function): ...\n"
    assert "AllReduce" in str(ask(code + "ASK(AllReduce)"))
    assert "AllReduce" not in str(ask(code + "loss = AllReduce.apply(loss)\nASK(loss)"))


def test_a_rebound_name_is_not_the_import(ask: Ask) -> None:
    assert ask("from torch.optim import Adam\nAdam = 3\nASK(Adam)") == {3}


def test_modules_that_import_a_name_from_each_other(ask: Ask) -> None:
    files = {
        "train.py": "from mine import Loader\nfrom theirs import other\nASK(Loader, other)",
        "mine.py": "from theirs import Loader\nfrom mine import Loader as again",
        "theirs.py": "from mine import Loader, again\nfrom theirs import other",
    }
    assert ask(files) == {"Unknown"}


def test_a_later_star_import_shadows(ask: Ask) -> None:
    files = {
        "train.py": """
            from torch.optim.lr_scheduler import LambdaLR
            from mine import *
            ASK(LambdaLR)
        """,
        "mine.py": "class LambdaLR: pass",
    }
    assert ask(files) == {"<LambdaLR>"}


def test_an_earlier_star_import_does_not_shadow(ask: Ask) -> None:
    files = {
        "train.py": """
            from mine import *
            from torch.optim.lr_scheduler import LambdaLR
            ASK(LambdaLR)
        """,
        "mine.py": "class LambdaLR: pass",
    }
    assert ask(files) == {"torch.optim.lr_scheduler.LambdaLR"}


def test_straight_line_reassignment_takes_the_last(ask: Ask) -> None:
    assert ask("x = 1\nx = 2\nASK(x)\nx = 3") == {2}


def test_a_branch_adds_a_possibility(ask: Ask) -> None:
    assert ask("x = 1\nif flag:\n    x = 2\nASK(x)") == {1, 2}


def test_both_branches_replace(ask: Ask) -> None:
    assert {2, 3} <= ask("x = 1\nif flag:\n    x = 2\nelse:\n    x = 3\nASK(x)")


def test_a_loop_carries_back(ask: Ask) -> None:
    assert ask("x = 1\nfor i in r:\n    ASK(x)\n    x = 2") == {1, 2}


def test_a_function_sees_the_last_global(ask: Ask) -> None:
    source = "x = 1\nx = 2\ndef f():\n    ASK(x)\nf()"
    assert ask(source) == {2}


def test_a_global_statement_binds_the_module_name(ask: Ask) -> None:
    source = "x = 1\ndef f():\n    global x\n    x = 2\nf()\nASK(x)"
    assert 2 in ask(source)


def test_parameters_are_what_calls_pass(ask: Ask) -> None:
    source = """
        def f(a, b=5, *, c=6):
            ASK(b)
        f(1)
        f(1, 2)
        f(1, b=3)
    """
    assert ask(source) == {5, 2, 3}


def test_a_parameter_nobody_passes_is_unknown(ask: Ask) -> None:
    assert ask("def f(a):\n    ASK(a)") == {"Unknown"}


def test_a_parameter_hidden_by_star_arguments_is_unknown(ask: Ask) -> None:
    assert ask("def f(a):\n    ASK(a)\nf(*args)") == {"Unknown"}


def test_methods_take_self_from_the_instance(ask: Ask) -> None:
    source = """
        class Trainer:
            def __init__(self, model):
                self.model = model
            def fit(self):
                ASK(self.model)
        Trainer(7).fit()
    """
    assert ask(source) == {7}


def test_inherited_attributes(ask: Ask) -> None:
    source = """
        class Base:
            def __init__(self):
                self.size = 9
        class Child(Base):
            def run(self):
                ASK(self.size)
    """
    assert ask(source) == {9}


def test_returns_unpack(ask: Ask) -> None:
    source = """
        def make():
            first, second = 1, 2
            return first, (second, 3)
        a, (b, c) = make()
        ASK(b)
    """
    assert ask(source) == {2}


def test_dict_of_loaders_by_key(ask: Ask) -> None:
    source = """
        from torch.utils.data import DataLoader
        loaders = {phase: DataLoader(sets[phase]) for phase in ["train", "val"]}
        ASK(loaders["train"])
    """
    assert ask(source) == {f"{LOADER}()"}


@pytest.mark.parametrize(
    ("filled", "expected"),
    [
        ("for k in ['a', 'b']:\n    found[k] = 1", {1}),
        ("found['a'] = 1\nfound['b'] = 2", {1}),
        ("found['b'] = 2", {"Element"}),
        ("found['a'] = 1\nif x:\n    found['a'] = 2", {1, 2}),
        ("found['a'] = 1\nfound[k] = 2", {1, 2}),
        ("found['a'] = 1\nfound.update(more)", {"Element"}),
        ("found['a'] = 1\nfound['a'] += 1", {"Element"}),
    ],
)
def test_what_is_put_into_an_empty_dict(ask: Ask, filled: str, expected: set[object]) -> None:
    made = f"found = {{}}\n{filled}\nreturn found"
    function = "def make():\n" + "".join(f"    {line}\n" for line in made.splitlines())
    assert ask(f"{function}ASK(make()['a'])") == expected


@pytest.mark.parametrize("library", ["argparse", "configargparse"])
def test_options_carry_their_parser(script: Callable[..., object], ask: Ask, library: str) -> None:
    source = f"""
        import {library}
        parser = {library}.ArgumentParser()
        parser.add_argument("-j", "--num-workers", type=int, default=0)
        args = parser.parse_args()
        ASK(args.num_workers)
    """
    assert ask(source) == {"Option"}


def test_moving_an_object_keeps_its_identity(ask: Ask) -> None:
    source = """
        from torch import nn
        model = nn.Linear(2, 2)
        model = model.to(device)
        ASK(model.train())
    """
    assert ask(source) == {"torch.nn.Linear()"}


def test_calls_of_library_objects_are_named_by_their_class(ask: Ask) -> None:
    source = """
        import torch
        scaler = torch.cuda.amp.GradScaler()
        ASK(scaler.scale(loss))
    """
    assert ask(source) == {"torch.cuda.amp.GradScaler.scale()"}


def test_a_wrapper_that_wraps_itself_ends(ask: Ask) -> None:
    source = """
        import torch
        class T:
            def __init__(self, model):
                self.model = model
                self.model = torch.nn.DataParallel(self.model)
                ASK(self.model)
        T(torch.nn.Linear(1, 1))
    """
    assert "torch.nn.parallel.DataParallel()" in ask(source)


def test_mutual_recursion_ends(ask: Ask) -> None:
    source = """
        def even(n):
            return odd(n)
        def odd(n):
            return even(n) if n else 1
        ASK(even(4))
    """
    assert ask(source) == {1}


def test_values_do_not_depend_on_the_order_of_questions(ask: Ask) -> None:
    source = """
        def even(n):
            ASK(odd(n))
            return odd(n)
        def odd(n):
            ASK(even(n))
            return even(n) if n else 1
    """

    assert ask(source) == {1}
    assert ask(source.replace("ASK(odd(n))", "")) == {1}


def test_modules_of_a_package_and_relative_imports(ask: Ask) -> None:
    files = {
        "train.py": "from net.parts import block\nASK(block)",
        "net/__init__.py": "",
        "net/parts.py": "from .deep import layer as block",
        "net/deep.py": "layer = 4",
    }
    assert ask(files) == {4}


def test_a_namespace_folder_without_init(ask: Ask) -> None:
    files = {"train.py": "from tools import size\nASK(size.N)", "tools/size.py": "N = 8"}
    assert ask(files) == {8}


def test_settings_that_exec_may_override_are_not_taken_at_their_word(ask: Ask) -> None:
    source = "workers = 0\nexec(open('configurator.py').read())\nASK(workers)"
    assert ask(source) == {0, "Unknown"}


def test_reading_globals_overrides_nothing(ask: Ask) -> None:
    assert ask("workers = 0\nname = globals()['__name__']\nASK(workers)") == {0}


def test_elements_behind_zip_enumerate_and_reversed(ask: Ask) -> None:
    assert ask("for a, (b, c) in zip([1], reversed([(2, 3)])):\n    ASK(c)") == {3}
    assert ask("for a, b in zip(first, [4]):\n    ASK(b)") == {4}
    assert ask("for i, (a, b) in enumerate([(2, 3)], start=1):\n    ASK(b)") == {3}
    assert ask("for i, a in enumerate(zip([1], [2])):\n    ASK(i)") == {"Element"}
    assert ask("for pair in enumerate([2]):\n    ASK(pair)") == {"Element"}


@pytest.mark.parametrize(
    "wrapped",
    [
        "list(made)",
        "sorted(made, key=len)",
        "random.sample(made, k=2)",
        "np.random.choice(made, 2)",
        "tqdm(made)",
        "tqdm(list(made), desc='all')",
    ],
)
def test_elements_behind_what_only_orders_them(ask: Ask, wrapped: str) -> None:
    imports = "import random\nimport numpy as np\nfrom tqdm import tqdm\n"
    assert ask(f"{imports}made = [1, 2]\nfor each in {wrapped}:\n    ASK(each)") == {1, 2}
    assert ask(f"{imports}made = open('x')\nfor each in {wrapped}:\n    ASK(each)") == {"Element"}


def test_elements_that_are_appended(ask: Ask) -> None:
    filled = "made = [1]\nfor i in range(3):\n    made.append(2)\nmade.insert(0, 3)\n"
    assert ask(f"{filled}for each in made:\n    ASK(each)") == {1, 2, 3}
    assert ask(f"{filled}for i, each in enumerate(made):\n    ASK(each)") == {1, 2, 3}
    assert ask(f"{filled}ASK(made[i])") == {1, 2, 3}
    on_self = """\
        class Server:
            def __init__(self):
                self.clients = []
                self.clients.append(7)
            def run(self):
                for client in self.clients:
                    ASK(client)
    """
    assert ask(dedent(on_self)) == {7}


def test_elements_of_lists_that_others_are_added_to(ask: Ask) -> None:
    filled = "made = []\nmade.append(1)\nmade.extend(more())\n"
    assert ask(f"{filled}for each in made:\n    ASK(each)") == {1, "Element"}
    assert "Element" in ask(f"{filled}made += more()\nfor each in made:\n    ASK(each)")


def test_what_may_be_more_than_can_be_told_is_unknown(ask: Ask) -> None:
    doubled = "".join(
        f"m{n + 1} = m{n}.a if flag{n} else m{n}.b\n" for n in range(40)
    )  # 2**40 in the end
    assert ask(f"import lib\nm0 = lib.make()\n{doubled}ASK(m40)") == {"Unknown"}


@pytest.mark.parametrize(
    ("code", "known"),
    [
        ("if size is None:\n    size = 8\nASK(size)", {8}),
        ("if not size:\n    size = 8\nASK(size)", {8}),
        (
            "if size is None:\n    if deep:\n        size = 8\n    else:\n        size = 4\nASK(size)",
            {8, 4},
        ),
        ("if size is None:\n    size = 8\nelif deep:\n    size = 4\nASK(size)", {8, 4}),
        ("if size is None:\n    size = 8\nif deep:\n    size = None\nASK(size)", {8, None}),
        ("if size is None:\n    if deep:\n        size = 8\nASK(size)", {8, None}),
        ("if deep:\n    if size is None:\n        size = 8\nASK(size)", {8, None}),
        ("for _ in deep:\n    ASK(size)\n    if size is None:\n        size = 8", {8, None}),
        ("if deep is None:\n    size = 8\nASK(size)", {8, None}),
    ],
)
def test_none_that_is_replaced_before_the_use(ask: Ask, code: str, known: set[object]) -> None:
    body = indent(code, "    ")
    assert ask(f"def build(deep, size=None):\n{body}\n\nbuild(input())") == known


def test_names_are_gone_through_in_one_order(script: Callable[..., TrainingScript]) -> None:
    source = "from torch import nn\n"
    source += "layer = nn.RNN if a else nn.GRU if b else nn.LSTM if c else nn.Linear\nASK(layer)\n"
    understood = script(source)
    ((question, module),) = questions(understood)
    names = understood.resolver.names(question, module)
    assert [*names] == [f"torch.nn.{last}" for last in ("GRU", "LSTM", "Linear", "RNN")]


PARSERS = """
    import argparse
    def train(args):
        ASK(args.epochs)
    def test(args): ...
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    commands = parser.add_subparsers()
    training = commands.add_parser("train")
    training.set_defaults(func=train)
    commands.add_parser("test").set_defaults(func=test, mode="test")
    args = parser.parse_args()
    args.func(args)
"""


def test_a_command_is_any_function_that_parsers_set(ask: Ask) -> None:
    assert ask(PARSERS) == {"Option"}
    assert ask(PARSERS.replace("ASK(args.epochs)", "ASK(args.func)")) == {"<train>", "<test>"}


@pytest.mark.parametrize(
    "more", ["args.func = find(args)", "parser.set_defaults(func=find(parser))"]
)
def test_a_command_that_is_set_in_another_way_is_not_known(ask: Ask, more: str) -> None:
    code = PARSERS.replace("ASK(args.epochs)", "ASK(args.func)")
    code = code.replace("    args.func(args)", f"    {more}\n    args.func(args)")
    assert ask(code) == {"<train>", "<test>", "Attribute"}


def test_what_parsers_set_beside_functions_is_an_attribute(ask: Ask) -> None:
    assert ask(PARSERS.replace("args.epochs)", "args.mode)")) == {"Attribute"}


def test_a_function_may_be_the_value_of_an_option(ask: Ask) -> None:
    code = PARSERS.replace("ASK(args.epochs)", "ASK(args.func)").replace('"--epochs"', '"--func"')
    assert ask(code) == {"<train>", "<test>", "Option"}
