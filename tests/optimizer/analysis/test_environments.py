"""What scripts act in, and how much they draw of what they keep."""

from __future__ import annotations

import pytest

from torchopt_cli.optimizer.analysis.precision.environments import drawn_rows, steps_environment

SCRIPT = """
    import random
    from collections import deque

    import gymnasium
    import numpy as np
    import torch
    from torch import nn

    BATCH = 32

    class Memory:
        def __init__(self):
            self.kept = deque(maxlen=10_000)

        def sample(self, count):
            return [torch.stack(part) for part in zip(*random.sample(self.kept, count))]

    env = gymnasium.make("CartPole-v1")
    memory = Memory()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    state, info = env.reset()
    for step in range(10_000):
        action = env.action_space.sample()
        after, reward, ended, stopped, info = env.step(action)
        memory.kept.append((torch.tensor(state), torch.tensor(reward)))
        state = after
        states, rewards = memory.sample(BATCH)
        loss = nn.functional.mse_loss(model(states).max(1)[0], rewards)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("line", "acts"),
    [
        ("after, reward, ended, stopped, info = env.step(action)", True),
        ("after, reward, ended, info = env.step(action)", True),
        ("after, reward, ended = env.step(action)[:3]; info = {}", False),
        ("after, reward, ended, stopped, info = env.peek(action)", False),
    ],
)
def test_what_acts_in_an_environment(script, line, acts):
    text = SCRIPT.replace("after, reward, ended, stopped, info = env.step(action)", line)
    assert steps_environment(script(text).resolver) is acts


OWN = """
    class Walk:
        def step(self, action):
            self.place += action
            {0}
            return self.place, {1}, self.place > 9

"""


@pytest.mark.parametrize(
    ("before", "reward", "acts"),
    [
        ("pass", "-0.1", True),
        ("noise = np.random.randn()", "noise", True),
        ("loss = model(self.place)", "torch.sum(loss)", False),
        ("loss = self.loss(action)\n            loss.backward()", "loss.item()", False),
    ],
)
def test_an_environment_of_the_script_may_tell_less(script, before, reward, acts):
    line = "after, reward, ended, stopped, info = env.step(action)"
    text = SCRIPT.replace(line, "after, reward, ended = env.step(action); info = {}")
    assert steps_environment(script(text).resolver) is False
    text = text.replace('gymnasium.make("CartPole-v1")', "Walk()")
    own = OWN.format(before, reward)
    text = text.replace("    env = Walk", f"{own.lstrip(chr(10))}    env = Walk")
    assert steps_environment(script(text).resolver) is acts


@pytest.mark.parametrize(
    ("drawn", "rows"),
    [
        ("random.sample(self.kept, count)", 32),
        ("random.choices(self.kept, k=count)", 32),
        ("[self.kept[i] for i in np.random.choice(len(self.kept), count, replace=False)]", 32),
        ("[self.kept[i] for i in np.random.randint(0, len(self.kept), size=(count,))]", 32),
        ("[self.kept[i] for i in torch.randint(0, len(self.kept), (2 * count,))]", 64),
    ],
)
def test_how_many_samples_are_drawn(script, drawn, rows):
    made = script(SCRIPT.replace("random.sample(self.kept, count)", drawn))
    (step,) = made.step_code
    assert drawn_rows(made.resolver, step) == rows


def test_what_a_librarys_memory_is_asked_for(script):
    text = SCRIPT.replace("memory = Memory()", "memory = replay.Memory()")
    made = script(text.replace("import gymnasium\n", "import gymnasium\n    import replay\n"))
    (step,) = made.step_code
    assert drawn_rows(made.resolver, step) == 32


def test_a_size_that_is_not_told(script):
    made = script(SCRIPT.replace("BATCH = 32", "BATCH = int(input())"))
    (step,) = made.step_code
    assert drawn_rows(made.resolver, step) is None
