"""Which networks are so small for their batches that the host is what a step waits for."""

from __future__ import annotations

import pytest

from torchopt_cli.optimizer.analysis.networks.small_layers import (
    MOST_PRODUCTS,
    SmallLayers,
    small_layers,
)

SCRIPT = """
    import torch
    from torch import nn
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

    BATCH, HIDDEN, LAYERS = 64, 128, 3

    class Net(nn.Module):
        def __init__(self, hidden):
            super().__init__()
            self.first = nn.Linear(16, hidden)
            self.norm = nn.BatchNorm1d(hidden)
            self.last = nn.Linear(hidden, 3)

        def forward(self, x):
            return self.last(torch.relu(self.norm(self.first(x))))

    data = TensorDataset(torch.randn(9000, 16), torch.randint(3, (9000,)))
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    model = Net(HIDDEN).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    criterion = nn.CrossEntropyLoss()
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
"""
FORWARD = "return self.last(torch.relu(self.norm(self.first(x))))"


def found(script, *changes: tuple[str, str]) -> SmallLayers | None:
    text = SCRIPT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    made = script(text)
    (step,) = made.step_code
    return small_layers(made.resolver, step)


def test_a_small_network(script):
    assert found(script) == SmallLayers(rows=64, weights=16 * 128, layers=2)


def test_the_bound_is_on_the_products_of_a_layer_for_a_batch(script):
    most = MOST_PRODUCTS // (64 * 16)
    assert found(script, ("HIDDEN, LAYERS = 64, 128", f"HIDDEN, LAYERS = 64, {most}"))
    assert not found(script, ("HIDDEN, LAYERS = 64, 128", f"HIDDEN, LAYERS = 64, {most + 1}"))
    assert not found(script, ("BATCH, HIDDEN, LAYERS = 64", "BATCH, HIDDEN, LAYERS = 64_000"))


@pytest.mark.parametrize(
    "changes",
    [
        # As many samples as an option says, which has no default.
        [("batch_size=BATCH", "batch_size=int(input())")],
        [("shuffle=True)", "shuffle=True, **options)")],
        [("nn.BatchNorm1d(hidden)", "self.layer(hidden)")],
        [("nn.Linear(16, hidden)", "nn.Linear(16, int(input()))")],
        [("nn.BatchNorm1d(hidden)", "nn.LSTM(hidden, hidden)")],
        [("nn.BatchNorm1d(hidden)", "nn.Conv1d(1, 1, 3)")],
        [("nn.BatchNorm1d(hidden)", "make_layer(hidden)")],
        [(FORWARD, "return self.last(torch.relu(self.first(x)) @ self.weight)")],
        [(FORWARD, "return self.last(self.first(x)[:, None])")],
        [(FORWARD, "return self.last(self.first(x.unsqueeze(1)))")],
        [(FORWARD, "return self.last(self.first(x.view(-1, 128)))")],
        [(FORWARD, "return self.last(torch.cdist(self.first(x), self.first(x)))")],
        [(FORWARD, "return self.last(nn.functional.conv1d(self.first(x), self.kernel))")],
        [("criterion(model(x), y)", "criterion(model(x.repeat(1000, 1)), y)")],
        [("import torch\n", "import torch\n    import timm\n"), (FORWARD, "return timm.layer(x)")],
    ],
)
def test_what_is_not_known_to_be_small(script, changes):
    assert found(script, *changes) is None


@pytest.mark.parametrize(
    "forward",
    [
        "return self.last(self.first(x.flatten(1)))",
        "return self.last(self.first(torch.flatten(x, 1)))",
        "return self.last(self.first(x.view(x.size(0), -1)))",
        "return self.last(self.first(x.reshape(x.shape[0], -1)))",
        "return self.last(self.first(x.view(-1, 16)))",
        "return self.last(self.first(x)).view(-1)",
        "return self.last(torch.cat([self.first(x)], dim=1)).squeeze(-1)",
    ],
)
def test_a_sample_stays_a_row(script, forward):
    assert found(script, (FORWARD, forward))


