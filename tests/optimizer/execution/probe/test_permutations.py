"""A script that shuffles by itself is given the orders of a loader."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler  # noqa: E402

from torchopt_cli.optimizer.execution.shuffled_passes import shuffled_passes  # noqa: E402

pytestmark = pytest.mark.torch

DATA = range(6)
EPOCHS = 3


def orders(recorded, epoch, seeding=lambda: None):
    """In which order each epoch goes through the data; ``epoch`` gives its batches."""
    found: list[list[int]] = []

    def train():
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(EPOCHS):
            seeding()
            found.append([])
            for batch in epoch():
                optimizer.zero_grad()
                model(torch.ones(len(batch), 1)).sum().backward()
                optimizer.step()
                found[-1] += [int(index) for index in batch]

    recorded(train)
    return found


def test_the_order_is_that_of_a_loader_pass(recorded):
    loader = DataLoader(DATA, batch_size=2, shuffle=True)
    passes = orders(recorded, lambda: loader)
    assert len({tuple(one) for one in passes}) == EPOCHS
    assert orders(recorded, lambda: torch.randperm(len(DATA)).split(2)) == passes


def by_numpy(indices):
    np.random.shuffle(indices)


def by_python(indices):
    random.shuffle(indices)


def shuffled_anew(shuffle):
    """The epochs' batches by a list of indices that is made and shuffled for each."""

    def epoch():
        indices = list(DATA)
        shuffle(indices)
        return torch.tensor(indices).split(2)

    return epoch


def shuffled_on(shuffle, indices):
    """By ``indices`` that are shuffled on and on."""

    def epoch():
        shuffle(indices)
        return torch.tensor(indices).split(2)

    return epoch


@pytest.mark.parametrize(
    "make",
    [
        lambda: lambda: torch.tensor(np.random.permutation(len(DATA))).split(2),
        lambda: lambda: torch.tensor(np.random.permutation(np.arange(len(DATA)))).split(2),
        lambda: lambda: torch.tensor(np.random.permutation(list(DATA))).split(2),
        lambda: shuffled_anew(by_numpy),
        lambda: shuffled_anew(by_python),
        lambda: shuffled_on(by_numpy, np.arange(len(DATA))),
        lambda: shuffled_on(by_numpy, list(DATA)),
        lambda: shuffled_on(by_python, list(DATA)),
    ],
)
def test_so_is_that_of_numpy_and_python(recorded, make):
    loader = DataLoader(DATA, batch_size=2, shuffle=True)
    assert orders(recorded, make()) == orders(recorded, lambda: loader)


@pytest.mark.parametrize(
    ("draw", "seed"),
    [
        (lambda: np.random.permutation(len(DATA)).tolist(), lambda n: np.random.seed(n)),
        (lambda: shuffled_anew(by_numpy)()[0].tolist(), lambda n: np.random.seed(n)),
        (lambda: shuffled_anew(by_python)()[0].tolist(), lambda n: random.seed(n)),
    ],
)
def test_an_order_that_their_seeding_repeats_is_seen_to(recorded, draw, seed):
    same = orders(recorded, lambda: [draw()], lambda: seed(7))
    assert same[1] == same[2]
    number = iter(range(100))
    other = orders(recorded, lambda: [draw()], lambda: seed(next(number)))
    assert other[1] != other[2]


def test_what_numpy_splits_the_data_by_is_no_epoch_of_another_s(recorded):
    np.random.permutation(len(DATA))
    loader = DataLoader(DATA, batch_size=2, shuffle=True)

    def own():
        np.random.permutation(len(DATA))
        return torch.randperm(len(DATA)).split(2)

    assert orders(recorded, own) == orders(recorded, lambda: loader)


def test_what_was_changed_since_is_shuffled_as_it_is(recorded):
    indices = list(DATA)

    def epoch():
        random.shuffle(indices)
        indices[:] = [10 * index for index in indices]
        return [indices]

    found = orders(recorded, epoch)
    assert [sorted(one) for one in found] == [[n * 10**k for n in DATA] for k in (1, 2, 3)]


def test_rows_and_other_things_are_shuffled_as_ever(recorded):
    rows = np.arange(12).reshape(6, 2)
    permuted: list[object] = []

    def epoch():
        np.random.shuffle(rows)
        permuted.append(np.random.permutation(rows).shape)
        return [rows[:, 0]]

    found = orders(recorded, epoch)
    assert all(sorted(one) == [0, 2, 4, 6, 8, 10] for one in found)
    assert permuted == [(6, 2)] * EPOCHS


class Samples(Dataset[int]):
    def __len__(self):
        return len(DATA)

    def __getitem__(self, index):
        return index


def test_a_sampler_without_a_loader_goes_on_where_the_one_before_it_stopped(recorded):
    loader, samples = DataLoader(DATA, batch_size=2, shuffle=True), Samples()
    for data in (DATA, samples):
        own = orders(recorded, lambda data=data: BatchSampler(RandomSampler(data), 2, False))
        assert own == orders(recorded, lambda: loader)


