"""`F.dropout` without `training=`."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.options import Tier
from torchopt_cli.optimizer.pipeline.result import RewriteResult

Check = Callable[..., None]

IMPORTS = """\
import torch
import torch.nn.functional as F
from torch import nn
"""


def network(forward: str, imports: str = IMPORTS, extra: str = "", name: str = "Net") -> str:
    """A network whose ``forward`` has the body ``forward``."""
    head = f"""

class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(784, 256)
        self.out = nn.Linear(256, 10)

    def forward(self, x):
"""
    return imports + head + indent(dedent(forward).lstrip("\n"), " " * 8) + indent(extra, "    ")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("F.dropout(x)", "F.dropout(x, training=self.training)"),
        ("F.dropout(x, 0.3)", "F.dropout(x, 0.3, training=self.training)"),
        ("F.dropout(x, p=0.3)", "F.dropout(x, p=0.3, training=self.training)"),
        ("F.dropout(x, inplace=True)", "F.dropout(x, inplace=True, training=self.training)"),
        ("F.dropout1d(x)", "F.dropout1d(x, training=self.training)"),
        ("F.dropout2d(x)", "F.dropout2d(x, training=self.training)"),
        ("F.dropout3d(x)", "F.dropout3d(x, training=self.training)"),
        ("nn.functional.dropout(x)", "nn.functional.dropout(x, training=self.training)"),
        (
            "torch.nn.functional.dropout(x)",
            "torch.nn.functional.dropout(x, training=self.training)",
        ),
    ],
)
def test_call_in_forward(check_transformed: Check, before: str, after: str) -> None:
    check_transformed(network(f"return {before}\n"), network(f"return {after}\n"))


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("from torch import nn\nfrom torch.nn.functional import dropout\n", "dropout(x"),
        ("from torch import nn\nfrom torch.nn.functional import dropout as drop\n", "drop(x"),
        ("from torch import nn\nfrom torch.nn import functional as fn\n", "fn.dropout(x"),
        ("import torch as th\nfrom torch import nn\n", "th.nn.functional.dropout(x"),
        ("from torch import nn\nfrom torch.nn.functional import *\n", "dropout(x"),
    ],
)
def test_aliases(check_transformed: Check, imports: str, call: str) -> None:
    check_transformed(
        network(f"return {call})\n", imports),
        network(f"return {call}, training=self.training)\n", imports),
    )


def test_several_calls_one_of_them_right(check_transformed: Check) -> None:
    before = """
        x = F.dropout(self.hidden(x), 0.2, training=self.training)
        x = F.dropout(
            x,
            p=0.5,
        )
        return self.out(x)
    """
    after = """
        x = F.dropout(self.hidden(x), 0.2, training=self.training)
        x = F.dropout(
            x,
            p=0.5,
            training=self.training,
        )
        return self.out(x)
    """
    check_transformed(network(before), network(after))


def test_condition_on_the_rate_decides_nothing(check_transformed: Check) -> None:
    before = "if self.p > 0:\n    x = F.dropout(x, self.p)\nreturn x\n"
    after = "if self.p > 0:\n    x = F.dropout(x, self.p, training=self.training)\nreturn x\n"
    check_transformed(network(before), network(after))


def test_helper_method_and_closure(check_transformed: Check) -> None:
    def code(argument: str) -> str:
        helper = (
            f"\ndef drop(this, x):\n    return F.dropout(x{argument.replace('self', 'this')})\n"
        )
        body = f"def run(h):\n    return F.dropout(h{argument})\n\nreturn self.drop(run(x))\n"
        return network(body, extra=helper)

    check_transformed(code(""), code(", training=self.training"))


def test_network_in_another_file(check_transformed: Check) -> None:
    main = "from model import Net\n\nprint(Net())\n"
    check_transformed(
        {"train.py": main, "model.py": network("return F.dropout(self.out(x))\n")},
        {
            "train.py": main,
            "model.py": network("return F.dropout(self.out(x), training=self.training)\n"),
        },
    )


def test_inherited_from_a_network_of_the_project(check_transformed: Check) -> None:
    def code(argument: str) -> str:
        return (
            network("return x\n")
            + f"\n\nclass Other(Net):\n    def forward(self, x):\n        return F.dropout(x{argument})\n"
        )

    check_transformed(code(""), code(", training=self.training"))


# What says so already


@pytest.mark.parametrize(
    "call",
    [
        "F.dropout(x, training=self.training)",
        "F.dropout(x, 0.5, self.training)",
        "F.dropout(x, training=True)",
        "F.dropout(x, 0.5, True)",
        "F.dropout(x, 0.5, False)",
        "F.alpha_dropout(x)",
        "F.feature_alpha_dropout(x)",
        "torch.dropout(x, 0.5, True)",
        "self.dropout(x)",
    ],
)
def test_leaves_alone_what_says_so(check_noop: Check, call: str) -> None:
    check_noop(network(f"return {call}\n"))


def test_hidden_arguments(check_noop: Check) -> None:
    check_noop(
        network("return F.dropout(x, **self.options)\n"), reason="may say `training` already"
    )
    check_noop(network("return F.dropout(*x)\n"), reason="may say `training` already")


# Where there is no network to ask


def test_function_outside_of_networks(check_noop: Check) -> None:
    check_noop(
        IMPORTS + "\n\ndef noisy(x):\n    return F.dropout(x, 0.1)\n",
        reason="no method of a network",
    )


def test_class_that_is_no_network(check_noop: Check) -> None:
    check_noop(
        IMPORTS + "\n\nclass Noise:\n    def forward(self, x):\n        return F.dropout(x, 0.1)\n",
        reason="no method of a network",
    )


def test_static_method(check_noop: Check) -> None:
    check_noop(
        network("return x\n", extra="\n@staticmethod\ndef drop(x):\n    return F.dropout(x)\n"),
        reason="no method of a network",
    )


def test_class_inside_a_method(check_noop: Check) -> None:
    inner = (
        "class Noise:\n    def run(me, x):\n        return F.dropout(x)\nreturn Noise().run(x)\n"
    )
    check_noop(network(inner), reason="no method of a network")


def test_rebound_self(check_noop: Check) -> None:
    check_noop(
        network("self = self.inner\nreturn F.dropout(x)\n"), reason="`self` is not the network"
    )
    check_noop(
        network("return (lambda self: F.dropout(self))(x)\n"), reason="`self` is not the network"
    )


def test_first_party_function_called_dropout(check_noop: Check) -> None:
    own = "from torch import nn\n\n\ndef dropout(x, p=0.5):\n    return x\n"
    check_noop(network("return dropout(x)\n", own))


def test_one_of_two_functions(check_noop: Check) -> None:
    imports = (
        IMPORTS
        + "\ndef identity(x):\n    return x\n\ndrop = F.dropout if torch.cuda.is_available() else identity\n"
    )
    check_noop(network("return drop(x)\n", imports), reason="may be another function too")


# Where the mode was asked already


@pytest.mark.parametrize(
    "body",
    [
        "if self.training:\n    x = F.dropout(x)\nreturn x\n",
        "if not self.training:\n    return x\nreturn F.dropout(x)\n",
        "p = 0.5 if self.training else 0.0\nreturn F.dropout(x, p)\n",
        "if self.is_training and self.p > 0:\n    x = F.dropout(x)\nreturn x\n",
        "if mode == 'train':\n    x = F.dropout(x)\nreturn x\n",
        "return F.dropout(x) if self.train_mode else x\n",
        "return F.dropout(x, self.p_train)\n",
        "if self.phase == 'test':\n    return x\nreturn F.dropout(x)\n",
    ],
)
def test_mode_was_asked(check_noop: Check, body: str) -> None:
    check_noop(network(body), reason="`training=` not added")


def test_helper_that_is_only_called_in_training(check_noop: Check) -> None:
    check_noop(
        network(
            "if self.training:\n    x = self.drop(x)\nreturn x\n",
            extra="\ndef drop(self, x):\n    return F.dropout(x)\n",
        ),
        reason="decides whether it runs",
    )


def test_training_step(check_noop: Check) -> None:
    check_noop(
        network("return x\n", extra="\ndef training_step(self, x):\n    return F.dropout(x)\n"),
        reason="`training_step`",
    )


@pytest.mark.parametrize(
    "definition", ["def train(self, mode=True, deep=False):", "def eval(self):"]
)
def test_own_mode(check_noop: Check, definition: str) -> None:
    check_noop(
        network("return F.dropout(x)\n", extra=f"\n{definition}\n    return self\n"),
        reason="itself",
    )


def test_own_training_property(check_noop: Check) -> None:
    own = "\n@property\ndef training(self):\n    return True\n"
    check_noop(network("return F.dropout(x)\n", extra=own), reason="defines `training` itself")


# Dropout that is wanted in evaluation


@pytest.mark.parametrize(
    "comment",
    [
        "# MC dropout: stays on at test time",
        "# Monte Carlo estimate of the uncertainty",
        "# after Gal's Bayesian approximation",
        "# dropout is always on",
    ],
)
def test_comment_says_it_is_wanted(check_noop: Check, comment: str) -> None:
    check_noop(network(f"{comment}\nreturn F.dropout(x)\n"), reason="may mean to keep dropout on")


def test_another_file_samples(check_noop: Check) -> None:
    main = "from model import Net\n\n\ndef mc_predict(model, x):\n    return [model(x) for _ in range(20)]\n\n\nNet()\n"
    check_noop(
        {"train.py": main, "model.py": network("return F.dropout(self.out(x))\n")},
        reason="line 4 of train.py",
    )


def test_generator(check_noop: Check) -> None:
    check_noop(network("return F.dropout(x)\n", name="UNetGenerator"), reason="source of noise")


def test_below_its_tier_it_only_tells(rewrite: Callable[..., RewriteResult]) -> None:
    text = network("return F.dropout(x)\n")
    result = rewrite(text, ["functional-dropout"], tier=Tier.NUMERIC)
    (file,) = result.files
    assert not file.changes
    (advice,) = file.advice
    assert "drops out in evaluation too" in advice.message


@pytest.mark.slow
@pytest.mark.torch
def test_training_stays_the_same(check_verified: Check) -> None:
    loop = """

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    loss = F.cross_entropy(model(torch.randn(4, 784)), torch.randint(10, (4,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
    check_verified(network("return self.out(F.dropout(F.relu(self.hidden(x))))\n") + loop)
