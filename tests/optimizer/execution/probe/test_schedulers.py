"""Steps of learning-rate schedulers are noted as the script makes them, and the schedulers are left as they were."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch.optim import lr_scheduler  # noqa: E402

from torchopt_cli.optimizer.execution.observations import Scheduler  # noqa: E402

pytestmark = pytest.mark.torch


class OwnSteps(lr_scheduler.LRScheduler):
    """A scheduler of the user's with a ``step`` of its own."""

    def step(self, epoch=None):
        super().step(epoch)

    def get_lr(self):
        return [0.1 for _ in self.optimizer.param_groups]


def sequential(optimizer):
    parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.SequentialLR(optimizer, parts, [2])


def plateau(optimizer):
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer)
    step = scheduler.step
    scheduler.step = lambda: step(1.0)
    return scheduler


KINDS = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 2),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, 20),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "ReduceLROnPlateau": plateau,
    "OwnSteps": OwnSteps,
    "SequentialLR": sequential,
}


@pytest.mark.parametrize("name", KINDS)
def test_a_step_is_noted_once_with_the_rounds_before_it(recorded, name):
    states = []

    def script():
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        scheduler = KINDS[name](optimizer)
        for step in range(6):
            optimizer.step()
            if step % 3 == 2:
                scheduler.step()
        states.append({key: repr(value) for key, value in scheduler.state_dict().items()})

    run = recorded(script)
    stepped = [
        replace(scheduler, changes=(), settings={})
        for scheduler in run.schedulers
        if scheduler.steps
    ]
    assert stepped == [Scheduler(name, (3, 6))]
    script()
    seen, bare = ([k for k in state if k != "_schedulers"] for state in states)
    assert seen == bare


@pytest.mark.parametrize("name", ["StepLR", "LambdaLR", "CosineAnnealingWarmRestarts"])
def test_a_step_to_the_epoch_it_is_at_is_none(recorded, name):
    def script():
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        scheduler = KINDS[name](optimizer)
        for step in range(6):
            scheduler.step(step // 2)
            optimizer.step()

    (scheduler,) = recorded(script).schedulers
    assert scheduler.steps == (2, 4)


def test_schedulers_are_put_back(recorded):
    before = {name: vars(kind) for name, kind in vars(lr_scheduler).items() if type(kind) is type}
    steps = {name: members.get("step") for name, members in before.items()}
    recorded(lambda: KINDS["StepLR"](torch.optim.SGD([torch.zeros(1)], lr=0.1)))
    for name, step in steps.items():
        assert vars(getattr(lr_scheduler, name)).get("step") is step


def test_what_a_plateau_is_looked_for_in_is_kept(recorded):
    def script():
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer)
        for metrics in (torch.tensor(2.5), 1.25):
            weight.sum().backward()
            optimizer.step()
            scheduler.step(metrics)

    run = recorded(script)
    (text,) = run.told
    assert text.path == "<ReduceLROnPlateau>"
    assert (run.folder / text.kept_as).read_text() == "metric: 2.5\nmetric: 1.25\n"


def test_steps_that_change_a_rate_are_noted_by_themselves(recorded):
    def script():
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        scheduler = lr_scheduler.StepLR(optimizer, 2)
        for _ in range(5):
            optimizer.step()
            scheduler.step()

    (scheduler,) = recorded(script).schedulers
    assert (scheduler.steps, scheduler.changes) == ((1, 2, 3, 4, 5), (2, 4))


@pytest.mark.parametrize(
    ("build", "settings"),
    [
        (lambda o: lr_scheduler.StepLR(o, 2.0), {"step_size": "2", "gamma": "0.1"}),
        (lambda o: lr_scheduler.MultiStepLR(o, [4, 2]), {"milestones": "(2, 1), (4, 1)"}),
        (
            lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=4, min_lr=1e-3),
            {"patience": "4", "min_lrs": "0.001", "mode": "'min'"},
        ),
        (OwnSteps, {}),
    ],
)
def test_settings_are_noted_whether_or_not_it_is_stepped(recorded, build, settings):
    def script(steps):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        scheduler = build(optimizer)
        for _ in range(steps):
            optimizer.step()
            scheduler.step(*([1.0] if hasattr(scheduler, "patience") else []))

    for steps in (0, 3):
        (scheduler,) = recorded(lambda n=steps: script(n)).schedulers
        assert settings.items() <= scheduler.settings.items()
        assert not {"best", "last_epoch", "base_lrs", "optimizer"} & scheduler.settings.keys()