def test_an_order_that_seeding_repeats_is_seen_to(recorded):
    own = orders(recorded, lambda: [torch.randperm(len(DATA))], lambda: torch.manual_seed(7))
    assert own[1] == own[2]


def test_seeds_of_their_own_change_nothing_about_the_orders(recorded):
    """As every fold has: a loader's passes do not hang on them either."""
    seeds = iter(range(3 * EPOCHS))

    def seed():
        torch.manual_seed(100 + next(seeds))

    loader = DataLoader(DATA, batch_size=2, shuffle=True)
    passes = orders(recorded, lambda: loader, seed)
    assert orders(recorded, lambda: torch.randperm(len(DATA)).split(2), seed) == passes


def test_two_orders_after_one_seed_are_two(recorded):
    def twice():
        return [torch.randperm(len(DATA)), torch.randperm(len(DATA))]

    own = orders(recorded, twice, lambda: torch.manual_seed(7))
    first, second = own[1][: len(DATA)], own[1][len(DATA) :]
    assert own[2][: len(DATA)] == first != second


def test_orders_of_other_lengths_are_counted_apart(recorded):
    def split_first():
        torch.randperm(4)
        return torch.randperm(len(DATA)).split(2)

    expected = orders(recorded, lambda: torch.randperm(len(DATA)).split(2))
    assert orders(recorded, split_first) == expected


def test_what_has_a_generator_or_makes_a_sample_draws_as_it_did(recorded):
    class Drawn(Dataset[int]):
        def __len__(self):
            return len(DATA)

        def __getitem__(self, index):
            return int(torch.randperm(1000)[0])

    def seen(workers):
        return orders(recorded, lambda: DataLoader(Drawn(), batch_size=2, num_workers=workers))

    assert seen(0) == seen(1)
    generator = torch.Generator().manual_seed(3)
    own = torch.randperm(len(DATA), generator=torch.Generator().manual_seed(3)).tolist()
    assert orders(recorded, lambda: [torch.randperm(len(DATA), generator=generator)])[0] == own


def test_a_thread_of_the_script_draws_as_it_did(recorded):
    def in_a_thread():
        drawn = []
        thread = threading.Thread(target=lambda: drawn.append(torch.randperm(len(DATA))))
        thread.start()
        thread.join()
        return [*drawn, torch.randperm(len(DATA))]

    own = [one[len(DATA) :] for one in orders(recorded, in_a_thread)]
    assert own == orders(recorded, lambda: [torch.randperm(len(DATA))])


def test_the_shuffles_of_loaders_that_are_built_anew_over_other_data(recorded):
    """As the original's passes are: each loader begins with the first shuffle."""
    first = shuffled(recorded, lambda epoch: DataLoader(Rows(epoch), batch_size=4, shuffle=True))
    hint = shuffled_passes(first[0])
    assert hint == ((6, 0),) * EPOCHS
    run, own = shuffled(recorded, lambda epoch: Rows(epoch).batches(), shuffled=hint)
    assert own == first[1]
    assert run.own_shuffles == {6: EPOCHS}
    mixed = replace(first[0], own_shuffles={6: 1})
    assert shuffled_passes(mixed) == ()
    kept = DataLoader(Rows(0), batch_size=4, shuffle=True)
    assert shuffled_passes(shuffled(recorded, lambda epoch: kept)[0]) == ()


def test_what_a_compiler_makes_a_graph_of_is_no_shuffle(recorded):
    """As inductor does of the patterns that it looks for, in some versions of torch only."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    found = []

    def train():
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = torch.random.get_rng_state()
        with FakeTensorMode():
            graph = make_fx(lambda x: torch.randperm(x.shape[0], device=x.device))(torch.empty(4))
        found.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        assert torch.equal(before, torch.random.get_rng_state())
        model(torch.ones(len(torch.randperm(3)), 1)).sum().backward()
        optimizer.step()

    assert recorded(train).own_shuffles == {3: 1}
    assert found == [torch.ops.aten.randperm.default]


class Rows(Dataset[int]):
    """Six rows that are drawn for ``epoch``."""

    def __init__(self, epoch):
        self.rows = torch.arange(6) + 10 * epoch

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]

    def batches(self):
        return self.rows[torch.randperm(len(self.rows))].split(4)


def shuffled(recorded, batches, **how):
    """The run, and the places of the rows in the order they were trained on."""
    found: list[list[int]] = []

    def train():
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(EPOCHS):
            found.append([])
            for batch in batches(epoch):
                optimizer.zero_grad()
                model(batch[:, None].float()).sum().backward()
                optimizer.step()
                found[-1] += [int(row) % 10 for row in batch]

    return recorded(train, **how), found
