"""no-grad in training steps: networks that run there and that nothing trains."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import dedent, indent

import pytest

from torchopt_cli.optimizer.pipeline.rewrite import RewriteResult

Check = Callable[..., None]

SCRIPT = """\
import copy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(48, 6), torch.randint(0, 3, (48,)))
loader = DataLoader(data, batch_size=8, shuffle=True)


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.body = nn.Linear(6, width)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


teacher, student = Net(8), Net()
{setup}
optimizer = {optimizer}
for epoch in range(2):
    for x, y in loader:
{step}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    {after}
"""
RUN = "t = teacher(x)"
LOSS = "s = student(x)\nloss = F.cross_entropy(s, y) + F.mse_loss(s, t)"


@pytest.fixture
def name() -> str:
    return "no-grad"


def script(
    run: str = RUN,
    loss: str = LOSS,
    setup: str = "teacher.eval()",
    optimizer: str = "torch.optim.SGD(student.parameters(), lr=0.1)",
    after: str = "print(epoch, loss.item())",
) -> str:
    step = indent(f"{dedent(run)}\n{loss}", " " * 8)
    return SCRIPT.format(step=step, setup=dedent(setup), optimizer=optimizer, after=after)


def under_no_grad(code: str) -> str:
    return "with torch.no_grad():\n" + indent(dedent(code), "    ")


@pytest.mark.parametrize(
    "run",
    [
        RUN,
        "t = F.softmax(teacher(x) / 2.0, dim=1)",
        "t = teacher(x.clamp(-1, 1)).detach() + 1",
        "h = teacher(x)\nt = teacher(x + 1) + h",
        "t = teacher(torch.randn(len(y), 6))",
        "t = teacher(torch.cat([x[:4], x[4:]]))",
    ],
)
def test_a_teacher(check_transformed: Check, run: str) -> None:
    check_transformed(script(run), script(under_no_grad(run)))


@pytest.mark.parametrize(
    "setup",
    [
        "teacher.load_state_dict(torch.load('teacher.pt'))",
        "print(sum(p.numel() for p in teacher.parameters()))",
        "teacher = nn.DataParallel(teacher)",
        "for p in student.parameters():\n    p.grad = None",
        "temperature = 3.0",
        "width = nn.Linear(teacher.head.in_features, 3)",
        "student.body.weight.data[:] = teacher.body.weight.detach()[:4]",
        "for layer in teacher.modules():\n    layer.eval()",
        "print(teacher.head.weight.norm(), torch.sum(teacher.head.weight))",
    ],
)
def test_what_does_not_matter(check_transformed: Check, setup: str) -> None:
    check_transformed(script(setup=setup), script(under_no_grad(RUN), setup=setup))


def test_a_constructor_that_names_its_class(check_transformed: Check) -> None:
    """``super(Net, self)`` hands the network to nobody."""
    before, after = script(), script(under_no_grad(RUN))
    check_transformed(*(code.replace("super()", "super(Net, self)") for code in (before, after)))


def test_a_moving_average(check_transformed: Check) -> None:
    after = """for p, q in zip(teacher.parameters(), student.parameters()):
        p.data.mul_(0.9).add_(q.data, alpha=0.1)"""
    check_transformed(script(after=after), script(under_no_grad(RUN), after=after))


def test_a_moving_average_over_lists(check_transformed: Check) -> None:
    after = """targets = [p.data for p in teacher.parameters()]
    torch._foreach_mul_(targets, 0.9)
    torch._foreach_add_(targets, [q.data for q in student.parameters()], alpha=0.1)"""
    check_transformed(script(after=after), script(under_no_grad(RUN), after=after))


def test_a_copy_of_the_trained_network(check_transformed: Check) -> None:
    setup = "teacher = copy.deepcopy(student)"
    after = """for p, q in zip(teacher.parameters(), student.parameters()):
        p.data.mul_(0.9).add_(q.data, alpha=0.1)"""
    check_transformed(
        script(setup=setup, after=after), script(under_no_grad(RUN), setup=setup, after=after)
    )


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (dict(setup="teacher = copy.copy(student)"), None),
        (
            dict(optimizer="torch.optim.SGD([*student.parameters(), *teacher.parameters()])"),
            None,
        ),
        (
            dict(optimizer="torch.optim.SGD([*student.parameters(), *teacher.head.parameters()])"),
            None,
        ),
        (
            dict(setup="teacher = copy.deepcopy(student)\nteacher.head = student.head"),
            "becomes a part",
        ),
        (
            dict(
                after="student = teacher\n"
                "    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)"
            ),
            None,
        ),
    ],
)
def test_a_copy_that_is_trained(
    check_noop: Check, parts: dict[str, str], reason: str | None
) -> None:
    parts = {"setup": "teacher = copy.deepcopy(student)", **parts}
    check_noop(script(**parts), reason)


def test_a_frozen_encoder(check_transformed: Check) -> None:
    """The trained network takes what the frozen one gives."""
    loss = "loss = F.cross_entropy(student(torch.cat([t, t], dim=1)), y)"
    check_transformed(script(loss=loss), script(under_no_grad(RUN), loss=loss))


def test_a_target_network_in_a_function(check_transformed: Check) -> None:
    source = """\
    import torch
    import torch.nn.functional as F
    from torch import nn


    class Memory:
        def __init__(self):
            self.rows = [(torch.randn(4).tolist(), 1.0) for _ in range(64)]

        def sample(self, n):
            states, rewards = [], []
            for state, reward in self.rows[:n]:
                states.append(state)
                rewards.append([reward])
            return torch.tensor(states), torch.tensor(rewards)


    def train(q, q_target, memory, optimizer):
        for _ in range(10):
            s, r = memory.sample(32)
            {0}
            loss = F.smooth_l1_loss(q(s).max(1)[0].unsqueeze(1), r + 0.9 * best)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


    q, q_target = nn.Linear(4, 2), nn.Linear(4, 2)
    optimizer = torch.optim.Adam(q.parameters())
    train(q, q_target, Memory(), optimizer)
    """
    run = "best = q_target(s).max(1)[0].unsqueeze(1)"
    after = f"with torch.no_grad():\n{' ' * 16}{run}"
    check_transformed(dedent(source).format(run), dedent(source.format(after)))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (
            dict(
                optimizer="torch.optim.SGD([*student.parameters(), *teacher.parameters()], lr=0.1)"
            ),
            None,
        ),
        (
            dict(
                optimizer="torch.optim.SGD([*student.parameters(), *teacher.head.parameters()], lr=0.1)"
            ),
            None,
        ),
        (dict(optimizer="find(student, teacher)"), None),
        (
            dict(
                setup="chosen = list(student.parameters())\nchosen += list(teacher.head.parameters())",
                optimizer="torch.optim.SGD(chosen, lr=0.1)",
            ),
            None,
        ),
        (
            dict(
                setup="chosen = [p for p in student.parameters()]\n"
                "for p in teacher.parameters():\n    chosen.append(p)",
                optimizer="torch.optim.SGD(chosen, lr=0.1)",
            ),
            None,
        ),
        (
            dict(
                setup="both = nn.ModuleList([student, teacher])",
                optimizer="torch.optim.SGD(student.parameters(), lr=0.1)",
            ),
            "",
        ),
        (dict(setup="find(list(teacher.parameters()))"), "its parameters go elsewhere"),
        (
            dict(setup="kept = []\nfor p in teacher.parameters():\n    kept.append(p)\nfind(kept)"),
            "its parameters are collected",
        ),
        (dict(setup="teacher.body = student.body"), "`student.body`, which becomes a part of it"),
        (
            dict(setup="teacher.head.weight = student.head.weight"),
            "`student.head.weight`, which becomes a part of it",
        ),
        (dict(setup="body = find(student)\nteacher.body = body"), "`body`, which becomes a part"),
        (
            dict(setup="teacher = nn.Sequential(student.body, nn.Tanh(), nn.Linear(4, 3))"),
            "made of another",
        ),
        (dict(setup="student.teacher = teacher"), "a part of another network"),
        (dict(setup="find(teacher)"), "`find` is given it"),
        (
            dict(setup="teacher.body.weight.register_hook(print)"),
            "`.register_hook` looks at gradients",
        ),
        (dict(after="print(teacher.body.weight.grad)"), "`.grad` looks at gradients"),
        (dict(setup="teacher.requires_grad_(False)"), None),
        (dict(setup="for p in teacher.parameters():\n    p.requires_grad = False"), None),
        (dict(run="t = teacher(student(x)[:, :1].expand(-1, 6))"), None),
        (dict(run="x.requires_grad_()\nt = teacher(x)"), None),
        (dict(run="z = torch.zeros(8, 6)\nz[0] = student(x).mean()\nt = teacher(z)"), None),
        (dict(run="z = []\nz.append(student(x))\nt = teacher(torch.cat([*z, *z], 1))"), None),
        (dict(run="t = teacher(x) + student(x)"), "in one statement with what may be trained"),
        (dict(run="with torch.no_grad():\n    t = teacher(x)"), None),
        (dict(run=f"{RUN}\nF.cross_entropy(t, y).backward()"), "a backward pass begins"),
    ],
)
def test_gradients_stay_on(check_noop: Check, parts: dict[str, str], reason: str | None) -> None:
    check_noop(script(**parts), *([reason] if reason else []))


@pytest.mark.parametrize(
    "setup",
    [
        "student.head = teacher.head",
        "student.head.bias = teacher.head.bias",
        "student = nn.Sequential(teacher.body, nn.Tanh(), nn.Linear(8, 3))",
        "student = nn.Sequential(*list(teacher.children())[:1], nn.Linear(8, 3))",
        "student.register_module('other', teacher.head)",
        "student.register_parameter('other', teacher.head.bias)",
        "for mine, theirs in zip(student.modules(), teacher.modules()):\n"
        "    if hasattr(mine, 'bias'):\n        mine.bias = theirs.bias",
        "shared = teacher.head",
        "student.head = dict(teacher.named_modules())['head']",
        "shared = nn.ParameterList([teacher.head.bias])",
    ],
)
def test_gradients_stay_on_where_a_part_of_it_may_be_trained(check_noop: Check, setup: str) -> None:
    check_noop(script(setup=setup), reason="a part of it, may be trained elsewhere")


def test_gradients_stay_on_where_its_code_uses_a_weight_of_the_whole_file(
    check_noop: Check,
) -> None:
    text = script().replace("\n\nclass Net", "weight = nn.Parameter(torch.ones(3))\n\n\nclass Net")
    text = text.replace("self.body(x)))", "self.body(x))) * weight")
    check_noop(text, reason="its code uses `weight`, which may be trained elsewhere")


def test_a_network_may_name_and_return_its_own_parts(check_transformed: Check) -> None:
    def with_methods(text: str) -> str:
        own = (
            "    def last(self):\n        head = self.head\n        return self.head\n\n\nteacher,"
        )
        return text.replace("\nteacher,", f"{own}", 1)

    check_transformed(with_methods(script()), with_methods(script(under_no_grad(RUN))))


def test_a_network_may_keep_what_it_is_made_by(check_transformed: Check) -> None:
    def with_settings(text: str) -> str:
        text = text.replace("width=4)", "width=4, layer=None)")
        settings = (
            "        layer = layer or nn.Linear\n        self.layer, self.width = layer, width\n"
            "        self.kind = layer\n        self.rows = width\n        self.body = "
        )
        return text.replace("        self.body = ", settings, 1)

    check_transformed(with_settings(script()), with_settings(script(under_no_grad(RUN))))


@pytest.mark.torch
def test_is_verified(check_verified: Check) -> None:
    check_verified(script())


def test_nothing_is_said_of_a_network_that_gradients_flow_through(
    rewrite: Callable[..., RewriteResult],
) -> None:
    """A criterion made of a teacher gets what is trained: that its gradients stay on is no wonder."""
    setup = """\
