"""What a run starts from, and which of the modules it evaluates never change."""

from __future__ import annotations

import copy
from copy import deepcopy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

pytestmark = pytest.mark.torch


class Following(nn.Module):
    """Moves its second layer, which no gradient reaches, whenever it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.quick = nn.Linear(3, 2)
        self.slow = copy.deepcopy(self.quick).requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            for slow, quick in zip(self.slow.parameters(), self.quick.parameters(), strict=True):
                slow.lerp_(quick + 1, 0.5)
        return self.quick(x) - self.slow(x)


def train(model: nn.Module, steps: int = 2) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().sum().backward()
        optimizer.step()


def test_the_start_is_what_the_first_call_finds(recorded):
    start = {}

    def script():
        model = Following()
        start.update({name: value.clone() for name, value in model.state_dict().items()})
        train(model)

    run = recorded(script)
    kept = run.tensors(run.snapshot(0))
    for name, value in start.items():
        assert (kept[f"Following.{name}"] == value.numpy()).all()
    later = run.tensors(run.snapshot(1))
    assert (later["Following.slow.weight"] != kept["Following.slow.weight"]).any()


class Normalized(nn.Linear):
    """Scales what it is given as its first batch wants it."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.scale = nn.Parameter(torch.zeros(3))
        self.register_buffer("ready", torch.tensor(False))

    def forward(self, x):
        if self.training and not self.ready:
            with torch.no_grad():
                self.scale.copy_(1 / x.std(0))
                self.ready.fill_(True)
        return super().forward(x * self.scale)

    def loss(self, x):
        return self(x).square().mean()


def of_a_method(model):
    return torch.compile(model.loss, backend="eager")


def of_a_variable(model):
    return torch.compile(lambda x: model(x).square().mean(), backend="eager")


def of_an_argument(model):
    @torch.compile(backend="eager")
    def loss(model, x):
        return model(x).square().mean()

    return lambda x: loss(model, x)


@pytest.mark.parametrize("compiled", [of_a_method, of_a_variable, of_an_argument])
def test_the_start_is_what_a_compiled_function_finds(recorded, compiled):
    def script():
        model = Normalized()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = compiled(model)
        for _ in range(2):
            optimizer.zero_grad()
            loss(torch.arange(12.0).view(4, 3)).backward()
            optimizer.step()

    run = recorded(script)
    assert not run.unobserved
    assert (run.tensors(run.snapshot(0))["Normalized.scale"] == 0).all()
    assert (run.tensors(run.snapshot(1))["Normalized.scale"] != 0).all()


def test_what_is_loaded_after_an_evaluation_is_the_start(recorded):
    def script():
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.eval()
        model(torch.ones(1, 3))
        with torch.no_grad():
            model.weight.fill_(4.0)
        model.train()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    run = recorded(script)
    assert (run.tensors(run.snapshot(0))["Linear.weight"] == 4.0).all()


def test_parameters_without_a_shape_yet_are_taken_at_the_first_step(recorded):
    run = recorded(lambda: train(nn.Sequential(nn.LazyLinear(2), nn.Linear(2, 1))))
    assert not run.unobserved
    assert set(run.snapshot(0).hashes) == {
        f"Sequential.{n}" for n in ("0.weight", "0.bias", "1.weight", "1.bias")
    }


def evaluations(run) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = {}
    for call in run.eval_calls:
        found.setdefault(call.module, []).append(call.constant)
    return found


def test_a_teacher_never_changes_and_an_average_does(recorded):
    class Teacher(nn.Linear):
        pass

    class Average(nn.Linear):
        pass

    class Student(nn.Linear):
        pass

    def script():
        teacher, student, average = Teacher(3, 1).eval(), Student(3, 1), Average(3, 1).eval()
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        x = torch.ones(4, 3)
        for _ in range(3):
            student.train()
            optimizer.zero_grad()
            (student(x) - teacher(x)).square().sum().backward()
            optimizer.step()
            average.weight.data.mul_(0.5).add_(student.weight.data, alpha=0.5)
            average(x)
            student.eval()
            student(x)

    run = recorded(script)
    assert evaluations(run) == {
        "Teacher": [True] * 3,
        "Average": [False] * 3,
        "Student": [False] * 3,
    }


def test_networks_of_one_class_are_told_apart_by_their_weights(recorded):
    def script():
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        first = deepcopy(model).eval()
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            first(torch.ones(1, 3))
            deepcopy(model).eval()(torch.ones(1, 3))

    calls = recorded(script).eval_calls
    assert all(call.constant for call in calls)
    start, after_one, again, after_two = (call.weights for call in calls)
    assert start == again
    assert len({start, after_one, after_two}) == 3


def test_lines_are_told_by_the_step_they_come_before(tmp_path):
    from torchopt_cli.optimizer.execution.probe.patches import Patches
    from torchopt_cli.optimizer.execution.probe.printed import PrintedLines

    begun = [0]
    lines, patches = PrintedLines(lambda: begun[0]), Patches()
    lines.install(patches)
    try:
        print("a title\nof two lines")
        begun[0] = 2
        print("after", 2, "steps")
    finally:
        patches.undo()
    print("not counted")
    assert lines.finish() == {"printed": [(0, 2), (2, 3)]}