def test_layers_in_loops_are_counted(script):
    many = "nn.Sequential(*[nn.Linear(hidden, hidden) for _ in range(LAYERS)])"
    assert found(script, ("nn.BatchNorm1d(hidden)", many)) == SmallLayers(64, 128 * 128, 5)
    unknown = many.replace("range(LAYERS)", "names")
    assert found(script, ("nn.BatchNorm1d(hidden)", unknown)) == SmallLayers(64, 128 * 128, None)
    block = "Block(hidden)"
    made = """
    class Block(nn.Module):
        def __init__(self, hidden):
            super().__init__()
            self.inner = nn.Linear(hidden, hidden)

        def forward(self, x):
            return x + self.inner(x)

    class Net(nn.Module):"""
    changes = ("nn.BatchNorm1d(hidden)", block), ("\n    class Net(nn.Module):", made)
    assert found(script, *changes) == SmallLayers(64, 128 * 128, None)


def test_batches_of_a_sampler(script):
    sampled = "batch_size=None, sampler=BatchSampler(RandomSampler(data), BATCH, drop_last=False)"
    assert found(script, ("batch_size=BATCH, shuffle=True", sampled)) == SmallLayers(64, 2048, 2)
    own = "batch_sampler=make_sampler(data)"
    assert found(script, ("batch_size=BATCH, shuffle=True", own)) is None


def test_batches_that_are_cut_by_hand(script):
    loop = """for i in range(0, len(data), BATCH):
        x, y = data[i : i + BATCH]"""
    assert found(script, ("for x, y in loader:", loop)) == SmallLayers(64, 2048, 2)
    assert not found(script, ("for x, y in loader:", loop.replace("i + BATCH", "i + 4096")))
    assert not found(script, ("for x, y in loader:", loop.replace(", BATCH):", ", int(input())):")))


ACTING = """
    import random

    import gymnasium
    import torch
    from torch import nn

    env = gymnasium.make("CartPole-v1")
    states, actions = env.observation_space.shape[0], env.action_space.n
    model = nn.Sequential(nn.Linear(states, 128), nn.ReLU(), nn.Linear(128, actions)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    memory = []
    state, info = env.reset()
    for step in range(10_000):
        values = model(torch.tensor(state, device="cuda").unsqueeze(0))
        state, reward, ended, stopped, info = env.step(values.argmax().item())
        memory.append((torch.tensor(state), torch.tensor(reward)))
        states, rewards = map(torch.stack, zip(*random.sample(memory, 64)))
        loss = nn.functional.mse_loss(model(states.cuda()), rewards.cuda().unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def acting(script, *changes: tuple[str, str]) -> SmallLayers | None:
    text = ACTING
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    made = script(text)
    (step,) = made.step_code
    return small_layers(made.resolver, step)


def test_a_network_that_acts_in_an_environment(script):
    small = acting(script)
    assert small == SmallLayers(64, 512 * 128, 2, guessed=True)
    assert str(small) == (
        "its layers have 65,536 weights at most, for 64 rows a batch (guessed where its environment decides)"
    )


def test_what_the_script_tells_is_no_guess(script):
    told = acting(script, ("env.observation_space.shape[0], env.action_space.n", "4, 2"))
    assert told == SmallLayers(64, 4 * 128, 2)


def test_batches_of_unknown_size_are_whole_rollouts(script):
    unknown = "zip(*random.sample(memory, 64))", "zip(*memory)"
    assert acting(script, unknown, ("128", "64")) == SmallLayers(2048, 512 * 64, 2, guessed=True)
    assert acting(script, unknown, ("128", "256")) is None


def test_observations_that_are_repeated_may_be_many(script):
    assert acting(script, ("model(states.cuda())", "model(states.cuda().repeat(10, 1))")) is None


def test_without_an_environment_nothing_is_guessed(script):
    assert acting(script, ("env.step(", "env.act(")) is None