class Criterion(nn.Module):
    def __init__(self, teacher):
        super().__init__()
        self.teacher = teacher

    def forward(self, s, x):
        return F.mse_loss(s, self.teacher(x))


criterion = Criterion(teacher)
"""
    source = script(run="s = student(x)", loss="loss = criterion(s, x)", setup=setup)
    result = rewrite(source, ["no-grad"])
    assert not [skip for file in result.files for skip in file.skips]


@pytest.mark.parametrize(
    "run",
    [
        "right = (student(x).argmax(1) == y).sum()\nt = teacher(x)",
        "t = teacher(x)\nright = (student(x).argmax(1) == y).sum()",
    ],
)
def test_what_is_measured_beside_it_is_in_one_block_with_it(
    check_transformed: Check, run: str
) -> None:
    loss = f"{LOSS}\nprint(right)"
    block = f"with torch.no_grad():\n{indent(run, '    ')}"
    check_transformed(script(run, loss), script(block, loss))


@pytest.mark.parametrize(
    ("code", "message", "reason"),
    [
        (
            "t = teacher(x)\nright = (student(x).argmax(1) == y).sum()",
            "`teacher` and the forward pass run without gradients",
            "nothing reads a gradient that would pass through them",
        ),
        (
            "right = (student(x).argmax(1) == y).sum()\nt = teacher(x)",
            "the forward pass and `teacher` run without gradients",
            "nothing reads a gradient that would pass through them",
        ),
        (
            "t = teacher(x)\nu = other(x)\nright = u",
            "`teacher` and `other` run without gradients",
            "no optimizer has their parameters, nothing looks at their gradients, and what goes into them has none",
        ),
        (
            "t = teacher(x) + other(x)\nright = t",
            "`teacher` and `other` run without gradients",
            "no optimizer has their parameters, nothing looks at their gradients, and what goes into them has none",
        ),
        (
            "t = teacher(x)\nright = teacher(x)",
            "`teacher` runs without gradients",
            "no optimizer has its parameters, nothing looks at their gradients, and what goes into it has none",
        ),
    ],
)
def test_one_block_is_told_in_one_sentence(
    rewrite: Callable[..., RewriteResult], code: str, message: str, reason: str
) -> None:
    setup = "other = Net().eval()"
    result = rewrite(script(code, f"{LOSS}\nprint(right)", setup), ["no-grad"])
    (change,) = [change for file in result.files for change in file.changes]
    assert (change.message, change.reason) == (message, reason)


def test_blocks_with_something_in_between_stay_apart(check_transformed: Check) -> None:
    right, between = "right = (student(x).argmax(1) == y).sum()", "print(epoch)"
    blocks = [f"with torch.no_grad():\n    {code}" for code in (right, RUN)]
    loss = f"{LOSS}\nprint(right)"
    check_transformed(
        script(f"{right}\n{between}\n{RUN}", loss),
        script(f"{blocks[0]}\n{between}\n{blocks[1]}", loss),
    )
